"""The timers of one owned session: set, cancelled, let fire by whoever drives it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from attrs import define, field, frozen

from flightlog.core.limits import Limits
from flightlog.core.state import State
from flightlog.core.timer import TIME_MAX_US, Timer, timer_name
from flightlog.core.waking import Wake, fire, refusal, wanted
from flightlog.runtime.inbox import checked_content
from flightlog.runtime.journal import Journal
from flightlog_hookspecs.content import Block, text_of
from flightlog_hookspecs.errors import ToolError, UsageError
from flightlog_hookspecs.events import Event, TimerCancelled
from flightlog_hookspecs.timers import OpenTimer

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
BY_MODEL: Final = "model"


@frozen
class Timers:
    """The timers of one owned session."""

    _journal: Journal
    _limits: Limits

    def of_call(self, invocation_id: str) -> OfCall:
        """The port of one call."""
        return OfCall(self, self._journal, invocation_id)

    def open(self) -> tuple[OpenTimer, ...]:
        """Those still to fire, in the order in which they were set."""
        return tuple(map(_shown, self._journal.state.timers.values()))

    async def set(self, wish: Wake, name: str) -> str:
        """Set timer `name`, unless it was set before; returns the name. Raises `UsageError` when there can be none."""
        now_us = self._journal.clock.now_us()

        def due(state: State) -> Sequence[Event]:
            if name in state.timer_names:
                return ()
            event = wanted(wish, name, now_us)
            if why := refusal(state, event, self._limits.timers_open):
                raise UsageError(f"no timer was set in session {self._journal.session!r}: {why}")
            return (event,)

        await self._journal.append(due, barrier=True)
        return name

    async def cancel(self, name: str, by: str) -> bool:
        """Let it not fire any more. False when it was not to anyway."""
        records = await self._journal.append(
            lambda state: (TimerCancelled(timer=name, by=by),) if name in state.timers else (), barrier=True
        )
        return bool(records)

    async def fire(self) -> None:
        """Let those fire that have come due, unless a turn is open: then they do once it has ended."""
        state = self._journal.state
        if state.timers and fire(state, now_us := self._journal.clock.now_us()):
            await self._journal.append(partial(fire, now_us=now_us), barrier=True)


@define
class OfCall:
    """`flightlog_hookspecs.Timers` for one call."""

    _timers: Timers
    _journal: Journal
    _invocation_id: str
    _set: int = field(default=0, init=False)

    def now(self) -> datetime:
        """What the kernel's clock shows."""
        return datetime_of(self._journal.clock.now_us())

    def open(self) -> tuple[OpenTimer, ...]:
        """Those still to fire."""
        return self._timers.open()

    async def set(
        self,
        text: str,
        *,
        at: datetime | None = None,
        after_s: float | None = None,
        every_s: float | None = None,
        times: int | None = None,
    ) -> str:
        """Send the session `text` at its time."""
        if self._journal.state.parent:
            raise ToolError("No timer was set: a child session ends with its task. Answer, and say when to look again.")
        self._set += 1
        try:
            wish = wished(text, at=at, after_s=after_s, every_s=every_s, times=times, by=BY_MODEL)
            return await self._timers.set(wish, timer_name(f"{self._invocation_id} {self._set}"))
        except UsageError as error:
            raise ToolError(str(error)) from None

    async def cancel(self, name: str) -> bool:
        """Let it not fire any more."""
        return await self._timers.cancel(name, BY_MODEL)


def wished(
    content: str | tuple[Block, ...],
    *,
    at: datetime | None = None,
    after_s: float | None = None,
    every_s: float | None = None,
    until: datetime | None = None,
    times: int | None = None,
    by: str = "user",
) -> Wake:
    """The wish for a timer. Raises `UsageError` for what is none."""
    if at is not None and after_s is not None:
        raise UsageError("a timer is due at a time or after some seconds, not both")
    if at is None and after_s is None and every_s is None:
        raise UsageError("when is the timer due? Give a time, some seconds to wait, or a period")
    if times is not None and (isinstance(times, bool) or not isinstance(times, int) or times < 1):
        raise UsageError(f"times is a whole number from 1 on, not {times!r}")
    if every_s is None and (until is not None or times is not None):
        raise UsageError("only a timer that repeats ends after some times, or at a time")
    return Wake(
        content=checked_content(content),
        at_us=None if at is None else time_us("at", at),
        after_us=None if after_s is None else span_us("after_s", after_s, at_least_s=0),
        every_us=None if every_s is None else span_us("every_s", every_s, at_least_s=1),
        until_us=None if until is None else time_us("until", until),
        times=times,
        by=by,
    )


def time_us(what: str, time: object) -> int:
    """`time` in Unix microseconds. Raises `UsageError` unless it says which moment it means."""
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise UsageError(f"{what} is a datetime with a time zone, such as datetime.now(UTC), not {time!r}")
    return max((time - EPOCH) // timedelta(microseconds=1), 0)


def datetime_of(time_us: int) -> datetime:
    """The moment `time_us` in UTC; the last there is, for what is later."""
    return EPOCH + timedelta(microseconds=min(time_us, TIME_MAX_US))


def span_us(what: str, seconds: object, *, at_least_s: float) -> int:
    """`seconds` in microseconds. Raises `UsageError` when it is no such span of time."""
    most_s = TIME_MAX_US // 1_000_000
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not at_least_s <= seconds <= most_s:  # type: ignore[operator]
        raise UsageError(f"{what} is a number of seconds from {at_least_s:g} on, not {seconds!r}")
    return round(seconds * 1_000_000)  # type: ignore[operator]


def _shown(timer: Timer) -> OpenTimer:
    return OpenTimer(
        name=timer.set.timer,
        due=datetime_of(timer.due_us),
        every_s=None if timer.set.every_us is None else timer.set.every_us / 1_000_000,
        text=text_of(timer.set.content),
        by=timer.set.by,
    )
