"""The children of one owned session: given a task by a call, driven, settled in their parent's log.

What is a parent's alone is to give a child a task (`subagent/spawned`, before the child exists) and to say what came
of it (`subagent/settled`).

| the child's call     | the turn is cancelled     | the session is closed           | after a crash               |
|----------------------|---------------------------|---------------------------------|-----------------------------|
| waits for it         | the child is cancelled    | as a cancel                     | settled as interrupted      |
| left it beside       | it goes on                | its turn ends; it stays unsettled | taken up in the next `run` |

Where the session is handed over to a next owner, so are its children: their turns stay open. A call that starts again
then, or after a crash, as the same invocation, takes up the child that it had.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from typing import Final

import trio

from flightlog.core.budget import no_child, pausing
from flightlog.core.children import (
    GO_ON,
    child_name,
    ended,
    goes_on_as,
    last_words,
    objection,
    outcome,
    settling,
    states_of,
)
from flightlog.core.inbox import keyed_id, removed, waiting, wakes
from flightlog.core.lending import Settlement, allowance, loans, unknown
from flightlog.core.limits import CHILD_POLL_S, CHILD_WAIT_S
from flightlog.core.saying import described
from flightlog.core.state import State
from flightlog.runtime.child_opening import House, opened, tools_for
from flightlog.runtime.child_port import OfCall
from flightlog.runtime.child_run import LATE, Halt, Stopping, cancel_when, halt_when, run_until
from flightlog.runtime.journal import Journal
from flightlog.runtime.mailbox import Mailbox
from flightlog.runtime.second_look import check_refused
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
from flightlog_hookspecs.events import BudgetAlert, Event, SubagentSpawned, TurnEnd
from flightlog_hookspecs.subagents import ChildEnd, ChildState, Subagent

CALLED_OFF: Final = "called off by its parent"


class Children:
    """The children of one owned session. They see no more than it does, and have no more than it has."""

    def __init__(self, journal: Journal, house: House) -> None:
        self._journal = journal
        self._house = house
        self._followed: dict[str, trio.Event] = {}
        self._halts: dict[str, Halt] = {}
        self._gates: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
        self._leaving = trio.Event()
        self._news = trio.Event()
        self._fault: StoreError | None = None
        self.woken: Callable[[], None] = lambda: None
        """Called when the session was sent word of a child."""

    @asynccontextmanager
    async def of_call(self, invocation_id: str, stopping: Stopping) -> AsyncIterator[OfCall]:
        """The port of one call, while that lasts. `stopping` says when it is to end."""
        port = OfCall(self, invocation_id, stopping, self._journal.state.task_of(invocation_id))
        try:
            yield port
        finally:
            await port.end()

    def take_up(self) -> None:
        """Go on with the children in the background whose task is not settled, unless that is done already.

        One whose call has still to end is that call's.
        """
        state = self._journal.state
        calls = {call.started.invocation_id for call in (state.step.unanswered if state.step else ()) if call.started}
        for child in state.unsettled:
            task = state.children[child]
            if task.background and task.invocation_id not in calls:
                registered = self._house.registry.subagents.get(task.subagent)
                self._go_on(task, registered.item if registered else None)

    def _go_on(self, task: SubagentSpawned, subagent: Subagent | None) -> None:
        """Drive the child in the background, unless that is done already or nothing is to be begun any more."""
        if task.child not in self._followed and not self._fault and not self._leaving.is_set():
            self._begin(task, subagent)

    async def news(self) -> None:
        """Wait until a child has settled. Raises the fault that keeps children from it."""
        if not self._fault:
            await self._news.wait()
        if self._fault:
            raise self._fault

    def leave(self) -> None:
        """Leave the children in the background as they are, to the next owner."""
        self._leaving.set()
        for halt in self._halts.values():
            halt.leave()

    async def close(self) -> None:
        """Leave the children; returns once they are left."""
        self.leave()
        while self._followed:
            await next(iter(self._followed.values())).wait()

    async def run(
        self, subagent: Subagent, text: str, invocation_id: str, stopping: Stopping, before: SubagentSpawned | None
    ) -> ChildEnd:
        """See `flightlog_hookspecs.Children`. `before` is the task that the call gave when it was started before."""
        task, tools = await self._assigned(subagent, text, invocation_id, before, background=False)
        try:
            settlement = await self._waited_for(task, subagent, tools, stopping)
        except BaseException:
            if not stopping.leaves():  # else it is the next owner's to say what came of it
                why = f"The call was cut off. The session of the child is {task.child!r}."
                await self._settled(unknown(task, "aborted", why))
            raise
        await self._settled(settlement)
        came = settlement.settled
        return ChildEnd(child=task.child, reason=came.reason, text=came.result)

    async def _settled(self, settlement: Settlement) -> None:
        """Log what came of a child that its call waits for. No cancel keeps it from that."""
        with trio.CancelScope(shield=True):
            await self._journal.append(partial(settling, settlement=settlement), barrier=True)

    async def start(self, subagent: Subagent, text: str, invocation_id: str, before: SubagentSpawned | None) -> str:
        """See `flightlog_hookspecs.Children`. For `before` see `run`."""
        task, tools = await self._assigned(subagent, text, invocation_id, before, background=True)
        if task.child in self._journal.state.unsettled and task.child not in self._followed:
            await self._begin(task, subagent, tools).wait()
        return task.child

    async def send(
        self,
        subagent: Subagent,
        child: str,
        text: str,
        invocation_id: str,
        before: SubagentSpawned | None,
        *,
        steer: bool,
    ) -> None:
        """See `flightlog_hookspecs.Children`. For `before` see `run`."""
        if before is not None:
            await self.start(subagent, text, invocation_id, before)
            return
        self._check_theirs(subagent, child)
        if not text.strip():
            raise ToolError(f"Nothing was sent to {child!r}: the task is empty.")
        async with self._gates[child]:
            if child in self._journal.state.unsettled:
                mailbox = Mailbox(self._journal.store, child, self._journal.clock)
                await (mailbox.steer if steer else mailbox.followup)(text, key=invocation_id)
                return
            await self._assign(subagent, text, invocation_id, background=True, child=child)
        while (leaves := self._followed.get(child)) is not None:  # it has settled, and is still being closed
            await leaves.wait()
        if child in self._journal.state.unsettled:
            self._go_on(self._journal.state.children[child], subagent)

    async def call_off(self, subagent: Subagent, child: str) -> None:
        """See `flightlog_hookspecs.Children`."""
        task = self._check_theirs(subagent, child)
        if child not in self._journal.state.unsettled:
            raise ToolError(f"{child!r} has come to rest already. What came of it was told in a message.")
        self.take_up()
        if child in self._followed:
            left = self._followed[child]
            self._halts[child].end(CALLED_OFF)
            await left.wait()
        state = self._journal.state
        if child in state.unsettled and state.children[child] == task:
            raise ToolError(f"{child!r} was not called off: this session is about to be closed.")

    def states(self, subagent: Subagent) -> tuple[ChildState, ...]:
        """See `flightlog_hookspecs.Children`."""
        return states_of(self._journal.state, subagent.name)

    def _check_theirs(self, subagent: Subagent, child: str) -> SubagentSpawned:
        """The newest task of a background child of that kind."""
        task = self._journal.state.children.get(child)
        if task is None or not task.background or task.subagent != subagent.name:
            raise ToolError(f"{child!r} is not a child of this session that {subagent.name!r} has started.")
        return task

    async def _assigned(
        self,
        subagent: Subagent,
        text: str,
        invocation_id: str,
        before: SubagentSpawned | None,
        *,
        background: bool,
    ) -> tuple[SubagentSpawned, tuple[str, ...]]:
        """The task of a new child and the tools it may use; those from `before` a crash, if there are any."""
        if before is None:
            return await self._assign(subagent, text, invocation_id, background=background)
        if (before.subagent, before.background) != (subagent.name, background):
            raise ToolError(f"Before it was cut off, this call has started {before.child!r}; it starts no other child.")
        return before, tools_for(subagent, self._house.registry)

    async def _assign(
        self, subagent: Subagent, text: str, invocation_id: str, *, background: bool, child: str = ""
    ) -> tuple[SubagentSpawned, tuple[str, ...]]:
        """Log the task of a child, a new one unless it is named; returns it and the tools a new one may use."""
        tools = () if child else tools_for(subagent, self._house.registry)

        def given(state: State) -> Sequence[Event]:
            if why := objection(state, subagent, self._house.limits, invocation_id):
                raise ToolError(f"{subagent.name!r} was not started: {why}")
            if (alert := no_child(state.account, self._journal.clock.now_us())) is not None:
                return pausing(alert)
            spawned = SubagentSpawned(
                child=child or child_name(self._journal.session, subagent.name, invocation_id),
                subagent=subagent.name,
                depth=state.depth + 1,
                invocation_id=invocation_id,
                task=text,
                background=background,
                steps_per_turn=subagent.steps_per_turn or 0,
                until_us=self._until_us(subagent) if background else 0,
                tokens=allowance(state.account),
                lent=loans(state),
            )
            return (spawned,)

        if not text.strip():
            raise ToolError(f"{subagent.name!r} was not started: its task is empty.")
        match (await self._journal.append(given, barrier=True))[-1].event:
            case BudgetAlert() as alert:  # the session pauses at the end of its step
                raise ToolError(f"{subagent.name!r} was not started: {alert.message}.")
            case SubagentSpawned() as task:
                return task, tools
            case _:
                raise AssertionError("nothing else was appended")

    def _until_us(self, subagent: Subagent) -> int:
        limit_s = subagent.timeout_s
        return 0 if limit_s is None else self._journal.clock.now_us() + int(limit_s * 1_000_000)

    def _left_s(self, task: SubagentSpawned) -> float:
        """How much of the time for `task` is left."""
        return (task.until_us - self._journal.clock.now_us()) / 1_000_000 if task.until_us else math.inf

    async def _waited_for(
        self, task: SubagentSpawned, subagent: Subagent, tools: tuple[str, ...], stopping: Stopping
    ) -> Settlement:
        """What comes of the task of a child that its call waits for. Cut off once it is left."""
        try:
            async with opened(self._journal, self._house, task, subagent, tools) as (child, journal):
                await child.followup(task.task, key=task.invocation_id)
                limit_s = CHILD_WAIT_S if subagent.timeout_s is None else subagent.timeout_s
                await run_until(child, partial(cancel_when, child, stopping, limit_s))
                if stopping.left:
                    stopping.cut()
                    await trio.lowlevel.checkpoint()
                return self._outcome(task, journal)
        except (SessionBusy, Fenced, LogCorrupt, SchemaTooNew, UsageError) as error:
            self._check_refused(task, error)
            return self._failed(task, error)

    def _begin(
        self, task: SubagentSpawned, subagent: Subagent | None, tools: tuple[str, ...] | None = None
    ) -> trio.Event:
        """Follow a child from now on. The event says that it has its task, or that there is something in the way."""
        begun, halt = trio.Event(), Halt()
        # In a context of its own: it outlives the call, and is no part of the plugin that made the call.
        Context().run(self._house.start_soon, self._follow, task, subagent, tools, begun, halt)
        self._followed[task.child], self._halts[task.child] = trio.Event(), halt
        return begun

    async def _follow(
        self,
        task: SubagentSpawned,
        subagent: Subagent | None,
        tools: tuple[str, ...] | None,
        begun: trio.Event,
        halt: Halt,
    ) -> None:
        """Drive a child in the background until its task is settled, or its parent closed."""
        try:
            while not self._leaving.is_set():
                try:
                    await self._followed_up(task, subagent, tools, begun, halt)
                    break
                except StoreError:
                    begun.set()
                    # Somebody else has it, and what comes of it is in its log then; or only a read of it failed.
                    self._journal.store.check_alive(in_place=False)
                    await self._ask_to_end(task, halt)
                    with trio.move_on_after(CHILD_POLL_S):
                        await self._leaving.wait()
        except StoreError as error:  # nothing can be written any more: the next owner goes on
            self._fault = error
        finally:
            begun.set()
            del self._halts[task.child]
            self._followed.pop(task.child).set()
            self._tell()

    async def _ask_to_end(self, task: SubagentSpawned, halt: Halt) -> None:
        """Ask whoever has the child to end its turn, if it is to end. It settles as it ended then."""
        if self._left_s(task) <= 0:
            halt.end(LATE)
        if halt.cause:
            mailbox = Mailbox(self._journal.store, task.child, self._journal.clock)
            await mailbox.cancel(halt.cause, keep_queue=False, key=f"{task.invocation_id} {halt.cause}")

    async def _followed_up(
        self,
        task: SubagentSpawned,
        subagent: Subagent | None,
        tools: tuple[str, ...] | None,
        begun: trio.Event,
        halt: Halt,
    ) -> None:
        try:
            async with opened(self._journal, self._house, task, subagent, tools) as (child, journal):
                await child.followup(task.task, key=task.invocation_id)
                begun.set()
                while True:
                    if (left_s := self._left_s(task)) <= 0:
                        halt.end(LATE)
                    if not halt.said.is_set():
                        if key := goes_on_as(journal.state, task.invocation_id):
                            await child.followup(GO_ON, key=key)
                        await run_until(child, partial(halt_when, child, halt, left_s))
                    async with self._gates[task.child]:
                        if halt.said.is_set() and not halt.cause:
                            return
                        await child.take_letters()
                        if halt.cause or not wakes(journal.state):
                            settled = self._outcome(task, journal, halt.cause)
                            if halt.cause:  # what it was sent is part of what has ended
                                await journal.append(lambda state: removed(state, waiting(state), "cancelled"))
                            await self._settle(settled)
                            return
        except InvariantViolation:
            raise
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, (LogCorrupt, SchemaTooNew)):
                raise
            self._check_refused(task, error)
            if not self._leaving.is_set():
                await self._settle(self._failed(task, error))

    def _check_refused(self, task: SubagentSpawned, error: Exception) -> None:
        """Raise the storage fault that a child is said to be damaged by, unless its log is: then that is its end."""
        if isinstance(error, LogCorrupt):
            check_refused(self._journal.store, task.child, error)

    def _outcome(self, task: SubagentSpawned, journal: Journal, cause: str = "") -> Settlement:
        words = last_words(journal.history.messages(), keyed_id(task.invocation_id))
        end = ended(journal.state, cause)
        return outcome(task, end, words, self._house.limits.tool_output_max_chars, journal.state)

    def _failed(self, task: SubagentSpawned, error: Exception) -> Settlement:
        end = TurnEnd(reason="error", message=self._house.redact(described(error)))
        return outcome(task, end, "", self._house.limits.tool_output_max_chars, None)

    async def _settle(self, settlement: Settlement) -> None:
        def events(state: State) -> Sequence[Event]:
            return settling(state, settlement)

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
