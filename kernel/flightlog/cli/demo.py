"""`flightlog demo`: kill an agent in mid-stream, resume it, and prove from the file that nothing went wrong."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click
from attrs import frozen

from flightlog import Clock
from flightlog.cli.demo_flight import FlightFailed, Landing, fly
from flightlog.cli.demo_proof import Check, Sight, prove
from flightlog.cli.exits import FAILED, FINE
from flightlog.cli.options import PathType, json_option
from flightlog.cli.output import Output, complain
from flightlog.cli.terminal_text import one_line
from flightlog.cli.timeline import Entry, condensed, show_entries
from flightlog.runtime.reader import open_log
from flightlog_hookspecs.errors import FlightlogError, UsageError

TO: Final = 300
NOTE_EVERY: Final = 50
MODEL: Final = f"scripted:count?to={TO}&pace_ms=4&chunk=3&note_every={NOTE_EVERY}&note=notes.txt"
SESSION: Final = "demo"
NOTES: Final = "notes.txt"
_CLEAR_OF_NOTES: Final = range(5, 41)
"""How far past a note the kill may come: where an answer is under way, also a little later."""
_LAST_ROWS: Final = 4


@frozen(kw_only=True)
class Stage:
    """Where the demo plays."""

    folder: str
    db: str
    notes: str


@click.command(short_help="Kill an agent, resume it, prove it whole.")
@click.option(
    "--dir",
    "folder",
    metavar="DIR",
    type=PathType(file_okay=False),
    help="Play in DIR, which must be new or empty, and keep it. Default: a temporary folder.",
)
@click.option("--keep", is_flag=True, help="Keep the temporary folder.")
@json_option
def demo(folder: str | None, keep: bool, as_json: bool) -> int:
    """Kill an agent with SIGKILL in mid-stream, resume it, and prove that nothing was lost or done twice.

    Works offline. Exits with 1, naming the check that failed, if anything is not as it must be.
    """
    output = Output(as_json=as_json, outlives_reader=True)
    stage = _stage(folder)
    ok = False
    try:
        ok = _play(stage, output)
    except FlightlogError as error:
        complain(f"the demo failed: {error}")
        if as_json:
            output.json({"ok": False, "error": str(error), "db": stage.db})
    except BaseException:
        _leave(stage, keep=keep or folder is not None)
        raise
    kept = keep or folder is not None or not ok
    _leave(stage, keep=kept)
    if kept and not as_json:
        output.line(("look around: ", "dim"), shlex.join(["flightlog", "show", SESSION, "--db", stage.db]))
    return FINE if ok else FAILED


def _stage(folder: str | None) -> Stage:
    if folder is None:
        path = tempfile.mkdtemp(prefix="flightlog-demo-")
    else:
        path = os.path.abspath(folder)
        os.makedirs(path, exist_ok=True)
        if os.listdir(path):
            raise UsageError(f"{path} is not empty: the demo needs a folder of its own")
    return Stage(folder=path, db=os.path.join(path, "agent.db"), notes=os.path.join(path, NOTES))


def _leave(stage: Stage, *, keep: bool) -> None:
    if not keep:
        shutil.rmtree(stage.folder, ignore_errors=True)


def _play(stage: Stage, output: Output) -> bool:
    """The whole demo; True when every check holds."""
    aim = _aim()
    _chapter(output, 1, f"An agent counts to {TO} and writes down every {NOTE_EVERY}th number. It will be killed.")
    killed = _fly(stage, output, ["run", f"count to {TO}", "--session", SESSION, "--model", MODEL], aim)
    _chapter(output, 2, f"SIGKILL at {killed.sight.number}, in mid-stream. The last rows in the file: no turn/end.")
    _show_end(stage, output)
    _chapter(output, 3, 'Resumed with "continue", in another process.')
    _fly(stage, output, ["resume", SESSION, "continue"], None)
    _chapter(output, 4, "The flight log.")
    if not output.as_json:
        show_entries(_entries(stage), output)
    _chapter(output, 5, "Proven from the file alone.")
    checks = []
    for check in prove(stage.db, SESSION, stage.notes, TO):
        checks.append(check)
        _show_check(check, output)
    return _verdict(stage, output, killed, checks)


def _fly(stage: Stage, output: Output, arguments: list[str], aim: int | None) -> Landing:
    def shoot(sight: Sight) -> bool:
        clear = sight.number % NOTE_EVERY in _CLEAR_OF_NOTES
        return aim is not None and sight.number >= aim and sight.mid_stream and clear

    with _progress(output) as watch:
        landing = fly([*arguments, "--workspace", stage.folder], stage.db, SESSION, watch=watch, shoot=shoot)
    if aim is not None and landing.code >= 0:
        raise FlightFailed(f"the agent came to {landing.sight.number} and ended before it could be killed")
    return landing


def _aim() -> int:
    """The number to kill at, another one each time: past two notes, short of the last two."""
    chance = int(Clock().new_id(), 16)
    return 2 * NOTE_EVERY + (chance // 2) % 20 + 10 + chance % 2 * NOTE_EVERY


@contextmanager
def _progress(output: Output) -> Iterator[Callable[[Sight], None]]:
    """A moving bar for a person, a line at every note for a file, nothing for a program."""
    if output.as_json:
        yield lambda _: None
    elif output.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("   counting"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=output.console) as progress:
            task = progress.add_task("counting", total=TO)
            yield lambda sight: progress.update(task, completed=min(sight.number, TO))
    else:
        told = 0

        def watch(sight: Sight) -> None:
            nonlocal told
            if sight.number // NOTE_EVERY > told:
                told = sight.number // NOTE_EVERY
                output.line(f"   counting: {sight.number} of {TO}")

        yield watch


def _chapter(output: Output, number: int, title: str) -> None:
    if not output.as_json:
        if number > 1:
            output.line()
        output.line((f"{number}  ", "bold cyan"), (title, "bold"))


def _entries(stage: Stage) -> list[Entry]:
    with open_log(stage.db, discover=False) as log:
        return list(condensed(log.session(SESSION).records(deltas=True)))


def _show_end(stage: Stage, output: Output) -> None:
    if not output.as_json:
        show_entries(_entries(stage)[-_LAST_ROWS:], output)


def _show_check(check: Check, output: Output) -> None:
    if not output.as_json:
        mark = ("   \u2713 ", "green") if check.ok else ("   \u2717 ", "bold red")
        output.line(mark, f"{check.name:50} ", (one_line(check.evidence), "dim"))


def _verdict(stage: Stage, output: Output, killed: Landing, checks: list[Check]) -> bool:
    failing = [check for check in checks if not check.ok]
    if output.as_json:
        output.json(
            {
                "ok": not failing,
                "killed_at": killed.sight.number,
                "killed_pid": killed.pid,
                "session": SESSION,
                "db": stage.db,
                "checks": [{"name": check.name, "ok": check.ok, "evidence": check.evidence} for check in checks],
            }
        )
    elif failing:
        output.line(("FAIL", "bold red"), f"  {failing[0].name}")
    else:
        output.line(("PASS", "bold green"), f"  killed at {killed.sight.number}, resumed, counted to {TO}")
    for check in failing:
        complain(f"the demo failed: {check.name} ({check.evidence})")
    return not failing
