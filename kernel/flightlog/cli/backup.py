"""`flightlog backup`: a copy of the whole file, also while it is in use."""

from __future__ import annotations

import os

import click

from flightlog.cli.exits import FINE
from flightlog.cli.options import PathType, db_option, json_option, log_to_read
from flightlog.cli.output import Output
from flightlog.cli.terminal_text import counted, one_line
from flightlog.runtime.reader import open_log


@click.command(short_help="Copy the whole log while it is in use.")
@click.argument("dest", metavar="DEST", type=PathType(dir_okay=False))
@db_option
@json_option
def backup(dest: str, db: str | None, as_json: bool) -> int:
    """Copy the whole log to the new file DEST, consistent while others write.

    A plain copy of a file in use lacks what stands in its -wal; this one does not, and it opens as one
    that was closed cleanly. DEST never stands there half written.
    """
    output = Output(as_json=as_json)
    with open_log(log_to_read(db), discover=False) as log:
        log.backup(dest)
    with open_log(dest, discover=False) as copy:
        sessions = len(copy.names())
    if as_json:
        output.json({"file": os.path.abspath(dest), "sessions": sessions, "bytes": os.path.getsize(dest)})
    else:
        output.line((one_line(dest), "bold"), f": {counted(sessions, 'session')} copied")
    return FINE
