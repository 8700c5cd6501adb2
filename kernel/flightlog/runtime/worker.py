"""Workers: they look for tasks, take them up and carry them out, each task in its own session.

A task is claimed by the lock of its session, so any number of workers share a file without a word to each other: who
finds the lock held leaves the task alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import trio
from attrs import define, field

from flightlog.core.claims import Candidate, Shares, crowded
from flightlog.core.limits import ORPHAN_POLL_S, WORK_POLL_S, Limits
from flightlog.runtime.clock import Clock, Strides
from flightlog.runtime.error_groups import single_error, unwrapped
from flightlog.runtime.gate import Gate, full_classes
from flightlog.runtime.registry import Registry
from flightlog.runtime.task_board import TaskBoard
from flightlog.runtime.task_run import TaskRun
from flightlog.runtime.task_summary import summary, whole_number
from flightlog.store.store import Store
from flightlog_hookspecs.errors import (
    Fenced,
    LogCorrupt,
    SchemaTooNew,
    SessionBusy,
    StoreError,
    UsageError,
)
from flightlog_hookspecs.events import TaskClass

OnProblem = Callable[[str, Exception], None]


def ignored(task: str, error: Exception) -> None:
    """What is done about a problem that nobody wants to hear of."""


class OpenTask(Protocol):
    """How the session of a task is opened: `Kernel._task`."""

    def __call__(self, name: str, limits: Limits, *, take_over: bool) -> AbstractAsyncContextManager[TaskRun]:
        """Own it while the context lasts. Raises `SessionBusy` while another owner lives."""


@define(eq=False)
class Workers:
    """The workers of one kernel."""

    store: Store
    registry: Registry
    clock: Clock
    gate: Gate
    open_task: OpenTask
    _working: list[Worker] = field(factory=list, init=False)
    _left: bool = field(default=False, init=False)

    async def work(
        self, *, tasks_at_once: int, until_idle: bool, take_over: Collection[str], on_problem: OnProblem
    ) -> None:
        """See `Kernel.work`."""
        whole_number("tasks_at_once", tasks_at_once, at_least=1)
        if isinstance(take_over, str):
            raise UsageError(f"take_over names several tasks: [{take_over!r}], not {take_over!r}")
        for task in take_over:
            summary(self.store, task)  # raises when there is none
        if self._left:
            return
        worker = Worker(self, tasks_at_once, set(take_over), on_problem)
        self._working.append(worker)
        try:
            with single_error():
                await worker.run(until_idle=until_idle)
        finally:
            self._working.remove(worker)

    def leave(self, grace_s: float) -> None:
        """See `Kernel.leave_work`."""
        self._left = True
        for worker in self._working:
            worker.leave(grace_s)


@define
class _Taken:
    """A task that was taken up, and what carries it once its session is open."""

    task_class: TaskClass
    run: TaskRun | None = None


class Worker:
    """Takes up tasks of one file, `tasks_at_once` at a time."""

    def __init__(self, workers: Workers, tasks_at_once: int, take_over: set[str], on_problem: OnProblem) -> None:
        self._workers = workers
        self._board = TaskBoard(workers.store)
        self._tasks_at_once = tasks_at_once
        self._take_over = take_over
        self._on_problem = on_problem
        self._taken: dict[int, _Taken] = {}
        self._busy_until: dict[int, float] = {}
        self._told: set[int] = set()
        self._leaving = False
        self._scope = trio.CancelScope()
        self._pause = trio.CancelScope()
        self._shares = Shares()

    async def run(self, *, until_idle: bool) -> None:
        """Work until `leave`, or with `until_idle` until there is nothing to do right now."""
        strides = Strides(WORK_POLL_S)
        with self._scope:
            async with trio.open_nursery() as nursery:
                while not self._leaving:
                    self._workers.store.check_alive(in_place=False)
                    self._board.look()
                    while (candidate := self._next()) is not None:
                        if not candidate.orphan:
                            self._shares.took(candidate.task_class)
                        self._taken[candidate.number] = _Taken(candidate.task_class)
                        nursery.start_soon(self._carry, candidate)
                    if until_idle and not self._taken:
                        return
                    with trio.CancelScope() as self._pause:
                        await strides.pause()

    def leave(self, grace_s: float) -> None:
        """Take up nothing more; each task finishes its step, for at most `grace_s` seconds."""
        self._leaving = True
        self._pause.cancel()
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + grace_s)
        for taken in self._taken.values():
            if taken.run is not None:
                taken.run.leave()

    def _next(self) -> Candidate | None:
        """The next task to take up, None when there is none, or no place for it."""
        now_us, now = self._workers.clock.now_us(), trio.current_time()
        no_place = crowded(self._tasks_at_once, Counter(taken.task_class for taken in self._taken.values()))
        while True:
            found_out = False
            count = 2 * (1 + len(self._taken) + len(self._busy_until) + len(self._told))
            for candidate in self._board.first(now_us, count, self._shares, self._full(), no_place):
                if candidate.number in self._taken or self._busy_until.get(candidate.number, now) > now:
                    continue
                known = candidate.number in self._told
                there = self._board.look_at_letters(candidate)
                if there.claimable(now_us) and self._can_run(there):
                    return there
                found_out = found_out or not known
            if not found_out:
                return None

    def _full(self) -> set[TaskClass]:
        """The classes of which nothing may be taken up now. What was taken up here counts, though it has not begun."""
        if not self._workers.gate.bounds_tasks:
            return set()
        under_way = {each: set(numbers) for each, numbers in self._board.under_way().items()}
        for number, taken in self._taken.items():
            under_way[taken.task_class].add(number)
        return full_classes(self._workers.gate.quotas, {each: len(numbers) for each, numbers in under_way.items()})

    def _can_run(self, candidate: Candidate) -> bool:
        """Whether this kernel has what the task's model needs; another worker may."""
        try:
            self._workers.registry.adapter_of(candidate.model)
        except UsageError as error:
            self._leave_alone(candidate, error)
            return False
        return True

    async def _carry(self, candidate: Candidate) -> None:
        """Carry one task to where it rests. What goes wrong with it stays with it."""
        number, name = candidate.number, candidate.name
        self._busy_until.pop(number, None)
        try:
            limits = Limits(steps_per_turn=candidate.max_steps)
            async with self._workers.open_task(name, limits, take_over=name in self._take_over) as run:
                self._take_over.discard(name)
                self._taken[number].run = run
                if self._leaving:
                    run.leave()
                await run.to_rest()
                if run.had_no_room:
                    self._busy_until[number] = trio.current_time() + ORPHAN_POLL_S
        except BaseException as error:
            match unwrapped(error):
                case SessionBusy():
                    self._busy_until[number] = trio.current_time() + ORPHAN_POLL_S
                case Fenced():
                    pass  # somebody took it over
                case StoreError() as fault if not isinstance(fault, (LogCorrupt, SchemaTooNew)):
                    raise
                case Exception() as fault:
                    self._busy_until[number] = math.inf
                    self._leave_alone(candidate, fault)
                case _:
                    raise
        finally:
            del self._taken[number]
            self._pause.cancel()

    def _leave_alone(self, candidate: Candidate, error: Exception) -> None:
        if candidate.number not in self._told:
            self._told.add(candidate.number)
            self._on_problem(candidate.name, error)
