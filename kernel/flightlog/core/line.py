"""Who goes first of those that wait for the same: by class with the shares that claims have, then as they came.

A pool is passed before a rate, so who has no room in its pool keeps nobody from the rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from attrs import define, field, frozen

from flightlog.core.claims import STRIDES, Shares
from flightlog.core.usage import Demand, Usage
from flightlog_hookspecs.events import TaskClass


@frozen(eq=False)
class Waiter:
    """Somebody who waits until all of its demands fit."""

    task_class: TaskClass
    _demands: Sequence[Demand]
    wishes: Mapping[str, int] = field(init=False)
    """How much of what it wants, pools first."""

    @wishes.default
    def _pools_first(self) -> Mapping[str, int]:
        return {each.name: each.amount for each in sorted(self._demands, key=lambda each: each.name)}


@define
class _Row:
    """Those who want one thing, by class, and whose turn it is."""

    waiters: dict[TaskClass, dict[Waiter, None]] = field(factory=lambda: {each: {} for each in STRIDES}, init=False)
    shares: Shares = field(factory=Shares, init=False)

    def in_turn(self, name: str, passed: Counter[Waiter]) -> Iterator[Waiter]:
        """Those who have passed all that comes before `name`, the next one first."""
        shares, waiting = self.shares.copy(), dict[TaskClass, Waiter]()
        heads = {
            each: (waiter for waiter in waiters if passed[waiter] == list(waiter.wishes).index(name))
            for each, waiters in self.waiters.items()
        }
        for each, head in heads.items():
            if (waiter := next(head, None)) is not None:
                waiting[each] = waiter
        while waiting:
            each = shares.first(waiting)
            shares.took(each)
            yield waiting.pop(each)
            if (waiter := next(heads[each], None)) is not None:
                waiting[each] = waiter


@define
class Line:
    """All that wait in one process, in the order in which they came."""

    _rows: dict[str, _Row] = field(factory=dict, init=False)

    def join(self, waiter: Waiter) -> None:
        """Wait from now on."""
        for name in waiter.wishes:
            self._rows.setdefault(name, _Row()).waiters[waiter.task_class][waiter] = None

    def leave(self, waiter: Waiter) -> None:
        """Wait no more."""
        for name in waiter.wishes:
            del self._rows[name].waiters[waiter.task_class][waiter]

    def went(self, waiter: Waiter) -> None:
        """Note that what it wants is used now: the next turn is that of others."""
        for name in waiter.wishes:
            self._rows[name].shares.took(waiter.task_class)

    def wants(self, demands: Sequence[Demand]) -> bool:
        """Whether anybody waits for one of the same."""
        rows = [self._rows[each.name] for each in demands if each.name in self._rows]
        return any(any(row.waiters.values()) for row in rows)

    def free(self, usage: Usage, now_us: int) -> set[Waiter]:
        """Those that may go, in whatever order they do: there is room for each of them and for all before it."""
        passed = Counter[Waiter]()
        for name, row in sorted(self._rows.items()):
            left = usage.rates[name].most - usage.used(name, now_us)
            for waiter in row.in_turn(name, passed):
                if any(wish > usage.rates[each].most for each, wish in waiter.wishes.items()):
                    continue  # it never fits, and keeps nobody waiting
                left -= waiter.wishes[name]
                if left < 0:
                    break
                passed[waiter] += 1
        return {waiter for waiter, rows in passed.items() if rows == len(waiter.wishes)}
