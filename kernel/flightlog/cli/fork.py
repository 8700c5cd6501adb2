"""`flightlog fork`: go on from an earlier point, in a session of its own."""

from __future__ import annotations

import click
import trio

from flightlog.api import open_kernel
from flightlog.cli.exits import FINE
from flightlog.cli.numbers import WholeType
from flightlog.cli.options import db_option, json_option, log_to_read
from flightlog.cli.output import Output
from flightlog.cli.terminal_text import one_line


@click.command(short_help="Go on from an earlier turn in a new session.")
@click.argument("session", metavar="ID")
@click.argument("turn", metavar="TURN", type=WholeType(1))
@click.argument("new", metavar="NEW")
@click.option("--title", metavar="TEXT", default="", help="The title of the new session. Default: none.")
@db_option
@json_option
def fork(session: str, turn: int, new: str, title: str, db: str | None, as_json: bool) -> int:
    """Make session NEW of what the model saw in session ID up to the end of TURN.

    ID is not changed, and may be running. What waits in its inbox stays there.
    """
    output = Output(as_json=as_json)
    events = trio.run(_fork, log_to_read(db), session, turn, new, title)
    if as_json:
        output.json({"session": new, "origin": session, "turn": turn, "events": events})
    else:
        output.line((one_line(new), "bold"), f": forked from {one_line(session)} at the end of turn {turn}")
    return FINE


async def _fork(db: str, session: str, turn: int, new: str, title: str) -> int:
    async with open_kernel(db) as kernel:
        await kernel.fork(session, turn, new, title=title)
        return kernel.read(new).length()
