"""Setting timers and letting them fire: what a session's state makes of a wish, and of the time.

| when                                       | then                                                        |
|--------------------------------------------|-------------------------------------------------------------|
| a timer is wanted                          | timer/set, unless its name was used before or it is refused |
| between two turns, some have come due      | of each timer/fired and its message, first due first        |
| a task ends                                | timer/cancelled for each of its session                     |

Between turns only: within one the message could do nothing but wait, and a timer that repeats would pile them up.
What came due during a long turn, or while nobody drove the session, is one message in the end. For the same reason none
fires while a task waits for something else.
"""

from __future__ import annotations

from attrs import evolve, frozen

from flightlog.core.inbox import accepted, keyed_id
from flightlog.core.state import State
from flightlog.core.task import GOAL_ID, WAITING, readable
from flightlog.core.timer import Timer, firing, missed_by, misset
from flightlog_hookspecs.content import Block, text_blocks
from flightlog_hookspecs.events import Event, SubGoal, TimerCancelled, TimerSet


@frozen(kw_only=True)
class Wake:
    """The wish for a timer: due at `at_us`, or else `after_us` later than it was wished for.

    All in microseconds; see `TimerSet`. One that only repeats is due first after one period.
    """

    content: tuple[Block, ...]
    at_us: int | None = None
    after_us: int | None = None
    every_us: int | None = None
    until_us: int | None = None
    times: int | None = None
    by: str = ""


def wanted(wish: Wake, timer: str, now_us: int) -> TimerSet:
    """The timer that was wished for at `now_us`."""
    delay_us = (wish.every_us or 0) if wish.after_us is None else wish.after_us
    return TimerSet(
        timer=timer,
        due_us=now_us + delay_us if wish.at_us is None else wish.at_us,
        content=wish.content,
        every_us=wish.every_us,
        until_us=wish.until_us,
        times=wish.times,
        by=wish.by,
    )


def refusal(state: State, event: TimerSet, timers_max: int) -> str:
    """Why the timer cannot be set in this session now; "" when it can."""
    if state.task and state.task.ended:
        return f"the task is {state.task.state}"
    if len(state.timers) >= timers_max:
        return f"{len(state.timers)} timers are open in this session, and it may have {timers_max}: cancel one"
    return misset(event)


def next_due_us(state: State) -> int | None:
    """When the next timer is due, None when none is to fire any more."""
    return min((timer.due_us for timer in state.timers.values()), default=None)


def fire(state: State, now_us: int) -> tuple[Event, ...]:
    """The events by which all fire that have come due by `now_us`, to be written as one append behind `state`."""
    if state.turn_open or (state.task and (state.task.ended or state.task.state in WAITING)):
        return ()
    due = sorted((timer for timer in state.timers.values() if timer.due_us <= now_us), key=lambda timer: timer.due_us)
    events: list[Event] = []
    for place, timer in enumerate(due, len(state.next_turn)):
        events += _fire(state, timer, now_us, place)
    return tuple(events)


def _fire(state: State, timer: Timer, now_us: int, place: int) -> tuple[Event, Event]:
    event = firing(timer, missed_by(timer, now_us))
    message_id = keyed_id(f"{state.uid} {event.timer} fired {timer.fired + 1}")
    task, content = state.task, timer.set.content
    if task and event.timer == GOAL_ID:
        content = text_blocks(readable(task.goal, task.parameters, _due_parts(state)))  # as it stands now
    message = accepted(state, "followup", message_id, content)
    return event, evolve(message, start=place, source="timer")


def _due_parts(state: State) -> tuple[SubGoal, ...]:
    """The sub-goals of its task, but for those that were put off for want of tokens."""
    put_off = state.account.put_off if state.account else ()
    return tuple(each for each in state.task.submitted.sub_goals if each.text not in put_off) if state.task else ()


def goal_again(state: State, now_us: int) -> tuple[TimerSet, ...]:
    """The timer that brings the goal of a task again that begins to run at `now_us`, unless it is set or never will be.

    Its runs are counted from when the task was due, so that one begun late does not put off all that follow.
    """
    if state.task is None or (task := state.task.submitted).every_us is None or GOAL_ID in state.timer_names:
        return ()
    begins_us = now_us if task.due_us is None else task.due_us
    due_us = begins_us + (max(now_us - begins_us, 0) // task.every_us + 1) * task.every_us
    event = TimerSet(
        timer=GOAL_ID,
        due_us=due_us,
        content=text_blocks(readable(state.task.goal, state.task.parameters, task.sub_goals)),
        every_us=task.every_us,
        until_us=task.until_us,
        times=None if task.times is None else task.times - 1,
        by="task",
    )
    return () if misset(event) else (event,)


def cancel_all(state: State, by: str) -> tuple[TimerCancelled, ...]:
    """That none fires any more."""
    return tuple(TimerCancelled(timer=name, by=by) for name in state.timers)
