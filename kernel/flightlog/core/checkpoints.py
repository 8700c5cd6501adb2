"""Checkpoints of a task: rows that say how far it has come by the log's own count, and refer to what they speak of.

| level   | when                                             |
|---------|--------------------------------------------------|
| light   | behind each end of a step                        |
| heavy   | behind an answer that calls tools                |
| heavy   | once all of its calls are answered               |
| archive | as the task starts, and before it ends, however  |

Each stands in an append that is made anyway, so it costs no commit. The log is what counts: whoever reads it compares
each checkpoint with what the rows before it come to. In sessions without a task there are none, and every function here
returns nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from attrs import evolve

from flightlog.core.context import given, joined, sections_in
from flightlog.core.doubt import Signature, signature
from flightlog.core.fingerprint import DIGITS, Basis, digest
from flightlog.core.progress import repeats
from flightlog.core.state import Call, State, Step
from flightlog.core.task import ENDED, Doubted, Mark
from flightlog_hookspecs.events import (
    CheckpointLevel,
    CheckpointSkipped,
    CheckpointWritten,
    Event,
    Phase,
    TaskState,
)

DONE_MAX_CHARS: Final = 300
NEXT_MAX_CHARS: Final = 200
"""So much of what was done and of what is next is said, however many tools there are."""


def ending_step(state: State) -> tuple[CheckpointWritten, ...]:
    """What stands behind the end of the step that is open in `state`."""
    if state.task is None:
        return ()
    return (checkpoint(state, "light", "think"),)


def before_calls(state: State) -> tuple[CheckpointWritten, ...]:
    """What comes before the calls of the open step's message start, unless it was written."""
    task, step = state.task, state.step
    if task is None or step is None or task.newest > step.message_seq:
        return ()
    return (checkpoint(state, "heavy", "act"),)


def after_calls(state: State) -> tuple[CheckpointWritten, ...]:
    """What follows once all calls of the open step are answered."""
    step = state.step
    if state.task is None or step is None or not step.calls:
        return ()
    return (checkpoint(state, "heavy", "observe"),)


def moved(state: State, move: TaskState) -> tuple[Event, ...]:
    """The task goes to another state: with an archive checkpoint as it starts, and as it ends."""
    task = state.task
    if task is not None and move.state in ENDED:
        return (checkpoint(state, "archive", "observe", next_to_do=f"nothing, it is {move.state}"), move)
    if task is not None and move.state == "running" and not task.newest and not state.turn_open:
        return (move, checkpoint(state, "archive", "observe"))
    return (move,)


def checkpoint(
    state: State, level: CheckpointLevel, phase: Phase, *, next_to_do: str | None = None
) -> CheckpointWritten:
    """The checkpoint of the task in `state` that agrees with the log up to here."""
    task, step = state.task, state.step
    assert task is not None, "only a task has checkpoints"
    ended = step if level == "light" else None  # it stands behind the end of the open step, which is not written yet
    counted = CheckpointWritten(
        level=level,
        phase=phase,
        steps=task.steps + (ended is not None),
        calls=task.calls,
        tokens=task.tokens,
        recoveries=task.recoveries,
        action=_action(step or state.last_step),
        no_progress=_repetitions(state, ended) if ended else max(0, state.alike - 1),
        active_us=state.account.active_us if state.account else 0,
    )
    if level == "light":
        return counted
    return evolve(
        counted,
        fingerprint=basis_of(state).fingerprint,
        history=task.history,
        compaction=state.compacted,
        results=tuple(call.result_seq for call in step.calls if call.result_seq is not None) if step else (),
        summary=summary(state, next_to_do),
    )


def summary(state: State, next_to_do: str | None = None) -> str:
    """What was done for the task in `state` and what is next, in a few words and from the log alone."""
    task = state.task
    assert task is not None, "only a task is summed up"
    following = _next(state) if next_to_do is None else next_to_do
    return f"Done: {clipped(task.done, DONE_MAX_CHARS)}. Next: {clipped(following, NEXT_MAX_CHARS)}."


def _next(state: State) -> str:
    step = state.step
    if step is None or not step.calls:
        return "ask the model"
    if step.unanswered:
        return "run " + ", ".join(call.name for call in step.unanswered)
    return "give the model what came of " + ", ".join(call.name for call in step.calls)


def skipped(state: State) -> tuple[CheckpointSkipped, ...]:
    """That checkpoints behind the one to go on from disagree with the log, as far as nobody has said so."""
    doubted = state.task.doubted if state.task else ()
    return tuple(CheckpointSkipped(checkpoint_seq=each.seq, why=each.why) for each in doubted)


def judged(state: State, event: CheckpointWritten, seq: int) -> Mark | Doubted:
    """What the checkpoint in row `seq` is worth, which follows `state`: something to go on from, or not."""
    task = state.task
    assert task is not None, "legality: checkpoints are of tasks"
    logged: dict[str, object] = {
        "steps": task.steps,
        "calls": task.calls,
        "tokens": task.tokens,
        "recoveries": task.recoveries,
    }
    if event.level != "light":
        logged |= {"history": task.history, "fingerprint": basis_of(state).fingerprint}
    wrong = [
        f"{name} {getattr(event, name)!r}, the log says {value!r}"
        for name, value in logged.items()
        if getattr(event, name) != value
    ]
    return Doubted(seq=seq, why="; ".join(wrong)) if wrong else Mark(seq=seq, written=event)


def basis_of(state: State) -> Basis:
    """What the work of the task in `state` is based on, as far as the log says."""
    task = state.task
    assert task is not None, "only a task has a basis"
    if state.header is None:
        return Basis(goal=task.goal, parameters=task.parameters)
    return Basis(
        goal=task.goal,
        parameters=task.parameters,
        system=_system(state),
        tools=state.header.head.tools,
        model=state.model,
    )


def _system(state: State) -> str:
    """The system text, with what messages have said since of the sections in it."""
    assert state.header is not None, "there is no system text without a head"
    sections: Mapping[str, str] = sections_in(state.header)
    if sections.keys().isdisjoint(state.context):  # so it is at nearly every checkpoint
        return state.header.head.system
    newest = given(state)
    return joined({name: newest[name] for name in sections})[0]


def _repetitions(state: State, step: Step) -> int:
    """How many steps in a row have done what the one before them did, the open `step` included."""
    again = state.last_step is not None and repeats(state.last_step, step)
    return state.alike if again else 0


def _action(step: Step | None) -> str:
    """What the model did in `step`: the same digits when it took the same actions."""
    if step is None or not step.calls:
        return ""
    return _action_of(tuple((call.name, _telling(call)) for call in step.calls))


def _telling(call: Call) -> str:
    """The arguments that make another call the same action, as they were written."""
    if call.started is None:
        return call.wanted
    return call.started.key or call.started.arguments


@lru_cache(maxsize=64)
def _action_of(calls: tuple[Signature, ...]) -> str:
    return digest(json.dumps([signature(*call) for call in calls]))[:DIGITS]


def clipped(text: str, most: int) -> str:
    """`text`, or its beginning when it has more than `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"
