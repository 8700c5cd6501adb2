"""The children of one owned session: given a task by a call, driven, settled in their parent's log.

A child is an ordinary session of the same file, opened through the same door. What is its parent's alone is to
give it a task (`subagent/spawned`, before the child exists) and to say what came of it (`subagent/settled`).

| the child's call     | the turn is cancelled     | the session is closed           | after a crash               |
|----------------------|---------------------------|---------------------------------|-----------------------------|
| waits for it         | the child is cancelled    | as a cancel                     | settled as interrupted      |
| left it beside       | it goes on                | its turn ends; it stays unsettled | taken up in the next `run` |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from functools import partial
from typing import Final, Protocol

import trio
from attrs import frozen

from flightlog.core.children import GO_ON, child_name, goes_on_as, last_words, outcome, settlement, settling
from flightlog.core.inbox import keyed_id, wakes
from flightlog.core.limits import CHILD_POLL_S, Limits
from flightlog.core.state import State
from flightlog.runtime.error_groups import described, single_error
from flightlog.runtime.journal import Journal
from flightlog.runtime.mailbox import Mailbox
from flightlog.runtime.registry import Registry
from flightlog_hookspecs.errors import (
    Fenced,
    InvariantViolation,
    LogCorrupt,
    SchemaTooNew,
    SessionBusy,
    StoreError,
    ToolError,
    UsageError,
)
from flightlog_hookspecs.events import Event, SessionCreated, SubagentSettled, SubagentSpawned, TurnEnd
from flightlog_hookspecs.subagents import ChildEnd, Subagent

CANCELLED: Final = "parent cancelled"
LATE: Final = "time limit"
_OUTLIVED: Final = "A call may have to do with children until it ends, and this one has ended."
_WITHDRAWN: Final = TurnEnd(reason="aborted", cause="its task was withdrawn")


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

    async def close(self) -> None:
        """End the running turn unless it waits for people, and refuse everything from now on."""


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
    ) -> AbstractAsyncContextManager[tuple[Child, Journal]]:
        """Own session `name` while the context lasts. What is registered in `outer` is there, too."""


@frozen(kw_only=True)
class House:
    """What a child lives in: its parent's."""

    registry: Registry
    model: str
    limits: Limits
    approver: bool
    open: OpenSession
    start_soon: Callable[..., object]
    """Start a task that is the kernel's, not its caller's."""
    redact: Callable[[str], str]
    """What may be written of words that came from outside."""


class Children:
    """The children of one owned session. They see no more than it does, and have no more than it has."""

    def __init__(self, journal: Journal, house: House) -> None:
        self._journal = journal
        self._house = house
        self._followed: dict[str, trio.Event] = {}
        self._gates: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
        self._leaving = trio.Event()
        self._news = trio.Event()
        self._fault: StoreError | None = None
        self.woken: Callable[[], None] = lambda: None
        """Called when the session was sent word of a child."""

    @asynccontextmanager
    async def of_call(self, invocation_id: str, stopped: trio.Event) -> AsyncIterator[OfCall]:
        """The port of one call, while that lasts. It is to end once it is `stopped`."""
        port = OfCall(self, invocation_id, stopped)
        try:
            yield port
        finally:
            with trio.CancelScope(shield=True):
                await port.end()

    def take_up(self) -> None:
        """Go on with the children in the background whose task is not settled, unless that is done already."""
        state = self._journal.state
        for child in state.unsettled:
            task = state.children[child]
            if task.background and child not in self._followed and not self._fault and not self._leaving.is_set():
                registered = self._house.registry.subagents.get(task.subagent)
                self._begin(task, registered.item if registered else None)

    async def news(self) -> None:
        """Wait until a child has settled. Raises the fault that keeps children from it."""
        if not self._fault:
            await self._news.wait()
        if self._fault:
            raise self._fault

    def leave(self) -> None:
        """Leave the children in the background as they are, to the next owner."""
        self._leaving.set()

    async def close(self) -> None:
        """Leave the children; returns once they are left."""
        self.leave()
        while self._followed:
            await next(iter(self._followed.values())).wait()

    async def run(self, subagent: Subagent, text: str, invocation_id: str, stopped: trio.Event) -> ChildEnd:
        """See `flightlog_hookspecs.Children`."""
        task, tools = await self._assign(subagent, text, invocation_id, background=False)
        settled = settlement(task, "aborted", f"The call was cut off. The session of the child is {task.child!r}.")
        try:
            settled = await self._waited_for(task, subagent, tools, stopped)
        finally:
            with trio.CancelScope(shield=True):
                await self._journal.append(partial(settling, settled=settled), barrier=True)
        return ChildEnd(child=task.child, reason=settled.reason, text=settled.result)

    async def start(self, subagent: Subagent, text: str, invocation_id: str) -> str:
        """See `flightlog_hookspecs.Children`."""
        task, tools = await self._assign(subagent, text, invocation_id, background=True)
        await self._begin(task, subagent, tools).wait()
        return task.child

    async def send(self, subagent: Subagent, child: str, text: str, invocation_id: str, *, steer: bool) -> None:
        """See `flightlog_hookspecs.Children`."""
        before = self._journal.state.children.get(child)
        if before is None or not before.background or before.subagent != subagent.name:
            raise ToolError(f"{child!r} is not a child of this session that {subagent.name!r} has started.")
        async with self._gates[child]:
            if child in self._journal.state.unsettled:
                mailbox = Mailbox(self._journal.store, child, self._journal.clock)
                await (mailbox.steer if steer else mailbox.followup)(text, key=invocation_id)
                return
            await self._assign(subagent, text, invocation_id, background=True, child=child)
        while (leaves := self._followed.get(child)) is not None:  # it has settled, and is still being closed
            await leaves.wait()
        self.take_up()

    async def _assign(
        self, subagent: Subagent, text: str, invocation_id: str, *, background: bool, child: str = ""
    ) -> tuple[SubagentSpawned, tuple[str, ...]]:
        """Log the task of a child, a new one unless it is named; returns it and the tools a new one may use."""
        tools = () if child else self._tools(subagent)
        task: SubagentSpawned | None = None

        def spawned(state: State) -> SubagentSpawned:
            nonlocal task
            if state.depth >= self._house.limits.subagent_depth:
                raise ToolError(
                    f"{subagent.name!r} was not started: children may be {self._house.limits.subagent_depth} levels "
                    "deep at most. Do it yourself."
                )
            if invocation_id in state.assigned:
                raise ToolError("A call starts one child at most.")
            task = SubagentSpawned(
                child=child or child_name(self._journal.session, subagent.name, invocation_id),
                subagent=subagent.name,
                depth=state.depth + 1,
                invocation_id=invocation_id,
                task=text,
                background=background,
            )
            return task

        if not text.strip():
            raise ToolError(f"{subagent.name!r} was not started: its task is empty.")
        await self._journal.append(spawned, barrier=True)
        assert task is not None, "it was appended"
        return task, tools

    def _tools(self, subagent: Subagent) -> tuple[str, ...]:
        """The names of the tools that a new child may use."""
        has = self._house.registry.tools
        wanted = tuple(sorted(has)) if subagent.tools is None else subagent.tools
        if missing := [name for name in wanted if name not in has]:
            raise ToolError(
                f"{subagent.name!r} was not started: there is no tool {', '.join(map(repr, missing))} here."
            )
        changing = [name for name in wanted if has[name].item.tool.effect != "read"]
        if subagent.effect == "read" and changing:
            raise ToolError(
                f"{subagent.name!r} was not started: it says that it only reads, but {', '.join(map(repr, changing))} "
                "may do more."
            )
        return wanted

    async def _waited_for(
        self, task: SubagentSpawned, subagent: Subagent, tools: tuple[str, ...], stopped: trio.Event
    ) -> SubagentSettled:
        """What comes of the task of a child that its call waits for."""
        try:
            async with self._opened(task, subagent, tools) as (child, journal):
                await child.followup(task.task, key=task.invocation_id)
                await _run_until(child, partial(_cancel_when, child, stopped, subagent.timeout_s))
                return self._outcome(task, journal)
        except (SessionBusy, Fenced, LogCorrupt, SchemaTooNew, UsageError) as error:
            return self._failed(task, error)

    def _begin(
        self, task: SubagentSpawned, subagent: Subagent | None, tools: tuple[str, ...] | None = None
    ) -> trio.Event:
        """Follow a child from now on. The event says that it has its task, or that there is something in the way."""
        begun = trio.Event()
        # In a context of its own: it outlives the call, and is no part of the plugin that made the call.
        Context().run(self._house.start_soon, self._follow, task, subagent, tools, begun)
        self._followed[task.child] = trio.Event()
        return begun

    async def _follow(
        self, task: SubagentSpawned, subagent: Subagent | None, tools: tuple[str, ...] | None, begun: trio.Event
    ) -> None:
        """Drive a child in the background until its task is settled, or its parent closed."""
        try:
            while not self._leaving.is_set():
                try:
                    await self._followed_up(task, subagent, tools, begun)
                    break
                except StoreError:
                    begun.set()
                    # Somebody else has it, and what comes of it is in its log then; or only a read of it failed.
                    self._journal.store.check_alive(in_place=False)
                    with trio.move_on_after(CHILD_POLL_S):
                        await self._leaving.wait()
        except StoreError as error:  # nothing can be written any more: the next owner goes on
            self._fault = error
        finally:
            begun.set()
            self._followed.pop(task.child).set()
            self._tell()

    async def _followed_up(
        self, task: SubagentSpawned, subagent: Subagent | None, tools: tuple[str, ...] | None, begun: trio.Event
    ) -> None:
        try:
            async with self._opened(task, subagent, tools) as (child, journal):
                await child.followup(task.task, key=task.invocation_id)
                begun.set()
                while True:
                    if key := goes_on_as(journal.state, task.invocation_id):
                        await child.followup(GO_ON, key=key)
                    await _run_until(child, partial(_close_when, child, self._leaving))
                    async with self._gates[task.child]:
                        if self._leaving.is_set():
                            return
                        await child.take_letters()
                        if not wakes(journal.state):
                            await self._settle(self._outcome(task, journal))
                            return
        except InvariantViolation:
            raise
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, (LogCorrupt, SchemaTooNew)):
                raise
            if not self._leaving.is_set():
                await self._settle(self._failed(task, error))

    @asynccontextmanager
    async def _opened(
        self, task: SubagentSpawned, subagent: Subagent | None, tools: tuple[str, ...] | None
    ) -> AsyncIterator[tuple[Child, Journal]]:
        """Own the child. Only one that is given `tools` may be new."""
        parent, house = self._journal, self._house
        if tools is None and parent.store.key_of(task.child) is None:
            raise UsageError(
                "its session is not in this file: it was purged, was left behind by an export, or never began"
            )
        created = partial(
            SessionCreated,
            parent_session=parent.session,
            parent_uid=parent.uid,
            depth=task.depth,
            tools=tools,
        )
        async with house.open(
            task.child,
            created=created,
            model=(subagent.model or house.model) if subagent else None,
            system=subagent.prompt if subagent else None,
            limits=house.limits,
            approver=house.approver,
            outer=house.registry,
        ) as (child, journal):
            if journal.state.parent != parent.uid:
                raise UsageError("its session exists already, and is not a child of this one")
            if tools is None and journal.state.repair:
                raise UsageError("its log was repaired, so what it did may be lost. Look at it, and resume it by hand")
            if subagent is None and journal.state.header is None:
                raise UsageError("it had not begun, and no such subagent is registered any more")
            yield child, journal

    def _outcome(self, task: SubagentSpawned, journal: Journal) -> SubagentSettled:
        words = last_words(journal.history.messages(), keyed_id(task.invocation_id))
        return outcome(task, journal.state.last_end or _WITHDRAWN, words, self._house.limits.tool_output_max_chars)

    def _failed(self, task: SubagentSpawned, error: Exception) -> SubagentSettled:
        end = TurnEnd(reason="error", message=self._house.redact(described(error)))
        return outcome(task, end, "", self._house.limits.tool_output_max_chars)

    async def _settle(self, settled: SubagentSettled) -> None:
        def events(state: State) -> Sequence[Event]:
            return settling(state, settled)

        try:
            await self._journal.append(events, barrier=True)
        except Fenced as error:  # the parent was, so the child is its new owner's
            self._fault = error
            self.leave()
        else:
            self.woken()

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()


class OfCall:
    """`flightlog_hookspecs.Children` for one call, until that ends."""

    def __init__(self, children: Children, invocation_id: str, stopped: trio.Event) -> None:
        self._children = children
        self._invocation_id = invocation_id
        self._stopped = stopped
        self._ended = False
        self._waiting: dict[trio.CancelScope, trio.Event] = {}

    async def run(self, subagent: Subagent, task: str) -> ChildEnd:
        """Let a child work on `task` until it comes to rest."""
        self._check()
        scope = trio.CancelScope()
        over = self._waiting[scope] = trio.Event()
        try:
            with scope:
                return await self._children.run(subagent, task, self._invocation_id, self._stopped)
        finally:
            del self._waiting[scope]
            over.set()
        raise ToolError(_OUTLIVED)

    async def start(self, subagent: Subagent, task: str) -> str:
        """Let a child work on `task` beside its parent."""
        self._check()
        return await self._children.start(subagent, task, self._invocation_id)

    async def send(self, subagent: Subagent, child: str, text: str, *, steer: bool = False) -> None:
        """Give a background child more to do."""
        self._check()
        await self._children.send(subagent, child, text, self._invocation_id, steer=steer)

    async def end(self) -> None:
        """The call ends: who still waits for a child, in a task that outlives it, is cut off. Settled on return."""
        self._ended = True
        while self._waiting:
            scope, over = next(iter(self._waiting.items()))
            scope.cancel()
            await over.wait()

    def _check(self) -> None:
        if self._ended:
            raise ToolError(_OUTLIVED)


Watch = Callable[[trio.CancelScope, trio.Event], Awaitable[None]]
"""Ends a run that must come to an end: given the scope it runs in, and what says that it is over."""


async def _run_until(child: Child, watch: Watch) -> None:
    """Run the child under `watch`. When this is cancelled, so is `watch` alone."""
    over = trio.Event()
    with single_error():
        async with trio.open_nursery() as nursery:
            with trio.CancelScope(shield=True) as scope:
                nursery.start_soon(watch, scope, over)
                await child.run(children=True)
            over.set()
            nursery.cancel_scope.cancel()


async def _cancel_when(
    child: Child, stopped: trio.Event, limit_s: float, run: trio.CancelScope, over: trio.Event
) -> None:
    """Cancel the child's turn when its call is to stop or took too long, and at once when that is cancelled."""
    try:
        with trio.move_on_after(limit_s) as late:
            await stopped.wait()
        if not child.cancel(LATE if late.cancelled_caught else CANCELLED):
            run.cancel()  # it has not begun, or waits for children of its own
        await trio.sleep_forever()
    finally:
        if not over.is_set() and not child.cancel(CANCELLED, now=True):
            run.cancel()


async def _close_when(child: Child, leaving: trio.Event, run: trio.CancelScope, over: trio.Event) -> None:
    """Close the child when its parent is closed: a turn that waits for people stays as it is."""
    try:
        await leaving.wait()
    finally:
        if not over.is_set():
            with trio.CancelScope(shield=True):
                await child.close()
            run.cancel()
