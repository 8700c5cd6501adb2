"""A task as far as its log has come, and which state may follow which."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from attrs import evolve, frozen

from flightlog_hookspecs.events import GoalChecked, TaskAmended, TaskState, TaskStateName, TaskSubmitted, TurnEnd

ENDED: Final[frozenset[TaskStateName]] = frozenset({"completed", "failed", "cancelled"})
"""The states that nothing follows."""

WAITING: Final[frozenset[TaskStateName]] = frozenset({"pending", "paused"})
"""The states in which nothing is done for it."""

PAUSED_BY_PERSON: Final = "person"
"""The cause of a task that somebody paused, and that only somebody resumes."""

GOAL_ID: Final = "goal"
"""The message that brings the goal, and the timer that brings it again: one of each in a task's session at most."""

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
    """A task. `steps` counts the steps that have ended in all its turns, `steps_before` those until its goal came last.

    `recoveries` counts how often it was taken up from where a dead worker left it, `stuck` those of them since the last
    finished step. `checked` is what its goal check has found last about this goal, None before it was asked.
    `end` is how its newest turn ended since it last began to run, None when none did.
    `answers` counts those that people gave to open questions, `answers_then` as many of them as there were at `at`.
    """

    submitted: TaskSubmitted
    goal: str
    parameters: str
    at: TaskState
    steps: int = 0
    recoveries: int = 0
    stuck: int = 0
    end: TurnEnd | None = None
    answers: int = 0
    answers_then: int = 0
    checked: GoalChecked | None = None
    steps_before: int = 0

    @property
    def state(self) -> TaskStateName:
        """Where it stands."""
        return self.at.state

    @property
    def goal_met(self) -> bool | None:
        """What its goal check has found last, None where nobody asked it."""
        return self.checked.met if self.checked else None

    @property
    def run_steps(self) -> int:
        """The steps that have ended since its goal came last."""
        return self.steps - self.steps_before

    @property
    def ended(self) -> bool:
        """Whether nothing will ever be done for it any more."""
        return self.at.state in ENDED


def submitted(event: TaskSubmitted) -> Task:
    """The task that begins with `event`."""
    return Task(submitted=event, goal=event.goal, parameters=event.parameters, at=TaskState(state="pending"))


def amended(task: Task, event: TaskAmended) -> Task:
    """`task` with another goal."""
    return evolve(task, goal=event.goal, parameters=event.parameters, checked=None)


def moved(task: Task, event: TaskState) -> Task:
    """`task` in another state."""
    recovers = event.state == "recovering"
    return evolve(
        task,
        at=event,
        recoveries=task.recoveries + recovers,
        stuck=task.stuck + recovers,
        end=None if event.state == "running" else task.end,
        answers_then=task.answers,
    )


def stepped(task: Task, *, finished: bool) -> Task:
    """`task` after one more step; one that was cut off is not `finished`, and proves nothing."""
    return evolve(task, steps=task.steps + 1, stuck=0 if finished else task.stuck)


def ended(task: Task, event: TurnEnd) -> Task:
    """`task` after the end of a turn."""
    return evolve(task, end=event)


def begun_again(task: Task) -> Task:
    """`task` whose goal has come again."""
    return evolve(task, steps_before=task.steps)


def answered(task: Task) -> Task:
    """`task` after the answer to one of its questions."""
    return evolve(task, answers=task.answers + 1)


def readable(goal: str, parameters: str) -> str:
    """A goal and its parameters (canonical JSON) as the model reads them."""
    return goal if parameters == "{}" else f"{goal}\n\nParameters:\n{parameters}"


def recovered(task: Task | None) -> tuple[TaskState, ...]:
    """What follows the end of a step: a task that was recovering runs again, for it has come on."""
    return (TaskState(state="running"),) if task is not None and task.state == "recovering" else ()


def checked(task: Task, event: GoalChecked) -> Task:
    """`task` once its goal was checked."""
    return evolve(task, checked=event)
