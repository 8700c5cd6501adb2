"""`flightlog repair`: make a log that is refused one that opens again, without what is not sound."""

from __future__ import annotations

import click

from flightlog.cli.exits import FINE, REFUSED
from flightlog.cli.json_form import plain
from flightlog.cli.options import db_option, json_option, log_to_read
from flightlog.cli.output import Output
from flightlog.cli.terminal_text import counted, one_line
from flightlog.runtime.upkeep import repair as repair_log
from flightlog.store.repairing import SessionLoss


@click.command(short_help="Keep what is sound of a damaged log.")
@click.option("--yes", is_flag=True, help="Do it. Without, say what would be lost, and change nothing.")
@db_option
@json_option
def repair(yes: bool, db: str | None, as_json: bool) -> int:
    """Keep of each session the longest sound beginning, and say in the log what was lost.

    The damaged file is copied first. Nobody may have it open. A sound log is left alone. Exits with 3
    when there is something to repair and --yes is missing.
    """
    path = log_to_read(db)
    output = Output(as_json=as_json)
    report = repair_log(path, dry_run=not yes)
    code = REFUSED if report.damaged and not yes else FINE
    if as_json:
        output.json({"damaged": report.damaged, "repaired": report.backup is not None, **plain(report)})
        return code
    if not report.damaged:
        output.line(("\u2713 ", "green"), f"{one_line(path)}: nothing to repair")
        return code
    for problem in report.problems:
        output.line(("\u2717 ", "bold red"), one_line(problem, 2000))
    for loss in report.sessions:
        output.line(("\u2717 ", "bold red"), (one_line(loss.session), "bold"), f": {_loss(loss)}")
    if report.letters:
        output.line(("\u2717 ", "bold red"), f"{counted(report.letters, 'letter')} lost")
    if report.backup:
        output.line(("\u2713 ", "green"), f"repaired; the damaged file is kept as {one_line(report.backup)}")
    else:
        output.line("Nothing was changed. A backup may hold more than this keeps; --yes repairs.")
    return code


def _loss(loss: SessionLoss) -> str:
    kept = f"{counted(loss.kept, 'event')} kept" if loss.kept else "lost"
    why = f"{one_line(loss.detail, 500)} (rule {loss.rule})"
    return f"{kept}, {counted(loss.dropped, 'event')} left out from seq {loss.seq}: {why}"
