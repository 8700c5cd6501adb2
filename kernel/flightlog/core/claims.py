"""Which task a worker takes up next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from attrs import frozen

from flightlog_hookspecs.events import TaskClass, TaskStateName

_RANKS: Final[dict[TaskClass, int]] = {"core": 0, "normal": 1, "batch": 2}


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

    def claimable(self, now_us: int) -> bool:
        """Whether there may be something to do for it at `now_us`."""
        if self.orphan or self.letters:
            return True
        if self.state == "paused":
            return self.due_us is not None and self.due_us <= now_us
        return (self.due_us or 0) <= now_us


def in_order(candidates: Iterable[Candidate], now_us: int) -> list[Candidate]:
    """Those that may be taken up, the first one first: orphans, then by class, then by the order of submission."""
    found = (candidate for candidate in candidates if candidate.claimable(now_us))
    return sorted(found, key=lambda one: (not one.orphan, _RANKS[one.task_class], one.number))
