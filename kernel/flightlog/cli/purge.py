"""`flightlog purge`: remove sessions for good."""

from __future__ import annotations

import click

from flightlog.cli.exits import FINE
from flightlog.cli.json_form import plain
from flightlog.cli.options import db_option, json_option, log_to_read
from flightlog.cli.output import Output
from flightlog.cli.terminal_text import counted, one_line
from flightlog.runtime.upkeep import purge as purge_log


@click.command(short_help="Remove sessions for good.")
@click.argument("sessions", metavar="ID...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do it. Without, say what would go, and change nothing.")
@db_option
@json_option
def purge(sessions: tuple[str, ...], yes: bool, db: str | None, as_json: bool) -> int:
    """Remove the sessions ID, and the letters to them, for good: no byte of them stays in the file.

    Nobody may have the file open. A fork of a session holds what that said, and stays.
    """
    path = log_to_read(db)
    output = Output(as_json=as_json)
    report = purge_log(path, *sessions, dry_run=not yes)
    if as_json:
        output.json({"purged": yes, "file": path, **plain(report)})
        return FINE
    names = ", ".join(map(one_line, report.sessions))
    what = f"{counted(report.events, 'event')}, {counted(report.letters, 'letter')}"
    where = f"for good from {one_line(path, len(path))}"
    output.line(
        (names, "bold"), f": {what} removed {where}" if yes else f": {what} would be removed {where}; --yes does it"
    )
    return FINE
