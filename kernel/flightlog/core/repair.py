"""closing(state, ...) -> events: how an open turn is closed, whatever opened the wound.

One table for success, error, cancel and crash; `runtime/closing.py` is its only caller.

| in the log                                   | becomes                                             |
|----------------------------------------------|-----------------------------------------------------|
| attempt open, words streamed                 | assistant/message, interrupted, with those words    |
| attempt open, nothing or only white space    | request/failed{interrupted}                         |
| call without tool/call                       | tool/result: `unstarted` (not_started or aborted)   |
| tool/call, no result, read or idempotent     | tool/result: aborted, safe to repeat                |
| tool/call, no result, a person said done     | tool/result: ok, as told; not_done: `unstarted`     |
| tool/call, no result, write or external      | tool/result: unknown, said plainly                  |
| tool/call, no result, transactional          | tool/result: what its database says, else unknown   |
| no tool/call, but rows were lost in a repair | tool/result: unknown, said plainly                  |
| call with an open question                   | approval/decided: cancelled, then as above          |
| tool/call that waits for a child             | subagent/settled: interrupted, then as above        |
| compaction open                              | compaction/end: failed, the context stays as it is  |
| step open                                    | step/end                                            |
| turn open                                    | turn/end with `end`                                 |
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from attrs import field, frozen

from flightlog.core import checkpoints
from flightlog.core.doubt import done
from flightlog.core.facts import fitting, noted
from flightlog.core.fold import asked_about
from flightlog.core.lending import unknown
from flightlog.core.state import Call, State, Step
from flightlog.core.tokens import estimate
from flightlog_hookspecs.content import Block, TextBlock, text_blocks
from flightlog_hookspecs.events import (
    ApprovalDecided,
    AssistantMessage,
    BudgetCharged,
    CompactionEnd,
    Event,
    RequestFailed,
    Spill,
    StepEnd,
    SubagentSettled,
    ToldBy,
    ToolResult,
    TurnEnd,
)
from flightlog_hookspecs.tools import REPEATABLE, Fact, Outcome

SESSION_CLOSED: Final = "session closed"
"""The cause of a turn that is aborted since its owner leaves."""

NOT_STARTED: Final = "Not started: the process ended before this call. Nothing happened; it is safe to call again."
ABORTED_UNSTARTED: Final = "Cancelled before it started. Nothing happened."
ABORTED: Final = "Interrupted before it finished. It is safe to call again."
UNDONE: Final = (
    "Interrupted before it was committed, so its changes were rolled back. Nothing happened; it is safe to call again."
)
UNKNOWN: Final = (
    "Outcome unknown: this call was interrupted while it ran, so it may or may not have taken effect. "
    "Do not repeat it; find out first what happened."
)
NOT_DONE: Final = "Cut off before it took effect. Nothing happened; it is safe to call again."
LOST: Final = (
    "Outcome unknown: the record of what followed was lost, so this call may or may not have taken effect. "
    "Do not repeat it; find out first what happened."
)

Unstarted = Literal["not_started", "aborted"]


@frozen(kw_only=True)
class Known:
    """How a started call that was interrupted has ended, as `told_by` says for certain; `blob` is what was spilled."""

    outcome: Outcome
    content: tuple[Block, ...] = text_blocks(UNDONE)
    spill: Spill | None = None
    facts: tuple[Fact, ...] = ()
    blob: tuple[bytes, bytes] | None = field(default=None, repr=False)
    told_by: ToldBy


NOTHING_KNOWN: Final[Mapping[int, Known]] = MappingProxyType({})


def closing(
    state: State,
    end: TurnEnd,
    streamed: tuple[TextBlock, ...],
    unstarted: Unstarted,
    known: Mapping[int, Known] = NOTHING_KNOWN,
) -> tuple[Event, ...]:
    """The events that close the open turn, in model order. Empty when no turn is open.

    `streamed` holds the text blocks of the open attempt as far as they reached the log, `known` how started calls
    have ended, by position. Running it on
    the state after its own events yields nothing: closing twice is closing once.
    """
    if not state.turn_open:
        return ()
    events: list[Event] = []
    if state.compaction is not None:
        events.append(CompactionEnd(outcome="failed", message="cut off before it ended", charge=_asked(state)))
    if (step := state.step) is not None:
        if step.phase == "open":
            events.append(_cut_attempt(state, step, streamed))
        facts = state.facts
        for call in step.unanswered:
            events += withdrawn(state, call)
            events += abandoned(state, call)
            result = unanswered_result(call, step.message_seq, unstarted, known.get(call.position))
            events.append(result := fitting(result, facts))
            facts = noted(facts, result.facts)
        events += (StepEnd(), *checkpoints.ending_step(state))
    events.append(end)
    return tuple(events)


def withdrawn(state: State, call: Call) -> tuple[ApprovalDecided, ...]:
    """That the question about `call`, if one is open, needs no answer any more."""
    if call.asked_seq is None or asked_about(state, call.asked_seq) is None:
        return ()
    return (ApprovalDecided(asked_seq=call.asked_seq, decision="cancelled", by="kernel"),)


def abandoned(state: State, call: Call) -> tuple[BudgetCharged | SubagentSettled, ...]:
    """That nobody waits any more for the child that `call` waited for, if it did; it can be resumed on its own."""
    tasks = [state.children[child] for child in state.unsettled] if call.started else []
    return tuple(
        event
        for task in tasks
        if call.started and task.invocation_id == call.started.invocation_id and not task.background
        for event in unknown(task, "interrupted").events
    )


def in_doubt(call: Call) -> tuple[Outcome, str]:
    """The verdict on a started call that was interrupted, and how the model is told."""
    assert call.started is not None, "only a started call can be in doubt"
    return ("aborted", ABORTED) if call.started.effect in REPEATABLE else ("unknown", UNKNOWN)


def reported(call: Call, answer: ApprovalDecided) -> tuple[Outcome, str, ToldBy]:
    """The verdict on a started call by what a person has said about its outcome, unless that is "not_done"."""
    if answer.decision == "done":
        return "ok", done(answer.by, answer.reason), "person"
    outcome, text = in_doubt(call)
    return outcome, f"{text} {answer.reason}" if answer.reason and answer.decision == "unknown" else text, ""


def unanswered_result(call: Call, message_seq: int, unstarted: Unstarted, known: Known | None = None) -> ToolResult:
    """The result that answers `call` in place of the one that never came; `known` is how a started one ended."""
    if call.started is not None and known is not None:
        return ToolResult(
            position=call.position,
            call_id=call.call_id,
            name=call.name,
            message_seq=message_seq,
            outcome=known.outcome,
            content=known.content,
            call_seq=call.started_seq,
            spill=known.spill,
            told_by=known.told_by,
            facts=known.facts,
        )
    outcome: Outcome
    told_by: ToldBy = ""
    if call.decision == "not_done":
        outcome, text = unstarted, NOT_DONE
    elif call.started is not None and call.decided is not None:
        outcome, text, told_by = reported(call, call.decided)
    elif call.started is not None:
        outcome, text = in_doubt(call)
    elif call.doubtful:
        outcome, text = "unknown", LOST
    else:
        outcome, text = unstarted, NOT_STARTED if unstarted == "not_started" else ABORTED_UNSTARTED
    return ToolResult(
        position=call.position,
        call_id=call.call_id,
        name=call.name,
        message_seq=message_seq,
        outcome=outcome,
        content=text_blocks(text),
        call_seq=call.started_seq,
        told_by=told_by,
    )


def _cut_attempt(state: State, step: Step, streamed: tuple[TextBlock, ...]) -> AssistantMessage | RequestFailed:
    if any(block.text.strip() for block in streamed):
        charge = _asked(state) + sum(estimate(block.text) for block in streamed) if state.account else 0
        return AssistantMessage(attempt=step.attempt, content=streamed, finish="interrupted", charge=charge)
    return cut_off(state, step)


def cut_off(state: State, step: Step) -> RequestFailed:
    """That the open attempt came to nothing."""
    return RequestFailed(
        attempt=step.attempt,
        failure="interrupted",
        message="cut off before it was answered",
        retryable=True,
        charged=_asked(state),
    )


def _asked(state: State) -> int:
    """What the open request counts, whether or not anything came of it."""
    return state.account.asked if state.account else 0
