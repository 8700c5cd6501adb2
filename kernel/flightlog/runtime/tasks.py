"""Tasks from outside: submitted, looked at, and written to, from any process and whoever works on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import trio
from attrs import evolve

from flightlog.core.account import DEFAULT_CARDS
from flightlog.core.budget import missing
from flightlog.core.canonical import displayed
from flightlog.core.quotas import NO_BUDGET, Budget
from flightlog.runtime.arriving import checked_name
from flightlog.runtime.clock import Clock, Strides
from flightlog.runtime.inbox import checked_key
from flightlog.runtime.letters import POLL_S
from flightlog.runtime.mailbox import Mailbox, Posted, checked_goal, checked_parameters
from flightlog.runtime.reader import SessionReader, apart, check_answer
from flightlog.runtime.recovery import entered
from flightlog.runtime.registry import Registry
from flightlog.runtime.task_summary import TaskSummary, event_at, summaries, summary, whole_number
from flightlog.runtime.waking import span_us, time_us
from flightlog.store.codec import encoded_log
from flightlog.store.store import NewSession, Store
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import (
    BudgetGranted,
    Decision,
    Degradation,
    Event,
    Record,
    SessionCreated,
    SubGoal,
    TaskClass,
    TaskStateName,
    TaskSubmitted,
)

if TYPE_CHECKING:
    from flightlog.core.report import TaskReport

DEFAULT_MODEL: Final = "scripted:echo"
NO_PARAMETERS: Final[Mapping[str, Any]] = MappingProxyType({})
Verdict = Literal["allow", "deny", "done", "not_done", "unknown"]
"""The answers to questions: whether a call may start, and how one ended."""


class Tasks:
    """The tasks of a log. Made by the kernel: `kernel.tasks`.

    What is wanted of a task is a letter to its session, and returns once that is durable: whoever works on it takes it
    within some tens of milliseconds, or else the next worker of the file. `SessionReader.events` shows what came of it.
    """

    def __init__(self, store: Store, registry: Registry, clock: Clock, agent: str) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._agent = agent

    async def submit(
        self,
        goal: str,
        *,
        model: str | None = None,
        parameters: Mapping[str, Any] = NO_PARAMETERS,
        task_class: TaskClass = "normal",
        system: str = "",
        max_steps: int = 30,
        max_recoveries: int = 5,
        max_input_tokens: int | None = None,
        deadline: datetime | None = None,
        due: datetime | None = None,
        every_s: float | None = None,
        times: int | None = None,
        until: datetime | None = None,
        goal_check: str = "",
        budget: Budget = NO_BUDGET,
        sub_goals: Sequence[str | SubGoal] = (),
        smaller_model: str = "",
        degradation: Sequence[Degradation] = ("compress", "shrink", "smaller_model"),
        key: str | None = None,
        id: str | None = None,
    ) -> str:
        """Enter a task for the next worker; returns its id, durably. Needs no worker and no ownership.

        `model` is "adapter:model", None the offline "scripted:echo"; the model reads `goal` and `parameters` as its
        first message. `goal_check` names the registered check that alone decides whether it is done, "" stands for
        none. It does not begin before `due` and ends at `deadline`, which is still to come: times with a zone.

        With `every_s`, its goal comes again that many seconds after it was due, and so on: `times` times in all, not
        after `until`, or until it is cancelled. Each time it has `max_steps` anew, and one that fails is not the last.
        None of its requests has more than `max_input_tokens`; with None it is up to the model.

        `budget` bounds what it may use. As its tokens run out, `degradation` is done in this order: the context is made
        shorter, the `sub_goals` that are not core are put off, `smaller_model` serves; then it is paused.

        Under a `key`, or an `id`, that was used before for the same wish it is that earlier task; for another wish it
        raises `UsageError`, as for all that cannot be, and then nothing was entered.
        """
        submitted = TaskSubmitted(
            goal=checked_goal(goal),
            model=DEFAULT_MODEL if model is None else model,
            parameters=checked_parameters(parameters),
            system=_text("system", system),
            task_class=task_class,
            goal_check=_text("goal_check", goal_check),
            max_steps=whole_number("max_steps", max_steps, at_least=1),
            max_recoveries=whole_number("max_recoveries", max_recoveries, at_least=0),
            max_input_tokens=None
            if max_input_tokens is None
            else whole_number("max_input_tokens", max_input_tokens, at_least=1),
            due_us=None if due is None else time_us("due", due),
            deadline_us=None if deadline is None else time_us("deadline", deadline),
            agent=self._agent,
            every_us=None if every_s is None else span_us("every_s", every_s, at_least_s=1),
            until_us=None if until is None else time_us("until", until),
            times=None if times is None else whole_number("times", times, at_least=1),
            sub_goals=_sub_goals(sub_goals),
            smaller_model=_text("smaller_model", smaller_model),
            degradation=_moves(degradation),
        )
        if not isinstance(budget, Budget):
            raise UsageError(f"budget is a Budget, not a {type(budget).__name__}")
        if task_class not in get_args(TaskClass):
            raise UsageError(f"task_class is one of {get_args(TaskClass)}, not {task_class!r}")
        if submitted.due_us and submitted.deadline_us and submitted.due_us >= submitted.deadline_us:
            raise UsageError("the deadline comes before the task is due")
        if every_s is None and (times is not None or until is not None):
            raise UsageError("times and until end what comes again: give every_s, too")
        for wanted in filter(None, (submitted.model, submitted.smaller_model)):
            self._registry.adapter_of(wanted)
        if submitted.goal_check:
            self._registry.goal_check_of(submitted.goal_check)
        name = self._name(key, id)
        late = submitted.deadline_us is not None and submitted.deadline_us <= self._clock.now_us()
        if late and self._store.key_of(name) is None:  # one that was entered in time is that task also later
            raise UsageError(f"the deadline {deadline} has passed already")
        cards = tuple(BudgetGranted(card=card, most=most) for card, most in budget.cards.items())
        if not await self._entered(name, submitted, cards):
            self._check_same(name, submitted, cards)
        return name

    async def list(self, state: TaskStateName | None = None, *, limit: int | None = 100) -> tuple[TaskSummary, ...]:
        """The tasks in `state`, or all, the last submitted first; at most `limit`, None for no limit."""
        return tuple(summaries(self._store, state, limit))

    async def show(self, id: str) -> TaskSummary:
        """Task `id` as it stands. Raises `UsageError` when there is none."""
        return summary(self._store, id)

    async def report(self, id: str) -> TaskReport:
        """What became of task `id`, step by step, also of a failed one. Raises `UsageError` when there is none.

        Reads its whole log in a thread, each row checked; the task may go on meanwhile.
        """
        await self.show(id)
        return await apart(self._reader(id), _reported)

    async def pause(self, id: str, by: str = "user", *, now: bool = False, key: str | None = None) -> Posted:
        """Let it rest until it is resumed. See `Mailbox.pause`. Raises `UsageError` once it has ended."""
        return await (await self._mailbox(id)).pause(by, now=now, key=key)

    async def resume(self, id: str, by: str = "user", *, key: str | None = None) -> Posted:
        """Let it go on. See `Mailbox.resume`. Raises `UsageError` once it has ended."""
        return await (await self._mailbox(id)).resume(by, key=key)

    async def cancel(self, id: str, cause: str = "user", *, now: bool = False, key: str | None = None) -> Posted:
        """End it. See `Mailbox.cancel`. Raises `UsageError` once it has ended."""
        return await (await self._mailbox(id)).cancel(cause, now=now, key=key)

    async def amend(
        self,
        id: str,
        *,
        goal: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        by: str = "user",
        key: str | None = None,
    ) -> Posted:
        """Change what it is to reach. See `Mailbox.amend`. Raises `UsageError` once it has ended."""
        return await (await self._mailbox(id)).amend(goal=goal, parameters=parameters, by=by, key=key)

    async def grant(self, id: str, more: Budget, *, by: str = "user", key: str | None = None) -> Posted:
        """Let it use more. See `Mailbox.grant`. Raises `UsageError` once it has ended, and for a card it does not have.

        Those that it has are known: it is given them as it is submitted, and never another one.
        """
        mailbox = await self._mailbox(id)
        if isinstance(more, Budget):
            given = {card for (card,) in self._store.read("cards_of", id)}
            if why := missing(map(displayed, more.cards), given | DEFAULT_CARDS.keys()):
                raise UsageError(f"nothing is granted to task {id!r}: {why}")
        return await mailbox.grant(more, by=by, key=key)

    async def steer(self, id: str, text: str, *, key: str | None = None) -> Posted:
        """Tell the model something at its next step. Raises `UsageError` once it has ended."""
        return await (await self._mailbox(id)).steer(text, key=key)

    async def answer(
        self,
        id: str,
        seq: int,
        verdict: Verdict,
        *,
        by: str = "user",
        reason: str = "",
        remember: bool = False,
        key: str | None = None,
    ) -> Posted:
        """Answer the question in row `seq`: "allow" or "deny" a call, or say how one ended that was cut off.

        That is "done", "not_done" (it runs then) or "unknown" (the model is told). Raises `UsageError` for another
        verdict, when no such question is open, and once the task has ended.
        """
        if verdict not in get_args(Verdict):
            raise UsageError(f"verdict is one of {get_args(Verdict)}, not {verdict!r}")
        mailbox = await self._mailbox(id)
        decision: Decision = "allowed" if verdict == "allow" else "denied" if verdict == "deny" else verdict
        check_answer(self._reader(id), seq, decision, None if key is None else checked_key(key))
        match verdict:
            case "allow" | "deny":
                allow = verdict == "allow"
                return await mailbox.approve(seq, allow=allow, by=by, reason=reason, remember=remember, key=key)
            case _ if remember:
                raise UsageError("only a decision about a call that is to start can be remembered")
            case _:
                return await mailbox.answer(seq, verdict, by=by, reason=reason, key=key)

    async def wait(self, id: str) -> TaskSummary:
        """Until it has ended or is paused; returns how it stands then. Raises `UsageError` when there is none."""
        strides, seen = Strides(POLL_S), 0
        while True:
            if (newest := self._store.read("last_id")[0][0]) != seen:
                seen, task = newest, await self.show(id)
                if task.ended or task.state == "paused":
                    return task
            await strides.pause()

    async def _mailbox(self, id: str) -> Mailbox:
        task = await self.show(id)
        if task.ended:
            raise UsageError(f"task {id!r} is {task.state}: nothing is done for it any more")
        return Mailbox(self._store, id, self._clock)

    def _reader(self, id: str) -> SessionReader:
        key = self._store.key_of(id)
        assert key is not None, "its task was found"
        return SessionReader(self._store, id, key, self._registry)

    def _name(self, key: str | None, id: str | None) -> str:
        if key is not None and id is not None:
            raise UsageError("a task is named by a key or by an id, not by both")
        if id is not None:
            return checked_name(id)
        digits = self._clock.new_id() if key is None else sha256(f"task key {checked_key(key)}".encode()).hexdigest()
        return f"task-{digits[-12:]}"

    @trio.lowlevel.enable_ki_protection
    async def _entered(self, name: str, submitted: TaskSubmitted, cards: tuple[BudgetGranted, ...]) -> bool:
        uid, now_us = self._clock.new_id(), self._clock.now_us()
        events: tuple[Event, ...] = (SessionCreated(uid=uid), submitted, *cards)
        records = (
            Record(session=name, seq=seq, at_us=now_us, turn=None, step=None, epoch=0, event=event)
            for seq, event in enumerate(events, 1)
        )
        return await entered(self._store, NewSession(name, uid), encoded_log(records, uid))

    def _check_same(self, name: str, wanted: TaskSubmitted, cards: tuple[BudgetGranted, ...]) -> None:
        found = self._store.key_of(name)
        there = event_at(self._store, name, found.key, 2) if found else None
        given = [event_at(self._store, name, found.key, 3 + index) for index in range(len(cards) + 1)] if found else []
        same_cards = tuple(given[:-1]) == cards and not isinstance(given[-1], BudgetGranted)
        if not isinstance(there, TaskSubmitted):
            raise UsageError(f"there is a session {name!r} in {self._store.path} already, and it is no task's")
        if evolve(there, agent="") != evolve(wanted, agent="") or not same_cards:
            raise UsageError(f"task {name!r} was submitted before with another goal or other limits")


def _reported(reader: SessionReader) -> TaskReport:
    from flightlog.core.report import report_of

    return report_of(reader.records())


def _sub_goals(given: Sequence[str | SubGoal]) -> tuple[SubGoal, ...]:
    if isinstance(given, str):
        raise UsageError(f"sub_goals are several texts: [{given!r}], not {given!r}")
    goals = tuple(SubGoal(text=each) if isinstance(each, str) else each for each in given)
    if wrong := [each for each in goals if not isinstance(each, SubGoal) or not checked_goal(each.text)]:
        raise UsageError(f"a sub-goal is a text or a SubGoal, not {wrong[0]!r:.100}")
    return goals


def _moves(given: Sequence[Degradation]) -> tuple[Degradation, ...]:
    moves = tuple(given)
    if wrong := [move for move in moves if move not in get_args(Degradation)]:
        raise UsageError(
            f"degradation names {', '.join(get_args(Degradation))} in some order, not {wrong[0]!r:.100}; "
            "in the end the task is paused"
        )
    if len(set(moves)) < len(moves):
        raise UsageError(f"degradation names each move once, not {', '.join(moves)}")
    return moves


def _text(what: str, text: object) -> str:
    if not isinstance(text, str):
        raise UsageError(f"{what} is a text, not a {type(text).__name__}")
    return text
