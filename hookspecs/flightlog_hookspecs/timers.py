"""Timers: messages that a session is sent at their time, and the port through which tools set them."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from attrs import frozen


@frozen(kw_only=True)
class OpenTimer:
    """A timer that is still to fire."""

    name: str
    """What it is cancelled by; unique in its session."""
    due: datetime
    """When it fires next, in UTC."""
    every_s: float | None
    """The seconds between its runs, None for one that fires once."""
    text: str
    """The words of its message."""
    by: str
    """Who set it."""


class Timers(Protocol):
    """The timers of the session that a tool was called in.

    The same call sets the same timers, however often its body runs: one that was set before is not set again. What
    cannot be done is refused with a `ToolError` before anything happens: too many open timers, a period under a second,
    a time without a zone, a timer in a child session (which ends with its task).
    """

    def now(self) -> datetime:
        """What the kernel's clock shows, in UTC."""

    def open(self) -> tuple[OpenTimer, ...]:
        """Those still to fire, in the order in which they were set."""

    async def set(
        self,
        text: str,
        *,
        at: datetime | None = None,
        after_s: float | None = None,
        every_s: float | None = None,
        times: int | None = None,
    ) -> str:
        """Send the session `text` at a time, after some seconds or every so many; returns the timer's name, durably.

        Of `at` and `after_s` there may be one: the first run. Without one, a timer that repeats is due after its first
        period. It fires `times` times, or until it is cancelled.
        """

    async def cancel(self, name: str) -> bool:
        """Let it not fire any more. False when it was not to fire any more anyway, or never set."""
