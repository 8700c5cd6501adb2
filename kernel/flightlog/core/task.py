"""A task as far as its log has come, and which state may follow which."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from attrs import evolve, frozen

from flightlog_hookspecs.events import TaskAmended, TaskState, TaskStateName, TaskSubmitted

ENDED: Final[frozenset[TaskStateName]] = frozenset({"completed", "failed", "cancelled"})
"""The states that nothing follows."""

PAUSED_BY_PERSON: Final = "person"
"""The cause of a task that somebody paused, and that only somebody resumes."""

_OPEN: Final[frozenset[TaskStateName]] = frozenset({"pending", "running", "recovering", "paused", *ENDED})
FOLLOWING: Final[Mapping[TaskStateName, frozenset[TaskStateName]]] = MappingProxyType(
    {
        "pending": _OPEN - {"pending", "recovering", "completed"},
        "running": _OPEN - {"running"},
        "recovering": _OPEN,
        "paused": _OPEN - {"running", "recovering", "completed"},
        "completed": frozenset(),
        "failed": frozenset(),
        "cancelled": frozenset(),
    }
)
"""What may follow each state. A paused one is pending again before it runs; it may be paused anew for another cause."""


@frozen(kw_only=True)
class Task:
    """A task. `steps` counts the finished steps of all its turns.

    `recoveries` counts how often it was taken up from where a dead worker left it, `stuck` those of them since the last
    finished step.
    """

    submitted: TaskSubmitted
    goal: str
    parameters: str
    at: TaskState
    steps: int = 0
    recoveries: int = 0
    stuck: int = 0

    @property
    def state(self) -> TaskStateName:
        """Where it stands."""
        return self.at.state

    @property
    def ended(self) -> bool:
        """Whether nothing will ever be done for it any more."""
        return self.at.state in ENDED


def submitted(event: TaskSubmitted) -> Task:
    """The task that begins with `event`."""
    return Task(submitted=event, goal=event.goal, parameters=event.parameters, at=TaskState(state="pending"))


def amended(task: Task, event: TaskAmended) -> Task:
    """`task` with another goal."""
    return evolve(task, goal=event.goal, parameters=event.parameters)


def moved(task: Task, event: TaskState) -> Task:
    """`task` in another state."""
    recovers = event.state == "recovering"
    return evolve(task, at=event, recoveries=task.recoveries + recovers, stuck=task.stuck + recovers)


def stepped(task: Task) -> Task:
    """`task` after one more finished step."""
    return evolve(task, steps=task.steps + 1, stuck=0)
