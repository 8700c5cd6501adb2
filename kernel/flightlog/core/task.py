"""A task as far as its log has come, and which state may follow which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from attrs import frozen

from flightlog.core.changed import changed
from flightlog.core.growing_set import GrowingSet
from flightlog.core.history import extended
from flightlog_hookspecs.events import (
    AssistantMessage,
    CheckpointSkipped,
    CheckpointWritten,
    CompactionEnd,
    CompactionStart,
    Event,
    GoalChecked,
    RequestSent,
    SubGoal,
    TaskAmended,
    TaskResynced,
    TaskState,
    TaskStateName,
    TaskSubmitted,
    ToolCall,
    ToolResult,
    TurnEnd,
    UserMessage,
)
from flightlog_hookspecs.tools import Outcome

ENDED: Final[frozenset[TaskStateName]] = frozenset({"completed", "failed", "cancelled"})
"""The states that nothing follows."""

WAITING: Final[frozenset[TaskStateName]] = frozenset({"pending", "paused"})
"""The states in which nothing is done for it."""

PAUSED_BY_PERSON: Final = "person"
"""The cause of a task that somebody paused, and that only somebody resumes."""

HANDED_OVER: Final = "handed_over"
"""The cause of a task that its worker left to the next one, as it was ended itself."""

TOO_MANY_HAND_OVERS: Final = "too_many_hand_overs"
"""The cause of a task that is paused since its workers were ended again and again before it came on."""

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


NO_CHECKPOINTS: Final[GrowingSet[int]] = GrowingSet()
_Tally = MappingProxyType[tuple[str, Outcome], int]
NO_TALLY: Final[_Tally] = MappingProxyType({})
NO_ANSWERS: Final[Mapping[int, str]] = MappingProxyType({})


@frozen(kw_only=True)
class Mark:
    """A checkpoint that agrees with the log, in row `seq`."""

    seq: int
    written: CheckpointWritten


@frozen(kw_only=True)
class Doubted:
    """A checkpoint that does not, and why."""

    seq: int
    why: str


@frozen(kw_only=True, slots=False)
class Task:
    """A task. `steps` counts the steps that have ended in all its turns, `steps_before` those until its goal came last.

    Those without a request since are among the latter, too: they take none of those that it may have.
    `recoveries` counts how often it was taken up from where a dead worker left it, `stuck` those of them since the last
    finished step. `handed_over` counts how often since then a worker left it to the next one, if it had `tried` by then
    in vain: a request was sent, or a body started. It counts anew once the task was paused for that. `checked` is what
    its goal check has found last about this goal, None before it was asked.
    `end` is how its newest turn ended since it last began to run, None when none did.
    `answers` counts those that people gave to open questions, `answers_then` as many of them as there were at `at`.

    `calls` counts the tool bodies started, `tally` how they ended by tool and outcome, `tokens` all that
    answers counted. `history` is the digest of what the model sees.

    `checkpoints` are the rows of all checkpoints, `newest` the last of them; `mark` is the newest heavy or archive one
    that agrees with the log, `doubted` are those behind it that do not, unless it was said that they were skipped.

    `resynced` says that nothing has to be looked at again before the task goes on, `reread` holds what those reads
    answered last that were asked again, by the row of their call. `recalled` says that the model was told what it was
    doing and has said nothing since, `stale` which answers it was told may be out of date. `charge` are the goal and
    the parameters that the work was last known to be based on; with `rebased`, the fingerprint of what it is based on
    from now on, a new head starts the next turn.
    """

    submitted: TaskSubmitted
    goal: str
    parameters: str
    at: TaskState
    steps: int = 0
    recoveries: int = 0
    stuck: int = 0
    handed_over: int = 0
    tried: bool = False
    end: TurnEnd | None = None
    answers: int = 0
    answers_then: int = 0
    checked: GoalChecked | None = None
    steps_before: int = 0
    calls: int = 0
    tokens: int = 0
    tally: _Tally = NO_TALLY
    history: str = ""
    checkpoints: GrowingSet[int] = NO_CHECKPOINTS
    newest: int = 0
    mark: Mark | None = None
    doubted: tuple[Doubted, ...] = ()
    resynced: bool = False
    reread: Mapping[int, str] = NO_ANSWERS
    recalled: bool = False
    stale: frozenset[int] = frozenset()
    charge: tuple[str, str] = ("", "{}")
    rebased: str = ""

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
        """The steps with a request that have ended since its goal came last."""
        return self.steps - self.steps_before

    @property
    def done(self) -> str:
        """What was done so far, in a few words."""
        ends = [
            f"{name} {count}" if end == "ok" else f"{name} {end} {count}" for (name, end), count in self.tally.items()
        ]
        return f"steps {self.steps}, calls {self.calls}" + (f" ({', '.join(ends)})" if ends else "")

    @property
    def ended(self) -> bool:
        """Whether nothing will ever be done for it any more."""
        return self.at.state in ENDED


def submitted(event: TaskSubmitted) -> Task:
    """The task that begins with `event`."""
    charge = (event.goal, event.parameters)
    at = TaskState(state="pending")
    return Task(submitted=event, goal=event.goal, parameters=event.parameters, at=at, charge=charge)


def amended(task: Task, event: TaskAmended) -> Task:
    """`task` with another goal."""
    return changed(task, goal=event.goal, parameters=event.parameters, checked=None)


def moved(task: Task, event: TaskState) -> Task:
    """`task` in another state. One that was paused has to look at what it has read before it goes on."""
    recovers = event.state == "recovering"
    in_vain = task.tried and event.cause == HANDED_OVER
    return changed(
        task,
        at=event,
        recoveries=task.recoveries + recovers,
        stuck=task.stuck + recovers,
        handed_over=0 if event.cause == TOO_MANY_HAND_OVERS else task.handed_over + in_vain,
        tried=False,
        end=None if event.state == "running" else task.end,
        answers_then=task.answers,
        resynced=task.resynced and event.state != "paused",
    )


def stepped(task: Task, *, asked: bool, finished: bool) -> Task:
    """`task` after one more step; one that was cut off is not `finished`, and proves nothing.

    One in which no model was `asked` takes none of the steps that it may have: it waits for a quota, say.
    """
    counted_anew = {"stuck": 0, "handed_over": 0, "tried": False} if finished else {}
    return changed(task, steps=task.steps + 1, steps_before=task.steps_before + (not asked), **counted_anew)


def ended(task: Task, event: TurnEnd) -> Task:
    """`task` after the end of a turn."""
    return changed(task, end=event)


def begun_again(task: Task) -> Task:
    """`task` whose goal has come again."""
    return changed(task, steps_before=task.steps)


def answered(task: Task) -> Task:
    """`task` after the answer to one of its questions."""
    return changed(task, answers=task.answers + 1)


def readable(goal: str, parameters: str, sub_goals: tuple[SubGoal, ...] = ()) -> str:
    """A goal, its parameters (canonical JSON) and its parts as the model reads them."""
    parts = "\n".join(f"- {each.text}" for each in sorted(sub_goals, key=lambda each: not each.core))
    told = ("Parameters", parameters if parameters != "{}" else ""), ("Sub-goals, the main ones first", parts)
    return "\n\n".join([goal, *(f"{name}:\n{text}" for name, text in told if text)])


def recovered(task: Task | None) -> tuple[TaskState, ...]:
    """What follows the end of a step: a task that was recovering runs again, for it has come on."""
    return (TaskState(state="running"),) if task is not None and task.state == "recovering" else ()


def checked(task: Task, event: GoalChecked) -> Task:
    """`task` once its goal was checked."""
    return changed(task, checked=event)


def counted(task: Task, event: Event) -> Task:
    """`task` after an event that counts for it, whether or not it is about a task."""
    count = _COUNTS.get(type(event))
    return count(task, event) if count else task


def _tries(task: Task, event: RequestSent | CompactionStart) -> Task:
    return task if task.tried else changed(task, tried=True)


def _called(task: Task, event: ToolCall) -> Task:
    return changed(task, calls=task.calls + 1, tried=True)


def _answer(task: Task, event: AssistantMessage) -> Task:
    tokens = task.tokens + event.counted
    return changed(task, tokens=tokens, history=extended(task.history, event), recalled=False, stale=frozenset())


def _summed_up(task: Task, event: CompactionEnd) -> Task:
    return changed(task, tokens=task.tokens + event.counted)


def _result(task: Task, event: ToolResult) -> Task:
    history = extended(task.history, event)
    if event.call_seq is None or event.replaces is not None:
        return changed(task, history=history)
    ended = (event.name, event.outcome)
    tally = MappingProxyType(task.tally | {ended: task.tally.get(ended, 0) + 1})
    return changed(task, tally=tally, history=history)


def _told(task: Task, event: UserMessage) -> Task:
    return changed(task, history=extended(task.history, event))


_COUNTS: Final[dict[type, Callable[[Task, Any], Task]]] = {
    RequestSent: _tries,
    CompactionStart: _tries,
    ToolCall: _called,
    AssistantMessage: _answer,
    CompactionEnd: _summed_up,
    ToolResult: _result,
    UserMessage: _told,
}


def checkpointed(task: Task, event: CheckpointWritten, seq: int, judged: Mark | Doubted) -> Task:
    """`task` after a checkpoint in row `seq`."""
    task = changed(task, checkpoints=task.checkpoints.with_item(seq), newest=seq)
    if isinstance(judged, Doubted):
        return changed(task, doubted=(*task.doubted, judged))
    if event.level == "light":
        return task
    return changed(task, mark=judged, doubted=(), charge=(task.goal, task.parameters))


def skipping(task: Task, event: CheckpointSkipped) -> Task:
    """`task` after it was said that a checkpoint disagrees with the log."""
    return changed(task, doubted=tuple(each for each in task.doubted if each.seq != event.checkpoint_seq))


def resynced(task: Task, event: TaskResynced) -> Task:
    """`task` once it was looked at what it is based on and what it has read."""
    answers = {each.call_seq: each.answer for each in event.refreshed if each.answer}
    return changed(
        task,
        resynced=True,
        reread=MappingProxyType({**task.reread, **answers}) if answers else task.reread,
        recalled=True,
        stale=frozenset(each.call_seq for each in event.refreshed if each.came == "failed"),
        charge=(task.goal, task.parameters),
        rebased=event.after if event.changed else task.rebased,
    )
