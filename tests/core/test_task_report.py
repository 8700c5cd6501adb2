"""The report on a task, made of its records alone: what it did, why it stopped, and what nobody knows."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given

from flightlog.cli.output import Output
from flightlog.cli.task_report import show_report
from flightlog.core.projections import tasks as tasks_view
from flightlog.core.report import report_of
from flightlog_hookspecs.content import ToolCallBlock, text_blocks
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantMessage,
    BudgetDegraded,
    BudgetGranted,
    Event,
    GoalChecked,
    Head,
    PluginFault,
    Record,
    RequestHeader,
    RequestSent,
    SessionCreated,
    SessionOpened,
    StepEnd,
    StepStart,
    TaskState,
    TaskSubmitted,
    TokenPrice,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from flightlog_hookspecs.tools import Fact
from support.legal_logs import LegalLog, extended, legal_logs
from support.tasks import START_US

OPENED = SessionOpened(pid=1, host="h", kernel_version="0")
PRICE = TokenPrice(currency="USD", input_pico=3_000_000, output_pico=15_000_000)
BLOCKS = (
    ToolCallBlock(call_id="c1", name="pay", arguments='{"to":"ada","amount":7}'),
    ToolCallBlock(call_id="c2", name="look", arguments="{}"),
)


def called(position: int, message_seq: int) -> ToolCall:
    block = BLOCKS[position]
    return ToolCall(
        position=position,
        call_id=block.call_id,
        name=block.name,
        arguments=block.arguments,
        invocation_id=f"u.{message_seq}.{position}",
        message_seq=message_seq,
        mode="exclusive",
        effect="write" if block.name == "pay" else "read",
        plugin="p",
        plugin_version="1",
    )


def a_task() -> list[Record]:
    """One that paid, died, was recovered, paid again after a person had said so, and was stopped."""
    created = Record(
        session="task-1", seq=1, at_us=START_US, turn=None, step=None, epoch=0, event=SessionCreated(uid="u")
    )
    goal = TaskSubmitted(
        goal="Pay what is owed.", model="a:m", parameters='{"to":"ada"}', goal_check="paid", agent="till 2", max_steps=9
    )
    log = list(extended([created], goal, OPENED, TaskState(state="running"), TurnStart(), StepStart()))

    def then(*events: Event) -> int:
        log[:] = extended(log, *events)
        return len(log)

    then(UserMessage(message_id="m", content=text_blocks("Pay.")))
    header = then(RequestHeader(head=Head(adapter="a", model="m"), reason="first"))
    answer = AssistantMessage(
        attempt=1,
        content=(*text_blocks("I pay."), *BLOCKS),
        finish="tool_calls",
        input_tokens=1000,
        output_tokens=20,
        price=PRICE,
    )
    first = then(RequestSent(attempt=1, header_seq=header, messages=1, sha256=""), answer)
    paid = then(called(0, first))
    then(evolve(OPENED, pid=2), TaskState(state="recovering", cause="crash"))
    common = {"message_seq": first, "call_id": "c1", "name": "pay", "position": 0}
    then(ToolResult(**common, outcome="unknown", content=text_blocks("It may have paid."), call_seq=paid))
    looked = then(called(1, first))
    seen = ToolResult(
        message_seq=first,
        call_id="c2",
        name="look",
        position=1,
        outcome="ok",
        content=text_blocks("7"),
        call_seq=looked,
    )
    then(evolve(seen, duration_us=1_500_000), StepEnd(), TaskState(state="running"), StepStart())
    again = evolve(answer, content=(*text_blocks("Again."), BLOCKS[0]))
    second = then(RequestSent(attempt=1, header_seq=header, messages=2, sha256=""), again)
    common["message_seq"] = second
    asked = then(ApprovalAsked(**common, question="pay was called before. Run it again?", guard="in doubt"))
    then(ApprovalDecided(asked_seq=asked, decision="allowed", by="ada", reason="it never arrived"))
    repaid = then(called(0, second))
    receipt = Fact(name="receipt", text="no. 7")
    then(
        ToolResult(
            **common, outcome="ok", content=text_blocks("paid"), call_seq=repaid, duration_us=20_000, facts=(receipt,)
        )
    )
    then(StepEnd(), StepStart())
    done = AssistantMessage(attempt=1, content=text_blocks("Done."), finish="stop", input_tokens=5, output_tokens=1)
    then(RequestSent(attempt=1, header_seq=header, messages=3, sha256=""), done, StepEnd())
    then(
        PluginFault(plugin="p", hook="turn_stopping h", error="broken"),
        GoalChecked(check="paid", met=False, missing="The receipt.", plugin="p", plugin_version="1"),
        TurnEnd(reason="max_steps", message="3 steps"),
        TaskState(state="failed", cause="max_steps", message="3 steps", goal_met=False),
    )
    return log


TEXT = """\
task-1  failed
Pay what is owed.
with to="ada"
failed since 2023-11-14 22:13:20  max_steps: 3 steps
goal check paid: not met
3 of 9 steps, 3 calls, 2,005 tokens in, 41 out, 0.0 ms of work
cost 0.0066 USD and 1 attempt of unknown cost

Steps
  1.1  0.0 ms, 1,000 tokens in, 20 out
       I pay.
       pay(to="ada", amount=7): unknown
       look(): ok in 1.5 s
  1.2  0.0 ms, 1,000 tokens in, 20 out
       Again.
       pay(to="ada", amount=7): ok in 20 ms
  1.3  0.0 ms, 5 tokens in, 1 out
       Done.
       goal check paid: missing: The receipt.
       turn 1 ended, max_steps: 3 steps

Recoveries
  2023-11-14 22:13:20  row 13

Cut off
  1.1  pay(to="ada", amount=7): outcome unknown: it may have taken effect (row 14)
       ada said allowed (row 23): it never arrived
       called again: ok

Noted
  receipt: no. 7

Faults of plugins
  p turn_stopping h: broken
"""


def test_a_failed_task_is_told_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    records = [evolve(record, at_us=START_US) for record in a_task()]
    show_report(Output(as_json=False), report_of(records))
    assert capsys.readouterr().out == TEXT


def test_a_question_that_nobody_has_answered_is_open() -> None:
    log = a_task()
    asked = next(record.seq for record in log if isinstance(record.event, ApprovalAsked))
    report = report_of(log[:asked])
    assert [(one.seq, one.name) for one in report.questions] == [(asked, "pay")]
    assert report_of(log[: asked + 1]).questions == ()
    assert report.at.state == "running"
    assert report.steps[-1].duration_us is None


def test_what_a_tool_or_a_person_knew_of_a_call_that_was_cut_off_is_told() -> None:
    log = a_task()
    settled = [
        evolve(record, event=evolve(record.event, outcome="ok", told_by="reconcile"))
        if isinstance(record.event, ToolResult) and record.event.outcome == "unknown"
        else record
        for record in log
    ]
    (doubt,) = report_of(settled).doubts
    assert (doubt.outcome, doubt.told_by, doubt.called_again) == ("ok", "reconcile", ())


def test_what_waits_until_more_is_granted_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    granted = BudgetGranted(card="tokens", most=1000)
    moved = BudgetDegraded(move="shrink", reason="900 of 1000 tokens are used", put_off=("sell", "paint"))
    log = a_task()
    for event in (granted, moved):
        log.append(evolve(log[-1], seq=log[-1].seq + 1, event=event))
    report = report_of(log)
    assert report.put_off == ("sell", "paint")
    show_report(Output(as_json=False), report)
    assert "Put off\n  sell\n  paint\n" in capsys.readouterr().out
    assert report_of([*log, evolve(log[-1], seq=log[-1].seq + 1, event=evolve(granted, most=2000))]).put_off == ()


def test_a_session_that_is_no_tasks_has_no_report() -> None:
    with pytest.raises(UsageError, match="no task's"):
        report_of([record for record in a_task() if not isinstance(record.event, (TaskSubmitted, TaskState))])


@given(legal_logs())
def test_whatever_became_of_a_task_there_is_a_report_that_agrees_with_the_views(log: LegalLog) -> None:
    records = log.records
    if not any(isinstance(record.event, TaskSubmitted) for record in records):
        return
    report = report_of(records)
    (row,) = tasks_view(records)
    assert report.at.state == row[2]
    assert report.goal_met == (None if row[5] is None else bool(row[5]))
    assert sum(step.duration_us is not None for step in report.steps) == row[12]
    assert len(report.recoveries) == row[17]
    show_report(Output(as_json=True), report)


def test_the_time_from_a_death_to_the_next_owner_is_in_no_step() -> None:
    second = 1_000_000
    events = (TaskSubmitted(goal="sweep", model="a:m"), OPENED, TurnStart(), StepStart(), OPENED, StepEnd())
    first = Record(
        session="t", seq=1, at_us=START_US, turn=None, step=None, epoch=0, event=SessionCreated(uid="u" * 32)
    )
    times = (0, 1, 2, 3, 4, 3604, 3606)
    log = [
        evolve(record, at_us=START_US + at * second)
        for record, at in zip(extended([first], *events), times, strict=True)
    ]
    (step,) = report_of(log).steps
    assert step.duration_us == 2 * second
