"""Guards before a call, and the person they may want to ask."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import flightlog
from flightlog.errors import UsageError
from flightlog.events import ApprovalAsked, ApprovalDecided, PluginFault, ToolCall, ToolResult
from flightlog.testing import Bundle, FakeModel, calls, fixed_clock, words
from flightlog_hookspecs import Allow, Ask, Deny, Hook, ProposedCall, Tool, Verdict, tool

ran: list[str] = []


@tool(mode="parallel", effect="write")
async def pay(to: str) -> str:
    """Pay someone."""
    ran.append(to)
    return f"paid {to}"


def ask_about_pay(call: ProposedCall) -> Verdict:
    return Ask(f"may {call.name} run with {call.arguments}?")


@asynccontextmanager
async def paying(
    path: Path, *bodies: Callable[[ProposedCall], object], to: tuple[str, ...] = ("ada",), approver: bool = True
) -> AsyncIterator[tuple[flightlog.Kernel, flightlog.Session]]:
    ran.clear()
    hooks = [Hook(point="before_tool", body=body, name=f"guard {n}", limit_s=5.0) for n, body in enumerate(bodies)]
    model = FakeModel([calls(*[("pay", {"to": name}) for name in to]), words("Fine.")])
    plugin = Bundle(tools=[pay], adapters=[model], hooks=hooks)
    async with (
        flightlog.open_kernel(path / "a.db", discover=False, plugins=[plugin], clock=fixed_clock()) as kernel,
        kernel.session("s", model="fake:m", approver=approver) as session,
    ):
        await session.followup("pay")
        yield kernel, session


def of(kernel: flightlog.Kernel, *kinds: type) -> list[object]:
    return [record.event for record in kernel.read("s").records() if isinstance(record.event, kinds)]


async def asked(session: flightlog.Session, number: int) -> list[flightlog.Question]:
    while len(session.questions()) < number:
        await trio.lowlevel.checkpoint()
    return session.questions()


async def test_an_allowed_call_runs_after_its_answer(tmp_path: Path) -> None:
    async with paying(tmp_path, ask_about_pay) as (_, session), trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        (question,) = await asked(session, 1)
        assert (question.name, question.arguments, ran) == ("pay", '{"to": "ada"}', [])
        assert await session.approve(question.seq, by="grace")
    kinds = [
        type(event)
        for event in of_all(tmp_path)
        if type(event) in (ApprovalAsked, ApprovalDecided, ToolCall, ToolResult)
    ]
    assert (kinds, ran) == ([ApprovalAsked, ApprovalDecided, ToolCall, ToolResult], ["ada"])


def of_all(path: Path) -> list[object]:
    with flightlog.open_log(path / "a.db", discover=False) as log:
        assert log.session("s").verify()
        return [record.event for record in log.session("s").records()]


async def test_a_denied_call_does_not_run_and_the_model_is_told(tmp_path: Path) -> None:
    async with paying(tmp_path, ask_about_pay) as (_, session), trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        (question,) = await asked(session, 1)
        await session.approve(question.seq, allow=False, by="grace", reason="Too much.")
    (result,) = [event for event in of_all(tmp_path) if isinstance(event, ToolResult)]
    assert (result.outcome, result.text, result.call_seq, ran) == ("denied", "Denied by grace. Too much.", None, [])


async def test_without_an_approver_a_question_is_denied_at_once(tmp_path: Path) -> None:
    async with paying(tmp_path, ask_about_pay, approver=False) as (kernel, session):
        turn = await session.run()
        assert turn is not None
        assert turn.reason == "completed"
        (result,) = of(kernel, ToolResult)
        assert isinstance(result, ToolResult)
        assert (result.outcome, ran) == ("denied", [])


async def test_a_cancel_settles_the_question_and_a_late_answer_is_recorded_and_ignored(tmp_path: Path) -> None:
    async with paying(tmp_path, ask_about_pay) as (kernel, session):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            (question,) = await asked(session, 1)
            session.cancel()
        assert session.questions() == []
        assert not await session.approve(question.seq, by="late")
        decisions = [(event.decision, event.by) for event in of(kernel, ApprovalDecided)]  # type: ignore[attr-defined]
        assert decisions == [("cancelled", "kernel"), ("allowed", "late")]
        (result,) = of(kernel, ToolResult)
        assert isinstance(result, ToolResult)
        assert (result.outcome, ran) == ("aborted", [])
        rows = await trio.to_thread.run_sync(lambda: approvals_of(tmp_path))
        assert rows == [("cancelled", "kernel")]


def approvals_of(path: Path) -> list[tuple[str, str]]:
    import sqlite3

    connection = sqlite3.connect(path / "a.db")
    try:
        return connection.execute("SELECT decision, decided_by FROM approvals").fetchall()
    finally:
        connection.close()


async def test_answers_reach_their_own_calls_in_any_order_while_siblings_run(tmp_path: Path) -> None:
    def ask_some(call: ProposedCall) -> Verdict:
        return None if "bob" in call.arguments else Ask("may it?")

    async with (
        paying(tmp_path, ask_some, to=("ada", "bob", "eve")) as (_, session),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(session.run)
        ada, eve = await asked(session, 2)
        while ran != ["bob"]:
            await trio.lowlevel.checkpoint()
        await session.approve(eve.seq)
        await session.approve(ada.seq, allow=False)
    results = [event for event in of_all(tmp_path) if isinstance(event, ToolResult)]
    assert sorted((r.position, r.outcome) for r in results) == [(0, "denied"), (1, "ok"), (2, "ok")]
    assert ran == ["bob", "eve"]


async def test_a_question_nobody_asked_cannot_be_answered(tmp_path: Path) -> None:
    async with paying(tmp_path) as (_, session):
        with pytest.raises(UsageError, match="no question was asked at seq 3"):
            await session.approve(3)


@pytest.mark.parametrize(
    ("bodies", "outcome"),
    [
        ([lambda call: Allow(), lambda call: Deny("no")], "denied"),
        ([lambda call: Ask("?"), lambda call: Deny("no")], "denied"),
        ([lambda call: None, lambda call: Allow()], "ok"),
        ([], "ok"),
    ],
)
async def test_deny_beats_ask_beats_allow(
    tmp_path: Path, bodies: list[Callable[[ProposedCall], object]], outcome: str
) -> None:
    async with paying(tmp_path, *bodies) as (kernel, session):
        await session.run()
        (result,) = of(kernel, ToolResult)
        assert isinstance(result, ToolResult)
        assert result.outcome == outcome


async def raises(call: ProposedCall) -> Verdict:
    raise RuntimeError("broken guard")


async def exits(call: ProposedCall) -> Verdict:
    raise SystemExit(3)


async def hangs(call: ProposedCall) -> Verdict:
    await trio.sleep_forever()


async def says_yes(call: ProposedCall) -> object:
    return "yes"


async def gives_no_reason(call: ProposedCall) -> object:
    return Deny(None)  # type: ignore[arg-type]


async def no_opinion(call: ProposedCall) -> Verdict:
    return None


@pytest.mark.parametrize("body", [raises, exits, hangs, says_yes, gives_no_reason])
async def test_a_broken_guard_denies_its_call_and_is_recorded(
    tmp_path: Path, body: Callable[[ProposedCall], object], autojump_clock: object
) -> None:
    async with paying(tmp_path, body, no_opinion) as (kernel, session):
        turn = await session.run()
        assert turn is not None
        assert turn.reason == "completed"
        (fault,) = of(kernel, PluginFault)
        assert isinstance(fault, PluginFault)
        assert (fault.plugin, fault.hook, ran) == ("Bundle", "before_tool guard 0", [])
        assert kernel.read("s").verify()


def test_a_hook_needs_a_known_point_and_a_time_limit(tmp_path: Path) -> None:
    bad = Hook(point="before_tool", body=ask_about_pay, name="bad", limit_s=0)

    async def main() -> None:
        async with flightlog.open_kernel(tmp_path / "a.db", discover=False, plugins=[Bundle(hooks=[bad])]):
            pass

    with pytest.raises(flightlog.errors.PluginError, match="no time limit"):
        trio.run(main)


assert isinstance(pay, Tool)
