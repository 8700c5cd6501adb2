"""Which task a worker takes up next."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import merge
from itertools import islice
from typing import Final, TypeVar

from attrs import define, field, frozen

from flightlog_hookspecs.events import TaskClass, TaskStateName

_RANKS: Final[dict[TaskClass, int]] = {"core": 0, "normal": 1, "batch": 2}
Rank = tuple[bool, int, int]
T = TypeVar("T", Rank, tuple[int, int])


@frozen(kw_only=True)
class Candidate:
    """A task that has not ended. `number` counts tasks in the order of submission, `due_us` is Unix microseconds.

    `letters` says that somebody has written to it. One that runs is an orphan, unless its worker lives.
    """

    number: int
    name: str
    task_class: TaskClass
    model: str
    max_steps: int
    state: TaskStateName
    due_us: int | None = None
    letters: bool = False

    @property
    def orphan(self) -> bool:
        """Whether its worker is dead, or runs it."""
        return self.state in ("running", "recovering")

    @property
    def rank(self) -> Rank:
        """The lowest comes first: orphans, then by class, then by the order of submission."""
        return (not self.orphan, _RANKS[self.task_class], self.number)

    @property
    def ready(self) -> bool:
        """Whether there may be something to do for it now and at any time."""
        return self.orphan or self.letters or (self.state == "pending" and self.due_us is None)

    def claimable(self, now_us: int) -> bool:
        """Whether there may be something to do for it at `now_us`."""
        return self.ready or (self.due_us is not None and self.due_us <= now_us)


@define
class Queue:
    """The tasks that have not ended, those first that are to be taken up first, however many there are."""

    _tasks: dict[int, Candidate] = field(factory=dict, init=False)
    _ready: list[Rank] = field(factory=list, init=False)
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
            insort(self._ready, task.rank)
        elif task.due_us is not None:
            insort(self._timed, (task.due_us, task.number))

    def drop(self, number: int) -> None:
        """Forget task `number`, if it is known."""
        task = self._tasks.pop(number, None)
        if task is not None:
            _remove(self._ready, task.rank)
            _remove(self._timed, (task.due_us or 0, number))

    def first(self, now_us: int, count: int) -> list[Candidate]:
        """The `count` tasks that are to be taken up first at `now_us`."""
        due = self._timed[: bisect_left(self._timed, (now_us + 1, 0))]
        ranks = merge(islice(self._ready, count), sorted(self._tasks[number].rank for _, number in due))
        return [self._tasks[number] for _, _, number in islice(ranks, count)]


def _remove(ordered: list[T], item: T) -> None:
    index = bisect_left(ordered, item)
    if index < len(ordered) and ordered[index] == item:
        del ordered[index]
