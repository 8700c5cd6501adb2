"""The plan, exhaustively: every situation a turn can get into has one action, and all lead to rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attrs import define, field
from hypothesis import given

from flightlog.core.fold import fold, placed
from flightlog.core.invariants import check
from flightlog.core.limits import Limits
from flightlog.core.plan import Action, Append, Idle, RunTools, SendRequest, Stop, follow, plan
from flightlog.core.state import EMPTY, Call, State
from flightlog_hookspecs.content import ToolCallBlock, text_blocks
from flightlog_hookspecs.events import (
    AssistantMessage,
    Event,
    Head,
    InboxSplice,
    RequestFailed,
    RequestHeader,
    RequestRetry,
    RequestSent,
    SessionCreated,
    SessionOpened,
    Slot,
    StepEnd,
    StepStart,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from support.legal_logs import LegalLog, legal_logs

LIMITS = Limits(steps_per_turn=3, attempts_per_step=2)
DELAY_MS = 500
FINISHES = ("stop", "stop_sequence", "length", "refusal", "filter", "pause", "steered")


@define
class Session:
    """A state that grows by legal events."""

    state: State = EMPTY
    seq: int = 0

    def then(self, *events: Event) -> Session:
        """A session in which `events` have followed as well."""
        state, seq = self.state, self.seq
        for event in events:
            seq += 1
            epoch = state.epoch + isinstance(event, (SessionCreated, SessionOpened))
            check(state, event, epoch, placed(state, event))
            state = fold(state, event, seq, epoch)
        return Session(state, seq)

    def accepting(self, slot: Slot, text: str = "hi", *, wakes: bool | None = None) -> Session:
        """One more message at the end of `slot`; in next_step one that does not wake, unless said otherwise."""
        start = len(self.state.slot(slot))
        content = text_blocks(text)
        message_id = f"m{self.seq}"
        return self.then(
            InboxSplice(
                slot=slot,
                start=start,
                message_id=message_id,
                cause="accepted",
                content=content,
                wakes=slot == "next_turn" if wakes is None else wakes,
            )
        )


AT_REST = Session().then(SessionCreated(uid="u"), SessionOpened(pid=1, host="h", kernel_version="0"))
HEADER = RequestHeader(head=Head(adapter="a", model="m"), reason="first")


def sent(session: Session, attempt: int) -> Session:
    if session.state.header is None:
        session = session.then(HEADER)
    header_seq = session.state.header_seq
    return session.then(RequestSent(attempt=attempt, header_seq=header_seq, messages=0, sha256=""))


def answered(session: Session, finish: str, calls: int = 0) -> Session:
    assert session.state.step is not None
    blocks = tuple(ToolCallBlock(call_id=f"c{number}", name="look", arguments="{}") for number in range(calls))
    content = (*text_blocks("said"), *blocks)
    attempt = session.state.step.attempt
    return session.then(AssistantMessage(attempt=attempt, content=content, finish=finish))  # type: ignore[arg-type]


def failed(session: Session, failure: str, *, retryable: bool) -> Session:
    assert session.state.step is not None
    event = RequestFailed(
        attempt=session.state.step.attempt,
        failure=failure,  # type: ignore[arg-type]
        message="why",
        retryable=retryable,
    )
    again = retryable and event.attempt < LIMITS.attempts_per_step
    return session.then(event, *([RequestRetry(attempt=event.attempt + 1, delay_ms=DELAY_MS)] if again else []))


def result(session: Session, call: Call, *, started: bool) -> Session:
    step = session.state.step
    assert step is not None
    common = {"position": call.position, "call_id": call.call_id, "name": call.name, "message_seq": step.message_seq}
    if started:
        session = session.then(
            ToolCall(
                **common,
                arguments="{}",
                invocation_id="i",
                mode="parallel",
                effect="read",
                plugin="p",
                plugin_version="1",
            )
        )
    return session.then(
        ToolResult(**common, outcome="ok", content=(), call_seq=session.seq if started else None),
    )


def outcomes(session: Session, action: Action) -> Iterator[Session]:
    """Whatever can come of performing `action`."""
    match action:
        case Append(events=events):
            yield session.then(*events)
        case Stop(end=end):
            yield session.then(end)
        case SendRequest(attempt=attempt):
            open_attempt = sent(session, attempt)
            yield from (answered(open_attempt, finish) for finish in FINISHES)
            yield answered(open_attempt, "tool_calls", calls=1)
            yield answered(open_attempt, "stop", calls=2)
            yield failed(open_attempt, "cut", retryable=True)
            yield failed(open_attempt, "auth", retryable=False)
            yield failed(open_attempt, "length", retryable=False)
        case RunTools(calls=calls):
            for started in (True, False):
                yield result(session, calls[-1], started=started)
            everything = session
            for call in calls:
                everything = result(everything, call, started=True)
            yield everything


def situation(session: Session) -> tuple[object, ...]:
    """What the plan may depend on, without the numbers of turns and rows."""
    state = session.state

    def of(step: object) -> object:
        if not (step := getattr(state, str(step))):
            return None
        finish = step.message and step.message.finish
        failure = step.failed and step.failed.failure
        return (
            step.phase,
            step.attempt,
            failure,
            step.retry is None,
            finish,
            tuple(call.outcome for call in step.calls),
        )

    slots = [tuple(pending.wakes for pending in slot) for slot in (state.next_turn, state.next_step)]
    return *slots, state.turn_open, state.steps, of("step"), of("last_step")


@define
class Explorer:
    """Walks through every situation; remembers those it has left for good."""

    settled: set[tuple[object, ...]] = field(factory=set)
    path: list[tuple[object, ...]] = field(factory=list)
    actions: dict[tuple[object, ...], Action] = field(factory=dict)
    ends: set[TurnEnd] = field(factory=set)

    def explore(self, session: Session, arrivals: int) -> None:
        """Everything that can follow; up to `arrivals` messages come in at the worst moments."""
        here = (*situation(session), arrivals)
        assert here not in self.path, "a session that goes in circles never comes to rest"
        if here in self.settled:
            return
        action = plan(session.state, LIMITS)
        assert action == plan(session.state, LIMITS)
        if isinstance(action, Append):
            check_follow(session, action)
        self.actions[here] = action
        self.path.append(here)
        if arrivals:
            self.explore(session.accepting("next_turn"), arrivals - 1)
            for wakes in (False, True):
                self.explore(session.accepting("next_step", wakes=wakes), arrivals - 1)
        for after in outcomes(session, action):
            if after.state.last_end and not after.state.turn_open:
                self.ends.add(after.state.last_end)
            self.explore(after, arrivals)
        self.path.pop()
        self.settled.add(here)


def check_follow(session: Session, action: Append) -> None:
    """What follows without an effect is what the plan says event by event, up to the next effect or rest."""
    together = follow(session.state, session.seq, action.events, LIMITS, stops=False)
    one_by_one = session
    while isinstance(next_action := plan(one_by_one.state, LIMITS), Append):
        one_by_one = one_by_one.then(*next_action.events)
    assert session.then(*together) == one_by_one


def test_every_situation_has_an_action_and_leads_to_rest() -> None:
    explorer = Explorer()
    explorer.explore(AT_REST.accepting("next_turn").accepting("next_turn"), arrivals=1)
    idle = [here for here, action in explorer.actions.items() if isinstance(action, Idle)]
    assert {here[0] for here in idle} == {()}, "nothing that waits for a turn is left waiting"
    assert {here[1] for here in idle} == {(), (False,)}, "what was injected may wait, a steer may not"
    kinds = {type(action) for action in explorer.actions.values()}
    assert kinds == {Idle, Append, Stop, SendRequest, RunTools}
    assert len(explorer.actions) > 500
    assert {(end.reason, end.code) for end in explorer.ends} == {
        ("completed", ""),
        ("max_tokens", ""),
        ("max_steps", ""),
        ("error", "refusal"),
        ("error", "filter"),
        ("error", "auth"),
        ("error", "cut"),
    }


def test_limits_hold_in_every_situation() -> None:
    explorer = Explorer()
    explorer.explore(AT_REST.accepting("next_turn"), arrivals=1)
    attempts = {action.attempt for action in explorer.actions.values() if isinstance(action, SendRequest)}
    steps = {here[3] for here in explorer.actions}
    assert attempts == set(range(1, LIMITS.attempts_per_step + 1))
    assert steps == set(range(LIMITS.steps_per_turn + 1))


# The table in the plan's docstring, row by row.


def opened(session: Session) -> Session:
    action = plan(session.state, LIMITS)
    assert isinstance(action, Append)
    return session.then(*action.events)


IN_STEP = opened(AT_REST.accepting("next_turn"))
IN_FLIGHT = sent(IN_STEP, 1)
CALLED = answered(IN_FLIGHT, "tool_calls", calls=2)


def test_at_rest_with_an_empty_inbox_nothing_is_done() -> None:
    assert plan(AT_REST.state, LIMITS) == Idle()


def test_at_rest_an_injected_message_wakes_nobody() -> None:
    assert plan(AT_REST.accepting("next_step").state, LIMITS) == Idle()


def test_a_turn_opens_with_all_that_was_injected_and_one_followup() -> None:
    session = AT_REST.accepting("next_turn", "first").accepting("next_turn", "second")
    session = session.accepting("next_step", "note one").accepting("next_step", "note two")
    action = plan(session.state, LIMITS)
    assert isinstance(action, Append)
    assert [type(event) for event in action.events] == [
        TurnStart,
        *[InboxSplice] * 3,
        StepStart,
        *[UserMessage] * 3,
    ]
    entered = [event.text for event in action.events if isinstance(event, UserMessage)]
    assert entered == ["note one", "note two", "first"]
    after = session.then(*action.events).state
    assert [pending.content for pending in after.next_turn] == [text_blocks("second")]
    assert after.next_step == after.claimed == ()


def test_a_later_step_takes_what_was_injected_and_no_followup() -> None:
    session = answered(IN_FLIGHT, "tool_calls", calls=1)
    session = result(session, session.state.step.calls[0], started=True).then(StepEnd())  # type: ignore[union-attr]
    session = session.accepting("next_turn", "later").accepting("next_step", "now")
    after = opened(session).state
    assert [pending.content for pending in after.next_turn] == [text_blocks("later")]
    assert after.next_step == ()
    assert after.steps == 2


def test_a_fresh_step_sends_its_first_attempt() -> None:
    assert plan(IN_STEP.state, LIMITS) == SendRequest(1)


def test_a_failed_attempt_is_retried_after_its_delay() -> None:
    session = failed(IN_FLIGHT, "overloaded", retryable=True)
    assert plan(session.state, LIMITS) == SendRequest(2, DELAY_MS)


@pytest.mark.parametrize(
    ("failure", "end"),
    [
        ("auth", TurnEnd(reason="error", code="auth", message="why")),
        ("length", TurnEnd(reason="max_tokens", message="why")),
    ],
)
def test_a_final_failure_closes_step_and_turn_at_once(failure: str, end: TurnEnd) -> None:
    session = failed(IN_FLIGHT, failure, retryable=False)
    assert plan(session.state, LIMITS) == Append((StepEnd(), end))
    assert plan(session.then(StepEnd()).state, LIMITS) == Append((end,))


def test_unanswered_calls_are_run_and_answered_ones_are_not() -> None:
    assert plan(CALLED.state, LIMITS) == RunTools(CALLED.state.step.calls)  # type: ignore[union-attr]
    second = CALLED.state.step.calls[1]  # type: ignore[union-attr]
    left = plan(result(CALLED, second, started=True).state, LIMITS)
    assert isinstance(left, RunTools)
    assert [call.position for call in left.calls] == [0]


@pytest.mark.parametrize("finish", ["tool_calls", "stop"])
def test_once_all_calls_are_answered_the_model_is_asked_again(finish: str) -> None:
    session = answered(IN_FLIGHT, finish, calls=2)
    for call in session.state.step.calls:  # type: ignore[union-attr]
        session = result(session, call, started=True)
    assert plan(session.state, LIMITS) == Append((StepEnd(),))
    assert plan(session.then(StepEnd()).state, LIMITS) == Append((StepStart(),))


@pytest.mark.parametrize(
    ("finish", "end"),
    [
        ("stop", TurnEnd(reason="completed")),
        ("stop_sequence", TurnEnd(reason="completed")),
        ("steered", TurnEnd(reason="completed")),
        ("length", TurnEnd(reason="max_tokens")),
        ("refusal", TurnEnd(reason="error", code="refusal", message="the provider refused to answer")),
        ("filter", TurnEnd(reason="error", code="filter", message="the provider refused to answer")),
        ("pause", None),
    ],
)
def test_an_answer_without_calls_ends_the_turn_by_how_it_finished(finish: str, end: TurnEnd | None) -> None:
    session = answered(IN_FLIGHT, finish)
    assert plan(session.state, LIMITS) == Append((StepEnd(),))
    action = plan(session.then(StepEnd()).state, LIMITS)
    stops = end is not None and end.reason == "completed"
    assert action == (Stop(end) if stops and end else Append((end or StepStart(),)))


def test_a_steer_at_rest_gets_a_turn_of_its_own() -> None:
    after = opened(AT_REST.accepting("next_step", wakes=True)).state
    assert (after.turn, after.steps, after.next_step) == (1, 1, ())


def test_what_was_injected_keeps_no_turn_open() -> None:
    session = answered(IN_FLIGHT.accepting("next_step", "by the way"), "stop").then(StepEnd())
    assert plan(session.state, LIMITS) == Stop(TurnEnd(reason="completed"))
    waiting = session.then(TurnEnd(reason="completed"))
    assert plan(waiting.state, LIMITS) == Idle()
    steered = waiting.accepting("next_step", "now", wakes=True)
    assert [p.text for p in opened_events(steered) if isinstance(p, UserMessage)] == ["by the way", "now"]


def opened_events(session: Session) -> tuple[Event, ...]:
    action = plan(session.state, LIMITS)
    assert isinstance(action, Append)
    return action.events


def test_a_steer_keeps_the_turn_open() -> None:
    session = answered(IN_FLIGHT.accepting("next_step", "one more thing", wakes=True), "stop")
    assert plan(session.state, LIMITS) == Append((StepEnd(),))
    after = opened(session.then(StepEnd())).state
    assert (after.turn, after.steps, after.next_step) == (1, 2, ())


def test_a_turn_that_needs_too_many_steps_ends() -> None:
    session, limits = answered(IN_FLIGHT, "pause"), Limits(steps_per_turn=1)
    assert plan(session.state, limits) == Append((StepEnd(),))
    end = TurnEnd(reason="max_steps", message="1 steps")
    assert plan(session.then(StepEnd()).state, limits) == Append((end,))


def test_an_attempt_that_a_crash_cut_off_is_made_again_at_once_in_the_same_step() -> None:
    taken_over = IN_FLIGHT.then(SessionOpened(pid=2, host="h", kernel_version="0"))
    action = plan(taken_over.state, LIMITS)
    cut_off = RequestFailed(attempt=1, failure="interrupted", message="cut off before it was answered", retryable=True)
    assert action == Append((cut_off, RequestRetry(attempt=2, delay_ms=0)))
    assert plan(taken_over.then(*action.events).state, LIMITS) == SendRequest(2, 0)


def test_attempts_that_crashes_cut_off_are_nobodys_failures() -> None:
    session = IN_FLIGHT
    for attempt in range(1, 9):
        session = session.then(SessionOpened(pid=2, host="h", kernel_version="0"))
        action = plan(session.state, LIMITS)
        assert isinstance(action, Append)
        session = sent(session.then(*action.events), attempt + 1)
    step = session.state.step
    assert step is not None
    assert (step.attempt, step.cut_off, step.failures) == (9, 8, ())


@given(legal_logs())
def test_every_legal_log_has_a_next_action_wherever_it_is_cut(log: LegalLog) -> None:
    state = EMPTY
    for record in log.records:
        state = fold(state, record.event, record.seq, record.epoch)
        plan(state, LIMITS)


@pytest.mark.parametrize("bad", [{"parallel_tools": 0}, {"model_idle_s": 0}])
def test_limits_that_make_no_sense_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Limits(**bad)  # type: ignore[arg-type]
