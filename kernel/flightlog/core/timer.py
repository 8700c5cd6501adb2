"""A timer: a message that waits for its time, once or again and again. Its runs, and when they are due.

All times are Unix microseconds, and a period is a fixed number of them: neither zones nor leap seconds have a say. The
runs of a timer are due at its first time and every period after it; where the clock is put decides when they are seen
to be due, never which runs there are. So one that has fired for a run does not fire for it again, wherever the clock
jumps.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from attrs import evolve, frozen

from flightlog_hookspecs.events import TimerFired, TimerSet

PERIOD_MIN_US: Final = 1_000_000
TIME_MAX_US: Final = 253_402_300_799_999_999
"""The last moment of the year 9999, beyond which nothing is ever due."""


@frozen(kw_only=True)
class Timer:
    """A timer that is still to fire: `fired` times it has, and it does next for the run that is due at `due_us`."""

    set: TimerSet
    due_us: int
    fired: int = 0


def timer_name(origin: str) -> str:
    """The name of the timer that is set by `origin`: a letter, a call, a key. The same one, however often."""
    return f"timer-{sha256(origin.encode(errors='surrogatepass')).hexdigest()[:12]}"


def keyed_name(key: str) -> str:
    """The name of the timer that is set under idempotency key `key`: the same one whoever sets it, and when."""
    return timer_name(f"key {key}")


def misset(event: TimerSet) -> str:
    """Why there can be no such timer; "" when there can."""
    if not event.timer or not event.timer.isprintable():
        return f"{event.timer!r} is no name for a timer"
    if not 0 <= event.due_us <= TIME_MAX_US:
        return "a timer is due between the years 1970 and 9999"
    if event.every_us is None:
        bounded = event.times is not None or event.until_us is not None
        return "only a timer that repeats has `times` or `until`" if bounded else ""
    if not PERIOD_MIN_US <= event.every_us <= TIME_MAX_US:
        return "a timer repeats once a second at most"
    if event.times is not None and event.times < 1:
        return "a timer fires once at least"
    if event.until_us is not None and event.until_us < event.due_us:
        return "a timer cannot end before it is due"
    return ""


def missed_by(timer: Timer, now_us: int) -> int:
    """How many runs beside the one that it fires for have come due by `now_us`, and are done with by it."""
    if timer.set.every_us is None:
        return 0
    return (min(now_us, _last_us(timer)) - timer.due_us) // timer.set.every_us


def firing(timer: Timer, missed: int) -> TimerFired:
    """That it fires, with `missed` runs behind the one that is due."""
    next_us = None
    if timer.set.every_us is not None and (timer.set.times is None or timer.fired + 1 < timer.set.times):
        next_us = timer.due_us + (missed + 1) * timer.set.every_us
        next_us = next_us if next_us <= _last_us(timer) else None
    return TimerFired(timer=timer.set.timer, due_us=timer.due_us, missed=missed, next_us=next_us)


def fired(timer: Timer, event: TimerFired) -> Timer | None:
    """`timer` once it has fired; None when it never does again."""
    return None if event.next_us is None else evolve(timer, due_us=event.next_us, fired=timer.fired + 1)


def _last_us(timer: Timer) -> int:
    return TIME_MAX_US if timer.set.until_us is None else min(timer.set.until_us, TIME_MAX_US)
