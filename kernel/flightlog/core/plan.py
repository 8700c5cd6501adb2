"""plan(state) -> Action: what a session does next. The whole policy of the loop, as one table.

| turn   | step   | request           | calls        | then                                   |
|--------|--------|-------------------|--------------|----------------------------------------|
| any    | any    | its task is pending or paused |  | Idle                                   |
| any    | any    | not open          | cut off      | RunTools for those, if the task has to resync (`resync.due`) |
| any    | any    | not open          |              | Resync, if the task has to             |
| closed |        |                   |              | open a turn if a message wakes (`_between_turns`), else Idle |
| open   | none   |                   |              | open a step, Stop or close the turn (`_between_steps`) |
| open   | open   | not sent          |              | SendRequest(1)                         |
| open   | open   | its owner died    |              | end the attempt, and it will be retried |
| open   | open   | failed, will retry|              | SendRequest(n + 1, delay)              |
| open   | open   | failed for good   |              | close the step, then the turn          |
| open   | open   | answered          | unanswered   | RunTools                               |
| open   | open   | answered          | all answered | close the step                         |
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from flightlog.core import checkpoints, resync
from flightlog.core.budget import warnings
from flightlog.core.fold import fold
from flightlog.core.inbox import removed, waiting, wakes
from flightlog.core.limits import Limits
from flightlog.core.repair import cut_off
from flightlog.core.state import Call, Pending, State, Step
from flightlog.core.stopping import halt_of, out_of_steps, stopped, warning
from flightlog.core.task import WAITING, recovered
from flightlog_hookspecs.events import (
    Event,
    InboxSplice,
    RequestFailed,
    RequestRetry,
    Slot,
    StepEnd,
    StepStart,
    TurnEnd,
    TurnStart,
    UserMessage,
)


@frozen
class Idle:
    """Nothing to do: all state is in the log."""


@frozen
class Append:
    """Write `events`: brackets open and close and messages enter, without any effect."""

    events: tuple[Event, ...]


@frozen
class Stop:
    """The model has stopped: close the turn with `end`, unless somebody has more for it."""

    end: TurnEnd


@frozen
class SendRequest:
    """Make attempt `attempt` of the step's request, `delay_ms` milliseconds from now."""

    attempt: int
    delay_ms: int = 0


@frozen
class RunTools:
    """Run the calls that have no result yet."""

    calls: tuple[Call, ...]


@frozen
class Resync:
    """Look at what the task is based on and has read, before anything else is done for it."""


Action = Idle | Append | Stop | SendRequest | RunTools | Resync


def follow(state: State, seq: int, events: Sequence[Event], limits: Limits, *, stops: bool) -> tuple[Event, ...]:
    """`events`, to be written behind row `seq`, and all that follows from them without an effect.

    They go into the log as one append: fewer commits, and no crash can fall between them. With `stops`
    the end of a turn follows, too: nobody is to be asked about it. No turn follows another where timers may be due.
    """
    following: list[Event] = []
    while True:
        for event in events:
            seq += 1
            state = fold(state, event, seq, state.epoch)
        following += events
        if state.timers and events and isinstance(events[-1], TurnEnd):
            return tuple(following)
        match plan(state, limits):
            case Append(events=events):
                pass
            case Stop(end=end) if stops:
                events = (end,)
            case _:
                return tuple(following)


def plan(state: State, limits: Limits) -> Action:
    """The next action. Pure: the same state and limits always give the same action."""
    if state.task is not None and state.task.state in WAITING:
        return Idle()
    if resync.due(state) and not (state.step and state.step.phase == "open"):
        # First what was cut off, by the table of recovery: what has changed since must not make it a guess.
        cut_off_calls = tuple(call for call in state.step.unanswered if call.started) if state.step else ()
        return RunTools(cut_off_calls) if cut_off_calls else Resync()
    if not state.turn_open:
        return _between_turns(state, limits)
    step = state.step
    if step is None:
        return _between_steps(state, limits)
    match step.phase:
        case "none":
            return SendRequest(1)
        case "failed" if step.retry:
            return SendRequest(step.retry.attempt, step.retry.delay_ms)
        case "failed":
            assert step.failed is not None, "phase failed carries the failure"
            return Append((*_step_end(state), _failed_end(state, step.failed)))
        case "answered" if step.unanswered:
            before = checkpoints.before_calls(state)
            return Append(before) if before else RunTools(step.unanswered)
        case "answered":
            return Append((*checkpoints.after_calls(state), *_step_end(state)))
        case "open":
            # Only a crash leaves an attempt open while nothing is in flight. It was nobody's failure, so no hook is
            # asked; what was streamed stays as evidence.
            return Append((cut_off(state, step), RequestRetry(attempt=step.attempt + 1, delay_ms=0)))


def _between_turns(state: State, limits: Limits) -> Action:
    if not wakes(state):
        return Idle()
    if (stop := out_of_steps(state, limits)) is not None:
        return Append((TurnStart(), *removed(state, waiting(state), "cancelled"), stop))
    return Append((TurnStart(), *_claims(state, new_turn=True)))


def _step_end(state: State) -> tuple[Event, ...]:
    return (StepEnd(), *checkpoints.ending_step(state), *recovered(state.task), *warnings(state.account))


def _between_steps(state: State, limits: Limits) -> Action:
    last = state.last_step
    end = _end_after(state, last) if last else None
    if end is not None:
        return Stop(end) if end.reason == "completed" else Append((end,))
    if (stop := stopped(state, limits)) is not None:
        return Append((stop,))
    warned = warning(state, limits)
    return Append((*_claims(state, new_turn=False), *([warned] if warned else [])))


def _end_after(state: State, step: Step) -> TurnEnd | None:
    """How the turn ends after `step`, or None when another step follows."""
    if step.failed is not None and step.phase == "failed":
        return _failed_end(state, step.failed)
    if step.message is None or step.calls:
        return None
    match step.message.finish:
        case "length":
            return TurnEnd(reason="max_tokens")
        case "refusal" | "filter" as code:
            return TurnEnd(reason="error", code=code, message="the provider refused to answer")
        case "pause":
            return None
        case _:
            # A message that does not wake forces no step: it waits for the next one, in this turn or another.
            return None if any(pending.wakes for pending in state.next_step) else TurnEnd(reason="completed")


def _failed_end(state: State, failed: RequestFailed) -> TurnEnd:
    if (halted := halt_of(state)) is not None:
        return halted
    if failed.failure == "length":
        return TurnEnd(reason="max_tokens", message=failed.message)
    return TurnEnd(reason="error", code=failed.failure, message=failed.message)


def _claims(state: State, *, new_turn: bool) -> tuple[Event, ...]:
    """Take the waiting messages and let them enter a new step.

    At a turn boundary all of next_step plus one of next_turn, at later steps next_step only.
    """
    taken: list[tuple[Slot, Pending]] = [("next_step", pending) for pending in state.next_step]
    if new_turn:
        taken += [("next_turn", pending) for pending in state.next_turn[:1]]
    splices = [
        InboxSplice(slot=slot, start=0, removed=1, message_id=pending.message_id, cause="claimed")
        for slot, pending in taken
    ]
    messages = [
        UserMessage(message_id=pending.message_id, content=pending.content, source=pending.source)
        for _, pending in taken
    ]
    return (*splices, StepStart(), *messages)
