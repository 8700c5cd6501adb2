"""The model has itself woken: after some time, at a time, again and again. Never on by default: the host passes it in.

    open_kernel("agent.db", plugins=[WakeUps()])

The tools `wake_me` and `cancel_wake_up`. A wake-up is a timer of the session: it survives restarts, and whoever drives
the session when it is due lets it fire.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from attrs import frozen

from flightlog_hookspecs import OpenTimer, Timers, Tool, ToolContext, hookimpl
from flightlog_hookspecs.errors import ToolError

__all__ = ["WakeUps"]


@frozen
class WakeUps:
    """A plugin with two tools, for a model that has to wait for something, or to look at it again and again."""

    async def wake_me(
        self,
        context: ToolContext,
        note: str,
        after_s: float | None = None,
        at: str | None = None,
        every_s: float | None = None,
        times: int | None = None,
    ) -> str:
        """Have yourself woken later with a note: once, or again and again. End your turn then; do not wait.

        Give after_s or at for one that comes once; every_s for one that repeats, whose first time they may then say.

        Args:
            context: the call
            note: what you are to be told then: what to do, and all that must be known for it
            after_s: seconds from now
            at: a time in ISO 8601 with its zone, as 2031-05-07T09:30:00+02:00
            every_s: seconds from one time to the next
            times: how many times in all; without it, until you cancel it

        """
        timers = _timers(context)
        if not note.strip():
            raise ToolError("What is to be done then? The note is empty.")
        when = None if at is None else _time(at, timers.now())
        name = await timers.set(f"[wake-up] {note}", at=when, after_s=after_s, every_s=every_s, times=times)
        found = [timer for timer in timers.open() if timer.name == name]
        if not found:  # the call was made again after a crash, and it has fired in between
            return f"Wake-up {name} was set."
        return f"It is {_said(timers.now())}. {_described(found[0])}."

    async def cancel_wake_up(self, context: ToolContext, name: str) -> str:
        """Cancel a wake-up, so that it does not come any more.

        Args:
            context: the call
            name: what wake_me called it, as timer-0123456789ab

        """
        timers = _timers(context)
        known = ", ".join(timer.name for timer in timers.open()) or "none"
        if await timers.cancel(name):
            return f"Wake-up {name} does not come any more."
        return f"There is no wake-up {name} that is still to come. These are: {known}."

    @hookimpl
    def register_tools(self, register: Callable[[Tool], None]) -> None:
        """Offer both. Made again after a crash, a call sets and cancels nothing that it did not before."""
        register(Tool(body=self.wake_me, effect="idempotent"))
        register(Tool(body=self.cancel_wake_up, effect="idempotent"))


def _timers(context: ToolContext) -> Timers:
    assert context.timers is not None, "the bodies are async and run on the kernel's thread"
    return context.timers


def _time(at: str, now: datetime) -> datetime:
    try:
        time = datetime.fromisoformat(at)
    except ValueError:
        raise ToolError(f"{at!r} is no time in ISO 8601. It is {_said(now)} now.") from None
    if time.tzinfo is None:
        raise ToolError(f"{at!r} does not say its zone, as in {at}+00:00 for UTC. It is {_said(now)} now.")
    return time


def _described(timer: OpenTimer) -> str:
    again = "" if timer.every_s is None else f", then every {timer.every_s:g} s"
    return f"Wake-up {timer.name} comes at {_said(timer.due)}{again}"


def _said(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds")
