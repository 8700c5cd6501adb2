"""Running one child under watch: until it comes to rest, or is ended from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import trio
from attrs import define, field

from flightlog.runtime.error_groups import single_error

CANCELLED: Final = "parent cancelled"
LATE: Final = "time limit"


class Child(Protocol):
    """An owned session."""

    async def followup(self, content: str, *, key: str) -> object:
        """Queue a message."""

    async def run(self, *, children: bool) -> object:
        """Drive until idle and its own children have settled."""

    def cancel(self, cause: str, *, now: bool = False) -> bool:
        """End the running turn."""

    async def take_letters(self) -> None:
        """Take the letters that wait."""

    async def close(self, *, now: bool = False) -> None:
        """End the running turn, or leave it open as its session does, and refuse everything from now on."""


@define(eq=False)
class Halt:
    """What ends a child in the background: its parent leaves it as it is, or ends its task because of `cause`."""

    said: trio.Event = field(factory=trio.Event, init=False)
    cause: str = field(default="", init=False)

    def leave(self) -> None:
        """Leave it to the next owner."""
        self.said.set()

    def end(self, cause: str) -> None:
        """End its task. What was said first counts."""
        if not self.said.is_set():
            self.cause = cause
            self.said.set()


@define(eq=False)
class Stopping:
    """How a call comes to its end that waits for a child: once `said`, the child is cancelled, or left as it is.

    `leaves` says which, `now` that its tools get no time. `cut` cuts the call off that has `left` its child: the next
    owner goes on with both.
    """

    said: trio.Event
    leaves: Callable[[], bool]
    now: Callable[[], bool]
    cut: Callable[[], None]
    left: bool = field(default=False, init=False)


Watch = Callable[[trio.CancelScope, trio.Event], Awaitable[None]]
"""Ends a run that must come to an end: given the scope it runs in, and what says that it is over."""


async def run_until(child: Child, watch: Watch) -> None:
    """Run the child under `watch`. When this is cancelled, so is `watch` alone."""
    over = trio.Event()
    with single_error():
        async with trio.open_nursery() as nursery:
            with trio.CancelScope(shield=True) as scope:
                nursery.start_soon(watch, scope, over)
                await child.run(children=True)
            over.set()
            nursery.cancel_scope.cancel()


async def cancel_when(
    child: Child, stopping: Stopping, limit_s: float, run: trio.CancelScope, over: trio.Event
) -> None:
    """Cancel the child's turn when its call is to stop or took too long, and at once when that is cancelled.

    Where the call is left for the next owner, the child is, too: what it waits for and has under way is kept.
    """
    try:
        with trio.move_on_after(limit_s) as late:
            await stopping.said.wait()
        if late.cancelled_caught or not stopping.leaves():
            if not child.cancel(LATE if late.cancelled_caught else CANCELLED):
                run.cancel()  # it has not begun, or waits for children of its own
            await trio.sleep_forever()
    finally:
        if not over.is_set():
            if stopping.leaves():
                stopping.left = True
                with trio.CancelScope(shield=True):
                    await child.close(now=stopping.now())
                run.cancel()
            elif not child.cancel(CANCELLED, now=True):
                run.cancel()


async def halt_when(child: Child, halt: Halt, limit_s: float, run: trio.CancelScope, over: trio.Event) -> None:
    """Cancel the child's turn when it is ended or its time is up.

    When it is left, it is closed: a turn that waits for people stays as it is.
    """
    try:
        with trio.move_on_after(limit_s):
            await halt.said.wait()
        halt.end(LATE)
        if halt.cause:
            if not child.cancel(halt.cause):
                run.cancel()
            await trio.sleep_forever()
    finally:
        if not over.is_set():
            with trio.CancelScope(shield=True):
                await child.close()
            run.cancel()
