"""The flow of a task: each situation has one action, every action is legal, and all lead to rest."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import assume, given
from hypothesis import strategies as st

from flightlog.core import inbox
from flightlog.core.fold import fold, placed
from flightlog.core.invariants import check
from flightlog.core.limits import Limits
from flightlog.core.plan import Idle, SendRequest, follow, plan
from flightlog.core.repair import closing
from flightlog.core.state import EMPTY, State
from flightlog.core.task_flow import (
    GO_ON,
    GOAL_ID,
    HAND_OVER,
    LATE,
    Action,
    Await,
    Drive,
    End,
    Rest,
    Since,
    Write,
    flow,
    readable,
)
from flightlog_hookspecs.content import ToolCallBlock, text_blocks, text_of
from flightlog_hookspecs.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantMessage,
    BudgetAlert,
    BudgetGranted,
    CheckpointWritten,
    Event,
    GoalChecked,
    Head,
    InboxSplice,
    LetterTaken,
    RequestFailed,
    RequestHeader,
    RequestSent,
    SessionCreated,
    SessionOpened,
    StepEnd,
    StepStart,
    SubagentSpawned,
    TaskResynced,
    TaskState,
    TaskStateName,
    TaskSubmitted,
    ToolCall,
    TurnEnd,
    TurnEndReason,
)
from support.legal_logs import LegalLog, legal_logs

NOW_US = 1000
WISH = TaskSubmitted(goal="sweep", model="a:m", max_recoveries=2)
OPENED = SessionOpened(pid=1, host="h", kernel_version="0")


def after(state: State, *events: Event) -> State:
    """`state` after `events`, each of them legal."""
    for event in events:
        epoch = state.epoch + isinstance(event, (SessionCreated, SessionOpened))
        check(state, event, epoch, placed(state, event))
        state = fold(state, event, 900, epoch)
    return state


def claimed(wish: TaskSubmitted = WISH, *events: Event) -> State:
    return after(EMPTY, SessionCreated(uid="u"), wish, OPENED, *events)


def next_of(state: State, since: Since = "claim", *, leaving: bool = False, answers: int = 0) -> Action:
    return flow(state, NOW_US, since, message_id="new", leaving=leaving, answers=answers)


def written(action: Action) -> tuple[Event, ...]:
    assert isinstance(action, Write)
    return action.events


def moves(action: Action) -> list[str]:
    """The states that an action writes, each with its cause."""
    events = (action.task,) if isinstance(action, End) else written(action)
    return [f"{event.state} {event.cause}".strip() for event in events if isinstance(event, TaskState)]


RUNNING = after(claimed(), *written(next_of(claimed())))
IN_TURN = after(RUNNING, *follow(RUNNING, 1, (), Limits(), stops=True))
ASKING = after(
    IN_TURN,
    RequestHeader(head=Head(adapter="a", model="m"), reason="first"),
    RequestSent(attempt=1, header_seq=900, messages=0, sha256=""),
    AssistantMessage(attempt=1, content=(ToolCallBlock(call_id="c", name="pay", arguments="{}"),), finish="tool_calls"),
    ApprovalAsked(position=0, call_id="c", name="pay", message_seq=900, question="may it?", guard="g"),
)
ANSWERED = after(ASKING, ApprovalDecided(asked_seq=900, decision="allowed", by="ada"))


def ended(reason: TurnEndReason, state: State = IN_TURN, **how: str) -> State:
    return after(state, *closing(state, TurnEnd(reason=reason, **how), (), "aborted"))


def test_a_new_task_begins_with_its_goal() -> None:
    running, checkpoint, splice = written(next_of(claimed(evolve(WISH, parameters='{"n":1}'))))
    assert isinstance(checkpoint, CheckpointWritten)
    assert running == TaskState(state="running")
    assert isinstance(splice, InboxSplice)
    assert (splice.message_id, splice.source) == (GOAL_ID, "user")
    assert text_of(splice.content or ()) == readable("sweep", '{"n":1}') == 'sweep\n\nParameters:\n{"n":1}'


def test_a_task_that_is_not_due_rests() -> None:
    assert next_of(claimed(evolve(WISH, due_us=NOW_US + 1))) == Rest()
    assert moves(next_of(claimed(evolve(WISH, due_us=NOW_US)))) == ["running"]


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
def test_an_ended_task_rests(state: TaskStateName) -> None:
    over = after(RUNNING, TaskState(state=state))
    assert [next_of(over, since) for since in ("claim", "write", "drive")] == [Rest()] * 3


@pytest.mark.parametrize(
    ("reason", "move"),
    [
        ("completed", "completed why"),
        ("aborted", "cancelled why"),
        ("paused", "paused why"),
        ("error", "failed error"),
        ("blocked", "failed blocked"),
        ("max_tokens", "failed max_tokens"),
        ("max_steps", "failed max_steps"),
        ("no_progress", "failed no_progress"),
        ("deadline", "failed deadline"),
    ],
)
@pytest.mark.parametrize("since", ["claim", "drive"])
def test_the_end_of_a_turn_is_the_task_s_also_for_the_worker_that_finds_it(
    reason: TurnEndReason, move: str, since: Since
) -> None:
    assert moves(next_of(ended(reason, cause="why"), since)) == [move]


def test_an_error_says_what_it_was() -> None:
    checkpoint, event = written(next_of(ended("error", code="Broken", message="it broke"), "drive"))
    assert isinstance(checkpoint, CheckpointWritten)
    assert isinstance(event, TaskState)
    assert event.message == "Broken: it broke"


def test_a_goal_is_met_only_where_a_check_decides_it() -> None:
    found = GoalChecked(check="clean", met=True, plugin="p", plugin_version="1")
    for wish, checks, met in ((evolve(WISH, goal_check="clean"), (found,), True), (WISH, (), None)):
        running = after(state := claimed(wish), *written(next_of(state)))
        spoken = after(running, *follow(running, 1, (), Limits(), stops=True))
        over = after(spoken, *closing(spoken, TurnEnd(reason="completed"), (), "aborted")[:-1], *checks)
        over = after(over, TurnEnd(reason="completed"))
        _, event = written(next_of(over, "drive"))
        assert isinstance(event, TaskState)
        assert event.goal_met is met


def test_a_message_that_came_as_the_turn_ended_is_answered_before_the_task_is_completed() -> None:
    more = after(ended("completed"), inbox.accepted(ended("completed"), "followup", "more", text_blocks("and mop")))
    assert next_of(more, "drive") == Drive()
    assert written(next_of(more, "drive", leaving=True)) == (HAND_OVER,)
    failed = after(ended("error"), inbox.accepted(ended("error"), "followup", "more", text_blocks("and mop")))
    assert moves(next_of(failed, "drive")) == ["failed error"]


def test_an_interrupted_turn_is_no_end_and_the_next_one_begins_with_a_word_about_it() -> None:
    cut = ended("interrupted")
    (splice,) = written(next_of(cut, "write"))
    assert isinstance(splice, InboxSplice)
    assert (splice.source, text_of(splice.content or ())) == ("resync", GO_ON)
    recovering, splice = written(next_of(cut))
    assert recovering == TaskState(state="recovering")
    assert isinstance(splice, InboxSplice)


@pytest.mark.parametrize("state", [RUNNING, IN_TURN], ids=["before its turn", "in its turn"])
def test_an_orphan_is_recovering_before_anything_is_done_and_only_so_often(state: State) -> None:
    for _ in range(WISH.max_recoveries):
        state = after(state, OPENED)
        assert moves(next_of(state)) == ["recovering"]
        state = after(state, *written(next_of(state)))
        assert next_of(state, "write") == Drive()
    action = next_of(after(state, OPENED))
    assert isinstance(action, End)
    assert (action.turn.reason, moves(action)) == ("interrupted", ["failed too_many_recoveries"])


def test_recoveries_count_anew_once_a_step_is_finished() -> None:
    state = after(IN_TURN, OPENED)
    state = after(state, *written(next_of(state)))
    state = after(
        state,
        TaskResynced(before="", after=""),
        RequestHeader(head=Head(adapter="a", model="m"), reason="first"),
        RequestSent(attempt=1, header_seq=900, messages=0, sha256=""),
        AssistantMessage(attempt=1, content=text_blocks("done"), finish="stop"),
    )
    events = follow(state, 900, (), Limits(), stops=True)
    assert (events[0], events[2]) == (StepEnd(), TaskState(state="running"))
    assert isinstance(events[1], CheckpointWritten)
    task = after(state, *events).task
    assert task is not None
    assert (task.recoveries, task.stuck, task.state) == (1, 0, "running")


def test_a_step_that_was_cut_off_is_no_finished_one() -> None:
    state = after(IN_TURN, OPENED)
    state = after(state, *written(next_of(state)))
    state = after(
        state,
        RequestHeader(head=Head(adapter="a", model="m"), reason="first"),
        RequestSent(attempt=1, header_seq=900, messages=0, sha256=""),
    )
    for streamed in ((), text_blocks("half a word")):
        task = after(state, *closing(state, TurnEnd(reason="interrupted"), streamed, "aborted")).task  # type: ignore[arg-type]
        assert task is not None
        assert (task.steps, task.stuck) == (1, 1)


@pytest.mark.parametrize("move", ["pending", "paused"])
def test_nothing_moves_in_a_task_that_waits(move: TaskStateName) -> None:
    assert plan(IN_TURN, Limits()) == SendRequest(1)
    for state in (RUNNING, IN_TURN):
        assert plan(after(state, TaskState(state=move)), Limits()) == Idle()


def test_a_question_pauses_the_task_until_it_is_answered() -> None:
    assert moves(next_of(ASKING, "drive")) == ["paused question"]
    paused = after(ASKING, *written(next_of(ASKING, "drive")))
    assert [next_of(paused, since) for since in ("claim", "write")] == [Rest(), Rest()]
    answered = after(paused, ApprovalDecided(asked_seq=900, decision="denied", by="ada"))
    assert moves(next_of(answered)) == ["pending answered"]


def test_an_answer_that_the_drive_may_have_missed_is_driven_for_once_more() -> None:
    assert next_of(ANSWERED, "drive", answers=0) == Drive()
    assert moves(next_of(ANSWERED, "drive", answers=1)) == ["paused question"]


def test_an_answer_wakes_no_task_that_a_person_paused() -> None:
    paused = after(ASKING, TaskState(state="paused", cause="person"))
    assert next_of(after(paused, ApprovalDecided(asked_seq=900, decision="denied", by="ada"))) == Rest()


def test_a_paused_task_goes_on_by_itself_once_its_time_has_come() -> None:
    for resume_at_us, action in ((NOW_US + 1, Rest()), (NOW_US, Write((TaskState(state="pending", cause="due"),)))):
        assert next_of(after(RUNNING, TaskState(state="paused", cause="quota", resume_at_us=resume_at_us))) == action


@pytest.mark.parametrize(("cause", "goes_on"), [("quota", True), ("context", True), ("person", False)])
def test_a_grant_wakes_what_may_be_paused_for_want_of_it(cause: str, goes_on: bool) -> None:
    paused = after(RUNNING, TaskState(state="paused", cause=cause))
    assert next_of(paused) == Rest()
    granted = next_of(after(paused, BudgetGranted(card="tokens", most=5)))
    assert granted == (Write((TaskState(state="pending", cause="granted"),)) if goes_on else Rest())


def test_a_grant_that_comes_as_the_turn_ends_for_want_of_it_is_not_lost() -> None:
    card = BudgetGranted(card="tokens", most=5)
    halt = BudgetAlert(card="tokens", used=5, most=5, level="exceeded", then="pauses")
    state = after(IN_TURN, halt)
    assert moves(next_of(ended("paused", state, cause="quota"), "drive")) == ["paused quota"]
    before = ended("paused", after(state, card), cause="quota")
    for late in (before, after(ended("paused", state, cause="quota"), card)):
        (splice,) = written(next_of(late, "drive"))
        assert isinstance(splice, InboxSplice)
        assert next_of(after(late, splice), "write") == Drive()


def test_a_worker_that_leaves_hands_over_what_it_drove_and_begins_nothing() -> None:
    assert written(next_of(IN_TURN, "drive", leaving=True)) == (HAND_OVER,)
    assert next_of(claimed(), leaving=True) == Rest()
    pending = after(IN_TURN, HAND_OVER, OPENED)
    assert moves(next_of(pending)) == ["running"]
    assert next_of(after(pending, *written(next_of(pending))), "write") == Drive()


@given(st.lists(st.sampled_from(["nothing", "request", "step"]), max_size=20), st.integers(0, 3))
def test_a_task_that_is_handed_over_in_mid_step_too_often_is_paused_until_somebody_resumes_it(
    lives: list[str], most: int
) -> None:
    """In each life a worker does so much, and is ended. A step that it finishes makes up for what was in vain."""
    state, in_vain = claimed(evolve(WISH, max_recoveries=most)), 0
    for does in lives:
        if in_vain > most:
            assert moves(next_of(state)) == ["paused too_many_hand_overs"]
            state = after(state, *written(next_of(state)))
            assert next_of(state) == Rest()
            state, in_vain = after(state, TaskState(state="pending", cause="resumed")), 0
        assert moves(next_of(state)) == ["running"]
        state = after(state, *written(next_of(state)))
        state = state if state.turn_open else after(state, *follow(state, 1, (), Limits(), stops=True))
        state = after(state, *_done(state, does), HAND_OVER, OPENED)
        in_vain = 0 if does == "step" else in_vain + (does != "nothing")


def _done(state: State, does: str) -> list[Event]:
    """What a life brings that does so much in the open step."""
    step = state.step
    assert step is not None
    if does == "nothing":
        return []
    cut_off = RequestFailed(attempt=step.attempt, failure="interrupted", message="", retryable=True)
    events: list[Event] = [cut_off] if step.phase == "open" else []
    events += [] if state.header else [RequestHeader(head=Head(adapter="a", model="m"), reason="first")]
    events.append(RequestSent(attempt=step.attempt + 1, header_seq=900, messages=0, sha256=""))
    if does == "step":
        said = AssistantMessage(attempt=step.attempt + 1, content=text_blocks("On I go."), finish="stop")
        events += [said, StepEnd(), StepStart()]
    return events


@pytest.mark.parametrize("wait", ["pending", "paused", "running"])
def test_a_cancel_ends_the_turn_and_then_the_task_wherever_it_stands(wait: TaskStateName) -> None:
    state = IN_TURN if wait == "running" else after(IN_TURN, TaskState(state=wait, cause="person"))
    state = after(state, LetterTaken(letter_id="l", verb="cancel", outcome="obeyed"))
    assert next_of(state) == Drive()
    assert moves(next_of(ended("aborted", state, cause="user"), "drive")) == ["cancelled user"]


def test_a_deadline_fails_what_has_not_ended() -> None:
    late = claimed(evolve(WISH, deadline_us=NOW_US))
    assert next_of(late) == End(LATE, TaskState(state="failed", cause="deadline"))
    running = after(claimed(evolve(WISH, deadline_us=NOW_US)), TaskState(state="running"))
    assert moves(next_of(running, "write")) == ["failed deadline"]


def test_a_task_is_not_completed_while_its_children_go_on_beside_it() -> None:
    call = ToolCall(
        position=0,
        call_id="c",
        name="pay",
        arguments="{}",
        invocation_id="i",
        message_seq=900,
        mode="parallel",
        effect="read",
        plugin="p",
        plugin_version="",
    )
    spawned = SubagentSpawned(child="k", subagent="s", depth=1, invocation_id="i", task="t", background=True)
    state = ended("completed", after(ANSWERED, call, spawned))
    assert next_of(state, "drive") == Await()
    assert written(next_of(state, "drive", leaving=True)) == (HAND_OVER,)
    halt = BudgetAlert(card="active_s", used=9, most=9, level="exceeded", then="pauses", resume_at_us=NOW_US + 5)
    (paused,) = written(next_of(after(state, halt), "write"))
    assert paused == TaskState(state="paused", cause="quota", resume_at_us=NOW_US + 5), "time passes for it, too"


@given(
    log=legal_logs(),
    since=st.sampled_from(["claim", "write", "drive"]),
    leaving=st.booleans(),
    now_us=st.integers(0, 2**53),
)
def test_whatever_the_log_all_that_is_written_is_legal_and_leads_to_rest(
    log: LegalLog, since: Since, leaving: bool, now_us: int
) -> None:
    state = log.state
    assume(state.task is not None and not state.claimed)
    if state.closed or state.epoch == 0:
        state = after(state, evolve(OPENED, lock=state.lock))
    for number in range(6):
        action = flow(state, now_us, since, message_id=f"new {number}", leaving=leaving)
        match action:
            case Write(events=events):
                assert events
                state, since = after(state, *events), "write"
            case End(turn=turn, task=moved):
                state = after(state, *closing(state, turn, (), "not_started"), moved)
            case _:
                return
    raise AssertionError("it never comes to rest")
