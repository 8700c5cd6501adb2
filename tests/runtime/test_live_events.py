"""Following a session: every record once and in order, whoever reads, however slowly."""

from __future__ import annotations

import gc
import subprocess
import weakref
from collections.abc import AsyncIterable
from pathlib import Path

import pytest
import trio
import trio.testing

import flightlog
from flightlog import Kernel, Session
from flightlog.core.limits import LIVE_PAGE_ROWS, LIVE_RING_RECORDS
from flightlog.testing import FakeModel, words
from flightlog_hookspecs.errors import LogCorrupt, UsageError
from flightlog_hookspecs.events import AssistantDelta, AssistantMessage, Record, SessionClosed, TurnEnd
from support.children import closing_process, started
from support.files import plain
from support.kernels import opened, records_of, session_of

MANY = LIVE_RING_RECORDS + 2 * LIVE_PAGE_ROWS
"""More records than the ring holds."""


async def all_of(stream: AsyncIterable[Record]) -> list[Record]:
    return [record async for record in stream]


async def up_to(stream: AsyncIterable[Record], kind: type) -> list[Record]:
    """The records up to the first of a kind."""
    found = []
    async for record in stream:
        found.append(record)
        if isinstance(record.event, kind):
            return found
    raise AssertionError(f"it ended before {kind.__name__}")


async def talk(session: Session, times: int = 1) -> None:
    for _ in range(times):
        await session.followup("hi")
        await session.run()


def seqs(records: list[Record]) -> list[int]:
    return [record.seq for record in records]


async def test_a_reader_gets_what_was_there_then_what_comes_and_ends_with_the_session(tmp_path: Path) -> None:
    path, got = tmp_path / "a.db", []

    async def read(session: Session) -> None:
        got.extend(await all_of(session.events()))

    async with (
        opened(path, FakeModel([words("one"), words("two")])) as kernel,
        trio.open_nursery() as nursery,
        kernel.session("s", model="fake:m") as session,
    ):
        await talk(session)
        nursery.start_soon(read, session)
        await trio.testing.wait_all_tasks_blocked()
        await talk(session)
    assert isinstance(got[-1].event, SessionClosed)
    assert got == records_of(path, deltas=True), "live records are those of the log, texts of deltas included"


async def test_a_record_is_durable_and_shown_while_its_turn_still_runs(tmp_path: Path) -> None:
    go_on = trio.Event()
    model = FakeModel([[go_on.wait, *words("late")]])
    async with session_of(tmp_path / "a.db", model) as session, trio.open_nursery() as nursery:
        await session.followup("hi")
        nursery.start_soon(session.run)
        async for record in session.events():
            if record.event.kind == "request/sent":
                assert records_of(tmp_path / "a.db")[-1].seq >= record.seq
                go_on.set()
            if isinstance(record.event, TurnEnd):
                break


async def test_without_deltas_all_the_others_are_shown(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([words("a few words")])) as session:
        await talk(session)
        whole = await up_to(session.events(), TurnEnd)
        without = await up_to(session.events(deltas=False), TurnEnd)
    assert any(isinstance(record.event, AssistantDelta) for record in whole)
    assert without == [record for record in whole if not isinstance(record.event, AssistantDelta)]


async def test_a_reader_that_falls_behind_the_ring_misses_nothing(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        stream = session.events()
        first = await anext(stream)
        while session.token.seq < MANY:
            await talk(session)
        got = [first]
        while got[-1].seq < session.token.seq:
            got.append(await anext(stream))
    assert seqs(got) == list(range(1, len(got) + 1))
    assert got == records_of(tmp_path / "a.db", deltas=True)[:-1]


async def test_a_reader_that_catches_up_and_falls_behind_again_misses_nothing(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        stream, got = session.events(), []
        for _ in range(2):
            goal = session.token.seq + MANY
            while session.token.seq < goal:
                await talk(session)
            while len(got) < session.token.seq:
                got.append(await anext(stream))
            await session.followup("read at once, from the ring")
            got.append(await anext(stream))
            await session.run()
    assert got == records_of(tmp_path / "a.db", deltas=True)[: len(got)]


async def test_what_another_kernel_wrote_between_two_ownerships_is_not_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel, opened(path, FakeModel([])) as other:
        async with kernel.session("s", model="fake:m"):
            pass
        stream = kernel.read("s").events()
        got = [await anext(stream)]
        for owner in (kernel, other, kernel):
            async with owner.session("s", model="fake:m") as session:
                await talk(session)
        got += [await anext(stream) for _ in range(session._journal.seq - 1)]
    assert got == records_of(path, deltas=True)


async def test_a_reader_may_change_between_ring_and_store_at_any_row(tmp_path: Path) -> None:
    """The seam is where a gap or a repeat would hide: every start and every pace must come out the same."""
    path = tmp_path / "a.db"
    async with session_of(path, FakeModel([])) as session:
        while session.token.seq < LIVE_RING_RECORDS - 20:
            await talk(session)

        for start in range(0, session.token.seq, 7):
            stream = session.events(after=start)
            got = [await anext(stream)]
            await session.followup("one more")
            while got[-1].seq < session.token.seq:
                got.append(await anext(stream))
            assert seqs(got) == list(range(start + 1, session.token.seq + 1))
    assert session.token.seq > LIVE_RING_RECORDS


async def test_a_batch_that_never_arrived_is_handed_out_again(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        while session.token.seq < LIVE_PAGE_ROWS * 2:
            await talk(session)
        for arrives in (0, 1, LIVE_PAGE_ROWS - 1, LIVE_PAGE_ROWS):
            stream = session.events(after=7)
            first = await stream.batch(7)
            assert len(first) == LIVE_PAGE_ROWS
            again = await stream.batch(7 + arrives)
            assert seqs(again)[0] == 8 + arrives


async def test_many_readers_each_get_everything(tmp_path: Path) -> None:
    results: list[list[int]] = []

    async def read(session: Session) -> None:
        results.append(seqs(await all_of(session.events())))

    async with (
        opened(tmp_path / "a.db", FakeModel([])) as kernel,
        trio.open_nursery() as nursery,
        kernel.session("s", model="fake:m") as session,
    ):
        for _ in range(100):
            nursery.start_soon(read, session)
        await talk(session, 3)
    assert len(results) == 100
    assert all(result == list(range(1, session.token.seq + 2)) for result in results)  # the last one: session/closed


async def test_a_reader_that_stopped_reading_holds_up_nothing_and_keeps_no_records(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with session_of(path, FakeModel([])) as session:
        stream = session.events()
        await anext(stream)
        while session.token.seq < MANY:
            await talk(session)
        assert len(stream._at_hand) < LIVE_PAGE_ROWS
        assert len(session._journal.feed._ring) == LIVE_RING_RECORDS


async def test_no_reader_keeps_the_wal_from_being_reused(tmp_path: Path) -> None:
    """A read snapshot held across an await would make this checkpoint incomplete."""
    async with session_of(tmp_path / "a.db", FakeModel([])) as session, opened(tmp_path / "a.db", FakeModel([])) as k:
        await talk(session)
        streams = [session.events(), k.read("s").events()]
        for stream in streams:
            await anext(stream)
        await talk(session)
        busy, in_wal, moved = session._journal.store.database.read("checkpoint_truncate")[0]
        assert (busy, in_wal, moved) == (0, 0, 0)


async def test_a_dropped_reader_leaves_nothing_behind(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        async for _ in session.events():
            break
        stream = session.events()
        await anext(stream)
        gone = weakref.ref(stream)
        del stream
        gc.collect()
        assert gone() is None


async def test_a_cancelled_wait_loses_no_record(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        stream = session.events(after=session.token.seq)
        for number in range(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(anext, stream)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            await session.followup(f"{number}")
            assert (await anext(stream)).seq == session.token.seq


async def test_a_session_opened_later_in_the_same_kernel_wakes_a_reader_of_the_log(tmp_path: Path) -> None:
    path, got = tmp_path / "a.db", []

    async def read(kernel: Kernel) -> None:
        got.extend(await all_of(kernel.read("s").events()))

    async with trio.open_nursery() as nursery, opened(path, FakeModel([])) as kernel:
        async with kernel.session("s", model="fake:m") as session:
            await talk(session)
        nursery.start_soon(read, kernel)
        for _ in range(2):
            await trio.testing.wait_all_tasks_blocked()
            async with kernel.session("s", model="fake:m") as session:
                await talk(session)
    assert got == records_of(path, deltas=True), "it went on over three ownerships and ended with the kernel"


async def test_events_of_one_ownership_do_not_run_on_into_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel:
        async with kernel.session("s", model="fake:m") as session:
            stream = session.events()
        async with kernel.session("s", model="fake:m") as again:
            await talk(again)
            got = await all_of(stream)
    assert isinstance(got[-1].event, SessionClosed)
    assert {record.epoch for record in got} == {0, 1}


async def test_a_reader_that_the_close_of_the_kernel_cuts_short_is_told(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel, kernel.session("s", model="fake:m") as session:
        stream = session.events()
        await anext(stream)
        while session.token.seq < MANY:
            await talk(session)
    with pytest.raises(UsageError, match=r"the kernel was closed while this reader stood at \d+ of"):
        await all_of(stream)


async def test_a_reader_that_is_nearly_there_gets_the_end_after_the_kernel_is_closed(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel, kernel.session("s", model="fake:m") as session:
        stream = session.events(after=1)
        await talk(session)
    got = await all_of(stream)
    assert seqs(got) == list(range(2, session.token.seq + 2))  # the last one: session/closed


async def test_an_after_that_the_log_has_not_reached_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel, kernel.session("s", model="fake:m") as session:
        with pytest.raises(UsageError, match="no record 99"):
            await anext(session.events(after=99))
        with pytest.raises(UsageError, match="no record 99"):
            await anext(kernel.read("s").events(after=99))
        for wrong in (-1, True, "3", 1.0):
            with pytest.raises(UsageError, match="seq of the last record"):
                session.events(after=wrong)


async def test_a_changed_row_stops_a_reader_at_that_row(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with session_of(path, FakeModel([words("one")])) as session:
        await talk(session)
    answer = next(record.seq for record in records_of(path) if isinstance(record.event, AssistantMessage))
    with plain(path) as connection:
        connection.execute("DROP TRIGGER events_update")
        connection.execute("UPDATE events SET at = at + 1 WHERE seq = ?", (answer,))
        connection.commit()
    with flightlog.open_log(path, discover=False) as log:
        stream = log.session("s").events(after=2)
        assert [(await anext(stream)).seq for _ in range(3, answer)] == list(range(3, answer))
        with pytest.raises(LogCorrupt, match="hash-chain") as refused:
            await anext(stream)
    assert refused.value.seq == answer


OWNER = """
import sys, trio, flightlog
from flightlog.testing import FakeModel
from support.kernels import session_of

async def main(path):
    async with session_of(path, FakeModel([])) as session:
        print("open", flush=True)
        for line in sys.stdin:
            await session.followup(line.strip())
            await session.run()
            print(session.token.seq, flush=True)

trio.run(main, sys.argv[1])
"""


def say(owner: subprocess.Popen[str], text: str) -> int:
    assert owner.stdin
    assert owner.stdout
    owner.stdin.write(f"{text}\n")
    owner.stdin.flush()
    return int(owner.stdout.readline())


@pytest.mark.kill
@pytest.mark.parametrize("through", ["kernel", "log"])
async def test_what_another_process_writes_is_followed_until_it_is_killed_and_beyond(
    tmp_path: Path, through: str
) -> None:
    path = tmp_path / "a.db"
    owner = started(OWNER, str(path))
    with closing_process(owner):
        assert owner.stdout
        owner.stdout.readline()
        async with opened(path, FakeModel([])) as kernel:
            log = flightlog.open_log(path, discover=False)
            with log:
                reader = kernel.read("s") if through == "kernel" else log.session("s")
                stream, got = reader.events(), []
                for text in ("one", "two", "three"):
                    last = await trio.to_thread.run_sync(say, owner, text)
                    while not got or got[-1].seq < last:
                        got.append(await anext(stream))
                owner.kill()
                owner.wait()
                async with kernel.session("s", model="fake:m") as session:
                    await talk(session)
                    while got[-1].seq < session.token.seq:
                        got.append(await anext(stream))
    assert got == records_of(path, deltas=True)[: len(got)]
    assert [record.epoch for record in got][-1] == 2
