"""Long hunts: chunk after chunk, each a workload and a seed, until there were enough points or seconds."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count
from multiprocessing import get_context
from typing import Final

import apsw
from attrs import evolve, frozen

from flightlog.testing.faults.io_errors import run_io_errors
from flightlog.testing.faults.power_loss import run_power_loss
from flightlog.testing.faults.report import Report, Violation
from flightlog.testing.faults.workloads import SCRIPTS, named
from flightlog.version import __version__
from flightlog_hookspecs.errors import UsageError

_RANDOM_SCRIPTS_A_ROUND: Final = 3


@frozen(kw_only=True)
class Effort:
    """How hard a chunk looks, and when a hunt has looked enough.

    `points` crashes of the run (None: everywhere, `draws` times where chance decides), `nested` in recoveries,
    `faults` of the disk; a hunt ends after `seconds`.
    """

    points: int | None
    draws: int
    nested: int
    faults: int
    seconds: float


PROFILES: Final = {
    "quick": Effort(points=100, draws=1, nested=9, faults=10, seconds=60),
    "pr": Effort(points=None, draws=1, nested=100, faults=50, seconds=600),
    "deep": Effort(points=None, draws=8, nested=625, faults=40, seconds=4 * 3600),
}


@frozen(order=True)
class Chunk:
    """The part of a hunt that one process does on its own: `workload` as `named` knows it."""

    workload: str
    seed: int

    def run(self, effort: Effort) -> Report:
        """Lose power, lose it again, and let the disk fail."""
        workload = named(self.workload)
        report = run_power_loss(
            workload, seed=self.seed, points=effort.points, draws=effort.draws, nested=effort.nested
        )
        report.merge(run_io_errors(workload, seed=self.seed, points=effort.faults))
        # A workload's own name need not be what finds it.
        report.violations = [_findable(violation, workload.name, self.workload) for violation in report.violations]
        return report


def _findable(violation: Violation, name: str, reference: str) -> Violation:
    golden = evolve(violation.golden, workload=reference) if violation.golden else None
    reproducer = violation.reproducer.replace(f"named({name!r})", f"named({reference!r})")
    return evolve(violation, reproducer=reproducer, golden=golden)


def chunks(seed: int, workloads: Sequence[str] = (), rounds: int | None = None) -> Iterator[Chunk]:
    """All there is to do: `rounds` (or without end) of `workloads`, or of all scripts and some random ones."""
    for number in count(seed) if rounds is None else range(seed, seed + rounds):
        yield from (Chunk(name, number) for name in workloads or [script.name for script in SCRIPTS])
        if not workloads:
            first = number * _RANDOM_SCRIPTS_A_ROUND
            yield from (Chunk(f"random_script({first + i})", number) for i in range(_RANDOM_SCRIPTS_A_ROUND))


def hunt(
    effort: Effort,
    todo: Iterator[Chunk],
    *,
    points: int | None = None,
    jobs: int = 1,
    state: str | None = None,
    watch: Callable[[Chunk, Report], None] = lambda *_: None,
) -> tuple[Report, list[Chunk]]:
    """Do `todo`, or until `points` were tried or `effort.seconds` have passed; returns what came of which.

    `jobs` processes share the work. With the file `state`, chunks that an earlier hunt noted there are not
    done again, and each that is done is noted. `watch` is told of each.
    """
    total, done = Report(), []
    before = _noted(state)
    give_up = time.monotonic() + effort.seconds
    running: dict[Future[Report], Chunk] = {}

    def take(chunk: Chunk, report: Report) -> None:
        total.merge(report)
        done.append(chunk)
        watch(chunk, report)

    def enough() -> bool:
        return time.monotonic() > give_up or (points is not None and total.points >= points)

    def fresh() -> Iterator[Chunk]:
        for chunk in todo:
            if enough():
                return
            if chunk in before:
                take(chunk, before[chunk])
            else:
                yield chunk

    waiting = fresh()
    # Each chunk in a process of its own: it patches its process, and gives back all its memory.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        while True:
            while len(running) < jobs and (chunk := next(waiting, None)):
                running[pool.submit(chunk.run, effort)] = chunk
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                chunk, report = running.pop(future), future.result()
                _note(state, chunk, report)
                take(chunk, report)
    return total, done


def _note(state: str | None, chunk: Chunk, report: Report) -> None:
    if state:
        with open(state, "a", encoding="utf-8") as file:
            file.write(json.dumps({"workload": chunk.workload, "seed": chunk.seed, **report.as_json()}) + "\n")


def _noted(state: str | None) -> dict[Chunk, Report]:
    if not state or not os.path.exists(state):
        return {}
    try:
        with open(state, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        return {Chunk(line.pop("workload"), line.pop("seed")): Report.from_json(line) for line in lines}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{state}: is not what a hunt notes in its state ({error})") from error


def page(total: Report, done: Sequence[Chunk], command: str) -> str:
    """The table of a hunt in Markdown: what it came to, of what, and the `command` that repeats it."""
    seeds = sorted({chunk.seed for chunk in done})
    scripts = Counter("random" if chunk.workload.startswith("random") else chunk.workload for chunk in done)
    return "\n".join(
        [
            "# What the fault laboratory found",
            "",
            f"flightlog {__version__}, SQLite {apsw.sqlite_lib_version()}. Written by",
            "",
            f"    {command}",
            "",
            f"Seeds {', '.join(map(str, seeds))}. Workloads: "
            + ", ".join(f"{name} ({times})" if times > 1 else name for name, times in scripts.items())
            + ".",
            "",
            total.table(),
            "",
        ]
    )
