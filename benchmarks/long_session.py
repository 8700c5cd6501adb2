"""Does a session cost more the longer it is? A step late against one early, and opening logs of three lengths.

Processor time, in memory where there is such a folder: what is compared is our own work, not the disk's or
that of others on the machine.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import time
from pathlib import Path

import trio

import flightlog
from durable_turn import Model, look_up
from flightlog.testing import Bundle
from flightlog.testing.memory import memory_folder
from many_sessions import work

SIZES = (1_000, 10_000, 100_000)
STEPS_PER_TURN = 2
EARLY_TURNS, WINDOW_TURNS, ROUNDS = 5, 25, 7
OPENED_EVENTS = 10_000
"""A log is opened again until so many events were read, for a median."""


async def grown(folder: Path) -> tuple[float, float, int]:
    """Let a session grow to the largest size, keeping a copy at each.

    Returns the seconds of a step early in a session and late in this one, by turns, and its steps in all.
    """
    plugin, turns, sizes = Bundle(adapters=[Model()], tools=[look_up]), 0, list(SIZES)
    early, late = list[float](), list[float]()
    async with (
        flightlog.open_kernel(folder / "log.db", discover=False, plugins=[plugin]) as kernel,
        kernel.session("s", model="bench:m") as session,
    ):
        while sizes:
            await work(session, WINDOW_TURNS)
            turns += WINDOW_TURNS
            if session.token.seq >= sizes[0]:
                await kernel.backup(folder / f"{sizes.pop(0)}.db")
        for number in range(ROUNDS):
            async with kernel.session(f"early{number}", model="bench:m") as fresh:
                await work(fresh, EARLY_TURNS)
                early.append(await step_s(fresh))
            late.append(await step_s(session))
    return statistics.median(early), statistics.median(late), turns * STEPS_PER_TURN


async def step_s(session: flightlog.Session) -> float:
    """Seconds of a step of the next turns."""
    gc.collect()
    start = time.process_time()
    await work(session, WINDOW_TURNS)
    return (time.process_time() - start) / WINDOW_TURNS / STEPS_PER_TURN


async def opening(path: Path) -> tuple[float, int]:
    """Seconds to open the log and resume its session, and how many events that were."""
    plugin = Bundle(adapters=[Model()], tools=[look_up])
    start = time.process_time()
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[plugin]) as kernel,
        kernel.session("s", model="bench:m") as session,
    ):
        return time.process_time() - start, session.token.seq


def main() -> dict[str, float]:
    """Measure."""
    with memory_folder() as folder:
        early, late, steps = trio.run(grown, folder)
        opened = {size: openings(folder, size) for size in SIZES}
    print("\na step early in a session and late in a long one")
    print(f"  {'early':<44} {early * 1e6:9.1f} us/step    1.00x")
    print(f"  {f'after {steps:,} steps':<44} {late * 1e6:9.1f} us/step   {late / early:5.2f}x")
    print("\nopening a log and resuming its session")
    for size, event_s in opened.items():
        print(f"  {f'{size:,} events':<44} {event_s * 1e6:9.1f} us/event  {event_s / opened[SIZES[0]]:5.2f}x")
    return {
        f"a step after {steps:,} / early": late / early,
        f"opening, an event of {SIZES[-1]:,} / of {SIZES[0]:,}": opened[SIZES[-1]] / opened[SIZES[0]],
    }


def openings(folder: Path, size: int) -> float:
    """Seconds an event to open the log of that size, the median of a few times."""
    times = [trio.run(opening, copied(folder, size)) for _ in range(max(1, OPENED_EVENTS // size))]
    return statistics.median(seconds / events for seconds, events in times)


def copied(folder: Path, size: int) -> Path:
    """A fresh copy: opening a log adds to it."""
    path = folder / "opened.db"
    for suffix in ("-wal", "-shm", "-head"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    return Path(shutil.copyfile(folder / f"{size}.db", path))


if __name__ == "__main__":
    main()
