"""A parent and its children: two scripted models, one for each generation, in a kernel that can be opened again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import evolve

import flightlog
from flightlog import Kernel, Limits, Session, Turn
from flightlog.runtime.clock import Boundary, Clock, no_boundary
from flightlog.runtime.recovery import Verify
from flightlog.testing import Bundle, FakeModel, fixed_clock
from flightlog_hookspecs import Hook, Subagent
from flightlog_hookspecs.events import Record, SubagentSettled, SubagentSpawned
from support.kernels import events_of, new_id

PARENT_LIMITS = Limits(cancel_grace_s=0)


class Family:
    """Session "s" plays `parent`, every child plays `child` on a model of its own; `scout` is what it may call."""

    def __init__(
        self,
        folder: Path,
        parent: Sequence[Any],
        child: Sequence[Any],
        *,
        tools: Iterable[Any] = (),
        hooks: Iterable[Hook] = (),
        limits: Limits = PARENT_LIMITS,
        approver: bool = False,
        on_boundary: Boundary = no_boundary,
        tools_of_child: tuple[str, ...] | None = None,
        **scout: Any,
    ) -> None:
        self.path = folder / "family.db"
        self.parent, self.child = FakeModel(parent), FakeModel(child, "child")
        self.tools, self.hooks = list(tools), list(hooks)
        self.limits, self.approver, self.on_boundary = limits, approver, on_boundary
        self.verify: Verify = "shown"
        if tools_of_child is not None:
            scout["tools"] = tools_of_child
        options = {"name": "scout", "description": "Looks.", "prompt": "You look.", "model": "child:m"} | scout
        self.subagents = [Subagent(**options)]

    @property
    def models(self) -> list[FakeModel]:
        """Those of both generations."""
        return [self.parent, self.child]

    def clock(self) -> Clock:
        """That of the next kernel."""
        return evolve(fixed_clock(), new_id=new_id)

    @asynccontextmanager
    async def kernel(self) -> AsyncIterator[Kernel]:
        """A kernel with all of it."""
        plugin = Bundle(tools=self.tools, adapters=self.models, hooks=self.hooks, subagents=self.subagents)
        async with flightlog.open_kernel(
            self.path,
            discover=False,
            plugins=[plugin],
            clock=self.clock(),
            on_boundary=self.on_boundary,
            verify=self.verify,
        ) as kernel:
            yield kernel

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """The parent."""
        async with (
            self.kernel() as kernel,
            kernel.session("s", model="fake:m", limits=self.limits, approver=self.approver) as session,
        ):
            yield session

    async def run(self, *texts: str, children: bool = True) -> Turn:
        """Send the parent messages and run it."""
        async with self.session() as session:
            for text in texts:
                await session.followup(text)
            turn = await session.run(children=children)
            assert turn is not None
            return turn


def child_of(path: Path, parent: str = "s") -> str:
    """The name of the only child."""
    (spawned,) = events_of(path, SubagentSpawned, parent)
    return spawned.child


async def settled_in(session: Session, times: int = 1) -> None:
    """Wait until so many tasks of children are settled in the parent's log."""
    async for record in session.events():
        times -= isinstance(record.event, SubagentSettled)
        if not times:
            return


async def until(session: Any, wanted: Callable[[Record], bool]) -> Record:
    """Wait for the first record of a session or reader that is `wanted`."""
    async for record in session.events():
        if wanted(record):
            return record
    raise AssertionError("the session was closed before")
