"""`flightlog export` and `flightlog import`: a session as JSONL, out of one file and into another."""

from __future__ import annotations

import os
import sys
from io import BytesIO
from typing import BinaryIO

import click
import trio

from flightlog.api import open_kernel
from flightlog.cli.exits import FINE
from flightlog.cli.options import PathType, db_option, json_option, log_to_read, log_to_write
from flightlog.cli.output import Output
from flightlog.cli.terminal_text import counted, one_line
from flightlog.runtime.arriving import check_export
from flightlog.runtime.reader import open_log
from flightlog_hookspecs.errors import UsageError


@click.command(name="export", short_help="Write a session as JSONL.")
@click.argument("session", metavar="ID")
@click.argument("file", metavar="[FILE]", required=False, type=PathType(dir_okay=False, allow_dash=True))
@db_option
@json_option
def export_command(session: str, file: str | None, db: str | None, as_json: bool) -> int:
    """Write session ID as JSONL, hash chain and all, to the new FILE or to stdout ("-").

    Every row is checked before it is written. Without FILE, stdout holds the export itself.
    """
    file = None if file == "-" else file
    if file is None and as_json:
        raise UsageError("--json says what was written to FILE; without FILE, stdout is the export, which is JSON")
    output = Output(as_json=as_json)
    with open_log(log_to_read(db)) as log:
        head = log.session(session).export(file if file is not None else sys.stdout.buffer)
    if as_json:
        output.json({"session": session, "file": os.path.abspath(file or ""), "events": head.seq, "head": head.digest})
    elif file is not None:
        output.line((one_line(session), "bold"), f": {counted(head.seq, 'event')} written to {one_line(file)}")
    return FINE


@click.command(name="import", short_help="Take in a session from JSONL.")
@click.argument("file", metavar="FILE", type=PathType(dir_okay=False, allow_dash=True))
@db_option
@json_option
def import_command(file: str, db: str | None, as_json: bool) -> int:
    """Take in the session that `flightlog export` wrote to FILE ("-" for stdin).

    All of it is checked first. An export that is cut off, changed or illegal is refused by line, and
    so is a session that is here already; then nothing is changed.
    """
    output = Output(as_json=as_json)
    path = log_to_write(db)
    source = BytesIO(_stdin().read()) if file == "-" else file
    if not os.path.exists(path):
        check_export(source)  # else a log would be made for nothing
    if isinstance(source, BytesIO):
        source.seek(0)
    session, events = trio.run(_import, path, source)
    if as_json:
        output.json({"session": session, "events": events})
    else:
        output.line((one_line(session), "bold"), f": {counted(events, 'event')} taken in")
    return FINE


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise UsageError("stdin is closed; name a FILE, or pipe the export in")
    return sys.stdin.buffer


async def _import(db: str, source: str | BytesIO) -> tuple[str, int]:
    async with open_kernel(db, discover=False) as kernel:
        session = await kernel.import_session(source)
        return session, kernel.read(session).length()
