"""Opening a child: an ordinary session, through the same door, that may do less than its parent and never more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Protocol

from attrs import evolve, frozen

from flightlog.core.lending import granting
from flightlog.core.limits import Limits
from flightlog.runtime.child_run import Child
from flightlog.runtime.journal import Journal
from flightlog.runtime.recovery import OnCrash
from flightlog.runtime.registry import Registry
from flightlog_hookspecs.errors import ToolError, UsageError
from flightlog_hookspecs.events import SessionCreated, SubagentSpawned
from flightlog_hookspecs.subagents import Subagent


class OpenSession(Protocol):
    """How a session is opened, and created when there is none: `Kernel.session` for the kernel itself."""

    def __call__(
        self,
        name: str,
        *,
        created: Callable[..., SessionCreated],
        model: str | None,
        system: str | None,
        limits: Limits,
        approver: bool,
        outer: Registry,
        on_crash: OnCrash | None,
        hands_over: bool,
    ) -> AbstractAsyncContextManager[tuple[Child, Journal]]:
        """Own session `name` while the context lasts. What is registered in `outer` is there, too."""


@frozen(kw_only=True)
class House:
    """What a child lives in: its parent's."""

    registry: Registry
    model: str
    limits: Limits
    approver: bool
    on_crash: OnCrash | None
    hands_over: bool
    open: OpenSession
    start_soon: Callable[..., object]
    """Start a task that is the kernel's, not its caller's."""
    redact: Callable[[str], str]
    """What may be written of words that came from outside."""


def tools_for(subagent: Subagent, registry: Registry) -> tuple[str, ...]:
    """The names of the tools that a new child may use. Raises `ToolError` when it cannot be started here."""
    has = registry.tools
    wanted = tuple(sorted(has)) if subagent.tools is None else subagent.tools
    if missing := [name for name in wanted if name not in has]:
        raise ToolError(f"{subagent.name!r} was not started: there is no tool {', '.join(map(repr, missing))} here.")
    changing = [name for name in wanted if has[name].item.tool.effect != "read"]
    if subagent.effect == "read" and changing:
        raise ToolError(
            f"{subagent.name!r} was not started: it says that it only reads, but {', '.join(map(repr, changing))} "
            "may do more."
        )
    return wanted


@asynccontextmanager
async def opened(
    parent: Journal, house: House, task: SubagentSpawned, subagent: Subagent | None, tools: tuple[str, ...] | None
) -> AsyncIterator[tuple[Child, Journal]]:
    """Own the child of `task`. Only one that is given `tools` may be new.

    Raises `UsageError` for one that is none of the parent's or cannot go on, and what opening a session raises.
    """
    if tools is None and parent.store.key_of(task.child) is None:
        raise UsageError("its session is not in this file: it was purged, was left behind by an export, or never began")
    created = partial(
        SessionCreated,
        parent_session=parent.session,
        parent_uid=parent.uid,
        depth=task.depth,
        tools=tools,
    )
    steps = min(task.steps_per_turn or house.limits.steps_per_turn, house.limits.steps_per_turn)
    async with house.open(
        task.child,
        created=created,
        model=(subagent.model or house.model) if subagent else None,
        system=subagent.prompt if subagent else None,
        limits=evolve(house.limits, steps_per_turn=steps),
        approver=house.approver,
        outer=house.registry,
        on_crash=house.on_crash,
        hands_over=house.hands_over,
    ) as (child, journal):
        if journal.state.parent != parent.uid:
            raise UsageError("its session exists already, and is not a child of this one")
        if tools is None and journal.state.repair:
            raise UsageError("its log was repaired, so what it did may be lost. Look at it, and resume it by hand")
        if subagent is None and journal.state.header is None:
            raise UsageError("it had not begun, and no such subagent is registered any more")
        await journal.append(lambda state: granting(state, task, parent.state), barrier=True)
        yield child, journal
