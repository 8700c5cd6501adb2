"""flow(state, ...) -> Action: what the owner of a task's session does next, as one table.

| task               | turn   |                                           | then                                     |
|--------------------|--------|-------------------------------------------|------------------------------------------|
| ended              |        |                                           | Rest                                     |
| any                | open   | a letter cancels it                       | Drive, which closes it                   |
| any                | closed | its turn was cancelled                    | it is cancelled                          |
| paused             |        | its time has come, its question was answered | it is pending                         |
| paused for a card, or its context |  | more was granted since      | it is pending                            |
| paused for a timer |        | a message has come, or no timer is left   | it is pending                            |
| paused for a timer |        | another timer is due first                | it is paused until then                  |
| paused             |        | otherwise                                 | Rest                                     |
| pending            |        | not due yet, or the worker leaves         | Rest                                     |
| pending            |        | its deadline has passed                   | close the turn, it failed                |
| pending            |        | handed over in vain, once too often       | it is paused                             |
| pending            |        | otherwise                                 | it is running, with a message to run for |
| running, recovering| closed | the turn's end decides (`_reached`)     | completed, failed, cancelled, paused     |
| running, recovering| closed | paused for a card, of which more was granted since | it goes on                    |
| running, recovering| closed | completed, but sub-goals were put off     | it is paused for their card              |
| running, recovering| closed | completed, and a timer has come due       | the timer's message                      |
| running, recovering| closed | completed, but children go on beside it   | Await, or paused once its time is used up |
| running, recovering| closed | completed, and a timer is open            | it is paused until that is due           |
| running, recovering| closed | failed, but its goal comes again          | the same                                 |
| running, recovering| closed | its deadline has passed                   | it failed                                |
| running, recovering|        | just claimed: an orphan, once too often   | close the turn, it failed                |
| running, recovering|        | just claimed: an orphan                   | it is recovering                         |
| running, recovering| open   | driven to rest: it waits for a person     | it is paused                             |
| running, recovering|        | driven to rest: the worker leaves         | it is pending                            |
| running, recovering| closed | nothing wakes it                          | a message to go on for                   |
| running, recovering|        | otherwise                                 | Drive                                    |

A task that ends cancels the timers of its session.
"""

from __future__ import annotations

import math
from typing import Final, Literal

from attrs import evolve, frozen

from flightlog.core import checkpoints, inbox
from flightlog.core.budget import CONTEXT, QUOTA
from flightlog.core.fold import after
from flightlog.core.state import State
from flightlog.core.stopping import halt_of
from flightlog.core.task import ENDED, GOAL_ID, HANDED_OVER, TOO_MANY_HAND_OVERS, Task, readable
from flightlog.core.waking import cancel_all, fire, goal_again, next_due_us
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import (
    Event,
    InboxSplice,
    TaskAmended,
    TaskState,
    TaskStateName,
    TurnEnd,
    TurnEndReason,
)

GO_ON: Final = "The work on this task was interrupted and goes on now. Go on where you stopped."
TIMERS_GONE: Final = (
    "No timer is open any more: nothing will wake you for this task again. Do what is left of it now, or end it."
)
QUESTION: Final = "question"
TIMER: Final = "timer"
NO_TIMER: Final = "no_timer"
HAND_OVER: Final = TaskState(state="pending", cause=HANDED_OVER)
LATE: Final = TurnEnd(reason="deadline")
TOO_MANY_RECOVERIES: Final = "too_many_recoveries"

Since = Literal["claim", "write", "drive"]
"""What was done last: the session was opened, something was written, the session was driven until it came to rest."""


@frozen
class Rest:
    """Nothing more to do: let the session go."""


@frozen
class Write:
    """Append `events` as one, then look again."""

    events: tuple[Event, ...]


@frozen
class End:
    """Close the open turn with `turn`, if one is open, then write `task`."""

    turn: TurnEnd
    task: TaskState


@frozen
class Drive:
    """Run the session until it comes to rest."""


@frozen
class Await:
    """Wait until a message, a letter or a child's end has come."""


Action = Rest | Write | End | Drive | Await


def flow(
    state: State, now_us: int, since: Since, *, message_id: str, leaving: bool = False, answers: int = 0
) -> Action:
    """The next action, at `now_us` (Unix microseconds). A message that it writes has the id `message_id`.

    `leaving` says that the worker is on its way out; `answers` is how many there were when it was last driven.
    """
    assert state.task is not None, "only the sessions of tasks are worked on"
    task = state.task
    if task.ended:
        return Rest()
    if state.cancelling:
        return Drive()
    if not state.turn_open and task.end is not None and task.end.reason == "aborted":
        return Write(_ended(state, task, task.end))
    match task.state:
        case "paused":
            cause = _wakes_up(state, task, now_us)
            if not cause and task.at.cause == TIMER and task.at.resume_at_us != _timer_us(state, task):
                return Write((_waits_for_timer(state, task, task.at.message),))
            return Write((TaskState(state="pending", cause=cause),)) if cause else Rest()
        case "pending" if leaving or (task.submitted.due_us or 0) > now_us:
            return Rest()
        case "pending" if _is_late(task, now_us):
            return End(LATE, _reached(task, LATE))
        case "pending" if task.handed_over > task.submitted.max_recoveries:
            return Write((_handed_over_too_often(task),))
        case "pending":
            return Write(_begun(state, TaskState(state="running"), message_id, now_us))
        case _:
            verdict = None if state.turn_open else _verdict(state, task, now_us, leaving=leaving)
            unseen = since == "drive" and not leaving and task.answers > answers
            since = "write" if unseen else since
            return verdict or _under_way(state, task, now_us, since, message_id, leaving=leaving)


def _verdict(state: State, task: Task, now_us: int, *, leaving: bool) -> Action | None:
    """What the end of its last turn comes to, or None when the task is to go on."""
    end = task.end
    if end is None or _is_no_verdict(state, end):
        return End(LATE, _reached(task, LATE)) if _is_late(task, now_us) else None
    goes_on = not _is_late(task, now_us) and (end.reason == "completed" or (GOAL_ID in state.timers and _failed(end)))
    if goes_on and (next_due_us(state) or math.inf) <= now_us:
        return None
    if end.reason == "completed" and state.unsettled and not _is_late(task, now_us):
        if (halted := halt_of(state)) is not None:
            return Write(_ended(state, task, halted))
        return Write((HAND_OVER,)) if leaving else Await()
    if goes_on and state.timers:
        why = f"this time it failed: {_reached(task, end).cause}" if _failed(end) else ""
        return Write((_waits_for_timer(state, task, why),))
    return Write(_ended(state, task, end))


def _is_no_verdict(state: State, end: TurnEnd) -> bool:
    """Whether the task goes on after `end`: it was cut off, or more has come of what it ended for the want of."""
    granted = state.account is not None and state.account.halt is None and end.cause == QUOTA
    more = (end.reason == "completed" and inbox.wakes(state)) or (end.reason == "paused" and granted)
    return end.reason == "interrupted" or more


def _under_way(state: State, task: Task, now_us: int, since: Since, message_id: str, *, leaving: bool) -> Action:
    if since == "claim":
        if task.stuck >= task.submitted.max_recoveries:
            given_up = TaskState(
                state="failed",
                cause=TOO_MANY_RECOVERIES,
                message=f"recovered {task.stuck} times without a finished step",
            )
            return End(TurnEnd(reason="interrupted"), given_up)
        return Write(_begun(state, TaskState(state="recovering"), message_id, now_us))
    if since == "drive" and state.suspended:
        return Write((TaskState(state="paused", cause=QUESTION, message="waits for an answer"),))
    if since == "drive" and (leaving or state.turn_open):
        return Write((HAND_OVER,))
    messages = _to_run_for(state, message_id, now_us)
    return Write(messages) if messages else Drive()


def _handed_over_too_often(task: Task) -> TaskState:
    """That it is paused: each worker would pay for the same request once more. It was nobody's crash, so none fails."""
    why = f"{task.handed_over} workers were ended in the middle of a step that none finished; resume it once one may"
    return TaskState(state="paused", cause=TOO_MANY_HAND_OVERS, message=why)


def handed_over(state: State) -> tuple[TaskState, ...]:
    """What a worker writes that has to let go of a task in the middle; nothing where that would be wrong."""
    under_way = state.task is not None and state.task.state in ("running", "recovering")
    return (HAND_OVER,) if under_way else ()


_REACHED: Final[dict[TurnEndReason, TaskStateName]] = {
    "completed": "completed",
    "aborted": "cancelled",
    "paused": "paused",
}
"""The state that each end of a turn leaves the task in. All others fail it, but interrupted, which is no verdict."""


def _reached(task: Task, end: TurnEnd) -> TaskState:
    """Where `end` of its last turn leaves the task."""
    assert end.reason != "interrupted", "an interrupted turn is no verdict"
    reached = _REACHED.get(end.reason, "failed")
    return TaskState(
        state=reached,
        cause=end.reason if reached == "failed" else end.cause,
        message=": ".join(filter(None, (end.code, end.message))),
        goal_met=task.goal_met,
    )


def _failed(end: TurnEnd) -> bool:
    """Whether `end` fails the task, for another reason than that its time is over."""
    return end.reason not in ("deadline", "interrupted") and _REACHED.get(end.reason, "failed") == "failed"


def _ended(state: State, task: Task, end: TurnEnd) -> tuple[Event, ...]:
    """What is written when `end` of its last turn decides about the task."""
    reached = _reached(task, end)
    account = state.account
    if account is not None and reached.state == "paused" and reached.cause == QUOTA and account.halt is not None:
        reached = evolve(reached, resume_at_us=account.halt.resume_at_us)
    if account is not None and reached.state == "completed" and account.put_off:
        left = "put off until more tokens are granted: " + "; ".join(account.put_off)
        return (TaskState(state="paused", cause=QUOTA, message=left, goal_met=reached.goal_met),)
    return (*(cancel_all(state, "task") if reached.state in ENDED else ()), *checkpoints.moved(state, reached))


def _waits_for_timer(state: State, task: Task, message: str) -> TaskState:
    return TaskState(state="paused", cause=TIMER, message=message, resume_at_us=_timer_us(state, task))


def _timer_us(state: State, task: Task) -> int | None:
    """When a task that waits for its timers is to be looked at next."""
    times = (next_due_us(state), task.submitted.deadline_us)
    return min((time_us for time_us in times if time_us is not None), default=None)


def goal(state: State) -> tuple[InboxSplice, ...]:
    """The goal as the task's first message, unless it was delivered before or this is no task's session."""
    task = state.task
    if task is None or _knows_goal(state):
        return ()
    return (inbox.accepted(state, "steer", GOAL_ID, text_blocks(_told(task))),)


def _told(task: Task) -> str:
    return readable(task.goal, task.parameters, task.submitted.sub_goals)


def _knows_goal(state: State) -> bool:
    """Whether the model has the first message, or is to get it; that of a fork has it from its origin."""
    return GOAL_ID in state.accepted or state.turn > 0


def news_of(state: State, amended: TaskAmended, message_id: str) -> tuple[InboxSplice, ...]:
    """What the model is told of another goal; nothing while it has not heard of the first."""
    if not _knows_goal(state):
        return ()
    words = f"The goal of this task has changed. It is now:\n\n{readable(amended.goal, amended.parameters)}"
    return (evolve(inbox.accepted(state, "steer", message_id, text_blocks(words)), source="resync"),)


def _begun(state: State, begins: TaskState, message_id: str, now_us: int) -> tuple[Event, ...]:
    """That the task is under way, and what it is to run for."""
    assert state.task is not None, "only the sessions of tasks are worked on"
    words = TIMERS_GONE if state.task.at.cause == NO_TIMER else GO_ON
    events = (*checkpoints.moved(state, begins), *goal_again(state, now_us))
    return (*events, *_to_run_for(after(state, *events), message_id, now_us, words))


def _to_run_for(state: State, message_id: str, now_us: int, words: str = GO_ON) -> tuple[Event, ...]:
    """The message that brings a turn about where nothing else does."""
    if state.turn_open or (first := goal(state)):
        return () if state.turn_open else first
    assert state.task is not None, "only the sessions of tasks are worked on"
    reminded = bool(state.turn) and not state.task.resynced  # of the task, which brings a turn about by itself
    if inbox.wakes(state) or (reminded and words == GO_ON):
        return ()
    if fired := fire(state, now_us):
        return fired
    return (evolve(inbox.accepted(state, "steer", message_id, text_blocks(words)), source="resync"),)


def _wakes_up(state: State, task: Task, now_us: int) -> str:
    """Why a paused task goes on by itself, "" when it does not."""
    if task.at.cause == TIMER:
        if inbox.wakes(state):
            return "message"
        if not state.timers:
            return NO_TIMER
        return "due" if (_timer_us(state, task) or 0) <= now_us else ""
    if task.at.resume_at_us is not None and task.at.resume_at_us <= now_us:
        return "due"
    for_want_of_a_card = task.at.cause in (QUOTA, CONTEXT)
    if for_want_of_a_card and state.account is not None and state.account.grants > state.account.grants_then:
        return "granted"
    return "answered" if task.at.cause == QUESTION and task.answers > task.answers_then else ""


def _is_late(task: Task, now_us: int) -> bool:
    return task.submitted.deadline_us is not None and task.submitted.deadline_us <= now_us
