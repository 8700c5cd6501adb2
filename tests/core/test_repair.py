"""How an open turn is closed: the table row by row, and its promises for every legal log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import event, given
from hypothesis import strategies as st

from flightlog.core import repair
from flightlog.core.fold import fold, placed
from flightlog.core.invariants import check
from flightlog.core.repair import Unstarted, closing, in_doubt, unanswered_result
from flightlog.core.state import EMPTY, State
from flightlog_hookspecs.content import TextBlock, ToolCallBlock, text_blocks
from flightlog_hookspecs.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantDelta,
    AssistantMessage,
    Decision,
    Event,
    Head,
    Record,
    RequestFailed,
    RequestHeader,
    RequestSent,
    SessionCreated,
    SessionOpened,
    SessionRepaired,
    StepEnd,
    StepStart,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
)
from flightlog_hookspecs.tools import Effect, Outcome
from support.legal_logs import LegalLog, extended, folded, legal_logs

END = TurnEnd(reason="interrupted")
OPENED = SessionOpened(pid=1, host="h", kernel_version="0")
TURN: tuple[Event, ...] = (SessionCreated(uid="u"), OPENED, TurnStart())
STEP = (*TURN, StepStart())
SENT = (
    *STEP,
    RequestHeader(head=Head(adapter="a", model="m"), reason="first"),
    RequestSent(attempt=1, header_seq=5, messages=0, sha256=""),
)
FAILED = (*SENT, RequestFailed(attempt=1, failure="cut", message="", retryable=True))
CALLS = tuple(ToolCallBlock(call_id=f"c{number}", name="pay", arguments="{}") for number in range(3))
ASKED = (*SENT, AssistantMessage(attempt=1, content=CALLS, finish="tool_calls"))
SAID = (*SENT, AssistantMessage(attempt=1, content=text_blocks("hi"), finish="stop"))


def started(position: int, effect: Effect = "external") -> ToolCall:
    return ToolCall(
        position=position,
        call_id=f"c{position}",
        name="pay",
        arguments="{}",
        invocation_id=f"u.1.1.{position}",
        message_seq=7,
        mode="parallel",
        effect=effect,
        plugin="p",
        plugin_version="1",
    )


def asked(position: int) -> ApprovalAsked:
    return ApprovalAsked(
        position=position, call_id=f"c{position}", name="pay", message_seq=7, question="may it?", guard="g"
    )


def decided(asked_seq: int, decision: Decision, by: str = "ada") -> ApprovalDecided:
    return ApprovalDecided(asked_seq=asked_seq, decision=decision, by=by)


def result(position: int, outcome: Outcome, text: str, call_seq: int | None = None) -> ToolResult:
    return ToolResult(
        position=position,
        call_id=f"c{position}",
        name="pay",
        message_seq=7,
        outcome=outcome,
        content=text_blocks(text),
        call_seq=call_seq,
    )


def state_of(*events: Event) -> State:
    state = EMPTY
    for seq, following in enumerate(events, 1):
        epoch = state.epoch + isinstance(following, (SessionCreated, SessionOpened))
        check(state, following, epoch, placed(state, following))
        state = fold(state, following, seq, epoch)
    return state


def closed(*events: Event, streamed: Sequence[str] = (), unstarted: Unstarted = "not_started") -> tuple[Event, ...]:
    return closing(state_of(*events), END, tuple(TextBlock(text=text) for text in streamed), unstarted)


INTERRUPTED = RequestFailed(attempt=1, failure="interrupted", message="cut off before it was answered", retryable=True)


@pytest.mark.parametrize(
    ("log", "streamed", "events"),
    [
        pytest.param(TURN[:2], (), (), id="no turn is open"),
        pytest.param(TURN, (), (END,), id="a turn without a step"),
        pytest.param(STEP, (), (StepEnd(), END), id="a step without a request"),
        pytest.param(FAILED, (), (StepEnd(), END), id="a failed attempt waiting for its retry"),
        pytest.param(SAID, (), (StepEnd(), END), id="an answer without calls"),
        pytest.param((*SAID, StepEnd()), (), (END,), id="between steps"),
        pytest.param(SENT, (), (INTERRUPTED, StepEnd(), END), id="a request that got no answer"),
        pytest.param(SENT, (" ", "\n\u3000"), (INTERRUPTED, StepEnd(), END), id="only white space arrived"),
        pytest.param(
            SENT,
            ("Once upon", " a ti"),
            (
                AssistantMessage(
                    attempt=1, content=(TextBlock(text="Once upon"), TextBlock(text=" a ti")), finish="interrupted"
                ),
                StepEnd(),
                END,
            ),
            id="words arrived",
        ),
        pytest.param(
            (*ASKED, started(0, "read"), started(1, "external"), result(0, "ok", "paid", 8)),
            (),
            (
                result(1, "unknown", repair.UNKNOWN, 9),
                result(2, "not_started", repair.NOT_STARTED),
                StepEnd(),
                END,
            ),
            id="one call done, one running, one waiting",
        ),
        pytest.param(
            (*ASKED, started(2), result(2, "ok", "paid", 8)),
            (),
            (
                result(0, "not_started", repair.NOT_STARTED),
                result(1, "not_started", repair.NOT_STARTED),
                StepEnd(),
                END,
            ),
            id="the last call was done first",
        ),
        pytest.param(
            (*ASKED, asked(0), asked(1), decided(8, "allowed")),
            (),
            (
                result(0, "not_started", repair.NOT_STARTED),
                decided(9, "cancelled", by="kernel"),
                result(1, "not_started", repair.NOT_STARTED),
                result(2, "not_started", repair.NOT_STARTED),
                StepEnd(),
                END,
            ),
            id="one call allowed, one question open",
        ),
    ],
)
def test_what_a_crash_left_open_is_closed(
    log: tuple[Event, ...], streamed: Sequence[str], events: tuple[Event, ...]
) -> None:
    assert closed(*log, streamed=streamed) == events


@pytest.mark.parametrize(
    ("effect", "outcome", "text"),
    [
        ("read", "aborted", repair.ABORTED),
        ("idempotent", "aborted", repair.ABORTED),
        ("write", "unknown", repair.UNKNOWN),
        ("external", "unknown", repair.UNKNOWN),
    ],
)
def test_what_is_said_of_a_call_that_was_running_follows_from_its_effect(
    effect: Effect, outcome: Outcome, text: str
) -> None:
    assert closed(*ASKED, started(0, effect))[0] == result(0, outcome, text, 8)
    call = state_of(*ASKED, started(0, effect)).step.calls[0]  # type: ignore[union-attr]
    assert in_doubt(call) == (outcome, text)


@pytest.mark.parametrize(
    ("unstarted", "text"), [("not_started", repair.NOT_STARTED), ("aborted", repair.ABORTED_UNSTARTED)]
)
def test_what_is_said_of_a_call_that_never_ran_follows_from_who_ended_the_turn(unstarted: Any, text: str) -> None:
    assert closed(*ASKED, unstarted=unstarted)[:3] == tuple(result(number, unstarted, text) for number in range(3))
    call = state_of(*ASKED).step.calls[1]  # type: ignore[union-attr]
    assert unanswered_result(call, 7, unstarted) == result(1, unstarted, text)


def test_a_call_that_was_not_started_is_never_in_doubt() -> None:
    with pytest.raises(AssertionError, match="only a started call"):
        in_doubt(state_of(*ASKED).step.calls[0])  # type: ignore[union-attr]


def test_a_call_that_may_have_started_in_rows_that_were_lost_is_unknown() -> None:
    repaired = SessionRepaired(repair="r", rule="hash-chain", detail="")
    events = closed(*ASKED, started(0, "read"), result(1, "not_started", repair.NOT_STARTED), repaired, OPENED)
    assert events[:2] == (result(0, "aborted", repair.ABORTED, 8), result(2, "unknown", repair.LOST))


def test_calls_behind_a_repair_have_invocation_ids_of_their_own() -> None:
    repaired = SessionRepaired(repair="r", rule="hash-chain", detail="")
    assert state_of(*TURN).invocations == "u"
    assert state_of(*TURN, repaired, OPENED).invocations == "u.r"


def test_the_model_is_told_plainly_what_it_may_repeat() -> None:
    assert "safe" in repair.ABORTED
    assert "safe" in repair.NOT_STARTED
    assert "Do not repeat" in repair.UNKNOWN
    assert "Do not repeat" in repair.LOST


def streamed_in(records: Sequence[Record]) -> tuple[TextBlock, ...]:
    """The words of the open attempt, by block, as the runtime reads them from the log."""
    step = folded(records).step
    if step is None or step.phase != "open":
        return ()
    texts: dict[int, str] = {}
    for record in records[step.attempt_seq :]:
        if isinstance(delta := record.event, AssistantDelta) and delta.type == "text":
            texts[delta.block] = texts.get(delta.block, "") + "".join(piece.text for piece in delta.pieces)
    return tuple(TextBlock(text=texts[block]) for block in sorted(texts))


@given(legal_logs(), st.sampled_from(["not_started", "aborted"]), st.booleans())
def test_every_legal_log_cut_anywhere_is_closed_legally(log: LegalLog, unstarted: Unstarted, reopened: bool) -> None:
    for cut in log.cuts:
        before = log.until(cut).records
        streamed = streamed_in(before)
        if reopened or folded(before).closed:  # as a new owner finds it
            before = extended(before, evolve(OPENED, lock=folded(before).lock))
        state = folded(before)
        events = closing(state, END, streamed, unstarted)
        after = extended(before, *events)
        closed_state = folded(after)
        assert not closed_state.turn_open
        assert closing(closed_state, END, (), unstarted) == (), "closing twice is closing once"
        assert events == closing(state, END, streamed, unstarted), "killed halfway and run again it is the same"
        if not state.turn_open:
            assert events == ()
            continue
        event("closes a step" if state.step else "closes a turn")
        assert events[-1] == END
        answered = [following.position for following in events if isinstance(following, ToolResult)]
        assert answered == [call.position for call in (state.step.unanswered if state.step else ())]
        cut_off = [following.content for following in events if isinstance(following, AssistantMessage)]
        words = "".join(block.text for block in streamed)
        assert cut_off == ([streamed] if words.strip() else []), "what arrived is kept, nothing is made up"
        assert (closed_state.next_turn, closed_state.next_step) == (state.next_turn, state.next_step)


def test_the_end_is_written_as_given() -> None:
    end = evolve(END, reason="aborted", cause="user")
    assert closing(state_of(*TURN), end, (), "aborted") == (end,)
