"""How the owner takes a letter, row by row: the events it becomes and the outcome that stands in the log."""

from __future__ import annotations

import pytest
from attrs import evolve

from flightlog.core import inbox
from flightlog.core.fold import fold, placed
from flightlog.core.invariants import check
from flightlog.core.letters import Amend, Answer, Body, CancelTimer, Letter, Pause, Report, Resume, Stop, Words, taking
from flightlog.core.limits import Limits
from flightlog.core.state import EMPTY, State
from flightlog.core.task_flow import GOAL_ID, goal
from flightlog.core.waking import Wake
from flightlog_hookspecs.content import ToolCallBlock, text_blocks
from flightlog_hookspecs.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantMessage,
    CheckpointWritten,
    Event,
    Head,
    InboxSplice,
    LetterTaken,
    RequestHeader,
    RequestSent,
    SessionCreated,
    SessionOpened,
    StepStart,
    TaskAmended,
    TaskState,
    TaskStateName,
    TaskSubmitted,
    TimerCancelled,
    TimerSet,
    TurnStart,
    Verb,
)

HI = text_blocks("hi")
OPENED = SessionOpened(pid=1, host="h", kernel_version="0")


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
    *events, last = taking(state, taken, earlier, Limits())
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


def test_an_answer_of_another_kind_than_the_question_is_refused_and_leaves_it_open() -> None:
    events, outcome, reason = outcome_of(ASKING, letter("answer", Report(asked_seq=8, outcome="done", by="ada")))
    assert (events, outcome) == ([], "refused")
    assert reason == "the question at seq 8 asks whether a call may start: allow or deny it (approve)"


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


# What people want of a task

TASK = after(SessionCreated(uid="u"), TaskSubmitted(goal="sweep", model="a:m", parameters='{"n":1}'), OPENED)
BEGUN = after(TaskState(state="running"), *goal(TASK), state=TASK, seq=3)
IN_TURN = after(TurnStart(), state=BEGUN, seq=5)
BY_PERSON = TaskState(state="paused", cause="person", message="by ada")
WISHES: list[tuple[Verb, Body]] = [
    ("pause", Pause(by="ada")),
    ("resume", Resume(by="ada")),
    ("amend", Amend(by="ada", goal="mop")),
]


def in_state(state: TaskStateName, cause: str = "") -> State:
    return TASK if state == "pending" else after(TaskState(state=state, cause=cause), state=TASK, seq=3)


@pytest.mark.parametrize(("verb", "body"), WISHES)
def test_wishes_for_a_task_are_refused_where_there_is_none(verb: Verb, body: Body) -> None:
    assert outcome_of(IDLE, letter(verb, body)) == ([], "refused", "this session is no task's")


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
@pytest.mark.parametrize(("verb", "body"), WISHES)
def test_wishes_for_a_task_that_has_ended_are_refused(verb: Verb, body: Body, state: TaskStateName) -> None:
    over = after(TaskState(state="running"), TaskState(state=state), state=TASK, seq=3)
    assert outcome_of(over, letter(verb, body)) == ([], "refused", f"the task is {state}")


@pytest.mark.parametrize(
    "state", [TASK, BEGUN, IN_TURN, in_state("paused", "question")], ids=["pending", "running", "in a turn", "asking"]
)
def test_a_pause_is_obeyed_once(state: State) -> None:
    assert outcome_of(state, letter("pause", Pause(by="ada"))) == ([BY_PERSON], "obeyed", "")
    paused = after(BY_PERSON, state=state, seq=10)
    assert outcome_of(paused, letter("pause", Pause(by="bob"))) == ([], "refused", "the task is paused already")


@pytest.mark.parametrize("cause", ["person", "question", "quota"])
def test_a_resume_is_obeyed_by_a_paused_task_only(cause: str) -> None:
    pending = TaskState(state="pending", cause="resumed", message="by ada")
    assert outcome_of(in_state("paused", cause), letter("resume", Resume(by="ada"))) == ([pending], "obeyed", "")
    events, outcome, why = outcome_of(BEGUN, letter("resume", Resume(by="ada")))
    assert (events, outcome, why) == ([], "refused", "the task is not paused, it is running")


@pytest.mark.parametrize(
    ("wish", "is_now"),
    [
        (Amend(by="ada", goal="mop"), TaskAmended(goal="mop", parameters='{"n":1}', by="ada")),
        (Amend(by="ada", parameters="{}"), TaskAmended(goal="sweep", by="ada")),
    ],
)
def test_an_amendment_keeps_what_it_does_not_name_and_tells_the_model_that_has_heard_the_goal(
    wish: Amend, is_now: TaskAmended
) -> None:
    assert outcome_of(TASK, letter("amend", wish)) == ([is_now], "obeyed", "")
    events, outcome, _ = outcome_of(IN_TURN, letter("amend", wish))
    assert (events[0], outcome) == (is_now, "obeyed")
    (news,) = events[1:]
    assert isinstance(news, InboxSplice)
    assert (news.message_id, news.slot, news.source, news.wakes) == ("uid", "next_step", "resync", True)


def test_a_cancel_of_a_task_that_nobody_runs_ends_it() -> None:
    for state in (TASK, BEGUN, in_state("paused", "question")):
        cancelled = TaskState(state="cancelled", cause="c")
        (checkpoint, *events), *outcome = outcome_of(state, letter("cancel", Stop(cause="c")))
        assert isinstance(checkpoint, CheckpointWritten)
        assert (events, outcome) == ([cancelled], ["obeyed", ""])
    assert outcome_of(IN_TURN, letter("cancel", Stop(cause="c"))) == ([], "obeyed", "")


@pytest.mark.parametrize("verb", ["followup", "steer", "inject"])
def test_a_message_to_a_task_that_has_not_begun_comes_behind_its_goal(verb: Verb) -> None:
    events, outcome, _ = outcome_of(TASK, letter(verb, Words(content=HI)))
    assert outcome == "obeyed"
    assert [event.message_id for event in events if isinstance(event, InboxSplice)] == [GOAL_ID, "uid"]
    begun, outcome, _ = outcome_of(BEGUN, letter(verb, Words(content=HI)))
    assert (len(begun), outcome) == (1, "obeyed")


WAKE = Wake(content=HI, after_us=5, by="ada")


def test_a_timer_is_set_once_for_each_letter_counted_from_when_that_was_posted() -> None:
    wish = evolve(letter("set_timer", WAKE), at_us=100)
    (event,), outcome, _ = outcome_of(IDLE, wish)
    assert event == TimerSet(timer=wish.timer, due_us=105, content=HI, by="ada")
    assert outcome == "obeyed"
    assert outcome_of(after(event, state=IDLE, seq=2), wish) == ([], "repeated", "")


def test_a_timer_that_cannot_be_or_is_one_too_many_is_refused() -> None:
    never = evolve(WAKE, every_us=1)
    assert outcome_of(IDLE, letter("set_timer", never)) == ([], "refused", "a timer repeats once a second at most")
    full = IDLE
    for number in range(Limits().timers_open):
        full = after(TimerSet(timer=f"t{number}", due_us=1, content=HI), state=full, seq=2)
    events, outcome, reason = outcome_of(full, letter("set_timer", WAKE))
    assert (events, outcome) == ([], "refused")
    assert "cancel one" in reason


def test_only_a_timer_that_is_to_fire_is_cancelled() -> None:
    wish = letter("cancel_timer", CancelTimer(timer="t", by="bob"))
    assert outcome_of(IDLE, wish) == ([], "refused", "timer 't' is not still to fire")
    state = after(TimerSet(timer="t", due_us=1, content=HI), state=IDLE, seq=2)
    assert outcome_of(state, wish) == ([TimerCancelled(timer="t", by="bob")], "obeyed", "")
