"""Who may write: one owner a session, fenced by its epoch; locks that live exactly as long as their process."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import trio

import flightlog
from flightlog.store.locks import FileLocks
from flightlog.store.store import Store
from flightlog.testing import Bundle, FakeModel, fixed_clock
from flightlog_hookspecs.errors import Fenced, SessionBusy, StoreError
from support import kernels
from support.files import Child, Pen, content, opened, plain, texts, written

# ---------------------------------------------------------------- one owner


def own(channel: Connection, path: Path, name: str) -> None:
    trio.run(_own, channel, path, name)


async def _own(channel: Connection, path: Path, name: str) -> None:
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[Bundle(adapters=[FakeModel([])])]) as kernel,
        kernel.session(name, model="fake:m") as session,
    ):
        await session.followup("from the owner")
        channel.send("owned")
        channel.recv()


async def try_to_own(path: Path, name: str = "s") -> None:
    async with kernels.session_of(path, FakeModel([]), name=name) as session:
        await session.followup("from the next owner")


@pytest.mark.kill
async def test_a_second_process_is_told_who_drives_the_session_where_and_since_when(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with Child(own, path, "s") as owner:
        assert owner.receive() == "owned"
        with pytest.raises(SessionBusy) as caught:
            await try_to_own(path)
        message = str(caught.value)
        assert f"process {owner.pid} on {socket.gethostname()} since 20" in message
        assert re.search(r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", message)
        assert "It can be read" in message
        assert texts(path) == ["from the owner"]


@pytest.mark.kill
async def test_a_refused_second_owner_has_written_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with Child(own, path, "s") as owner:
        assert owner.receive() == "owned"
        before = content(path)
        with pytest.raises(SessionBusy):
            await try_to_own(path)
        assert content(path) == before


@pytest.mark.kill
async def test_another_session_of_the_same_file_is_free(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with Child(own, path, "s") as owner:
        assert owner.receive() == "owned"
        await try_to_own(path, "t")
    assert texts(path, "t") == ["from the next owner"]


@pytest.mark.kill
@pytest.mark.parametrize("end", ["killed", "left"])
async def test_a_session_is_free_as_soon_as_its_owner_is_gone(tmp_path: Path, end: str) -> None:
    path = tmp_path / "log.db"
    for number in range(3):
        with Child(own, path, "s") as owner:
            assert owner.receive() == "owned", number
            if end == "killed":
                owner.kill()
            else:
                owner.send("leave")
                owner.wait()
    await try_to_own(path)
    assert texts(path) == ["from the owner"] * 3 + ["from the next owner"]
    epochs = [record.epoch for record in content(path)["s"]]
    assert epochs == sorted(epochs)
    assert epochs[-1] == 4


async def test_a_second_kernel_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with kernels.session_of(path, FakeModel([])) as session:
        with pytest.raises(SessionBusy, match=f"process {os.getpid()}"):
            await try_to_own(path)
        await session.followup("still mine")
    await try_to_own(path)
    assert texts(path) == ["still mine", "from the next owner"]


async def test_a_session_cannot_be_opened_twice_in_one_kernel(tmp_path: Path) -> None:
    async with kernels.opened(tmp_path / "log.db", FakeModel([])) as kernel, kernel.session("s", model="fake:m"):
        with pytest.raises(SessionBusy, match="already open in this kernel"):
            async with kernel.session("s", model="fake:m"):
                pass


# ---------------------------------------------------------------- fences


def test_a_late_write_of_the_old_owner_is_refused_once_a_newer_one_has_opened(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as old, opened(path) as new:
        slow = Pen(old)
        slow.say("in time")
        fast = Pen(new)
        fast.take_over()
        with pytest.raises(Fenced, match="another owner"):
            slow.say("too late")
        fast.say("from the new owner")
        with pytest.raises(Fenced):
            slow.say("again too late")
    assert texts(path) == ["in time", "from the new owner"]


def test_a_fenced_session_does_not_stop_the_others_of_its_store(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as old, opened(path) as new:
        slow, neighbour = Pen(old, "s"), Pen(old, "t")
        slow.say("in time")
        Pen(new, "s").take_over()
        with pytest.raises(Fenced):
            slow.say("too late")
        old.check_alive()
        neighbour.say("untouched")
    assert (texts(path, "s"), texts(path, "t")) == (["in time"], ["untouched"])


def test_an_owner_with_the_right_epoch_but_an_old_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as one, opened(path) as two:
        first = Pen(one)
        first.say("one")
        second = Pen(two)
        first.say("two")
        with pytest.raises(Fenced):
            second.say("in the same place")
    assert texts(path) == ["one", "two"]


async def run_while_fenced(kernel: flightlog.Kernel, path: Path) -> None:
    async with kernel.session("s", model="fake:m") as session:
        await session.followup("hello")
        with opened(path) as other:
            Pen(other).take_over()
        await session.run()


async def test_a_session_that_is_fenced_while_it_is_driven_makes_no_further_call(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    model = FakeModel([])
    async with kernels.opened(path, model) as kernel:
        with pytest.raises(Fenced):
            await run_while_fenced(kernel, path)
        assert model.requests == []
        async with kernel.session("t", model="fake:m") as neighbour:
            await neighbour.followup("hello")
            assert await neighbour.run()


def test_the_guard_fences_programs_that_know_nothing_of_us(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        pen.say("one")
        pen.take_over()
    with plain(path) as database:
        names = [
            row[1] for row in database.execute("PRAGMA table_info(events)") if row[1] not in {"id", "seq", "epoch"}
        ]
        with pytest.raises(sqlite3.IntegrityError, match="fenced"):
            database.execute(
                f"INSERT INTO events(seq, epoch, {', '.join(names)}) "
                f"SELECT 5, 1, {', '.join(names)} FROM events WHERE seq = 3"
            )


# ---------------------------------------------------------------- two stores in one process


def is_marked_open(path: Path) -> bool:
    with plain(path) as database:
        return bool(database.execute("SELECT is_open FROM open_mark").fetchone()[0])


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_two_stores_in_one_process_see_each_other_and_close_in_any_order(tmp_path: Path, order: str) -> None:
    path = tmp_path / "log.db"
    stores = {name: Store.open(str(path)) for name in "ab"}
    pens = {name: Pen(store, name) for name, store in stores.items()}
    for number in range(3):
        for pen in pens.values():
            pen.say(str(number))
    first, last = order
    stores[first].close()
    assert is_marked_open(path)
    pens[last].say("alone")
    stores[last].close()
    assert not is_marked_open(path)
    assert texts(path, first) == ["0", "1", "2"]
    assert texts(path, last) == ["0", "1", "2", "alone"]


@pytest.mark.kill
def test_a_store_that_closes_leaves_the_locks_of_its_twin_in_the_same_process_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store, "a")
        for number in range(5):
            with opened(path) as twin:
                Pen(twin, f"b{number}").say("hello")
            with Child(come_and_go, path, f"c{number}") as child:
                child.rest()
            pen.say(str(number))
            assert Path(f"{path}-wal").stat().st_size > 0
    assert texts(path, "a") == ["0", "1", "2", "3", "4"]
    assert all(texts(path, f"{letter}{number}") == ["hello"] for letter in "bc" for number in range(5))


def come_and_go(channel: Connection, path: Path, name: str) -> None:
    with opened(path) as store:
        Pen(store, name).say("hello")


# ---------------------------------------------------------------- the locks themselves


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.touch()
    return path


def test_a_session_lock_is_exclusive_per_key_and_can_be_given_back(file: Path) -> None:
    one, two = FileLocks(str(file)), FileLocks(str(file))
    assert one.own_session(1)
    assert not two.own_session(1)
    assert two.own_session(2)
    one.release_session(1)
    assert two.own_session(1)
    one.close()
    two.close()


def test_presence_is_shared_and_being_alone_is_not(file: Path) -> None:
    one, two = FileLocks(str(file)), FileLocks(str(file))
    assert one.present()
    assert two.present()
    assert not one.alone()
    two.close()
    assert one.alone()
    three = FileLocks(str(file))
    assert not three.present()
    one.close()
    assert three.present()
    three.close()


def test_locks_outlive_the_closing_of_other_descriptors_of_the_file(file: Path) -> None:
    one, two = FileLocks(str(file)), FileLocks(str(file))
    assert one.own_session(1)
    for _ in range(2):
        file.read_bytes()
        os.close(os.open(file, os.O_RDWR))
    assert not two.own_session(1)
    one.close()
    assert two.own_session(1)
    two.close()


def test_closed_locks_hold_nothing_and_take_nothing(file: Path) -> None:
    locks = FileLocks(str(file))
    locks.close()
    locks.close()
    assert not locks.own_session(1)
    assert not locks.present()
    locks.release_session(1)


def test_locks_on_a_file_that_is_not_there_are_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        FileLocks(str(tmp_path / "nothing"))


def test_the_last_of_several_holders_lets_the_wal_index_go(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    written(path, "one")
    (tmp_path / "log.db-shm").touch()
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with opened(path), opened(path), opened(path):
            assert content(path)
        assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_clock_of_the_owner_is_what_since_means(tmp_path: Path) -> None:
    """Also when it is far off: the wall clock is told, never used to decide."""

    async def run() -> str:
        async with (
            kernels.opened(tmp_path / "log.db", FakeModel([]), clock=fixed_clock(start_us=0)) as kernel,
            kernel.session("s", model="fake:m"),
        ):
            with pytest.raises(SessionBusy) as caught:
                await try_to_own(tmp_path / "log.db")
            return str(caught.value)

    assert "since 1970-01-01 00:00:00 UTC" in trio.run(run)
