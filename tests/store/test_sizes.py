"""How large a log gets: linear in the work, a payload once, a bounded price for each streamed delta."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from flightlog import Kernel, Limits
from flightlog.core.limits import BLOB_MIN_BYTES
from flightlog.store.store import Store
from flightlog.testing import Cue, FakeModel, calls, words
from flightlog_hookspecs import BlockEnd, BlockStart, TextBlock, TextDelta, tool
from support import kernels
from support.files import Child, Pen, opened, plain, texts

TURN_BYTES = 2000
DELTA_BYTES_MAX = 300
"""What one flush of one delta may cost in the closed file, apart from its text: a row, its chain and its place."""

LETTERS = "the quick brown fox jumps over a lazy dog; "


def file_bytes(path: Path) -> int:
    """All of a closed log on disk."""
    return sum(os.path.getsize(name) for name in path.parent.glob(f"{path.name}*") if not name.name.endswith("-shm"))


def said(length: int) -> str:
    """So much text."""
    return (LETTERS * (length // len(LETTERS) + 1))[:length]


def unstreamed(text: str) -> list[Cue]:
    """An answer that arrives in one piece, without deltas."""
    return [BlockStart(index=0, type="text"), BlockEnd(index=0, block=TextBlock(text=text))]


async def size_of_turns(path: Path, turns: int, *, asked: int) -> int:
    """The size of a log of `turns` turns, `asked` of their bytes in the question and the rest in the answer."""
    model = FakeModel([unstreamed(said(TURN_BYTES - asked))] * turns)
    async with kernels.session_of(path, model) as session:
        for _ in range(turns):
            await session.followup(said(asked))
            turn = await session.run()
            assert turn is not None
            assert turn.reason == "completed"
    return file_bytes(path)


@pytest.mark.parametrize("asked", [100, 1000])
async def test_a_log_without_streams_is_at_most_four_times_its_payload_and_grows_with_it(
    tmp_path: Path, asked: int
) -> None:
    half = await size_of_turns(tmp_path / "half.db", 200, asked=asked)
    whole = await size_of_turns(tmp_path / "whole.db", 400, asked=asked)
    assert whole <= 4 * 400 * TURN_BYTES, f"{whole / 400 / TURN_BYTES:.2f} times the payload"
    assert whole <= 2.15 * half, f"{whole / half:.2f} times the half"


async def size_of_stream(path: Path, deltas: int, *, flush_ms: int) -> int:
    """The size of a log with one answer of so many deltas of five characters, one each 10 ms."""

    async def pause() -> None:
        await trio.sleep(0.01)

    cues: list[Cue] = [BlockStart(index=0, type="text")]
    for _ in range(deltas):
        cues += [pause, TextDelta(index=0, text="words")]
    model = FakeModel([[*cues, BlockEnd(index=0, block=TextBlock(text="words" * deltas))]])
    async with kernels.session_of(path, model, limits=Limits(delta_flush_ms=flush_ms)) as session:
        await session.followup("go")
        await session.run()
    with plain(path) as database:
        assert database.execute("SELECT count(*) FROM deltas").fetchone() == (deltas,)
    return file_bytes(path)


@pytest.mark.parametrize(("flush_ms", "bytes_max"), [(1, DELTA_BYTES_MAX), (30, 100), (1000, 35)])
async def test_a_streamed_delta_costs_a_bounded_number_of_bytes(
    tmp_path: Path, autojump_clock: MockClock, flush_ms: int, bytes_max: int
) -> None:
    few = await size_of_stream(tmp_path / "few.db", 200, flush_ms=flush_ms)
    many = await size_of_stream(tmp_path / "many.db", 1200, flush_ms=flush_ms)
    # The text itself stands twice: in the deltas as it arrived and in the message it became.
    price = (many - few) / 1000 - 2 * len("words")
    assert price <= bytes_max, f"{price:.0f} bytes a delta at a flush each {flush_ms} ms"


@tool(effect="read")
def fetch(page: str) -> str:
    """Fetch a page."""
    return page * (BLOB_MIN_BYTES + 10)


async def test_a_repeated_large_payload_is_stored_once(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    model = FakeModel([calls(("fetch", {"page": page})) for page in "aaaaaaaaab"] + [words("Done.")])
    limits = Limits(tool_output_max_chars=10 * BLOB_MIN_BYTES)
    async with kernels.session_of(path, model, fetch, limits=limits) as session:
        await session.followup("go")
        await session.run()
    with plain(path) as database:
        sizes = [size for (size,) in database.execute("SELECT length(bytes) FROM blobs")]
        results = database.execute("SELECT count(*) FROM events WHERE kind = 'tool/result'").fetchone()[0]
    assert results == 10
    assert sizes == [BLOB_MIN_BYTES + 10] * 2
    assert file_bytes(path) < 4 * BLOB_MIN_BYTES + 100_000
    kernels.verified(path, model)


async def test_the_size_does_not_depend_on_how_often_the_log_was_opened(tmp_path: Path) -> None:
    once, often = tmp_path / "once.db", tmp_path / "often.db"
    model = FakeModel([unstreamed(said(TURN_BYTES))] * 30)
    async with kernels.session_of(once, model) as session:
        for _ in range(30):
            await session.followup("go")
            await session.run()
    for _ in range(30):
        async with kernels.session_of(often, model) as session:
            await session.followup("go")
            await session.run()
    assert file_bytes(often) - file_bytes(once) < 30 * 1000


def test_the_wal_stays_small_while_nobody_reads(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        for number in range(3000):
            pen.say(f"{number} {said(500)}", barrier=False)
        assert os.path.getsize(f"{path}-wal") < 8 * 1024 * 1024
    assert os.path.getsize(f"{path}-wal") == 0
    assert len(texts(path)) == 3000


def read_for_long(channel: Connection, path: Path) -> None:
    """One long read transaction, in another process: inside this one SQLite would not see its locks."""
    with plain(path) as reader:
        reader.execute("BEGIN")
        channel.send(reader.execute("SELECT count(*) FROM events").fetchone()[0])
        channel.recv()
        channel.send(reader.execute("SELECT count(*) FROM events").fetchone()[0])


def test_the_wal_shrinks_again_after_a_reader_that_stayed_open_for_long(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        pen.say("first")
        with Child(read_for_long, path) as reader:
            assert reader.receive() == 3
            append(store, pen, 20_000)
            grown = os.path.getsize(f"{path}-wal")
            reader.send("look again")
            assert reader.receive() == 3, "the reader saw the log move"
            reader.wait()
        assert grown > 32 * 1024 * 1024, "the reader did not hold the -wal, so this tests nothing"
        for number in range(50):
            pen.say(f"after {number}", barrier=False)
        assert os.path.getsize(f"{path}-wal") <= 17 * 1024 * 1024
        recycled = os.path.getsize(f"{path}-wal")
        append(store, pen, 2000)
        assert os.path.getsize(f"{path}-wal") <= max(recycled, 8 * 1024 * 1024)
    assert os.path.getsize(f"{path}-wal") == 0


def append(store: Store, pen: Pen, count: int) -> None:
    """`count` events in transactions of one."""
    for number in range(count):
        pen.say(str(number), barrier=False)


async def test_many_sessions_in_one_file_cost_a_bounded_number_of_bytes_each(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with kernels.opened(path, FakeModel([])) as kernel:
        await open_sessions(kernel, 10)
    few = file_bytes(path)
    async with kernels.opened(tmp_path / "many.db", FakeModel([])) as kernel:
        await open_sessions(kernel, 110)
    assert (file_bytes(tmp_path / "many.db") - few) / 100 < 1500


async def open_sessions(kernel: Kernel, count: int) -> None:
    for number in range(count):
        async with kernel.session(f"session {number}", model="fake:m") as session:
            await session.followup("hello")
