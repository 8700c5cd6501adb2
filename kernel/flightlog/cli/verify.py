"""`flightlog verify`: check everything that can be checked. No byte of the log is changed."""

from __future__ import annotations

from collections.abc import Iterator

import click
from attrs import frozen

from flightlog import LogReader, SessionReader
from flightlog.cli.exits import FINE, REFUSED
from flightlog.cli.json_form import plain
from flightlog.cli.options import db_option, json_option, log_to_read
from flightlog.cli.output import Output, complain
from flightlog.cli.terminal_text import counted, one_line
from flightlog.runtime.reader import open_log
from flightlog_hookspecs.errors import LogCorrupt, StoreError


@frozen(kw_only=True)
class Verdict:
    """What came of checking the file or one session; `events` were checked when nothing is wrong."""

    name: str
    ok: bool
    events: int | None = None
    error: str = ""
    rule: str = ""
    seq: int | None = None


@click.command(short_help="Check everything that can be checked.")
@click.argument("session", metavar="[ID]", required=False)
@db_option
@json_option
def verify(session: str | None, db: str | None, as_json: bool) -> int:
    """Check the file and session ID, or all sessions: hash chain, rules, requests, views.

    Lists every session that is refused; exits with 3 if there is one.
    """
    path = log_to_read(db)
    output = Output(as_json=as_json)
    verdicts: list[Verdict] = []
    for verdict in _verdicts(path, session):
        verdicts.append(verdict)
        if not as_json:
            _print(verdict, path, output)
    faults = [verdict for verdict in verdicts if not verdict.ok]
    if as_json:
        file, *sessions = map(plain, verdicts)
        output.json({"ok": not faults, "file": file, "sessions": sessions})
    if faults:
        more = f" ({counted(len(faults), 'fault')} in all)" if len(faults) > 1 else ""
        complain(f"the log was refused and not changed: {faults[0].error}{more}")
    return REFUSED if faults else FINE


def _verdicts(path: str, session: str | None) -> Iterator[Verdict]:
    """The verdict on the file, then those on the sessions, as far as SQLite can read them."""
    try:
        with open_log(path) as log:
            file = _file_verdict(log, path)
            readers = _chosen(log, session, file)
            yield file
            yield from map(_verdict, readers)
    except StoreError as error:
        yield _refused(path, error)


def _chosen(log: LogReader, session: str | None, file: Verdict) -> list[SessionReader]:
    try:
        return [log.session(name) for name in ([session] if session is not None else log.names())]
    except StoreError:
        if file.ok:
            raise
        return []  # SQLite itself cannot read the file, which is being said


def _file_verdict(log: LogReader, path: str) -> Verdict:
    try:
        log.check_file()
    except StoreError as error:
        return _refused(path, error)
    return Verdict(name=path, ok=True)


def _verdict(reader: SessionReader) -> Verdict:
    try:
        return Verdict(name=reader.session, ok=True, events=reader.verify())
    except StoreError as error:
        return _refused(reader.session, error)


def _refused(name: str, error: StoreError) -> Verdict:
    if isinstance(error, LogCorrupt):
        # What the message goes on to say, to run this very command, would be no news here.
        fault = str(error).partition(". The file was not changed")[0]
        return Verdict(name=name, ok=False, error=fault, rule=error.rule, seq=error.seq)
    return Verdict(name=name, ok=False, error=str(error))


def _print(verdict: Verdict, path: str, output: Output) -> None:
    mark = ("\u2713 ", "green") if verdict.ok else ("\u2717 ", "bold red")
    if verdict.name == path and path in verdict.error:
        output.line(mark, one_line(verdict.error, 2000))
    elif not verdict.ok:
        output.line(mark, (one_line(verdict.name), "bold"), f": {one_line(verdict.error, 2000)}")
    elif verdict.events is None:
        output.line(mark, one_line(verdict.name), (" \u00b7 SQLite finds its structure whole", "dim"))
    else:
        output.line(mark, (one_line(verdict.name), "bold"), (f" \u00b7 {counted(verdict.events, 'event')}", "dim"))
