"""The compactor in the box, and the tool by which a model reads again what was left out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Compactor, FileBlock, TextBlock, ToolCallBlock, ToolContext
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import AssistantMessage, CompactionStart, Message, ToolResult, UserMessage
from flightlog_plugins import compaction
from support.kernels import events_of, opened, records_of, session_of
from support.long_work import PRUNES, SUMMARISES, LongWork, looking


async def looked_back(path: Path, *wanted: dict[str, object]) -> list[tuple[str, str]]:
    """What these calls come to, behind a first message of 20,000 characters and its answer."""
    model = FakeModel([words("Hm."), *(calls(("look_back", json.dumps(one))) for one in wanted), words("So.")])
    async with session_of(path, model, plugins=[compaction]) as session:
        await session.followup("0123456789" * 2000)
        await session.run()
        await session.followup("and?")
        await session.run()
    return [(result.outcome, result.text) for result in events_of(path, ToolResult)]


async def test_a_message_is_shown_in_parts_by_its_number(tmp_path: Path) -> None:
    first, last, answer = await looked_back(
        tmp_path / "a.db", {"message": 1}, {"message": 1, "start": 16000}, {"message": 2}
    )
    assert first[1].startswith("[message 1, user]\n0123456789")
    assert first[1].endswith("[12000 more characters: look_back(1, start=8000)]")
    assert last[1].count("0123456789") == 400
    assert "more characters" not in last[1]
    assert answer[1] == "[message 2, you]\nHm."


@pytest.mark.parametrize("number", [-1, 0, 10_000, 2**60])
async def test_a_number_that_no_message_has_is_said_to_be_none(number: int, tmp_path: Path) -> None:
    ((outcome, text),) = await looked_back(tmp_path / "a.db", {"message": number})
    assert (outcome, text) == ("error", f"There is no message {number}.")


class Three:
    """A past of an answer with a call, its result, and a file."""

    def message(self, number: int) -> Message | None:
        """One of them, or none."""
        block = ToolCallBlock(call_id="c", name="look", arguments='{"at": 1}')
        content = (TextBlock(text="I look."), block)
        cat = FileBlock.of(b"a cat", name="cat.png")
        messages: list[Message] = [
            AssistantMessage(attempt=1, content=content, finish="tool_calls"),
            ToolResult(position=0, call_id="c", name="look", message_seq=5, outcome="ok", content=text_blocks("blue")),
            UserMessage(message_id="m", content=(TextBlock(text="See?"), cat)),
        ]
        return messages[number - 1]


async def test_calls_outcomes_and_files_are_shown_in_words() -> None:
    context = ToolContext(
        invocation_id="u.1.1.0", session="s", turn=1, step=1, position=0, call_id="c", deadline=1.0, past=Three()
    )
    assert [await compaction.look_back(context, number) for number in (1, 2, 3)] == [
        '[message 1, you]\nI look.\n[called look with {"at": 1}]',
        "[message 2, result of look: ok]\nblue",
        "[message 3, user]\nSee?\n[the image cat.png, image/png, 5 bytes]",
    ]


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
    assert "look_back(message) shows what stood there." in summaries[0].text


@pytest.mark.parametrize("compactor", [PRUNES, SUMMARISES], ids=["prune", "summarise"])
async def test_what_was_left_out_is_shown_in_full_also_in_a_fork(compactor: Compactor, tmp_path: Path) -> None:
    """A fork has other rows: requests that failed and words that were streamed stay behind."""
    path, model = tmp_path / "a.db", LongWork(window_tokens=900)
    async with session_of(path, model, looking(600), plugins=[Bundle(compactors=[compactor])]) as session:
        await session.followup("go")
        await session.run()
    records = records_of(path)
    said = [record.event for record in records if isinstance(record.event, Message) and not stands_for(record.event)]
    told = "".join(record.event.text for record in records if isinstance(record.event, Message) and record.event.text)
    numbers = {
        int(number) for found in re.findall(r"message (\d+)\.|messages 1 to (\d+),", told) for number in found if number
    }
    assert len(numbers) > 1
    again = FakeModel([])
    async with opened(path, again, plugins=[compaction]) as kernel:
        await kernel.fork("s", 1, "f")
        for name in ("s", "f"):
            again.replies = [*[words("")] * sum(isinstance(m, AssistantMessage) for m in kernel.read(name).messages())]
            again.replies = [*again.replies, calls(*(("look_back", {"message": number}) for number in sorted(numbers)))]
            async with kernel.session(name, model="fake:m") as session:
                await session.followup("look")
                assert (await session.run()).reason == "completed"
            results = events_of(path, ToolResult, name)[-len(numbers) :]
            for number, result in zip(sorted(numbers), results, strict=True):
                assert result.text.partition("]\n")[2].startswith(said[number - 1].text)


def stands_for(message: Message) -> bool:
    """Whether it is in place of others."""
    return getattr(message, "replaces", None) is not None or getattr(message, "replaces_from", None) is not None
