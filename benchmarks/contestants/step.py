"""The work that all contestants do: a user message, an answer with one call (300 B), its result (2 KB)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

NAME = "look_up"


def question(number: int) -> str:
    """What the user says."""
    return f"question {number}"


def arguments(number: int) -> str:
    """The arguments of the call, as JSON."""
    return f'{{"query":"{number:0>288}"}}'


def result(number: int) -> str:
    """What the tool says."""
    return f"{number:0>8}: ".ljust(2048, "x")


class Pace:
    """What a contestant asks before each of its steps. It works as many as it is told to, and then reports and waits.

    So one process can let the contestants, each in a process of its own, work in turns.
    """

    def __init__(self) -> None:
        self._left = 0
        self._began: tuple[float, float] | None = None
        self._taken: list[tuple[float, float]] = []

    def more(self) -> bool:
        """Whether there is a step to do. What went on since the last time was the step before."""
        if self._began:
            now, cpu = time.perf_counter(), time.process_time()
            self._taken.append((now - self._began[0], cpu - self._began[1]))
        if not self._left:
            print([[round(wall * 1e6), round(cpu * 1e6)] for wall, cpu in self._taken], flush=True)
            self._taken.clear()
            self._left = int(sys.stdin.readline() or "0")
        self._left -= 1
        self._began = (time.perf_counter(), time.process_time())
        return self._left >= 0


Resume = Callable[[Path], int | Callable[[], int]]
"""Goes on in a folder; returns how many steps there were, or what finds out, if that takes time of its own."""


class Contestant(NamedTuple):
    """Does step after step in a folder, and reads back in another process how many it did before it was killed."""

    run: Callable[[Path, Pace], None]
    resume: Resume
