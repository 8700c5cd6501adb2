"""`flightlog fuzz`: crash the kernel everywhere, with your workload or its own, and show what came of it."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

import click
from attrs import evolve

from flightlog.cli.exits import FAILED, FINE
from flightlog.cli.numbers import SecondsType, WholeType
from flightlog.cli.options import PathType, json_option
from flightlog.cli.output import Output, complain
from flightlog_hookspecs.errors import UsageError

if TYPE_CHECKING:
    from flightlog.testing.faults.fuzz import Chunk
    from flightlog.testing.faults.report import Report


@click.command(short_help="Crash the kernel everywhere, and see that its promises are kept.")
@click.option(
    "--profile",
    type=click.Choice(["quick", "pr", "deep"]),
    default="quick",
    show_default=True,
    help="How hard to look: for about a minute, ten minutes, or until it is stopped.",
)
@click.option("--seed", type=WholeType(0), default=0, show_default=True, help="Where the rounds begin.")
@click.option("--rounds", type=WholeType(1), help="End after so many: the same work whenever it is repeated.")
@click.option("--points", type=WholeType(1), help="Begin nothing more after so many crashes and faults.")
@click.option("--seconds", type=SecondsType(0), help="End after so long. Default: the profile's.")
@click.option("--workload", "workloads", metavar="MODULE:NAME", multiple=True, help="Yours, or the name of a script.")
@click.option("--jobs", type=WholeType(1), default=1, show_default=True, help="Processes at work.")
@click.option("--state", type=PathType(dir_okay=False), help="Note what is done in this file, and go on from it.")
@click.option("--save", metavar="DIR", type=PathType(file_okay=False), help="Keep the files of violations there.")
@click.option("--table", type=PathType(dir_okay=False), help="Write the table to this Markdown file, too.")
@click.option("--replay", metavar="FILE", type=PathType(dir_okay=False), help="Only judge a kept file again.")
@json_option
def fuzz(
    profile: str,
    seed: int,
    rounds: int | None,
    points: int | None,
    seconds: float | None,
    workloads: tuple[str, ...],
    jobs: int,
    state: str | None,
    save: str | None,
    table: str | None,
    replay: str | None,
    as_json: bool,
) -> int:
    """Let the power fail at every operation on the disk, again while recovering, and let the disk itself fail.

    The real kernel runs its own scripts, or your --workload (see docs/faults.md). Prints the table; each
    violation comes with the line of Python that repeats it. Exits with 1 if there is any.
    """
    from flightlog.testing.faults import fuzz as lab
    from flightlog.testing.faults.golden import keep
    from flightlog.testing.faults.workloads import named

    output = Output(as_json=as_json)
    sys.path.insert(0, os.getcwd())
    if replay:
        return _judge_again(replay, output)
    for workload in workloads:
        named(workload)  # raises when there is none
    for option, path in (("--state", state), ("--table", table), ("--save", save)):
        if path:
            _check_writable(option, path)
    effort = lab.PROFILES[profile]
    if seconds is None and (rounds or points):
        seconds = float("inf")
    effort = effort if seconds is None else evolve(effort, seconds=seconds)
    kept: list[str] = []

    def watch(chunk: Chunk, report: Report) -> None:
        if save:
            # One of a kind: a bug that shows shows at hundreds of places.
            first = {one.promise: one.golden for one in reversed(report.violations) if one.golden}
            kept.extend(keep(golden, promise, save) for promise, golden in first.items())
        if not as_json:
            complain(
                f"{chunk.workload}, seed {chunk.seed}: {report.points} points, {len(report.violations)} violations"
            )

    todo = lab.chunks(seed, workloads, rounds)
    total, done = lab.hunt(effort, todo, points=points, jobs=jobs, state=state, watch=watch)
    if table:
        with open(table, "w", encoding="utf-8") as file:
            file.write(lab.page(total, done, _command()))
    if as_json:
        output.json({**total.as_json(), "points": total.points, "chunks": len(done), "kept": kept})
    else:
        output.line(total.table())
        for path in kept:
            output.line(f"kept {path}: flightlog fuzz --replay {shlex.quote(path)}")
    return FAILED if total.violations else FINE


def _check_writable(option: str, path: str) -> None:
    """Raise `UsageError` when nothing can be written at `path`, before hours have gone into what is to be."""
    folder = os.path.dirname(os.path.abspath(path))
    while option == "--save" and not os.path.exists(folder):  # its folders are made
        folder = os.path.dirname(folder)
    there = path if os.path.exists(path) else folder
    if not os.path.isdir(folder) or not os.access(there, os.W_OK):
        raise UsageError(f"{option}: {path} cannot be written; its folder is not there, or is not to be written to")


def _judge_again(path: str, output: Output) -> int:
    from flightlog.testing.faults.golden import Golden

    golden = Golden.load(path)
    broken = golden.broken()
    if output.as_json:
        output.json({"workload": golden.workload, "violations": [[one.promise, one.how] for one in broken]})
    else:
        for one in broken:
            output.line(f"{one.promise}: {one.how}")
        if not broken:
            output.line("every promise is kept")
    return FAILED if broken else FINE


def _command() -> str:
    """The command that was given, without what changes nothing of its result."""
    context = click.get_current_context()
    wanted = ("profile", "seed", "rounds", "points", "seconds", "workloads")
    words = ["flightlog", "fuzz"]
    for name in wanted:
        given = context.params[name]
        for value in given if isinstance(given, tuple) else [given]:
            if value is not None:
                words += [f"--{'workload' if name == 'workloads' else name}", str(value)]
    return shlex.join(words)
