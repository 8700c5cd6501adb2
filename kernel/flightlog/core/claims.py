"""Which task a worker takes up next: orphans first, then the classes by their shares, then the older ones.

Core tasks jump the queue. But whatever else waits, one claim in nine goes to a normal task, and one in thirty-three to
one of batch: so none of them starves, and none starves the others. Batch leaves the last place to them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from types import MappingProxyType
from typing import Final, TypeVar

from attrs import define, field, frozen

from flightlog_hookspecs.events import TaskClass, TaskStateName

STRIDES: Final[Mapping[TaskClass, int]] = MappingProxyType({"core": 1, "normal": 8, "batch": 32})
"""How far a claim moves its class back in the queue of classes."""

T = TypeVar("T", int, tuple[int, int])


@frozen(kw_only=True)
class Candidate:
    """A task that has not ended. `number` counts tasks in the order of submission, `due_us` is Unix microseconds.

    `letters` says that somebody has written to it, `woken` that something has come into its log since it was paused
    that may let it go on. One that runs is an orphan, unless its worker lives.
    """

    number: int
    name: str
    task_class: TaskClass
    model: str
    max_steps: int
    state: TaskStateName
    due_us: int | None = None
    letters: bool = False
    woken: bool = False

    @property
    def orphan(self) -> bool:
        """Whether its worker is dead, or runs it."""
        return self.state in ("running", "recovering")

    @property
    def ready(self) -> bool:
        """Whether there may be something to do for it now and at any time."""
        return self.orphan or self.letters or self.woken or (self.state == "pending" and self.due_us is None)

    def claimable(self, now_us: int) -> bool:
        """Whether there may be something to do for it at `now_us`."""
        return self.ready or (self.due_us is not None and self.due_us <= now_us)


@define
class Shares:
    """Whose turn it is: each class has a place, and the lowest comes first. A claim moves its class back by a stride.

    One that nobody waited in for a while does not catch up on what it missed.
    """

    _places: dict[TaskClass, int] = field(init=False, factory=lambda: dict(STRIDES))
    _now: int = field(default=0, init=False)

    def first(self, waiting: Collection[TaskClass]) -> TaskClass:
        """The class among those in which tasks are `waiting` whose turn it is."""
        return min(waiting, key=lambda each: (self._place(each), STRIDES[each]))

    def took(self, task_class: TaskClass) -> None:
        """Note a claim."""
        self._now = self._place(task_class)
        self._places[task_class] = self._now + STRIDES[task_class]

    def copy(self) -> Shares:
        """The same, to be tried."""
        other = Shares()
        other._places, other._now = dict(self._places), self._now
        return other

    def _place(self, task_class: TaskClass) -> int:
        return max(self._places[task_class], self._now)


def crowded(places: int, held: Mapping[TaskClass, int]) -> set[TaskClass]:
    """The classes of which no further task may have one of so many `places`, when each of them holds so many.

    Batch leaves the last one to the others, unless there is only one. Normal tasks do not leave it to core: who has
    no other tasks would wait for it in vain.
    """
    if sum(held.values()) >= places:
        return set(STRIDES)
    return {"batch"} if 1 < places <= held["batch"] + 1 else set()


@define
class Queue:
    """The tasks that have not ended, those first that are to be taken up first, however many there are."""

    _tasks: dict[int, Candidate] = field(factory=dict, init=False)
    _orphans: list[int] = field(factory=list, init=False)
    _ready: dict[TaskClass, list[int]] = field(factory=lambda: {each: [] for each in STRIDES}, init=False)
    _timed: list[tuple[int, int]] = field(factory=list, init=False)

    def get(self, number: int) -> Candidate | None:
        """Task `number`, None when it has ended."""
        return self._tasks.get(number)

    def all(self) -> Iterable[Candidate]:
        """All of them, in no order."""
        return self._tasks.values()

    def put(self, task: Candidate) -> None:
        """Let `task` in, or let it take the place of what was known of it before."""
        self.drop(task.number)
        self._tasks[task.number] = task
        if task.ready:
            insort(self._orphans if task.orphan else self._ready[task.task_class], task.number)
        elif task.due_us is not None:
            insort(self._timed, (task.due_us, task.number))

    def drop(self, number: int) -> None:
        """Forget task `number`, if it is known."""
        task = self._tasks.pop(number, None)
        if task is not None:
            _remove(self._orphans if task.orphan else self._ready[task.task_class], task.number)
            _remove(self._timed, (task.due_us or 0, number))

    def running(self) -> Mapping[TaskClass, frozenset[int]]:
        """The numbers of the tasks of each class that are worked on, or were by a worker that died."""
        found: dict[TaskClass, set[int]] = {each: set() for each in STRIDES}
        for number in self._orphans:
            found[self._tasks[number].task_class].add(number)
        return {each: frozenset(numbers) for each, numbers in found.items()}

    def first(
        self,
        now_us: int,
        count: int,
        shares: Shares,
        full: Collection[TaskClass] = (),
        crowded: Collection[TaskClass] = (),
    ) -> list[Candidate]:
        """The `count` tasks that are to be taken up first at `now_us`, by these `shares`.

        Of a class that is `full`, only what was written to; of one that is `crowded`, nothing.
        """
        due = self._timed[: bisect_left(self._timed, (now_us + 1, 0))]
        heads = {each: self._waiting(each, due, full) for each in STRIDES if each not in crowded}
        orphans = (
            number
            for number in self._orphans
            if self._may_begin(number, full) and self._tasks[number].task_class not in crowded
        )
        found, waiting, shares = list(islice(orphans, count)), dict[TaskClass, int](), shares.copy()
        for each, head in heads.items():
            if (number := next(head, None)) is not None:
                waiting[each] = number
        while waiting and len(found) < count:
            each = shares.first(waiting)
            shares.took(each)
            found.append(waiting.pop(each))
            if (number := next(heads[each], None)) is not None:
                waiting[each] = number
        return [self._tasks[number] for number in found]

    def _may_begin(self, number: int, full: Collection[TaskClass]) -> bool:
        task = self._tasks[number]
        return task.letters or task.task_class not in full

    def _waiting(
        self, task_class: TaskClass, due: Collection[tuple[int, int]], full: Collection[TaskClass]
    ) -> Iterator[int]:
        """The tasks of a class that may be taken up, the older first."""
        ready = (number for number in self._ready[task_class] if self._may_begin(number, full))
        timed = (n for _, n in due if self._tasks[n].task_class == task_class and self._may_begin(n, full))
        return merge(ready, sorted(timed))


def _remove(ordered: list[T], item: T) -> None:
    index = bisect_left(ordered, item)
    if index < len(ordered) and ordered[index] == item:
        del ordered[index]
