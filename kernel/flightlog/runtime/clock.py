"""Time and randomness. Nothing outside this module reads the clock or makes an id."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from typing import Final

import trio
from attrs import define, frozen

from flightlog.core.limits import LOOK_AT_CLOCK_S


@frozen(kw_only=True)
class Clock:
    """Where time and ids come from; tests pass their own.

    `now_us`: wall clock in Unix microseconds, may jump. `monotonic_us`: for durations, never jumps.
    `new_id`: a random id of 32 hex digits, never repeated.
    """

    now_us: Callable[[], int] = lambda: time.time_ns() // 1000
    monotonic_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000
    new_id: Callable[[], str] = lambda: secrets.token_hex(16)

    async def until(self, due_us: int | None, unless: trio.Event | None = None) -> None:
        """Return once the wall clock shows `due_us` or later, or once `unless` is set; None is never.

        It is looked at every second, for it may be put forward, or the machine may sleep.
        """
        unless = trio.Event() if unless is None else unless
        if due_us is None:
            await unless.wait()
            return
        strides = Strides(LOOK_AT_CLOCK_S)
        while not unless.is_set() and (left_us := due_us - self.now_us()) > 0:
            await strides.pause(most_s=left_us / 1_000_000, unless=unless)


_STRIDE_MAX_S: Final = 10.0


@define
class Strides:
    """Pauses of `pause_s` seconds between looks at something, in longer strides where trio's clock jumps.

    Tests let days of waiting pass at once; looking fifty times for each second of them would take hours.
    """

    pause_s: float
    _stride_s: float = 0.0

    async def pause(self, *, most_s: float = math.inf, unless: trio.Event | None = None) -> None:
        """Wait for the next look: `most_s` seconds at most, and not once `unless` is set."""
        before_s, stride_s = time.monotonic(), min(max(self._stride_s, self.pause_s), most_s)
        with trio.move_on_after(stride_s) as over:
            await (trio.Event() if unless is None else unless).wait()
        jumped = over.cancelled_caught and time.monotonic() - before_s < stride_s / 2
        self._stride_s = min(max(self._stride_s, self.pause_s) * 2, _STRIDE_MAX_S) if jumped else 0.0


Boundary = Callable[[str, str, int], None]
"""on_boundary(name, session, seq): called around every commit and effect, for fault tests and spans.

Names: "commit" and "committed" (seq: the append's last), "request" (about to call the adapter),
"delta" (one arrived), "tool" and "tool-done" (a body starts, has ended; seq: the last one committed).
"""


def no_boundary(name: str, session: str, seq: int) -> None:
    """The default: nothing listens."""
