"""Checkpoints say what the log says, in every session of a task and in no other; what differs is known by reading."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import evolve
from hypothesis import given

from flightlog.core import checkpoints
from flightlog.core.fingerprint import Basis
from flightlog.core.fold import fold
from flightlog.core.limits import Limits
from flightlog.core.plan import Append, RunTools, follow, plan
from flightlog.core.state import EMPTY, State
from flightlog_hookspecs.content import ToolCallBlock, text_blocks
from flightlog_hookspecs.events import (
    AssistantMessage,
    CheckpointWritten,
    CompactionEnd,
    Event,
    Head,
    Record,
    RequestHeader,
    RequestSent,
    SectionSpan,
    SessionCreated,
    SessionOpened,
    StepEnd,
    StepStart,
    TaskAmended,
    TaskState,
    TaskSubmitted,
    ToolCall,
    ToolResult,
    ToolSpec,
    TurnStart,
    UserMessage,
)
from support.legal_logs import LegalLog, folded, legal_logs

LOOK = ToolSpec(name="look", description="Look.", parameters='{"type":"object","required":["at"]}')
BASIS = Basis(goal="look", parameters='{"a":1,"b":2}', system="be kind", tools=(LOOK,), model="a:m")


def counters(records: Sequence[Record]) -> tuple[int, int, int, int]:
    """Steps, calls, tokens and recoveries, counted by hand."""
    events = [record.event for record in records]
    answers = [event for event in events if isinstance(event, (AssistantMessage, CompactionEnd))]
    return (
        sum(isinstance(event, StepEnd) for event in events),
        sum(isinstance(event, ToolCall) for event in events),
        sum(a.input_tokens + a.output_tokens + a.cached_tokens + a.cache_write_tokens for a in answers),
        sum(isinstance(event, TaskState) and event.state == "recovering" for event in events),
    )


def said(written: CheckpointWritten) -> tuple[int, int, int, int]:
    return written.steps, written.calls, written.tokens, written.recoveries


@given(legal_logs())
def test_the_newest_sound_checkpoint_of_any_log_has_the_counters_of_the_log(log: LegalLog) -> None:
    task = log.state.task
    written = {r.seq: r.event for r in log.records if isinstance(r.event, CheckpointWritten)}
    assert task is not None or not written
    if task is None:
        return
    assert (task.steps, task.calls, task.tokens, task.recoveries) == counters(log.records)
    assert set(task.checkpoints) == set(written)
    if task.mark:
        assert said(task.mark.written) == counters(log.records[: task.mark.seq])
    behind = task.mark.seq if task.mark else 0
    for seq, event in written.items():
        if seq > behind and event.level != "light":
            state = folded(log.records[: seq - 1])
            assert (event.history, event.fingerprint, said(event)) != agreeing(state), f"{seq} is sound"


def agreeing(state: State) -> tuple[str, str, tuple[int, int, int, int]]:
    """What a heavy checkpoint behind `state` would have to say."""
    sound = checkpoints.checkpoint(state, "heavy", "observe")
    return sound.history, sound.fingerprint, said(sound)


@given(legal_logs())
def test_sessions_without_a_task_have_none(log: LegalLog) -> None:
    state = log.state
    if state.task is None:
        found = (checkpoints.ending_step(state), checkpoints.before_calls(state), checkpoints.after_calls(state))
        assert (*found, checkpoints.skipped(state)) == ((), (), (), ())


@pytest.mark.parametrize(
    "other",
    [
        evolve(BASIS, goal="look up"),
        evolve(BASIS, parameters='{"a":1,"b":3}'),
        evolve(BASIS, system="be quick"),
        evolve(BASIS, tools=()),
        evolve(BASIS, tools=(evolve(LOOK, description="Look up."),)),
        evolve(BASIS, tools=(evolve(LOOK, parameters='{"type":"object"}'),)),
        evolve(BASIS, model="a:n"),
    ],
)
def test_every_part_of_what_work_is_based_on_changes_the_fingerprint(other: Basis) -> None:
    assert other.fingerprint != BASIS.fingerprint
    assert len(BASIS.changes(other)) == 1


def test_the_order_of_keys_does_not_change_the_fingerprint() -> None:
    other = evolve(
        BASIS,
        parameters='{"b":2,"a":1}',
        tools=(evolve(LOOK, parameters='{"required":["at"],"type":"object"}'),),
    )
    assert other.fingerprint == BASIS.fingerprint
    assert BASIS.changes(other) == ()


def test_the_fingerprint_is_what_it_always_was() -> None:
    assert BASIS.fingerprint == "3169378e08212f22"


def after(*events: Event, state: State = EMPTY) -> State:
    for seq, event in enumerate(events, 1):
        state = fold(state, event, seq, max(state.epoch, 0))
    return state


CALLS = tuple(ToolCallBlock(call_id=f"c{n}", name="look", arguments="{}") for n in range(2))
ASKED: tuple[Event, ...] = (
    SessionCreated(uid="u"),
    TaskSubmitted(goal="look", model="a:m"),
    SessionOpened(pid=1, host="h", kernel_version="0"),
    TaskState(state="running"),
    TurnStart(),
    StepStart(),
    UserMessage(message_id="m", content=text_blocks("look")),
    RequestHeader(
        head=Head(adapter="a", model="m", system="be kind"),
        reason="first",
        sections=(SectionSpan(name="rules", start=0, chars=7),),
    ),
    RequestSent(attempt=1, header_seq=8, messages=1, sha256=""),
    AssistantMessage(attempt=1, content=CALLS, finish="tool_calls", input_tokens=5, output_tokens=2),
)


def results(*positions: int) -> tuple[ToolResult, ...]:
    return tuple(
        ToolResult(position=n, call_id=f"c{n}", name="look", message_seq=10, outcome="ok", content=text_blocks("blue"))
        for n in positions
    )


def test_calls_start_only_behind_a_checkpoint() -> None:
    state = after(*ASKED)
    (checkpoint,) = follow(state, 10, (), Limits(), stops=True)
    assert isinstance(checkpoint, CheckpointWritten)
    assert (checkpoint.level, checkpoint.phase) == ("heavy", "act")
    assert isinstance(plan(state, Limits()), Append)
    assert isinstance(plan(fold(state, checkpoint, 11, 1), Limits()), RunTools)


def test_a_step_ends_between_a_heavy_checkpoint_and_a_light_one() -> None:
    state = after(*ASKED, *checkpoints.before_calls(after(*ASKED)), *results(1, 0))
    first, second, third, *_ = follow(state, 13, (), Limits(), stops=True)
    assert isinstance(first, CheckpointWritten)
    assert isinstance(third, CheckpointWritten)
    assert (first.level, first.results, first.steps, first.tokens) == ("heavy", (13, 12), 0, 7)
    assert first.summary == "Done: steps 0, calls 0. Next: give the model what came of look, look."
    assert second == StepEnd()
    assert (third.level, third.steps, third.action) == ("light", 1, first.action)
    assert (third.summary, third.history, third.fingerprint) == ("", "", "")


def test_steps_that_bring_nothing_new_are_counted() -> None:
    state, counts = after(*ASKED[:6]), []
    for _ in range(3):
        said = AssistantMessage(attempt=1, content=text_blocks("hm"), finish="pause")
        state = after(ASKED[7], evolve(ASKED[8], header_seq=1), said, state=state)
        (light,) = checkpoints.ending_step(state)
        state = after(StepEnd(), light, state=state)
        counts.append((light.no_progress, checkpoints.checkpoint(state, "heavy", "think").no_progress))
        state = after(StepStart(), state=state)
    assert counts == [(0, 0), (1, 1), (2, 2)]


def test_the_digest_of_what_the_model_sees_depends_on_all_of_it() -> None:
    seen = {after(*ASKED, *results(*order)).task.history for order in ((), (0,), (1,), (0, 1), (1, 0))}  # type: ignore[union-attr]
    assert len(seen) == 5


def test_a_section_that_was_told_anew_is_in_the_fingerprint() -> None:
    news = UserMessage(
        message_id="n",
        content=(*text_blocks("now:"), *text_blocks("be quick")),
        source="context",
        section="rules",
    )
    before, then = after(*ASKED), after(*ASKED, news)
    assert checkpoints.basis_of(before).changes(checkpoints.basis_of(then)) == ("system",)
    assert checkpoints.basis_of(then).system == "be quick"


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
def test_every_end_of_a_task_has_an_archive_checkpoint_before_it(state: str) -> None:
    move = TaskState(state=state)  # type: ignore[arg-type]
    written, moved = checkpoints.moved(after(*ASKED), move)
    assert isinstance(written, CheckpointWritten)
    assert (written.level, moved) == ("archive", move)
    assert written.summary.endswith(f"Next: nothing, it is {state}.")


def test_a_task_starts_with_an_archive_checkpoint_once() -> None:
    state = after(*ASKED[:3])
    moved, written = checkpoints.moved(state, TaskState(state="running"))
    assert isinstance(written, CheckpointWritten)
    assert written.level == "archive"
    again = after(moved, written, TaskState(state="pending"), state=state)
    assert checkpoints.moved(again, TaskState(state="running")) == (TaskState(state="running"),)


def test_another_goal_is_in_the_next_checkpoint() -> None:
    before, then = after(*ASKED), after(*ASKED, TaskAmended(goal="look up"))
    fingerprints = {checkpoints.checkpoint(state, "heavy", "act").fingerprint for state in (before, then)}
    assert len(fingerprints) == 2
