"""Opening what a death left behind: the table of verdicts, row by row, and that nothing runs meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from flightlog import Session
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import BlockStart, TextDelta, ThinkingDelta, Tool
from flightlog_hookspecs.errors import HeadMismatch
from flightlog_hookspecs.events import (
    AssistantDelta,
    AssistantMessage,
    RequestFailed,
    SessionOpened,
    ToolResult,
    TurnEnd,
    UserMessage,
)
from support.conversation import assert_at_rest
from support.cutting import cut_log
from support.kernels import events_of, kinds_of, records_of, session_of


def tools(ran: list[str], effect: str = "write") -> list[Tool]:
    """Tools that say when they run."""

    def made(name: str, mode: str) -> Tool:
        async def body() -> str:
            ran.append(name)
            await trio.lowlevel.checkpoint()
            return f"{name} done"

        return Tool(body=body, name=name, description="Work.", mode=mode, effect=effect)

    return [made("first", "parallel"), made("second", "parallel"), made("third", "exclusive")]


async def cut_at(path: Path, model: FakeModel, kind: str, occurrence: int, *, effect: str = "write") -> Path:
    """A log that ends with the `occurrence`-th event of `kind` of a whole run."""
    whole = path.with_suffix(".whole")
    async with session_of(whole, model, *tools([], effect)) as session:
        await session.followup("hi")
        await session.run()
    places = [record.seq for record in records_of(whole) if record.event.kind == kind]
    cut_log(whole, path, places[occurrence - 1])
    return path


CALLS = [*words("I work."), *calls(("first", {}), ("second", {}), ("third", {}))]


@pytest.mark.parametrize(
    ("kind", "occurrence", "effect", "outcomes"),
    [
        ("assistant/message", 1, "write", ["not_started"] * 3),
        ("tool/call", 1, "write", ["unknown", "not_started", "not_started"]),
        ("tool/call", 2, "write", ["unknown", "unknown", "not_started"]),
        ("tool/call", 2, "external", ["unknown", "unknown", "not_started"]),
        ("tool/call", 2, "read", ["aborted", "aborted", "not_started"]),
        ("tool/call", 2, "idempotent", ["aborted", "aborted", "not_started"]),
        ("tool/result", 2, "write", ["ok", "ok", "not_started"]),
        ("tool/call", 3, "write", ["ok", "ok", "unknown"]),
        ("tool/call", 3, "read", ["ok", "ok", "aborted"]),
        ("tool/result", 3, "write", ["ok", "ok", "ok"]),
    ],
)
async def test_each_open_call_gets_the_verdict_of_the_table(
    tmp_path: Path, kind: str, occurrence: int, effect: str, outcomes: list[str]
) -> None:
    model = FakeModel([CALLS])
    path = await cut_at(tmp_path / "a.db", model, kind, occurrence, effect=effect)
    ran: list[str] = []
    model.requests.clear()
    async with session_of(path, model, *tools(ran, effect)) as session:
        assert (ran, model.requests) == ([], []), "opening runs nothing"
        results = sorted(events_of(path, ToolResult), key=lambda result: result.position)
        assert [result.outcome for result in results] == outcomes
        assert [end.reason for end in events_of(path, TurnEnd)] == ["interrupted"]
        assert await session.run() is None, "the turn is closed, nothing waits"
        await session.followup("go on")
        assert (await session.run()).reason == "completed"
    assert ran == [], "and nothing ran again"
    assert_at_rest(path, model)


async def test_the_model_is_told_plainly_what_is_known_of_each_call(tmp_path: Path) -> None:
    path = await cut_at(tmp_path / "a.db", FakeModel([CALLS]), "tool/call", 1)
    async with session_of(path, FakeModel([]), *tools([])):
        unknown, not_started, _ = events_of(path, ToolResult)
    assert "may or may not have taken effect" in unknown.text
    assert "Do not repeat it" in unknown.text
    assert "Nothing happened" in not_started.text


async def test_streamed_words_become_an_interrupted_message_and_the_model_goes_on_from_there(
    tmp_path: Path, autojump_clock: object
) -> None:
    path = tmp_path / "a.db"
    whole = tmp_path / "whole.db"

    stream = [
        BlockStart(index=0, type="thinking"),
        ThinkingDelta(index=0, text="hm"),
        *words("One, two, ", index=1)[:-1],
        BlockStart(index=2, type="text"),
        TextDelta(index=2, text="three"),
        trio.sleep_forever,
    ]
    async with session_of(whole, FakeModel([stream])) as session:
        await session.followup("count")
        with trio.move_on_after(0.1):
            await session.run()
    last = max(record.seq for record in records_of(whole) if isinstance(record.event, AssistantDelta))
    cut_log(whole, path, last)
    model = FakeModel([[], words("four.")])
    async with session_of(path, model) as session:
        (message,) = events_of(path, AssistantMessage)
        assert (message.text, message.finish) == ("One, two, three", "interrupted")
        await session.followup("go on")
        assert (await session.run()).text == "four."
    assert model.requests[0][1:] == (
        b'["user", "count"]',
        b'["assistant", "One, two, three", []]',
        b'["user", "go on"]',
    )


@pytest.mark.parametrize("streamed", [[], words(" \n ")[:-1]], ids=["nothing", "white space"])
async def test_without_words_the_attempt_failed_and_no_message_is_made(
    tmp_path: Path, autojump_clock: object, streamed: list[object]
) -> None:
    path, whole = tmp_path / "a.db", tmp_path / "whole.db"
    async with session_of(whole, FakeModel([[*streamed, trio.sleep_forever]])) as session:
        await session.followup("hi")
        with trio.move_on_after(0.1):
            await session.run()
    records = records_of(whole)
    last = max(r.seq for r in records if r.event.kind in ("request/sent", "assistant/delta"))
    cut_log(whole, path, last)
    model = FakeModel([words("Hello.")])
    async with session_of(path, model) as session:
        assert events_of(path, AssistantMessage) == []
        assert [event.failure for event in events_of(path, RequestFailed)] == ["interrupted"]
        await session.followup("again")
        assert (await session.run()).text == "Hello."
    assert_at_rest(path, model)


async def test_what_waits_in_the_inbox_survives_and_runs_next(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.db", tmp_path / "a.db"
    async with session_of(whole, FakeModel([words("one"), words("two")])) as session:
        await session.followup("first")
        await session.followup("second")
        await session.run()
    first_request = next(record.seq for record in records_of(whole) if record.event.kind == "request/sent")
    cut_log(whole, path, first_request)
    async with session_of(path, FakeModel([words("two")])) as session:
        assert session.pending == 1
        turn = await session.run()
        assert (turn.number, turn.text) == (2, "two")
    assert [message.text for message in events_of(path, UserMessage)] == ["first", "second"]


async def test_a_message_accepted_but_not_claimed_is_delivered_once(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.db", tmp_path / "a.db"
    async with session_of(whole, FakeModel([])) as session:
        await session.followup("hi")
    cut_log(whole, path, 3)
    for expected in (1, 0):
        async with session_of(path, FakeModel([words("Hello.")])) as session:
            assert session.pending == expected
            await session.run()
    assert [message.text for message in events_of(path, UserMessage)] == ["hi"]


async def test_opening_again_and_again_changes_nothing_more(tmp_path: Path) -> None:
    path = await cut_at(tmp_path / "a.db", FakeModel([CALLS]), "tool/call", 2)
    async with session_of(path, FakeModel([])):
        pass
    once = kinds_of(path)
    for _ in range(3):
        async with session_of(path, FakeModel([])):
            pass
    assert kinds_of(path) == once + ["session/opened", "session/closed"] * 3
    epochs = [record.epoch for record in records_of(path) if isinstance(record.event, SessionOpened)]
    assert epochs == [1, 2, 3, 4, 5]


async def test_reading_a_crashed_session_changes_no_byte_and_closes_nothing(tmp_path: Path) -> None:
    path = await cut_at(tmp_path / "a.db", FakeModel([CALLS]), "tool/call", 2)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")}
    records = records_of(path)
    assert records[-1].event.kind == "tool/call"
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir() if not f.name.endswith("-shm")} == before


async def test_a_token_of_the_dead_process_is_still_good_and_one_of_the_future_is_not(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.db", tmp_path / "a.db"
    session: Session
    async with session_of(whole, FakeModel([words("one")])) as session:
        accepted = await session.followup("hi")
        await session.run()
        later = session.token
    cut_log(whole, path, accepted.token.seq)
    from support.kernels import opened

    async with opened(path, FakeModel([])) as kernel:
        with pytest.raises(HeadMismatch):
            async with kernel.session("s", model="fake:m", expect=later):
                pass
        async with kernel.session("s", model="fake:m", expect=accepted.token):
            pass


async def test_another_session_of_the_file_is_not_touched_by_a_recovery(tmp_path: Path) -> None:
    from support.kernels import opened

    path = await cut_at(tmp_path / "a.db", FakeModel([CALLS]), "tool/call", 2)
    async with opened(path, FakeModel([])) as kernel:
        async with kernel.session("other", model="fake:m") as session:
            await session.followup("hi")
            await session.run()
        assert records_of(path)[-1].event.kind == "tool/call"
