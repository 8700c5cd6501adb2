"""The gate of quotas: what all sessions of a file use together is looked at and used by one of them at a time.

Whoever wants more than is left waits, or is told how long it would have to. The counters are read from the log, so that
they are the same in all processes, and a restart does not reset them.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio
from attrs import define, field, frozen

from flightlog.core.claims import crowded
from flightlog.core.limits import BUSY_POLL_S
from flightlog.core.line import Line, Waiter
from flightlog.core.quotas import NO_QUOTAS, Quotas
from flightlog.core.state import State
from flightlog.core.usage import Demand, Usage
from flightlog.runtime.clock import Clock
from flightlog.runtime.task_board import TaskBoard
from flightlog.store.store import Store
from flightlog_hookspecs.events import AlertThen, BudgetAlert, TaskClass

PATIENCE_S: Final = 30.0
"""What frees itself within so many seconds is waited for."""

NO_TASK: Final[TaskClass] = "normal"
"""As what a session counts that works for no task, where it waits with others."""


@frozen(kw_only=True)
class Full:
    """What is asked for is not there: `used` of what `name` allows; free again at `free_at_us`, None for never."""

    name: str
    used: int
    most: int
    free_at_us: int | None


@define(eq=False)
class Gate:
    """The gate of one kernel to one file."""

    _store: Store
    _clock: Clock
    quotas: Quotas = NO_QUOTAS
    _usage: Usage = field(init=False)
    _seen: int | None = field(default=None, init=False)
    _classes: dict[int, TaskClass | None] = field(factory=dict, init=False)
    _turn: trio.Lock = field(factory=trio.Lock, init=False)
    _line: Line = field(factory=Line, init=False)
    _woken: dict[Waiter, trio.Event] = field(factory=dict, init=False)
    _board: TaskBoard | None = field(default=None, init=False)

    @_usage.default
    def _nothing_used(self) -> Usage:
        return Usage(self.quotas.bounds)

    def for_request(self, key: int, adapter: str, tokens: int) -> list[Demand]:
        """What a request of session `key` needs that has about so many tokens."""
        pool = f"pool:{self._pool_of(key)}"
        return self._bounded(
            Demand(name=f"rate:adapter:{adapter}"),
            Demand(name=f"{pool}:calls"),
            Demand(name=f"{pool}:tokens", amount=tokens),
        )

    def for_call(self, key: int, tool: str) -> list[Demand]:
        """What a call of `tool` in session `key` needs."""
        return self._bounded(Demand(name=f"rate:tool:{tool}"), Demand(name=f"pool:{self._pool_of(key)}:calls"))

    def _bounded(self, *demands: Demand) -> list[Demand]:
        return [each for each in demands if each.name in self._usage.rates]

    @asynccontextmanager
    async def through(self, key: int, demands: Sequence[Demand], *, patience_s: float) -> AsyncIterator[Full | None]:
        """Wait until the demands of session `key` fit; whoever writes while the context lasts has used them.

        It is given what is full when that would take more than `patience_s` seconds in all. Of those that wait in this
        process, `core/line.py` says who goes first.
        """
        if not demands:
            yield None
            return
        waiter, patient_until = None, trio.current_time() + patience_s
        try:
            while True:
                async with self._held():
                    self._look()
                    now_us = self._clock.now_us()
                    self._usage.forget(now_us)
                    waits = [(self._usage.wait_us(demand, now_us), demand) for demand in demands]
                    wait_us, demand = max(waits, key=lambda each: each[0])
                    if waiter is None and (wait_us or self._line.wants(demands)):
                        waiter = Waiter(self._class_of(key) or NO_TASK, tuple(demands))
                        self._line.join(waiter)
                    free = self._line.free(self._usage, now_us) if waiter else ()
                    if waiter is None or waiter in free:
                        if waiter is not None:
                            self._line.went(waiter)
                        yield None
                        return
                    self._wake(free)  # whoever sleeps until later would keep this one waiting
                    self._woken[waiter] = woken = trio.Event()
                    full = Full(
                        name=demand.name,
                        used=self._usage.used(demand.name, now_us),
                        most=self._usage.rates[demand.name].most,
                        free_at_us=None if wait_us == math.inf else now_us + int(wait_us),
                    )
                left_s = patient_until - trio.current_time()
                if left_s <= 0 or wait_us > left_s * 1_000_000:
                    yield full
                    return
                with trio.move_on_after(min(left_s, wait_us / 1_000_000 or math.inf)):
                    await woken.wait()
        finally:
            if waiter is not None:
                self._line.leave(waiter)
                self._woken.pop(waiter, None)
                self._wake(self._woken)

    def _wake(self, waiters: Iterable[Waiter]) -> None:
        for each in waiters:
            if each in self._woken:
                self._woken[each].set()

    @asynccontextmanager
    async def start(self, key: int, task_class: TaskClass) -> AsyncIterator[bool]:
        """Whether the task of session `key` may begin to run; whoever writes that while the context lasts has begun."""
        if not self.bounds_tasks:
            yield True
            return
        async with self._held():
            self._board = self._board or TaskBoard(self._store)
            self._board.look()
            under_way = {each: numbers - {key} for each, numbers in self._board.under_way().items()}
            yield task_class not in full_classes(self.quotas, {each: len(n) for each, n in under_way.items()})

    @property
    def bounds_tasks(self) -> bool:
        """Whether tasks may have to wait for others."""
        quotas = self.quotas
        return quotas.tasks_at_once is not None or any(pool.tasks_at_once for pool in quotas.pools.values())

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        async with self._turn:
            while not self._store.locks.own_gate():  # noqa: ASYNC110  another process tells nobody that it is through
                await trio.sleep(BUSY_POLL_S)
            try:
                yield
            finally:
                self._store.locks.release_gate()

    def _look(self) -> None:
        """Read what was used since the last look, in the first one as far back as any quota reaches."""
        if self._seen is None:
            longest_us = int(max(rate.per_s for rate in self._usage.rates.values()) * 1_000_000)
            before = self._store.read("all_since", self._clock.now_us() - longest_us)[0][0]
            self._seen = self._store.read("last_id")[0][0] if before is None else before
        for row in self._store.read("used_since", self._seen):
            self._seen = row[0]
            self._count(*row[1:])

    def _count(
        self, key: int, kind: str, at_us: int, name: str | None, estimate: int | None, charged: int | None
    ) -> None:
        task_class = self._pool_of(key)
        tokens = f"pool:{task_class}:tokens"
        match kind:
            case "context/built":
                self._usage.take(tokens, key, at_us, estimate or 0)
            case "request/sent" | "compaction/start":
                self._usage.add(f"rate:adapter:{(name or '').partition(':')[0]}", at_us, 1)
                self._usage.add(f"pool:{task_class}:calls", at_us, 1)
                if kind == "compaction/start":
                    self._usage.take(tokens, key, at_us, estimate or 0)
            case "tool/call":
                self._usage.add(f"rate:tool:{name}", at_us, 1)
                self._usage.add(f"pool:{task_class}:calls", at_us, 1)
            case _:
                self._usage.settle(tokens, key)
                self._usage.add(tokens, at_us, charged or 0)

    def _pool_of(self, key: int) -> TaskClass | None:
        """The class whose pool counts what session `key` uses; None for no task, and where no pool counts anything."""
        counts = any(pool.tokens or pool.calls for pool in self.quotas.pools.values())
        return self._class_of(key) if counts else None

    def _class_of(self, key: int) -> TaskClass | None:
        """That of the task that session `key` works for, as a child too; None for no task."""
        if key not in self._classes:
            found = self._store.read("class_of", key)
            self._classes[key] = found[0][0] if found else None
        return self._classes[key]


def patience_s(state: State) -> float:
    """How long a request of this session waits: for ever, unless there is a budget by which it can pause."""
    return PATIENCE_S if state.account else math.inf


def alert_of(full: Full, *, then: AlertThen) -> BudgetAlert:
    """What is said of a quota that has too little left."""
    return BudgetAlert(
        card=full.name,
        used=full.used,
        most=full.most,
        level="exceeded",
        then=then,
        message=f"{full.name}: {full.used} of {full.most} are used",
        resume_at_us=full.free_at_us,
    )


def full_classes(quotas: Quotas, under_way: dict[TaskClass, int]) -> set[TaskClass]:
    """The classes of which no further task may begin, when so many of each are under way."""
    most = quotas.tasks_at_once
    pools = {each: quotas.pool(each).tasks_at_once for each in under_way}
    full = {each for each, bound in pools.items() if bound is not None and under_way[each] >= bound}
    return full if most is None else full | crowded(most, under_way)
