"""Does a session cost more the longer it is? A step late against one early, and opening logs of three lengths.

In memory where there is such a folder: what is compared is our own work, not the disk's.
"""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import trio

import flightlog
from durable_turn import Model, look_up
from flightlog.testing import Bundle
from many_sessions import work

SIZES = (1_000, 10_000, 100_000)
STEPS_PER_TURN = 2
WINDOW_TURNS = 25
"""So many turns are timed together, early and late."""
ROUNDS_EVENTS = 10_000
"""A log is opened again until so many events were read, for a median."""


async def grown(folder: Path) -> tuple[float, float, int]:
    """Let a session grow to the largest size, keeping a copy at each.

    Returns the seconds that a step took early and late, and the steps in all.
    """
    plugin, turns = Bundle(adapters=[Model()], tools=[look_up]), 0
    sizes, windows = list(SIZES), list[float]()
    async with (
        flightlog.open_kernel(folder / "log.db", discover=False, plugins=[plugin]) as kernel,
        kernel.session("s", model="bench:m") as session,
    ):
        await work(session, 5)
        while sizes:
            gc.collect()
            start = time.perf_counter()
            await work(session, WINDOW_TURNS)
            windows.append((time.perf_counter() - start) / WINDOW_TURNS / STEPS_PER_TURN)
            turns += WINDOW_TURNS
            if session.token.seq >= sizes[0]:
                await kernel.backup(folder / f"{sizes.pop(0)}.db")
    few = max(1, len(windows) // 20)
    return statistics.median(windows[:few]), statistics.median(windows[-few:]), turns * STEPS_PER_TURN


async def opening(path: Path) -> tuple[float, int]:
    """Seconds to open the log and resume its session, and how many events that were."""
    plugin = Bundle(adapters=[Model()], tools=[look_up])
    start = time.perf_counter()
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[plugin]) as kernel,
        kernel.session("s", model="bench:m") as session,
    ):
        return time.perf_counter() - start, session.token.seq


def main() -> dict[str, float]:
    """Measure."""
    shared = "/dev/shm"
    with tempfile.TemporaryDirectory(
        dir=shared if os.access(shared, os.W_OK) else None, prefix="flightlog-bench-"
    ) as name:
        folder = Path(name)
        early, late, steps = trio.run(grown, folder)
        print(f"\na step of a session of {steps:,} steps")
        print(f"  {'early':<44} {early * 1e6:9.1f} us/step    1.00x")
        print(f"  {'late':<44} {late * 1e6:9.1f} us/step   {late / early:5.2f}x")
        print("\nopening a log and resuming its session")
        per_event: list[float] = []
        for size in SIZES:
            seconds, events = zip(
                *(trio.run(opening, copied(folder, size)) for _ in range(max(1, ROUNDS_EVENTS // size))), strict=True
            )
            per_event.append(statistics.median(seconds) / events[0])
            ratio, total_ms = per_event[-1] / per_event[0], statistics.median(seconds) * 1000
            print(
                f"  {f'{events[0]:,} events':<44} {per_event[-1] * 1e6:9.1f} us/event  {ratio:5.2f}x   ({total_ms:.0f} ms)"
            )
    return {
        f"a step after {steps:,} / early": late / early,
        f"opening, an event of {SIZES[-1]:,} / of {SIZES[0]:,}": per_event[-1] / per_event[0],
    }


def copied(folder: Path, size: int) -> Path:
    """A fresh copy: opening a log adds to it."""
    path = folder / "opened.db"
    for suffix in ("-wal", "-shm", "-head"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    return Path(shutil.copyfile(folder / f"{size}.db", path))


if __name__ == "__main__":
    main()
