"""A write whose outcome nobody knows is not repeated under a new id unless a person says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog import Session
from flightlog.core.doubt import after_result, signature
from flightlog.testing import Bundle, Cue, FakeModel, calls, words
from flightlog_hookspecs import Ask, Deny, Effect, Hook, Tool, tool
from flightlog_hookspecs.errors import OutcomeUnknown
from flightlog_hookspecs.events import ApprovalAsked, ToolCall, ToolResult
from support.cutting import cut_log
from support.kernels import events_of, new_id, opened, outcomes_of, records_of, verified
from support.memory_folder import subfolder

ADA = calls(("pay", {"to": "ada", "sum": 1}))
ADA_AGAIN = calls(("pay", '{"sum":1, "to":"ada"}'))
BOB = calls(("pay", {"to": "bob", "sum": 1}))


class World:
    """Payments to ada take for ever at first, then nothing hinders them."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.at_work = trio.Event()

    def plugin(self, replies: Sequence[Sequence[Cue]], effect: Effect, hooks: Sequence[Hook]) -> Bundle:
        async def pay(to: str, sum: int) -> str:  # noqa: A002
            self.paid.append(to)
            if len(self.paid) == 1:
                self.at_work.set()
                await trio.sleep_forever()
            return "paid"

        tool = Tool(body=pay, description="Pay.", effect=effect, timeout_s=5.0)
        return Bundle(tools=[tool], adapters=[FakeModel(replies)], hooks=hooks)


@asynccontextmanager
async def paying(
    path: Path,
    world: World,
    *replies: Sequence[Cue],
    effect: Effect = "write",
    approver: bool = True,
    hooks: Sequence[Hook] = (),
) -> AsyncIterator[Session]:
    plugin = world.plugin(replies, effect, hooks)
    clock = flightlog.Clock(new_id=new_id)
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[plugin], clock=clock) as kernel,
        kernel.session("s", model="fake:m", approver=approver) as session,
    ):
        yield session


async def turn_of(session: Session, text: str) -> None:
    await session.followup(text)
    await session.run(wait=False)


@pytest.mark.parametrize("allow", [True, False])
async def test_the_second_try_of_a_write_that_timed_out_is_put_to_a_person(
    tmp_path: Path, allow: bool, autojump_clock: object
) -> None:
    path, world = tmp_path / "a.db", World()
    async with paying(path, world, ADA, ADA_AGAIN, words("Done.")) as session:
        await turn_of(session, "pay ada")
        (question,) = session.questions()
        (unknown,) = [r.seq for r in records_of(path) if isinstance(r.event, ToolResult)]
        assert question.guard == "in doubt"
        assert f"its outcome is unknown (row {unknown})" in question.question
        await session.approve(question.seq, allow=allow, by="grace", reason="Well.")
        await session.run()
    assert outcomes_of(path) == ["unknown", "ok" if allow else "denied"]
    assert world.paid == ["ada"] * (1 + allow)
    if not allow:
        assert "Denied by grace. Well. An earlier call" in events_of(path, ToolResult)[-1].text
    verified(path, FakeModel([]))


async def test_without_an_approver_it_is_denied_and_the_model_is_told_why(
    tmp_path: Path, autojump_clock: object
) -> None:
    path, world = tmp_path / "a.db", World()
    async with paying(path, world, ADA, ADA_AGAIN, ADA, BOB, words("Done."), approver=False) as session:
        await turn_of(session, "pay ada")
    assert (outcomes_of(path), world.paid) == (["unknown", "denied", "denied", "ok"], ["ada", "bob"])
    assert "it may have taken effect. Do not repeat it" in events_of(path, ToolResult)[1].text


async def test_a_write_that_was_cancelled_is_held_in_later_turns_and_after_a_restart(
    tmp_path: Path, autojump_clock: object
) -> None:
    path, world = tmp_path / "a.db", World()
    async with paying(path, world, ADA) as session, trio.open_nursery() as nursery:
        await session.followup("pay ada")
        nursery.start_soon(session.run)
        await world.at_work.wait()
        session.cancel(now=True)
    assert outcomes_of(path) == ["unknown"]
    async with paying(path, world, ADA, ADA, words("Done.")) as session:
        await turn_of(session, "again")
        assert [question.guard for question in session.questions()] == ["in doubt"]
    async with paying(path, world, ADA, ADA, words("Done.")) as session:
        await session.approve(session.questions()[0].seq)
        await session.run()
    assert (outcomes_of(path), world.paid) == (["unknown", "ok"], ["ada", "ada"])


async def test_a_write_that_a_crash_interrupted_is_held(tmp_path: Path, autojump_clock: object) -> None:
    path, world = tmp_path / "a.db", World()
    async with paying(path, world, ADA, words("Done.")) as session:
        await turn_of(session, "pay ada")
    started = next(record.seq for record in records_of(path) if isinstance(record.event, ToolCall))
    after = subfolder(tmp_path) / "a.db"
    cut_log(path, after, started)
    async with paying(after, world, ADA, ADA, words("Done."), approver=False) as session:
        await turn_of(session, "again")
    assert (outcomes_of(after), world.paid) == (["unknown", "denied"], ["ada"])


async def test_the_same_call_twice_in_one_message_is_held_once_the_first_is_in_doubt(
    tmp_path: Path, autojump_clock: object
) -> None:
    path, world = tmp_path / "a.db", World()
    same = {"to": "ada", "sum": 1}
    async with paying(path, world, calls(("pay", same), ("pay", same)), words("Done."), approver=False) as session:
        await turn_of(session, "pay ada twice")
    assert (outcomes_of(path), world.paid) == (["unknown", "denied"], ["ada"])


async def test_once_such_a_call_was_allowed_and_ended_well_it_is_asked_about_no_more(
    tmp_path: Path, autojump_clock: object
) -> None:
    path, world = tmp_path / "a.db", World()
    async with paying(path, world, ADA, ADA, ADA, words("Done.")) as session:
        await turn_of(session, "pay ada")
        await session.approve(session.questions()[0].seq)
        await session.run()
    assert (outcomes_of(path), len(events_of(path, ApprovalAsked))) == (["unknown", "ok", "ok"], 1)


@pytest.mark.parametrize("effect", ["read", "idempotent"])
async def test_what_may_be_repeated_is_not_held(tmp_path: Path, effect: Effect, autojump_clock: object) -> None:
    path, world = tmp_path / "a.db", World()
    async with paying(path, world, ADA, ADA, words("Done."), effect=effect, approver=False) as session:
        await turn_of(session, "look at ada")
    assert outcomes_of(path) == ["timeout", "ok"]


async def test_a_guard_that_asks_too_and_the_doubt_are_one_question_and_a_denial_beats_both(
    tmp_path: Path, autojump_clock: object
) -> None:
    async def ask_once(call: object) -> Ask | Deny | None:
        return {1: None, 2: Ask("may it?"), 3: Deny("no")}[call.step]

    path, world = tmp_path / "a.db", World()
    hook = Hook(point="before_tool", body=ask_once, name="cashier")
    async with paying(path, world, ADA, ADA, ADA, words("Done."), hooks=[hook]) as session:
        await turn_of(session, "pay ada")
        (question,) = session.questions()
        assert question.guard == "cashier"
        assert question.question.startswith("may it?\npay was called before")
        await session.approve(question.seq, allow=False)
        await session.run()
    assert (outcomes_of(path), len(events_of(path, ApprovalAsked))) == (["unknown", "denied", "denied"], 1)


async def test_a_fork_knows_what_is_in_doubt(tmp_path: Path, autojump_clock: object) -> None:
    path, world = tmp_path / "a.db", World()
    async with paying(path, world, ADA, words("Done.")) as session:
        await turn_of(session, "pay ada")
    plugin = world.plugin([ADA, words("Done."), ADA], "write", [])
    async with flightlog.open_kernel(path, discover=False, plugins=[plugin]) as kernel:
        await kernel.fork("s", 1, "t")
        async with kernel.session("t", model="fake:m", approver=True) as fork:
            await turn_of(fork, "again")
            assert [question.guard for question in fork.questions()] == ["in doubt"]
    assert world.paid == ["ada"]


@pytest.mark.parametrize(
    "again",
    ['{"sum": 1.0, "to": "ada"}', '{"to":"ada","sum":1,"note":""}', '{"note": "", "sum": 1e0, "to": "\\u0061da"}'],
)
async def test_the_same_call_in_other_words_is_held_too(tmp_path: Path, again: str, autojump_clock: object) -> None:
    paid: list[str] = []

    @tool(mode="parallel", effect="write")
    async def pay(to: str, sum: float, note: str = "") -> str:  # noqa: A002
        """Pay."""
        paid.append(to)
        raise OutcomeUnknown("the bank did not answer")

    model = FakeModel(
        [calls(("pay", {"to": "ada", "sum": 1})), calls(("pay", again)), calls(("pay", {"to": "ada", "sum": 2}))]
    )
    async with opened(tmp_path / "a.db", model, pay) as kernel, kernel.session("s", model="fake:m") as session:
        await turn_of(session, "pay ada")
    assert outcomes_of(tmp_path / "a.db") == ["unknown", "denied", "unknown"]
    assert paid == ["ada", "ada"]


def with_points(value: object) -> object:
    """The same numbers, written as fractions."""
    match value:
        case dict():
            return {name: with_points(item) for name, item in value.items()}
        case list():
            return [with_points(item) for item in value]
        case int():
            return float(value)
        case _:
            return value


json_objects = st.dictionaries(st.text(max_size=3), st.recursive(st.integers(-9, 9) | st.text(max_size=3), st.lists))


@given(value=json_objects, other=json_objects, indent=st.none() | st.integers(0, 3))
def test_two_calls_are_the_same_whatever_the_order_and_spacing_of_their_arguments(
    value: dict[str, object], other: dict[str, object], indent: int | None
) -> None:
    import json

    turned = dict(reversed(value.items()))
    assert signature("t", json.dumps(value)) == signature("t", json.dumps(with_points(value)))
    assert signature("t", json.dumps(value)) == signature("t", json.dumps(turned, indent=indent, ensure_ascii=False))
    assert (signature("t", json.dumps(value)) == signature("t", json.dumps(other))) == (value == other)
    assert signature("t", json.dumps(value)) != signature("u", json.dumps(value))


@given(raw=st.text(max_size=20))
def test_arguments_that_are_no_json_are_compared_as_they_are(raw: str) -> None:
    assert signature("t", raw) == signature("t", raw)


def test_only_an_end_that_is_known_and_good_takes_a_doubt_away() -> None:
    call = signature("t", "{}")
    doubts = after_result({}, call, "unknown", 7)
    assert doubts == {call: 7}
    for outcome in ("denied", "error", "aborted", "not_started", "timeout"):
        assert after_result(doubts, call, outcome, 9) == doubts  # type: ignore[arg-type]
    assert after_result(doubts, signature("t", '{"a": 1}'), "ok", 9) == doubts
    assert after_result(doubts, call, "unknown", 9) == {call: 9}
    assert after_result(doubts, call, "ok", 9) == {}
