"""Images and files in messages: in the log once, to the model byte for byte, and nothing is taken for them."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog import Limits, tool
from flightlog.core.files import files_in
from flightlog.core.limits import FILE_MAX_BYTES, FILE_NAME_MAX_CHARS
from flightlog.errors import ImportRefused, LogCorrupt, UsageError
from flightlog.events import InboxSplice, LetterTaken, ToolResult, UserMessage
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import (
    FileBlock,
    FinishedCall,
    Redaction,
    Replace,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolOutput,
    hook,
)
from support import values, worker_tools
from support.damage import unguarded
from support.kernels import events_of, opened, records_of, session_of, verified
from support.memory_folder import subfolder

CAT = FileBlock.of(b"\x89PNG\r\n\x1a\n of a cat", name="cat.png")
REPORT = FileBlock.of(b"%PDF-1.7 in full", name="report.pdf")
LOOK = (TextBlock(text="look: "), CAT, TextBlock(text="nice"))
COPIES = count()


def blobs_of(path: Path) -> list[bytes]:
    database = sqlite3.connect(path)
    found = [content for (content,) in database.execute("SELECT bytes FROM blobs ORDER BY id")]
    database.close()
    return found


def harm(path: Path, sql: str) -> None:
    """Change the file as somebody who drops its guards first."""
    database = unguarded(sqlite3.connect(path))
    database.execute(sql)
    database.commit()
    database.close()


async def talked(path: Path, *contents: tuple[Any, ...]) -> FakeModel:
    """One turn each."""
    model = FakeModel([])
    async with session_of(path, model) as session:
        for content in contents:
            await session.followup(content)
        await session.run()
    return model


async def exchanged(path: Path, model: FakeModel) -> Path:
    """The session, exported and taken in by another log."""
    target, export = path.with_name(f"other-{next(COPIES)}.db"), io.BytesIO()
    with flightlog.open_log(path, discover=False) as log:
        log.session("s").export(export)
    export.seek(0)
    async with opened(target, model) as kernel:
        await kernel.import_session(export)
    return target


def test_a_file_is_named_by_the_hash_of_its_bytes_and_its_type_is_what_its_name_says() -> None:
    assert (CAT.media_type, CAT.size_bytes) == ("image/png", 17)
    assert CAT.label == "image cat.png, image/png, 17 bytes"
    assert FileBlock.of(b"x", name="a.WEBP").media_type == "image/webp"
    assert FileBlock.of(b"x", media_type="Text/Plain; charset=utf-8").label == "file, text/plain, 1 bytes"
    assert evolve(CAT, data=b"") == CAT, "it is the same file where its bytes were not read"
    assert "PNG" not in repr(CAT)


@pytest.mark.parametrize("name", ["", "cat", "cat.unheard-of", ".png", "cat.png.gz", "a.tar.gz"])
def test_a_media_type_is_not_guessed_from_nothing(name: str) -> None:
    with pytest.raises(UsageError, match="give its media_type"):
        FileBlock.of(b"x", name=name)
    assert FileBlock.of(b"x", name=name, media_type="image/png").media_type == "image/png"


async def test_the_model_is_sent_the_very_bytes_and_the_log_proves_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = await talked(path, LOOK, (CAT,))
    assert CAT.data.hex() in model.requests[0][1].decode()
    assert blobs_of(path) == [CAT.data], "given twice, accepted twice, entered twice, and kept once"
    verified(path, model)
    with flightlog.open_log(path, discover=False, plugins=[Bundle(adapters=[model])]) as log:
        reader = log.session("s")
        first, second = reader.request(1, 1), reader.request(2, 1)
        assert (first.proven, second.proven) == (True, True)
        assert (first.fragments, second.fragments) == tuple(model.requests)
        assert first.messages[0].content == LOOK
        assert reader.data_of(CAT) == CAT.data
        said = log.query("SELECT text FROM messages WHERE role = 'user' ORDER BY place").rows
        assert said == (("look: nice",), ("",))


@given(contents=st.lists(st.lists(values.files() | st.just(TextBlock(text="see")), min_size=1, max_size=3), min_size=1))
async def test_whatever_files_are_sent_an_export_that_is_imported_proves_the_same_requests(
    contents: list[list[Any]], tmp_path: Path
) -> None:
    contents = [[evolve(b, name="a\ud800b") if isinstance(b, FileBlock) else b for b in blocks] for blocks in contents]
    path = subfolder(tmp_path) / "a.db"
    model = await talked(path, *map(tuple, contents))
    for place in (path, await exchanged(path, model)):
        assert verified(place, model) == len(records_of(path))
        with flightlog.open_log(place, discover=False, plugins=[Bundle(adapters=[model])]) as log:
            for turn, sent in enumerate(model.requests, 1):
                rebuilt = log.session("s").request(turn, 1)
                assert (rebuilt.proven, rebuilt.fragments) == (True, sent)
            for message, blocks in zip(events_of(place, UserMessage), contents, strict=True):
                assert message.content == tuple(blocks)
                assert all(
                    log.session("s").data_of(file) == file.data for file in blocks if isinstance(file, FileBlock)
                )


async def test_a_message_waits_with_its_file_is_edited_and_is_the_same_under_its_key(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with session_of(path, FakeModel([])) as session:
        first = await session.followup(LOOK, key="k")
        assert (await session.followup(LOOK, key="k")).message_id == first.message_id
        with pytest.raises(UsageError, match="used before for another"):
            await session.followup((TextBlock(text="look: "), REPORT, TextBlock(text="nice")), key="k")
        gone = await session.inject((REPORT,))
        await session.withdraw(gone.message_id)
    model = FakeModel([])
    async with session_of(path, model) as session:
        assert (await session.followup(LOOK, key="k")).message_id == first.message_id
        await session.edit(first.message_id, (REPORT,))
        await session.steer((CAT,))
        assert [files_in(pending) for pending in (*session._journal.state.next_turn, *session._journal.state.next_step)]
        await session.run()
    assert [files_in(message) for message in events_of(path, UserMessage)] == [(CAT,), (REPORT,)]
    assert [REPORT.data.hex() in part.decode() for part in model.requests[0][1:]] == [False, True]
    verified(path, model)


async def test_what_a_session_keeps_in_memory_has_no_bytes_of_files(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        await session.followup(LOOK)
        await session.run()
        await session.followup((CAT,))
        journal = session._journal
        kept = [*(message for _, message in journal.history.since(0)), *journal.state.next_turn]
        async for record in session.events():
            kept.append(record.event)
            if record.seq == journal.seq:
                break
        files = [file for event in kept for file in files_in(event)]
        assert len(files) == 5
        assert not any(file.data for file in files)


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (FileBlock.of(b"", name="a.png"), "has no bytes"),
        (evolve(CAT, data=b""), "has to be read first"),
        (evolve(CAT, data=b"other"), "does not hold the bytes"),
        (evolve(CAT, sha256=REPORT.sha256), "does not hold the bytes"),
        (evolve(CAT, size_bytes=3), "does not hold the bytes"),
        (evolve(CAT, size_bytes=True), "the size_bytes of a file"),
        (evolve(CAT, data=bytearray(CAT.data)), "the data of a file"),
        (evolve(CAT, name=None), "the name of a file"),
        (evolve(CAT, name="a\nb.png"), "none of them for control"),
        (evolve(CAT, name="x" * (FILE_NAME_MAX_CHARS + 1)), "at most 255 characters"),
        (evolve(CAT, media_type="png"), "not a media type"),
        (evolve(CAT, media_type="Image/PNG"), "not a media type"),
        (evolve(CAT, media_type="image/png; a=b"), "not a media type"),
        (evolve(CAT, media_type='image/"png'), "not a media type"),
        (evolve(CAT, media_type="x" * 200 + "/y"), "not a media type"),
        (FileBlock.of(bytes(FILE_MAX_BYTES + 1), name="a.png"), "larger than the 20971520 bytes"),
        (ThinkingBlock(text="hm"), "only models think"),
        ("words", "texts and files, not a str"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
async def test_a_file_that_no_message_can_hold_is_refused_before_anything_is_written(
    block: Any, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.db"
    content = (TextBlock(text="see"), block)
    async with opened(path, FakeModel([])) as kernel, kernel.session("s", model="fake:m") as session:
        waiting = await session.followup("hello")
        rows = len(records_of(path))
        for ways in (session, kernel.mailbox("s")):
            for way in (ways.followup, ways.steer, ways.inject):
                with pytest.raises(UsageError, match=why):
                    await way(content)
        with pytest.raises(UsageError, match=why):
            await session.edit(waiting.message_id, content)
        assert len(records_of(path)) == rows
        assert await kernel.mailbox("s").waiting() == 0
        await session.followup((evolve(CAT, name="x" * FILE_NAME_MAX_CHARS),))
    assert blobs_of(path) == [CAT.data]


@pytest.mark.parametrize(
    "made", [("x", "a.png", ""), (b"x", None, ""), (b"x", "a.png", 3), (bytearray(b"x"), "a.png", "")]
)
def test_a_file_is_made_of_bytes_and_words(made: tuple[Any, Any, Any]) -> None:
    data, name, media_type = made
    with pytest.raises(UsageError, match="made of bytes"):
        FileBlock.of(data, name=name, media_type=media_type)


def returning(*content: Any, error: bool = False) -> Tool:
    @tool
    def show() -> ToolOutput:
        """Show something."""
        return ToolOutput(content=content, is_error=error)

    return show


async def called(
    path: Path, show: Tool, *hooks: Any, limits: Limits | None = None, **offered: Any
) -> tuple[ToolResult, FakeModel]:
    model = FakeModel([calls((show.name, {})), words("seen")])
    bundle = Bundle(adapters=[model], tools=[show], hooks=hooks, **offered)
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[bundle]) as kernel,
        kernel.session("s", model="fake:m", limits=limits) as session,
    ):
        await session.followup("show me")
        assert (await session.run()).text == "seen"
    (result,) = events_of(path, ToolResult)
    verified(path, model)
    return result, model


@pytest.mark.parametrize("content", [(CAT,), LOOK, (CAT, REPORT, CAT)])
async def test_a_tool_shows_files(content: tuple[Any, ...], tmp_path: Path) -> None:
    result, model = await called(tmp_path / "a.db", returning(*content))
    assert (result.outcome, result.content) == ("ok", content)
    assert CAT.data.hex() in model.requests[1][3].decode()


async def test_a_tool_in_a_process_of_its_own_shows_files(tmp_path: Path) -> None:
    draws = Tool(body=worker_tools.draws, isolation="process", effect="read")
    result, model = await called(tmp_path / "a.db", draws)
    assert [file.name for file in files_in(result)] == ["drawn.png"]
    assert b"\x89PNG drawn".hex() in model.requests[1][3].decode()


async def test_a_result_too_long_to_show_keeps_its_files(tmp_path: Path) -> None:
    long = TextBlock(text="word " * 1000)
    result, _ = await called(tmp_path / "a.db", returning(CAT, long), limits=Limits(tool_output_max_chars=100))
    assert result.spill is not None
    assert files_in(result) == (CAT,)
    assert "left out" in result.text
    assert sorted(blobs_of(tmp_path / "a.db")) == sorted([long.text.encode(), CAT.data])


async def test_the_files_of_a_result_count_when_it_is_too_large_to_keep(tmp_path: Path) -> None:
    limits = Limits(tool_output_max_bytes=CAT.size_bytes + REPORT.size_bytes - 1)
    result, _ = await called(tmp_path / "a.db", returning(CAT, REPORT), limits=limits)
    assert (result.outcome, files_in(result)) == ("error", ())
    assert "its result of 33 bytes is larger" in result.text


@pytest.mark.parametrize("content", [None, 5, [CAT], (CAT, "text"), CAT])
async def test_a_result_whose_content_is_none_fails_its_call_alone(content: Any, tmp_path: Path) -> None:
    @tool
    def show() -> ToolOutput:
        """Show something."""
        return ToolOutput(content=content)

    result, _ = await called(tmp_path / "a.db", show)
    assert (result.outcome, files_in(result)) == ("error", ())
    assert "its output's content is not what it must be" in result.text


@pytest.mark.parametrize("bad", [evolve(CAT, data=b"other"), evolve(CAT, data=b""), evolve(CAT, media_type="x")])
async def test_a_file_of_a_tool_that_cannot_be_kept_fails_its_call_alone(bad: FileBlock, tmp_path: Path) -> None:
    result, _ = await called(tmp_path / "a.db", returning(bad))
    assert (result.outcome, files_in(result)) == ("error", ())
    assert "The call ran, but" in result.text
    assert blobs_of(tmp_path / "a.db") == []


async def test_a_hook_sees_the_bytes_of_a_result_and_may_put_another_file_in_its_place(tmp_path: Path) -> None:
    seen: list[bytes] = []

    @hook("after_tool")
    def swap(finished: FinishedCall) -> Replace:
        seen.extend(file.data for file in files_in(finished))
        return Replace(ToolOutput(content=(REPORT,)))

    result, _ = await called(tmp_path / "a.db", returning(CAT), swap)
    assert seen == [CAT.data]
    assert files_in(result) == (REPORT,)
    assert blobs_of(tmp_path / "a.db") == [REPORT.data]


@pytest.mark.parametrize("data", [b"\x89PNG of a tuatara", b"\xff\x00 of a cat"])
async def test_a_file_of_a_tool_is_redacted_name_and_bytes_and_is_the_same_where_nothing_is(
    data: bytes, tmp_path: Path
) -> None:
    redaction = Redaction(name="r", body=lambda text: text.replace("tuatara", "[secret]"))
    file = FileBlock.of(data, name="tuatara.png")
    result, _ = await called(tmp_path / "a.db", returning(file), redactions=[redaction])
    kept = FileBlock.of(data.replace(b"tuatara", b"[secret]"), name="[secret].png")
    assert files_in(result) == (kept,)
    assert blobs_of(tmp_path / "a.db") == [kept.data]
    assert all(b"tuatara" not in written.read_bytes() for written in tmp_path.iterdir())


async def test_why_a_file_cannot_be_kept_is_redacted_too(tmp_path: Path) -> None:
    redaction = Redaction(name="r", body=lambda text: text.replace("tuatara", "[secret]"))
    bad = evolve(CAT, media_type="tuatara")
    result, _ = await called(tmp_path / "a.db", returning(bad), redactions=[redaction])
    assert "'[secret]' is not a media type" in result.text
    assert all(b"tuatara" not in written.read_bytes() for written in tmp_path.iterdir())


async def test_a_letter_carries_files_and_its_owner_takes_them_once(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", FakeModel([])
    async with opened(path, model) as kernel:
        mailbox = kernel.mailbox("s")
        first = await mailbox.followup(LOOK, key="k")
        assert await mailbox.followup(LOOK, key="k") == first
        with pytest.raises(UsageError, match="used before"):
            await mailbox.followup((REPORT,), key="k")
        assert blobs_of(path) == [CAT.data]
        async with kernel.session("s", model="fake:m") as session:
            assert (await session.followup(LOOK, key="k")).message_id == first.message_id
            await session.run()
    assert [message.content for message in events_of(path, UserMessage)] == [LOOK]
    assert CAT.data.hex() in model.requests[0][1].decode()
    verified(path, model)


@pytest.mark.parametrize("sql", ["UPDATE blobs SET bytes = x'00'", "DELETE FROM blobs"])
async def test_a_letter_whose_file_was_changed_or_is_gone_is_refused_as_damage(sql: str, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel:
        await kernel.mailbox("s").followup(LOOK)
    harm(path, sql)
    async with opened(path, FakeModel([])) as kernel:
        with pytest.raises(LogCorrupt) as refused:
            async with kernel.session("s", model="fake:m"):
                pass
    assert refused.value.rule == "blob-hash"
    assert events_of(path, LetterTaken) == events_of(path, InboxSplice) == []
    assert flightlog.repair(path, dry_run=False).letters == 1
    async with session_of(path, FakeModel([])) as session:
        assert session.pending == 0


async def test_a_fork_has_the_files_of_the_turns_it_is_made_of(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", FakeModel([])
    await talked(path, LOOK, (REPORT,))
    async with opened(path, model) as kernel:
        await kernel.fork("s", 1, "f")
        async with kernel.session("f", model="fake:m") as fork:
            await fork.followup((CAT,))
            await fork.run()
    assert [CAT.data.hex() in part.decode() for part in model.requests[0][1:]] == [True, False, True]
    verified(path, model, name="f")


async def test_purging_a_session_removes_its_files_but_not_those_that_others_and_letters_have(tmp_path: Path) -> None:
    path, shared = tmp_path / "a.db", FileBlock.of(b"shared", name="a.txt")
    secret, lettered = FileBlock.of(b"tuatara" * 30, name="s.txt"), FileBlock.of(b"lettered", name="l.txt")
    async with opened(path, FakeModel([])) as kernel:
        for name, files in (("gone", (secret, shared)), ("stays", (shared,))):
            async with kernel.session(name, model="fake:m") as session:
                await session.followup(files)
                await session.run()
        await kernel.mailbox("gone").followup((secret,))
        await kernel.mailbox("later").followup((lettered,))
    flightlog.purge(path, "gone")
    assert b"tuatara" not in path.read_bytes()
    assert sorted(blobs_of(path)) == [b"lettered", b"shared"]
    async with opened(path, FakeModel([])) as kernel, kernel.session("later", model="fake:m") as session:
        await session.run()
        assert kernel.read("later").data_of(lettered) == b"lettered"
    verified(path, name="stays")


async def test_a_backup_has_the_files(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.db", tmp_path / "copy.db"
    model = await talked(path, LOOK)
    with flightlog.open_log(path, discover=False) as log:
        log.backup(copy)
    verified(copy, model)
    assert blobs_of(copy) == [CAT.data]


HARM = pytest.mark.parametrize(
    "sql", ["UPDATE blobs SET bytes = CAST(replace(bytes, 'cat', 'dog') AS BLOB)", "DELETE FROM blobs"]
)


@HARM
async def test_a_file_that_was_changed_or_is_gone_is_named_wherever_the_log_is_read(sql: str, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = await talked(path, (TextBlock(text="hello"),), LOOK)
    first = next(record.seq for record in records_of(path) if files_in(record.event))
    harm(path, sql)

    def refused(look: Callable[[Any], object]) -> LogCorrupt:
        with (
            flightlog.open_log(path, discover=False, plugins=[Bundle(adapters=[model])]) as log,
            pytest.raises(LogCorrupt, match=r"image cat\.png.*missing or differs") as caught,
        ):
            look(log.session("s"))
        return caught.value

    for look in (
        lambda reader: reader.verify(),
        lambda reader: reader.export(io.BytesIO()),
        lambda reader: reader.request(2, 1),
        lambda reader: list(reader.records()),
    ):
        assert (refused(look).seq, refused(look).rule) == (first, "blob-hash")
    with pytest.raises(LogCorrupt, match=r"image cat\.png"):
        async with session_of(path, FakeModel([])):
            pass
    with flightlog.open_log(path, discover=False) as log, pytest.raises(UsageError, match="does not hold the image"):
        log.session("s").data_of(CAT)


@HARM
async def test_a_repair_keeps_what_came_before_a_damaged_file(sql: str, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await talked(path, (TextBlock(text="hello"),), (REPORT,), LOOK)
    first = next(record.seq for record in records_of(path) if CAT in files_in(record.event))
    harm(path, f"{sql} WHERE instr(bytes, 'cat')")
    (loss,) = flightlog.repair(path, dry_run=False).sessions
    assert (loss.session, loss.seq, loss.rule) == ("s", first, "blob-hash")
    verified(path)
    assert blobs_of(path) == [REPORT.data]


async def test_a_file_that_is_damaged_while_the_session_is_open_is_found_before_it_is_sent(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", FakeModel([])
    async with session_of(path, model) as session:
        await session.followup(LOOK)
        harm(path, "UPDATE blobs SET bytes = x'00'")
        with pytest.raises(LogCorrupt, match="blob-hash"):
            await session.run()
    assert model.requests == []


async def test_an_export_without_the_file_or_with_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await talked(path, LOOK)
    with flightlog.open_log(path, discover=False) as log:
        log.session("s").export(target := io.BytesIO())
    lines = target.getvalue().splitlines(keepends=True)
    (at,) = [index for index, line in enumerate(lines) if line.startswith(b'{"blob"')]
    async with opened(tmp_path / "b.db", FakeModel([])) as kernel:
        for bad in (
            [*lines[:at], *lines[at + 1 :]],
            [*lines[:at], lines[at].replace(b"iVBOR", b"iVBOS"), *lines[at + 1 :]],
        ):
            with pytest.raises(ImportRefused, match="blob-hash"):
                await kernel.import_session(io.BytesIO(b"".join(bad)))
        assert await kernel.import_session(io.BytesIO(b"".join(lines))) == "s"


async def test_each_face_hands_out_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await talked(path, LOOK)

    def look() -> bytes:
        with flightlog.sync.open_kernel(path, discover=False) as kernel:
            return kernel.read("s").data_of(CAT)

    assert await trio.to_thread.run_sync(look) == CAT.data
