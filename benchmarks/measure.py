"""Measuring contestants side by side: in turns, each with its result checked, and what they come to against another.

Absolute times depend on the machine and its disk; carry the ratios.
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from attrs import field, frozen

Work = Callable[[Path], float]
"""Does the work in a fresh folder, checks its result, returns the seconds that the work itself took."""


@frozen
class Ratio:
    """One answer: a median, and the quartiles it lies between. `reach` and `dream` are what it is to be."""

    name: str
    value: float
    low: float
    high: float
    reach: float | None = None
    dream: float | None = None
    unit: str = "x"
    more_is_better: bool = False

    @property
    def reached(self) -> bool | None:
        """Whether it is what it is to be; None when nothing was asked."""
        if self.reach is None:
            return None
        return self.value >= self.reach if self.more_is_better else self.value <= self.reach


@frozen
class Answer:
    """What a benchmark found: ratios, and curves for the plots, as (x, y) by plot and name."""

    ratios: Sequence[Ratio]
    curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]] = field(factory=dict)


def in_turns(contestants: Mapping[str, Work], *, rounds: int) -> dict[str, list[float]]:
    """The seconds of each contestant, round by round."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for round_number in range(rounds + 1):
        for name, work in contestants.items():
            with tempfile.TemporaryDirectory(prefix="flightlog-bench-") as folder:
                gc.collect()
                taken = work(Path(folder))
            if round_number:  # the first round warms caches up
                seconds[name].append(taken)
    return seconds


def middle(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the quartiles around it."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return median, low, high


def against(name: str, ours: Sequence[float], other: Sequence[float], **wanted: float | bool) -> Ratio:
    """How often `other` goes into `ours`, round by round: what slows a round down slows both."""
    return Ratio(name, *middle([a / b for a, b in zip(ours, other, strict=True)]), **wanted)


def absolute(name: str, values: Sequence[float], unit: str, **wanted: float | bool) -> Ratio:
    """A figure that stands for itself."""
    return Ratio(name, *middle(values), unit=unit, **wanted)


def table(title: str, seconds: Mapping[str, Sequence[float]], *, per: int, unit: str, floor: str) -> None:
    """Print the microseconds each contestant took for one of `per`."""
    print(f"\n{title}")
    for name, values in seconds.items():
        median, low, high = (value / per * 1e6 for value in middle(values))
        ratio = against(name, values, seconds[floor]).value
        print(f"  {name:<44} {median:9.1f} us/{unit}   ({low:.1f} to {high:.1f}) {ratio:7.2f}x")


def show(answer: Answer) -> None:
    """Print the ratios."""
    for ratio in answer.ratios:
        print(f"  {ratio.name:<60} {ratio.value:9.2f} {ratio.unit} ({ratio.low:.2f} to {ratio.high:.2f})")


@contextmanager
def beside(script: str, *arguments: str) -> Iterator[tuple[IO[str], IO[str]]]:
    """Another process that runs `script`, ready by now: what it reads and what it prints. It has ended afterwards."""
    with subprocess.Popen(
        [sys.executable, script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin
        assert other.stdout
        assert other.stdout.readline() == "ready\n"
        yield other.stdin, other.stdout
        other.stdin.close()
    assert other.returncode == 0


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
