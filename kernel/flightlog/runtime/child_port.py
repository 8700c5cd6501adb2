"""What the tool of one call may do with children, as long as that call lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from flightlog.runtime.child_run import Stopping
from flightlog_hookspecs.errors import ToolError
from flightlog_hookspecs.events import SubagentSpawned
from flightlog_hookspecs.subagents import ChildEnd, ChildState, Subagent

if TYPE_CHECKING:
    from flightlog.runtime.children import Children

_OUTLIVED: Final = "A call may have to do with children until it ends, and this one has ended."


class OfCall:
    """`flightlog_hookspecs.Children` for one start of a call, until that ends.

    The call has given a child the task `before` when it was started earlier, and cut off.
    """

    def __init__(
        self, children: Children, invocation_id: str, stopping: Stopping, before: SubagentSpawned | None
    ) -> None:
        self._children = children
        self._invocation_id = invocation_id
        self._stopping = stopping
        self._before = before
        self._ended = False
        self._waiting: dict[trio.CancelScope, trio.Event] = {}

    async def run(self, subagent: Subagent, task: str) -> ChildEnd:
        """Let a child work on `task` until it comes to rest."""
        self._check()
        scope = trio.CancelScope()
        over = self._waiting[scope] = trio.Event()
        try:
            with scope:
                return await self._children.run(subagent, task, self._invocation_id, self._stopping, self._taken_up())
        finally:
            del self._waiting[scope]
            over.set()
        raise ToolError(_OUTLIVED)

    async def start(self, subagent: Subagent, task: str) -> str:
        """Let a child work on `task` beside its parent."""
        self._check()
        return await self._children.start(subagent, task, self._invocation_id, self._taken_up())

    async def send(self, subagent: Subagent, child: str, text: str, *, steer: bool = False) -> None:
        """Give a background child more to do."""
        self._check()
        before = self._taken_up()
        await self._children.send(subagent, child, text, self._invocation_id, before, steer=steer)

    async def call_off(self, subagent: Subagent, child: str) -> None:
        """End what a background child does."""
        self._check()
        await self._children.call_off(subagent, child)

    def states(self, subagent: Subagent) -> tuple[ChildState, ...]:
        """How the background children stand."""
        self._check()
        return self._children.states(subagent)

    async def end(self) -> None:
        """The call ends: who still waits for a child, in a task that outlives it, is cut off. Settled on return.

        No cancel keeps it from that.
        """
        self._ended = True
        while self._waiting:
            scope, over = next(iter(self._waiting.items()))
            scope.cancel()
            with trio.CancelScope(shield=True):
                await over.wait()

    def _taken_up(self) -> SubagentSpawned | None:
        """The task from before, once: what comes next would be a second child."""
        before, self._before = self._before, None
        return before

    def _check(self) -> None:
        if self._ended:
            raise ToolError(_OUTLIVED)
