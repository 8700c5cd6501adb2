"""How the owner takes a letter, row by row: the events it becomes and the outcome that stands in the log."""

from __future__ import annotations

import pytest
from attrs import evolve

from flightlog.core import inbox
from flightlog.core.fold import fold, placed
from flightlog.core.invariants import check
from flightlog.core.letters import Answer, Body, Letter, Stop, Words, taking
from flightlog.core.state import EMPTY, State
from flightlog_hookspecs.content import ToolCallBlock, text_blocks
from flightlog_hookspecs.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantMessage,
    Event,
    Head,
    InboxSplice,
    LetterTaken,
    RequestHeader,
    RequestSent,
    SessionCreated,
    SessionOpened,
    StepStart,
    TurnStart,
    Verb,
)

HI = text_blocks("hi")


def after(*events: Event, state: State = EMPTY, seq: int = 0) -> State:
    for number, event in enumerate(events, seq + 1):
        epoch = state.epoch + isinstance(event, (SessionCreated, SessionOpened))
        check(state, event, epoch, placed(state, event))
        state = fold(state, event, number, epoch)
    return state


IDLE = after(SessionCreated(uid="u"), SessionOpened(pid=1, host="h", kernel_version="0"))
ASKING = after(
    TurnStart(),
    StepStart(),
    RequestHeader(head=Head(adapter="a", model="m"), reason="first"),
    RequestSent(attempt=1, header_seq=5, messages=0, sha256=""),
    AssistantMessage(attempt=1, content=(ToolCallBlock(call_id="c", name="pay", arguments="{}"),), finish="tool_calls"),
    ApprovalAsked(position=0, call_id="c", name="pay", message_seq=7, question="may it?", guard="g"),
    state=IDLE,
    seq=2,
)
ANSWERED = after(ApprovalDecided(asked_seq=8, decision="denied", by="bob"), state=ASKING, seq=8)


def letter(verb: Verb, body: Body, key: str | None = None) -> Letter:
    return Letter(number=1, uid="uid", key=key, verb=verb, body=body)


def outcome_of(state: State, taken: Letter, earlier: InboxSplice | None = None) -> tuple[list[Event], str, str]:
    """The events before letter/taken, its outcome and its reason; all of them legal."""
    *events, last = taking(state, taken, earlier)
    after(*events, last, state=state, seq=100)
    assert isinstance(last, LetterTaken)
    assert (last.letter_id, last.verb) == (taken.uid, taken.verb)
    return events, last.outcome, last.reason


@pytest.mark.parametrize(
    ("verb", "slot", "wakes"),
    [("followup", "next_turn", True), ("steer", "next_step", True), ("inject", "next_step", False)],
)
@pytest.mark.parametrize("state", [IDLE, ASKING], ids=["idle", "in a turn"])
def test_a_message_joins_the_end_of_its_slot(state: State, verb: Verb, slot: str, wakes: bool) -> None:
    state = after(inbox.accepted(state, "steer", "m1", HI), inbox.accepted(state, "followup", "m2", HI), state=state)
    events, outcome, reason = outcome_of(state, letter(verb, Words(content=HI)))
    splice = InboxSplice(slot=slot, start=1, message_id="uid", cause="accepted", content=HI, wakes=wakes)  # type: ignore[arg-type]
    assert (events, outcome, reason) == ([splice], "obeyed", "")


def test_a_message_whose_key_was_used_is_not_accepted_again() -> None:
    keyed = letter("steer", Words(content=HI), key="k")
    earlier = inbox.accepted(IDLE, "steer", inbox.keyed_id("k"), HI)
    assert keyed.message_id == earlier.message_id
    assert outcome_of(IDLE, keyed, earlier) == ([], "repeated", "")


@pytest.mark.parametrize("change", [{"content": text_blocks("ho")}, {"wakes": False}, {"slot": "next_turn"}])
def test_a_message_whose_key_was_used_for_another_is_refused(change: dict[str, object]) -> None:
    earlier = evolve(inbox.accepted(IDLE, "steer", inbox.keyed_id("k"), HI), **change)
    events, outcome, reason = outcome_of(IDLE, letter("steer", Words(content=HI), key="k"), earlier)
    assert (events, outcome) == ([], "refused")
    assert "key" in reason


@pytest.mark.parametrize(("allow", "decision"), [(True, "allowed"), (False, "denied")])
def test_an_answer_to_an_open_question_decides_it(allow: bool, decision: str) -> None:
    events, outcome, _ = outcome_of(ASKING, letter("approve", Answer(asked_seq=8, allow=allow, by="ada", reason="r")))
    decided = ApprovalDecided(asked_seq=8, decision=decision, by="ada", reason="r")  # type: ignore[arg-type]
    assert (events, outcome) == ([decided], "obeyed")


def test_a_late_answer_is_recorded_and_refused() -> None:
    events, outcome, reason = outcome_of(ANSWERED, letter("approve", Answer(asked_seq=8, allow=True, by="ada")))
    assert events == [ApprovalDecided(asked_seq=8, decision="allowed", by="ada")]
    assert (outcome, reason) == ("refused", "the question was settled before")


@pytest.mark.parametrize("state", [IDLE, ASKING], ids=["idle", "in a turn"])
def test_an_answer_to_no_question_is_refused(state: State) -> None:
    events, outcome, reason = outcome_of(state, letter("approve", Answer(asked_seq=7, allow=True, by="ada")))
    assert (events, outcome, reason) == ([], "refused", "no question was asked at seq 7")


def test_a_cancel_of_nothing_is_refused() -> None:
    for keep in (True, False):
        expected = ([], "refused", "nothing was running")
        assert outcome_of(IDLE, letter("cancel", Stop(cause="c", keep_queue=keep))) == expected


@pytest.mark.parametrize("base", [IDLE, ASKING], ids=["idle", "in a turn"])
def test_a_cancel_that_does_not_keep_the_queue_removes_all_of_it(base: State) -> None:
    state = base
    for way, message_id in (("followup", "m1"), ("inject", "m2"), ("followup", "m3")):
        state = after(inbox.accepted(state, way, message_id, HI), state=state)  # type: ignore[arg-type]
    events, outcome, _ = outcome_of(state, letter("cancel", Stop(cause="c", keep_queue=False)))
    assert [e.message_id for e in events if isinstance(e, InboxSplice)] == ["m2", "m1", "m3"]
    left = after(*events, state=state)
    assert (left.next_turn, left.next_step, outcome) == ((), (), "obeyed")


def test_a_cancel_that_keeps_the_queue_writes_nothing_but_that_it_was_taken() -> None:
    state = after(inbox.accepted(ASKING, "followup", "m1", HI), state=ASKING)
    assert outcome_of(state, letter("cancel", Stop(cause="c"))) == ([], "obeyed", "")
