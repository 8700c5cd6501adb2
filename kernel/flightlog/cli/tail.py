"""`flightlog tail`: the newest events of a session, and with -f those to come, whoever writes them."""

from __future__ import annotations

import click
import trio

from flightlog import LogReader
from flightlog.cli.answered import Answered
from flightlog.cli.exits import FINE
from flightlog.cli.json_form import record_form
from flightlog.cli.numbers import WholeType
from flightlog.cli.options import db_option, json_option, log_to_read
from flightlog.cli.output import Output
from flightlog.cli.timeline import separate, show_entry, show_head
from flightlog.runtime.reader import open_log, settled_questions


@click.command(short_help="Show the newest events of a session, and follow it.")
@click.argument("session", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, by any process, until Ctrl+C.")
@click.option("-n", "--lines", metavar="N", default=10, type=WholeType(0), help="So many to begin with. [10]")
@click.option("--after", metavar="ROW", type=WholeType(0), help="Begin behind that row instead.")
@db_option
@json_option
def tail(session: str, follow: bool, lines: int, after: int | None, db: str | None, as_json: bool) -> int:
    """Show the last events of session ID, as `show` does; with -f, go on as they are written.

    Nothing is changed or owned: a session may be followed while another process drives it.
    """
    path = log_to_read(db)
    output = Output(as_json=as_json)
    with open_log(path, discover=False) as log:
        try:
            trio.run(_show, log, session, output, follow, lines, after)
        except KeyboardInterrupt:
            if not follow:
                raise
    return FINE


async def _show(log: LogReader, session: str, output: Output, follow: bool, lines: int, after: int | None) -> None:
    reader = log.session(session)
    last = next(summary.last_seq for summary in log.sessions() if summary.session == session)
    reached = max(0, last - lines) if after is None else after
    if not output.as_json:
        show_head(output)
    stream = reader.events(after=reached)
    answered = Answered(settled_questions(reader, reached))
    while follow or reached < last:
        record = await anext(stream)
        reached = record.seq
        if output.as_json:
            output.json(record_form(record))
        else:
            for entry in separate([record]):
                show_entry(entry, output, answered)
