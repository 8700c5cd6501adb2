"""The compactor in the box, and the tool by which a model reads again what was left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import TextBlock, ToolCallBlock, ToolContext
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import AssistantMessage, CompactionStart, Message, ToolResult, UserMessage
from flightlog_plugins import compaction
from support.kernels import events_of, records_of, session_of
from support.long_work import LongWork, looking


async def looked_back(path: Path, *wanted: dict[str, object]) -> list[tuple[str, str]]:
    """What these calls come to, behind a first message of 20,000 characters in row 7 and its answer in row 10."""
    model = FakeModel([words("Hm."), *(calls(("look_back", json.dumps(one))) for one in wanted), words("So.")])
    async with session_of(path, model, plugins=[compaction]) as session:
        await session.followup("0123456789" * 2000)
        await session.run()
        await session.followup("and?")
        await session.run()
    return [(result.outcome, result.text) for result in events_of(path, ToolResult)]


async def test_a_message_is_shown_in_parts_with_the_row_of_the_next(tmp_path: Path) -> None:
    first, last = await looked_back(tmp_path / "a.db", {"row": 2}, {"row": 7, "start": 16000})
    records = {record.seq: record.event.kind for record in records_of(tmp_path / "a.db")}
    row = next(seq for seq, kind in records.items() if kind == "user/message")
    following = next(seq for seq, kind in records.items() if kind == "assistant/message")
    assert first[1].startswith(f"[row {row}, user]\n0123456789")
    assert f"[12000 more characters: look_back({row}, start=8000)]" in first[1]
    assert first[1].endswith(f"[the next message is in row {following}]")
    assert last[1].count("0123456789") == 400
    assert "more characters" not in last[1]


@pytest.mark.parametrize("row", [10_000, 2**60])
async def test_a_row_behind_all_others_is_no_message(row: int, tmp_path: Path) -> None:
    ((outcome, text),) = await looked_back(tmp_path / "a.db", {"row": row})
    assert (outcome, text) == ("error", f"Nothing was said in row {row} or behind it.")


class Two:
    """A past of an answer with a call in row 5 and its result in row 8."""

    def message(self, row: int) -> tuple[int, Message] | None:
        """Either of them, or none."""
        block = ToolCallBlock(call_id="c", name="look", arguments='{"at": 1}')
        content = (TextBlock(text="I look."), block)
        if row <= 5:
            return 5, AssistantMessage(attempt=1, content=content, finish="tool_calls")
        seen = text_blocks("blue")
        answer = ToolResult(position=0, call_id="c", name="look", message_seq=5, outcome="ok", content=seen)
        return (8, answer) if row <= 8 else None


async def test_an_answer_is_shown_with_its_calls_and_a_result_with_its_outcome() -> None:
    context = ToolContext(
        invocation_id="u.1.1.0", session="s", turn=1, step=1, position=0, call_id="c", deadline=1.0, past=Two()
    )
    assert await compaction.look_back(context, 3) == (
        '[row 5, you]\nI look.\n[called look with {"at": 1}]\n[the next message is in row 8]'
    )
    assert await compaction.look_back(context, 6) == "[row 8, result of look: ok]\nblue"


async def test_long_work_is_kept_within_the_window(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(window_tokens=5000, steps=60)
    model.instruction = compaction.INSTRUCTION
    async with session_of(path, model, looking(600), plugins=[compaction]) as session:
        await session.followup("go")
        assert (await session.run()).reason == "completed"
    starts = events_of(path, CompactionStart)
    assert {start.compactor for start in starts} == {"compaction"}
    assert {start.level for start in starts} == {"prune", "summarise"}
    summaries = [each for each in events_of(path, UserMessage) if each.source == "summary"]
    assert "look_back(row) shows what stood there." in summaries[0].text
