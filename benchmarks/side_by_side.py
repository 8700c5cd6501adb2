"""Measuring contestants side by side: interleaved rounds in one process, medians, ratios to the floor.

Absolute times depend on the machine's disk; carry the ratios.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

Contestant = Callable[[Path], float]
"""Does the work in a fresh folder, checks its result, returns the seconds the work itself took."""


def compare(
    question: str, floor: str, contestants: dict[str, Contestant], *, rounds: int, unit: str, per: int
) -> dict[str, float]:
    """Print a table and return each contestant's ratio to `floor` (medians over interleaved rounds).

    Times are given in microseconds per `unit`, of which one round does `per`.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for round_number in range(rounds + 1):
        for name, contestant in contestants.items():
            with tempfile.TemporaryDirectory(prefix="flightlog-bench-") as folder:
                gc.collect()
                seconds = contestant(Path(folder))
            if round_number:  # the first round warms caches up
                times[name].append(seconds / per * 1e6)
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"\n{question}")
    for name, median in medians.items():
        spread = max(times[name]) / min(times[name])
        print(f"  {name:<44} {median:9.1f} us/{unit}   {median / medians[floor]:5.2f}x   (spread {spread:.2f})")
    return {name: median / medians[floor] for name, median in medians.items()}


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
