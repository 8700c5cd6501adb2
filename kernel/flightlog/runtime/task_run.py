"""One task in the hands of its worker, from the claim until it comes to rest: ask `flow` what comes next, do it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import trio

from flightlog.core import checkpoints
from flightlog.core.account import TIME_CARDS
from flightlog.core.budget import QUOTA, alert_of_time, time_left_us, warnings_of_time
from flightlog.core.limits import TIME_POLL_US
from flightlog.core.saying import described
from flightlog.core.state import State
from flightlog.core.task import Task
from flightlog.core.task_flow import LATE, Action, Await, Drive, End, Rest, Since, Write, flow, handed_over
from flightlog.core.waking import cancel_all
from flightlog.runtime.closing import close_turn
from flightlog.runtime.error_groups import leaves, unwrapped
from flightlog.runtime.goal_checking import CAUSE as GOAL_CHECK
from flightlog.runtime.goal_checking import is_checked
from flightlog.runtime.journal import Journal
from flightlog.runtime.session import Session
from flightlog_hookspecs.errors import StoreError
from flightlog_hookspecs.events import Event, TaskState, TurnEnd

Stage = Callable[["TaskRun"], Awaitable[None]]
"""What happens each time before the session is driven. It may append, and register things in the session's scope."""


async def _goal_check_offered(run: TaskRun) -> None:
    """Pause a task before anything is spent on it, when nobody could say in the end whether it is done."""
    task = run.journal.state.task
    if task and is_checked(run.journal.state) and (missing := run.session.around.goal_checks.missing(task)):
        await run.journal.append(TaskState(state="paused", cause=GOAL_CHECK, message=missing), barrier=True)


STAGES: Final[Sequence[Stage]] = (_goal_check_offered,)


class TaskRun:
    """A task whose session this process owns."""

    def __init__(self, session: Session, journal: Journal, stages: Sequence[Stage]) -> None:
        self.session = session
        self.journal = journal
        self.had_no_room = False
        """Whether it was left since the file's quota lets no more tasks of its class run."""
        self._stages = stages
        self._leaving = False
        self._answers = 0

    @property
    def _task(self) -> Task:
        task = self.journal.state.task
        assert task is not None, "only the sessions of tasks are worked on"
        return task

    def leave(self) -> None:
        """Come to rest after the step that is under way; what is left is the next worker's."""
        self._leaving = True
        self.session.finish_step()

    async def to_rest(self) -> None:
        """Carry the task on until there is nothing to do for it right now.

        What is raised in it fails the task, but for a `StoreError`, which is raised. When cancelled, the task stays as
        it is for the next worker.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_deadline)
                nursery.start_soon(self._watch_time)
                await self._flow()
                nursery.cancel_scope.cancel()
        except BaseException as error:
            await self._settle(error)

    async def _flow(self) -> None:
        since: Since = "claim"
        while True:
            message_id = self.journal.clock.new_id()
            match self._next(since, message_id, self.journal.state):
                case Rest():
                    return
                case Write(events=events):
                    moves = [event.state for event in events if isinstance(event, TaskState)]
                    begins = "running" in moves or "recovering" in moves
                    if not await self._written(since, message_id, begins=begins):
                        return
                    since = "write"
                case End(turn=end, task=state):
                    following = (partial(cancel_all, by="task"), partial(checkpoints.moved, move=state))
                    await close_turn(self.journal, end, unstarted="not_started", following=following)
                case Drive():
                    for stage in self._stages:
                        await stage(self)
                    self._answers = self._task.answers
                    await self.session.run(wait=False)
                    since = "drive"
                case Await():
                    await self.session.woken()

    async def _written(self, since: Since, message_id: str, *, begins: bool) -> bool:
        """Write what is due. False, and nothing written, when the task `begins` and others are in its way.

        So does one that a dead worker has left.
        """
        due = partial(self._due, since, message_id)
        if not begins:
            await self.journal.append(due, barrier=True)
            return True
        async with self.session.around.gate.start(self.journal.key, self._task.submitted.task_class) as has_room:
            if has_room:
                await self.journal.append(due, barrier=True)
        self.had_no_room = not has_room
        return has_room

    def _due(self, since: Since, message_id: str, state: State) -> Sequence[Event]:
        """The same decision again, once the append's turn has come: a letter may have been taken meanwhile."""
        action = self._next(since, message_id, state)
        return action.events if isinstance(action, Write) else ()

    def _next(self, since: Since, message_id: str, state: State) -> Action:
        now_us = self.journal.clock.now_us()
        return flow(state, now_us, since, message_id=message_id, leaving=self._leaving, answers=self._answers)

    async def _watch_deadline(self) -> None:
        deadline_us = self._task.submitted.deadline_us
        if deadline_us is None:
            return
        await self.journal.clock.until(deadline_us)
        if not self.session.end(LATE, grace_s=self.session.around.limits.cancel_grace_s):
            self.session.wake()

    async def _watch_time(self) -> None:
        """Warn when much of a card of time is used, and end the turn as paused when all of it is."""
        journal = self.journal
        while True:
            account, now_us = journal.state.account, journal.clock.now_us()
            left = time_left_us(account, now_us) if account else None
            if account is None or not TIME_CARDS & account.cards.keys():
                return  # no card can be granted that was not there as it was submitted
            card, left_us = left or ("", TIME_POLL_US)
            if left_us > 0 or not account.counts_time:
                if warnings_of_time(account, now_us):
                    await journal.append(partial(_much_time, now_us))
                await trio.sleep(min(max(left_us, 0), TIME_POLL_US) / 1_000_000)
                continue
            if await journal.append(partial(_out_of_time, card, now_us)):
                end = TurnEnd(reason="paused", cause=QUOTA, message=f"{card}: its time is used up")
                if not self.session.end(end, grace_s=self.session.around.limits.cancel_grace_s):
                    self.session.wake()
            await trio.sleep(TIME_POLL_US / 1_000_000)

    async def _settle(self, error: BaseException) -> None:
        """What becomes of the task when `error` ends the work on it."""
        faults = [leaf for leaf in leaves(error) if not isinstance(leaf, trio.Cancelled)]
        stored = next((leaf for leaf in faults if isinstance(leaf, StoreError)), None)
        if stored is not None:
            raise stored
        if not faults or not all(isinstance(fault, Exception) for fault in faults):
            with trio.CancelScope(shield=True):
                await self.journal.append(handed_over, barrier=True)
            raise unwrapped(error)
        why = self.session.around.redacting.text(described(faults[0]))
        with trio.CancelScope(shield=True):
            end = TurnEnd(reason="error", code=type(faults[0]).__name__, message=why)
            await close_turn(self.journal, end)
            await self.journal.append(partial(_failed, why), barrier=True)


def _much_time(now_us: int, state: State) -> Sequence[Event]:
    return warnings_of_time(state.account, now_us)


def _out_of_time(card: str, now_us: int, state: State) -> Sequence[Event]:
    return alert_of_time(state.account, card, now_us)


def _failed(why: str, state: State) -> tuple[Event, ...]:
    assert state.task is not None, "only tasks are worked on"
    if state.task.ended:
        return ()
    failed = TaskState(state="failed", cause="error", message=why)
    return (*cancel_all(state, "task"), *checkpoints.moved(state, failed))
