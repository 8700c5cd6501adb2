"""Tasks as they stand, read from the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from attrs import frozen

from flightlog.core import canonical
from flightlog.core.task import ENDED
from flightlog.store.connection import Row
from flightlog.store.replay import lone_record
from flightlog.store.store import Store
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import Event, TaskAmended, TaskClass, TaskStateName, TaskSubmitted


@frozen(kw_only=True)
class TaskSummary:
    """A task as it stands. Times are Unix microseconds.

    `cause` is why it is in its `state`, for programs, and `message` the same for people. `goal` and `parameters` (JSON)
    are what is to be reached now. `steps` counts finished ones, `recoveries` how often it was taken up from a dead
    worker. It begins, or goes on by itself, at `due_at_us`; `deadline_us` ends it.
    """

    id: str
    task_class: TaskClass
    state: TaskStateName
    cause: str
    message: str
    goal: str
    parameters: Mapping[str, Any]
    goal_met: bool | None
    goal_check: str
    model: str
    agent: str
    steps: int
    max_steps: int
    recoveries: int
    submitted_at_us: int
    changed_at_us: int
    due_at_us: int | None
    deadline_us: int | None

    @property
    def ended(self) -> bool:
        """Whether nothing will ever be done for it any more."""
        return self.state in ENDED


def summaries(store: Store, state: TaskStateName | None, limit: int | None) -> list[TaskSummary]:
    """The tasks in `state`, or all, the last submitted first; at most `limit`, None for no limit."""
    if state is not None and state not in get_args(TaskStateName):
        raise UsageError(f"state is one of {get_args(TaskStateName)}, not {state!r}")
    most = -1 if limit is None else whole_number("limit", limit, at_least=0)
    return [_summary(store, row) for row in store.read("tasks_page", state, most)]


def summary(store: Store, id: str) -> TaskSummary:
    """Task `id`. Raises `UsageError` when there is none."""
    rows = store.read("task_named", id)
    if not rows:
        other = "; the session of that name is no task's" if store.key_of(id) else ""
        raise UsageError(f"there is no task {id!r} in {store.path}{other}")
    return _summary(store, rows[0])


def event_at(store: Store, name: str, key: int, seq: int) -> Event | None:
    """The event in row `seq` of session `name`. Raises `LogCorrupt`."""
    row = store.row(key, seq)
    return lone_record(store, name, row).event if row else None


def whole_number(what: str, number: object, *, at_least: int) -> int:
    """`number` as it is. Raises `UsageError` unless it is a whole number from `at_least` on."""
    if isinstance(number, bool) or not isinstance(number, int) or number < at_least:
        raise UsageError(f"{what} is a whole number from {at_least} on, not {number!r}")
    return number


def _summary(store: Store, row: Row) -> TaskSummary:
    name, task_class, state, cause, message, goal_met, model, agent, *counts = row
    steps, max_steps, recoveries, submitted_at_us, changed_at_us, due_at_us, key, goal_seq = counts
    submitted, aim = event_at(store, name, key, 2), event_at(store, name, key, goal_seq)
    assert isinstance(submitted, TaskSubmitted), "a task's session begins with it"
    assert isinstance(aim, (TaskSubmitted, TaskAmended)), "the query finds only these"
    return TaskSummary(
        id=name,
        task_class=task_class,
        state=state,
        cause=cause or "",
        message=message or "",
        goal=aim.goal,
        parameters=canonical.loads(aim.parameters),
        goal_met=None if goal_met is None else bool(goal_met),
        goal_check=submitted.goal_check,
        model=model,
        agent=agent or "",
        steps=steps,
        max_steps=max_steps,
        recoveries=recoveries,
        submitted_at_us=submitted_at_us,
        changed_at_us=changed_at_us,
        due_at_us=due_at_us,
        deadline_us=submitted.deadline_us,
    )
