"""The rules that end a turn although the model would go on, asked at the end of every step.

| rule        | holds for                                      | the turn ends as                   |
|-------------|------------------------------------------------|------------------------------------|
| a card      | sessions with a budget, once a core call is shed | paused, naming the card          |
| max_steps   | every turn; a task over all turns of a run     | max_steps                          |
| no progress | tasks; other sessions if their limits say so   | no_progress, naming what was done  |

Deadlines, pauses and cancels come from outside and end a turn wherever it is. A goal check is asked when the model
stops, before these rules are: what was reached in the last step counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flightlog.core.budget import QUOTA
from flightlog.core.limits import ACTION_MAX_CHARS, TASK_NO_PROGRESS_STEPS, Limits
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import TurnEnd, UserMessage

if TYPE_CHECKING:
    from flightlog.core.state import State, Step


def stopped(state: State, limits: Limits) -> TurnEnd | None:
    """How the turn ends after the step that was the last one, None when another one may follow."""
    if (halted := halt_of(state)) is not None:
        return halted
    if (end := out_of_steps(state, limits)) is not None:
        return end
    limit = _no_progress_steps(state, limits)
    if limit is None or state.alike < limit or state.last_step is None or _has_news(state):
        return None
    done = _action(state.last_step)
    return TurnEnd(reason="no_progress", message=f"{state.alike} steps in a row brought nothing new: {done}")


def halt_of(state: State) -> TurnEnd | None:
    """How the turn ends since a card is used up; None when none is."""
    halt = state.account.halt if state.account else None
    return TurnEnd(reason="paused", cause=QUOTA, message=halt.message) if halt else None


def out_of_steps(state: State, limits: Limits) -> TurnEnd | None:
    """How a turn ends that may have no further step, None when it may. Between turns, that is the next one."""
    if state.task is not None:
        steps, most = state.task.run_steps, state.task.submitted.max_steps
    else:
        steps, most = state.steps if state.turn_open else 0, limits.steps_per_turn
    return TurnEnd(reason="max_steps", message=f"{steps} steps") if steps >= most else None


def warning(state: State, limits: Limits) -> UserMessage | None:
    """What the model is told as the last step begins in which it may do something else; None in all others."""
    limit = _no_progress_steps(state, limits)
    if limit is None or state.alike != limit - 1 or state.last_step is None or _has_news(state):
        return None
    text = (
        f"You have done the same {state.alike} times in a row, and nothing new came of it: {_action(state.last_step)}. "
        "Once more, and you are stopped. Do something else, or say what you need."
    )
    message_id = f"{state.uid}.{state.turn}.{state.steps + 1}.no_progress"
    return UserMessage(message_id=message_id, content=text_blocks(text), source="kernel")


def _no_progress_steps(state: State, limits: Limits) -> int | None:
    if limits.no_progress_steps is None and state.task is not None:
        return TASK_NO_PROGRESS_STEPS
    return limits.no_progress_steps


def _has_news(state: State) -> bool:
    """Whether a message waits that another step would begin with."""
    return any(pending.wakes for pending in state.next_step)


def _action(step: Step) -> str:
    """What `step` did: each call by its name and arguments."""
    if not step.calls:
        return "the same words without a call"
    return ", ".join(_cut(f"{call.name}({call.action[1]})") for call in step.calls)


def _cut(text: str) -> str:
    return text if len(text) <= ACTION_MAX_CHARS else f"{text[: ACTION_MAX_CHARS - 1]}…"
