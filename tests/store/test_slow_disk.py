"""On a slow disk a commit does not wait: a thread does, and nothing counts as durable before it is back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from attrs import define, field

import flightlog
from flightlog.errors import StoreError, StoreStopped
from flightlog.events import LetterTaken, UserMessage
from flightlog.store import store as store_module
from flightlog.store.log_file import LogFile
from flightlog.testing import FakeModel, words
from flightlog.testing.faults.recorder import checkpoints_every
from flightlog.testing.memory import memory_folder
from support.kernels import events_of, opened, records_of, verified

MODEL = FakeModel([words("Fine.")])


@define
class Disk:
    """A disk whose syncs can be held up, and can fail. `threads` are those that have synced or copied back."""

    threads: list[int] = field(factory=list)
    copied_in: list[int] = field(factory=list)
    held: threading.Event = field(factory=threading.Event)
    failing: bool = False
    interrupts: bool = False

    def sync(self) -> None:
        self.threads.append(threading.get_ident())
        if self.interrupts:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert self.held.wait(60), "nobody let it go on"
        if self.failing:
            raise StoreError("planted: the sync failed")

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Let every sync of meanwhile take until the end of it."""
        self.held.clear()
        try:
            yield
        finally:
            self.held.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk of all files, which is slow."""
    disk = Disk()
    disk.held.set()
    sync, begin_wal_anew, check_in_place = LogFile.sync, LogFile.begin_wal_anew, LogFile.check_in_place

    def synced(file: LogFile) -> None:
        disk.sync()
        sync(file)

    def copied(file: LogFile) -> None:
        disk.copied_in.append(threading.get_ident())
        begin_wal_anew(file)

    def checked(file: LogFile) -> None:
        assert threading.current_thread() is threading.main_thread(), "what it looks into is for one thread"
        check_in_place(file)

    monkeypatch.setattr(LogFile, "check_in_place", checked)
    monkeypatch.setattr(LogFile, "sync", synced)
    monkeypatch.setattr(LogFile, "begin_wal_anew", copied)
    monkeypatch.setattr(store_module, "SLOW_SYNC_S", -1.0)
    return disk


@pytest.fixture
def path() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder / "a.db"


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110  threads set no events of the loop
            await trio.sleep(0.001)


def texts(path: Path, name: str = "s") -> list[str]:
    return [event.text for event in events_of(path, UserMessage, name) if event.source == "user"]


async def test_a_turn_is_the_same_and_no_sync_happens_on_the_loops_thread(path: Path, disk: Disk) -> None:
    async with opened(path, MODEL) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup("hello")
        turn = await session.run()
    assert turn is not None
    assert turn.text == "Fine."
    assert disk.threads
    assert threading.get_ident() not in disk.threads
    assert verified(path, MODEL) > 0


async def test_a_message_is_accepted_only_once_it_is_durable_and_meanwhile_the_loop_goes_on(
    path: Path, disk: Disk
) -> None:
    async with opened(path, MODEL) as kernel, kernel.session("s", model="fake:m") as session:
        accepted: list[str] = []

        async def send(text: str) -> None:
            await session.followup(text)
            accepted.append(text)

        token, syncs = session.token, len(disk.threads)
        async with trio.open_nursery() as nursery:
            with disk.holding():
                nursery.start_soon(send, "one")
                await until(lambda: len(disk.threads) > syncs)
                nursery.start_soon(send, "two")
                for _ in range(100):
                    await trio.lowlevel.checkpoint()
                assert (accepted, session.token) == ([], token)
                assert len(records_of(path)) > token.seq, "it is committed, and others may read it"
        assert accepted == ["one", "two"]


async def test_what_comes_while_the_disk_is_waited_for_shares_the_next_commit(path: Path, disk: Disk) -> None:
    names = [f"s{number}" for number in range(8)]
    async with opened(path, MODEL) as kernel, trio.open_nursery() as holding:
        sessions: list[flightlog.Session] = []

        async def hold(name: str) -> None:
            async with kernel.session(name, model="fake:m") as session:
                sessions.append(session)
                await trio.sleep_forever()

        for name in names:
            holding.start_soon(hold, name)
        await until(lambda: len(sessions) == len(names))
        syncs = len(disk.threads)
        async with trio.open_nursery() as nursery:
            with disk.holding():
                nursery.start_soon(sessions[0].followup, "first")
                await until(lambda: len(disk.threads) > syncs)
                for session in sessions[1:]:
                    nursery.start_soon(session.followup, "later")
                await trio.testing.wait_all_tasks_blocked()
        assert len(disk.threads) - syncs == 2
        holding.cancel_scope.cancel()


async def test_a_sync_that_fails_stops_everything_and_nobody_is_told_that_it_was_saved(path: Path, disk: Disk) -> None:
    with pytest.raises(StoreError):  # noqa: PT012  it is closed in vain
        async with opened(path, MODEL) as kernel, kernel.session("s", model="fake:m") as session:
            token = session.token
            disk.failing = True
            with pytest.raises(StoreError, match="planted"):
                await session.followup("lost, or not")
            disk.failing = False
            with pytest.raises(StoreStopped):
                await session.followup("refused")
            with pytest.raises(StoreStopped):
                await kernel.mailbox("s").followup("refused")
            assert session.token == token
            await session.run()
    async with opened(path, MODEL) as kernel, kernel.session("s", model="fake:m") as session:
        await session.run()
    assert texts(path) in ([], ["lost, or not"])
    assert verified(path, MODEL) > 0


async def test_of_two_that_wait_when_a_sync_fails_neither_is_told_that_it_was_saved(path: Path, disk: Disk) -> None:
    async with opened(path, MODEL) as kernel, kernel.session("s", model="fake:m") as session:
        syncs = len(disk.threads)
        told: list[type[BaseException]] = []

        async def send() -> None:
            try:
                await session.followup("one")
            except StoreError as error:
                told.append(type(error))

        async def post() -> None:
            try:
                await kernel.mailbox("other").followup("two")
            except StoreError as error:
                told.append(type(error))

        async with trio.open_nursery() as nursery:
            with disk.holding():
                nursery.start_soon(send)
                await until(lambda: len(disk.threads) > syncs)
                nursery.start_soon(post)
                await trio.testing.wait_all_tasks_blocked()
                disk.failing = True
        assert set(told) == {StoreError, StoreStopped}


def test_ctrl_c_while_the_disk_is_waited_for_leaves_a_session_that_knows_its_own_log(path: Path, disk: Disk) -> None:
    async def main() -> None:
        async with opened(path, MODEL) as kernel, kernel.session("s", model="fake:m") as session:
            disk.interrupts = True
            with disk.holding(), pytest.raises(KeyboardInterrupt):
                await session.followup("hello")
            disk.interrupts = False
            await session.followup("again")
            await session.run()
            await session.run()

    trio.run(main)
    assert texts(path) == ["hello", "again"]


async def test_run_waits_for_a_letter_that_is_just_being_taken(path: Path, disk: Disk) -> None:
    async with opened(path, MODEL) as kernel, kernel.session("s", model="fake:m") as session:
        turns: list[flightlog.Turn | None] = []

        async def run() -> None:
            turns.append(await session.run())

        async with trio.open_nursery() as nursery:
            with disk.holding():
                nursery.start_soon(kernel.mailbox("s").followup, "hello")
                await until(lambda: events_of(path, LetterTaken))
                nursery.start_soon(run)
                for _ in range(100):
                    await trio.lowlevel.checkpoint()
        assert [turn.number for turn in turns if turn] == [1]


async def test_a_full_wal_is_copied_back_in_a_thread_and_begins_anew(path: Path, disk: Disk) -> None:
    with checkpoints_every(16):
        async with opened(path, MODEL) as kernel, kernel.session("s", model="fake:m") as session:
            for number in range(60):
                await session.followup(f"{number} {'x' * 2000}")
                await session.run()
            assert len(disk.copied_in) > 10
            assert threading.get_ident() not in disk.copied_in
            # It holds what was committed since it was full, and what one more commit brings.
            assert Path(f"{path}-wal").stat().st_size < 64 * 4096
    assert len(texts(path)) == 60
    assert verified(path, MODEL) > 0


async def test_a_letter_that_another_process_has_posted_and_not_synced_is_synced_before_it_counts(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path, MODEL) as writer, opened(path, MODEL) as finder:
        async with trio.open_nursery() as nursery:
            with disk.holding():
                nursery.start_soon(lambda: writer.mailbox("s").followup("hello", key="once"))
                await until(lambda: disk.threads)
                monkeypatch.setattr(store_module, "SLOW_SYNC_S", 60.0)  # the other one finds the disk fast
                nursery.start_soon(lambda: finder.mailbox("s").followup("hello", key="once"))
                await until(lambda: len(disk.threads) == 2)
        async with finder.session("s", model="fake:m") as session:
            await session.run()
    assert len(events_of(path, LetterTaken)) == 1


async def test_once_the_disk_is_fast_commits_wait_for_it_again(path: Path, disk: Disk) -> None:
    async with opened(path, MODEL) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup("slow")
        syncs = len(disk.threads)
        assert syncs
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store_module, "SLOW_SYNC_S", 60.0)
            await session.followup("fast")
            await session.followup("fast")
            assert len(disk.threads) == syncs
        await session.followup("slow again")
        assert len(disk.threads) > syncs
    assert [record.seq for record in records_of(path)] == list(range(1, len(records_of(path)) + 1))


async def test_a_simulated_clock_does_not_jump_while_a_thread_syncs(
    path: Path, disk: Disk, autojump_clock: trio.testing.MockClock
) -> None:
    async with opened(path, MODEL) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup("hello")
        await session.run()
    assert disk.threads == []
