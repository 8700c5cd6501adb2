"""A rich run, cut after every single row: each cut opens, tells the truth and goes on. Also cut twice."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import define, field

import flightlog
from flightlog import Limits
from flightlog.core.files import files_in
from flightlog.testing import Attempts, Bundle, FakeModel, calls, words
from flightlog_hookspecs import FileBlock, TextBlock, Tool, ToolContext, ToolOutput
from flightlog_hookspecs.errors import LogCorrupt, ProviderError
from flightlog_hookspecs.events import (
    AssistantDelta,
    AssistantMessage,
    InboxSplice,
    Record,
    RequestFailed,
    RequestSent,
    SessionClosed,
    SessionOpened,
    StepEnd,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from flightlog_hookspecs.tools import REPEATABLE
from support.conversation import assert_at_rest, assert_conversation
from support.cutting import cut_log
from support.kernels import SOON, records_of, session_of

GIVEN = FileBlock.of(b"\x89PNG of a cat", name="cat.png")
FOUND = FileBlock.of(b"%PDF of a dog", name="dog.pdf")
LIMITS = Limits(delta_flush_ms=1, cancel_grace_s=0)


KNOWN = {file.sha256: file for file in (GIVEN, FOUND)}


@define
class Cast:
    """The tools of the rich run; `ran` are the invocation ids of the bodies that started."""

    ran: list[str] = field(factory=list)
    hang: trio.Event = field(factory=trio.Event)

    def tools(self) -> list[Tool]:
        """One of each effect, one that fails, one that says a lot, one that hangs."""

        def made(name: str, effect: str, mode: str, said: str = "done") -> Tool:
            async def body(context: ToolContext) -> str:
                self.ran.append(context.invocation_id)
                await trio.lowlevel.checkpoint()
                if name == "fail":
                    raise ValueError("broken")
                if name == "hang":
                    self.hang.set()
                    await trio.sleep_forever()
                return ToolOutput(content=(FOUND,)) if name == "repeat" else said

            schema = {"type": "object"}
            return Tool(body=body, name=name, description="Work.", effect=effect, mode=mode, parameters=schema)

        return [
            made("read", "read", "parallel"),
            made("repeat", "idempotent", "parallel"),
            made("write", "write", "exclusive"),
            made("send", "external", "exclusive"),
            made("fail", "write", "parallel"),
            made("much", "read", "parallel", "a lot of words " * 10_000),
            made("hang", "write", "parallel"),
        ]


async def pause() -> None:
    """Long enough for a flush, so that what was streamed has rows of its own."""
    await trio.sleep(0.1)


def model_of_the_run() -> FakeModel:
    """Five turns: every effect; a retry; a cancel in the words; a cancel in the tools; a failure."""
    broken = [*words("Wasted words.")[:3], pause, *words("more", index=1), ProviderError("transport", "reset")]
    every = calls(("read", {}), ("write", {}), ("repeat", {}), ("nope", {}), ("send", {}), ("fail", {}), ("much", {}))
    return FakeModel(
        [
            [*words("I will do it all."), pause, *every],
            Attempts((broken, [*words("All done. ", chunk=1), pause])),
            [*words("These words")[:-1], pause, *words(" are cut", index=1), pause, trio.sleep_forever],
            [*words("Now hang."), *calls(("read", {}), ("hang", {}), ("write", {}))],
            [*words(" \n")[:-1], pause, ProviderError("auth", "no key")],
            words("never said"),
        ]
    )


async def rich_run(path: Path) -> None:
    """Write it, in three openings, with a message left in the inbox."""
    cast, model = Cast(), model_of_the_run()
    async with session_of(path, model, *cast.tools(), limits=LIMITS, plugins=[SOON]) as session:
        await session.followup((TextBlock(text="do it all"), GIVEN))
        await session.followup("x" * 70_000)
        with trio.move_on_after(10):  # by then the third answer hangs
            await session.run()
    async with session_of(path, model, *cast.tools(), limits=LIMITS, plugins=[SOON]) as session:
        await session.followup("hang")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await cast.hang.wait()
            session.cancel()
    async with session_of(path, model, *cast.tools(), limits=LIMITS, plugins=[SOON]) as session:
        await session.followup("fail")
        await session.run()
        await session.followup((GIVEN, TextBlock(text="left waiting")))


@define
class Expected:
    """What opening must add to a prefix, worked out from the table alone."""

    outcomes: dict[int, str]
    words: str | None
    turn_open: bool
    pending: list[str]


def expected_of(records: list[Record], pieces: dict[int, str]) -> Expected:
    """The verdicts for a log that ends with `records`; `pieces` are the texts of the text deltas by seq."""
    turn_open = step_open = attempt_open = False
    pending: list[str] = []
    calls_open: dict[int, ToolCall | None] = {}
    streamed: dict[int, str] = defaultdict(str)
    for record in records:
        match record.event:
            case TurnStart():
                turn_open = True
            case TurnEnd():
                turn_open = False
            case StepEnd():
                step_open = False
            case InboxSplice(cause="accepted") as splice:
                pending.append(splice.message_id)
            case InboxSplice() as splice:
                pending.remove(splice.message_id)
            case RequestSent():
                step_open = attempt_open = True
                streamed.clear()
            case AssistantDelta() as delta:
                streamed[delta.block] += pieces.get(record.seq, "")
            case RequestFailed():
                attempt_open = False
            case AssistantMessage() as message:
                attempt_open = False
                blocks = [block for block in message.content if hasattr(block, "call_id")]
                calls_open = dict.fromkeys(range(len(blocks)))
            case ToolCall() as call:
                calls_open[call.position] = call
            case ToolResult() as result:
                del calls_open[result.position]
            case _:
                pass
    outcomes = {
        position: "not_started" if call is None else "aborted" if call.effect in REPEATABLE else "unknown"
        for position, call in calls_open.items()
    }
    said = "".join(streamed[block] for block in sorted(streamed))
    words_kept = said if turn_open and attempt_open and said.strip() else None
    return Expected(outcomes if turn_open and step_open else {}, words_kept, turn_open, pending)


def text_deltas(path: Path) -> dict[int, str]:
    """The words of each text delta by its row."""
    return {
        record.seq: "".join(piece.text for piece in record.event.pieces)
        for record in records_of(path, deltas=True)
        if isinstance(record.event, AssistantDelta) and record.event.type == "text"
    }


async def open_and_close(path: Path, rows: int, *tools: Tool) -> list[Record]:
    """Open the session, which holds `rows` rows, and leave it; returns what that added. Nothing runs."""
    model = FakeModel([])
    async with session_of(path, model, *tools, limits=LIMITS, plugins=[SOON]):
        pass
    assert model.requests == []
    return records_of(path)[rows:]


def check_added(added: list[Record], expected: Expected) -> None:
    """What opening added is exactly what the table says."""
    assert isinstance(added[0].event, SessionOpened)
    assert isinstance(added[-1].event, SessionClosed)
    closing = [record.event for record in added[1:-1]]
    assert {r.position: r.outcome for r in closing if isinstance(r, ToolResult)} == expected.outcomes
    said = [event.text for event in closing if isinstance(event, AssistantMessage)]
    assert said == ([expected.words] if expected.words is not None else [])
    ends = [event.reason for event in closing if isinstance(event, TurnEnd)]
    assert ends == (["interrupted"] if expected.turn_open else [])
    if not expected.turn_open:
        assert closing == []


async def go_on(path: Path) -> None:
    """Run what waits and one more message; the request is well-formed."""
    model = FakeModel([words("Going on.")] * 50)
    async with session_of(path, model, limits=LIMITS, plugins=[SOON]) as session:
        await session.followup("go on")
        turn = await session.run()
        assert (turn.reason, turn.text) == ("completed", "Going on.")
    with flightlog.open_log(path, discover=False, plugins=[Bundle(adapters=[model])]) as log:
        rebuilt = log.session("s").request(turn.number, 1)
        assert rebuilt.proven
        assert_conversation(rebuilt.messages)
        assert rebuilt.fragments == model.requests[-1]
        for message, fragment in zip(rebuilt.messages, rebuilt.fragments[1:], strict=True):
            assert all(file.sha256 in KNOWN for file in files_in(message))
            assert all(KNOWN[file.sha256].data.hex() in fragment.decode() for file in files_in(message))


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """The rich run."""
    path = tmp_path / "whole.db"
    trio.run(rich_run, path, clock=trio.testing.MockClock(autojump_threshold=0))
    return path


def test_the_rich_run_holds_what_the_cuts_are_to_be_made_in(whole: Path) -> None:
    records = records_of(whole)
    results = {record.event.outcome for record in records if isinstance(record.event, ToolResult)}
    assert results == {"ok", "error", "aborted", "unknown"}
    effects = {record.event.effect for record in records if isinstance(record.event, ToolCall)}
    assert effects == {"read", "idempotent", "write", "external"}
    ends = [record.event.reason for record in records if isinstance(record.event, TurnEnd)]
    assert ends == ["completed", "aborted", "aborted", "error"]
    assert files_in(records[2].event) == (GIVEN,)
    assert any(files_in(record.event) == (FOUND,) for record in records if isinstance(record.event, ToolResult))
    assert any(record.event.spill for record in records if isinstance(record.event, ToolResult))
    assert any(isinstance(record.event, AssistantMessage) and record.event.interrupted for record in records)


def test_a_log_cut_after_any_row_opens_with_the_verdicts_of_the_table_and_goes_on(whole: Path, tmp_path: Path) -> None:
    records, pieces = records_of(whole), text_deltas(whole)
    kinds = set()
    for rows in range(1, len(records) + 1):
        if splits_an_append(records, rows):
            continue
        path = tmp_path / f"{rows}.db"
        cut_log(whole, path, rows)
        expected = expected_of(records[:rows], pieces)
        cast = Cast()
        added = trio.run(open_and_close, path, rows, *cast.tools())
        assert cast.ran == []
        check_added(added, expected)
        if expected.turn_open:
            again = trio.run(open_and_close, path, rows + len(added))
            assert [record.event.kind for record in again] == ["session/opened", "session/closed"]
        trio.run(go_on, path)
        after = assert_at_rest(path, FakeModel([]))
        assert delivered(after)[:-1] == delivered(records[:rows]) + expected.pending
        kinds |= set(expected.outcomes.values()) | {expected.words is not None, expected.turn_open}
    assert kinds == {"not_started", "aborted", "unknown", True, False}


def delivered(records: list[Record]) -> list[str]:
    """The messages that entered the conversation."""
    return [record.event.message_id for record in records if isinstance(record.event, UserMessage)]


def splits_an_append(records: list[Record], rows: int) -> bool:
    """Whether the cut stands between a claim and the message it claimed, which are one append."""
    claimed = entered = 0
    for record in records[:rows]:
        claimed += isinstance(record.event, InboxSplice) and record.event.cause == "claimed"
        entered += isinstance(record.event, UserMessage)
    return claimed != entered


def test_a_recovery_that_is_cut_short_is_done_again_with_the_same_result(whole: Path, tmp_path: Path) -> None:
    records, pieces = records_of(whole), text_deltas(whole)
    nested = 0
    for rows in range(1, len(records) + 1):
        expected = expected_of(records[:rows], pieces)
        if splits_an_append(records, rows) or not expected.turn_open:
            continue
        once = tmp_path / f"{rows}.db"
        cut_log(whole, once, rows)
        added = trio.run(open_and_close, once, rows)
        settled = [record.event for record in added if not isinstance(record.event, SessionOpened | SessionClosed)]
        for kept in sorted({1, len(added) // 2, len(added) - 1}):
            twice = tmp_path / f"{rows}.{kept}.db"
            cut_log(once, twice, rows + kept)
            more = trio.run(open_and_close, twice, rows + kept)
            both = [r.event for r in (*added[:kept], *more) if not isinstance(r.event, SessionOpened | SessionClosed)]
            assert both == settled
            nested += 1
            twice.unlink()
    assert nested > 100


def test_a_log_that_ends_inside_an_append_is_refused_naming_the_rule(whole: Path, tmp_path: Path) -> None:
    """No death leaves such a log, since an append is one transaction: somebody has shortened it."""
    records = records_of(whole)
    torn = [rows for rows in range(1, len(records) + 1) if splits_an_append(records, rows)]
    assert torn
    for rows in torn:
        path = tmp_path / f"{rows}.db"
        cut_log(whole, path, rows)
        with pytest.raises(LogCorrupt, match=f"session 's', seq {rows}.*claim-lost"):
            trio.run(open_and_close, path, rows)
        assert len(records_of(path)) == rows
