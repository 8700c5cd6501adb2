"""The same run every time: scheduler, clock, ids and host are the laboratory's."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any, Final

import trio

from flightlog.core import snapshot
from flightlog.runtime import clock as kernel_clock
from flightlog.runtime import committing, recovery
from flightlog.runtime.clock import Clock
from flightlog.store import log_file, store
from flightlog.testing import fixed_clock

_SNAPSHOT_ROWS: Final = 5
_LIFE_US: Final = 3_600_000_000
_START_US: Final = 1_700_000_000_000_000


def clock_of(life: int) -> Clock:
    """The clock of a process's life number `life`: later than those before it, with ids of its own."""
    ticking, ids = fixed_clock(_START_US + life * _LIFE_US), count(1)
    return Clock(
        now_us=ticking.now_us, monotonic_us=ticking.monotonic_us, new_id=lambda: f"{life:016x}{next(ids):016x}"
    )


def reseed(seed: int) -> None:
    """Let trio run the tasks that are ready at the same time in the order that `seed` decides."""
    trio._core._run._r.seed(seed)


class _Shadow:
    """A module with some of its functions replaced."""

    def __init__(self, module: object, **replaced: object) -> None:
        self._module = module
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Jumping(_Shadow):
    """A `time` in which sleeping takes none, and all that it should."""

    def __init__(self) -> None:
        super().__init__(time)
        self._now_s = 0.0

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds


@contextmanager
def deterministic() -> Iterator[None]:
    """What runs inside depends on its input only. Enter it before `trio.run`."""
    replaced: tuple[tuple[object, str, object], ...] = (
        # The switch that trio's own support for Hypothesis turns on: importing that is enough, but too much.
        (trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        (recovery, "os", _Shadow(os, getpid=lambda: 1)),
        (recovery, "socket", _Shadow(socket, gethostname=lambda: "laboratory")),
        # Who looks for letters does so in longer strides when trio's clock jumps, which it finds out by this one.
        (kernel_clock, "time", _Shadow(time, monotonic=lambda: 0.0)),
        (log_file, "time", _Jumping()),
        (committing, "BUSY_POLL_S", 1.0),  # half a minute of waiting for a lock in thirty looks
    )
    with _replaced(replaced):
        yield


@contextmanager
def slow_disk() -> Iterator[None]:
    """Commits made inside leave their sync, and a full -wal, to a later moment; other tasks run before and after it.

    As on a disk that is waited for in a thread, but in an order that the seed decides.
    """

    async def in_turn(work: Callable[[], None]) -> None:
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()
            work()
            await trio.lowlevel.checkpoint()

    with _replaced(
        (
            (committing, "is_simulated", lambda: False),
            (committing, "off_loop", in_turn),
            (store, "SLOW_SYNC_S", -1.0),
        )
    ):
        yield


@contextmanager
def frequent_snapshots() -> Iterator[None]:
    """Each session takes one after a handful of rows, so that there is one at every stage of a short life."""
    with _replaced(((snapshot, "is_due", lambda rows, _: rows >= _SNAPSHOT_ROWS),)):
        yield


@contextmanager
def _replaced(replaced: Iterable[tuple[object, str, object]]) -> Iterator[None]:
    with ExitStack() as undo:
        for module, name, value in replaced:
            undo.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        yield
