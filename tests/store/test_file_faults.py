"""A storage fault at any call of the database: the store stops, nothing is half written, reading goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from flightlog.store.connection import Busy
from flightlog_hookspecs.errors import DiskFull, StoreError, StoreStopped
from support.faulty_database import Method, faulty_store
from support.files import Pen, content, opened, photograph, texts


def full() -> DiskFull:
    return DiskFull("planted: no space left")


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("method", ["begin", "write", "commit"])
def test_after_a_failed_write_everything_is_refused_and_the_database_is_left_alone(
    tmp_path: Path, method: Method, late: bool
) -> None:
    path = tmp_path / "log.db"
    with faulty_store(path, full) as (store, faulty):
        pen, neighbour = Pen(store), Pen(store, "t")
        pen.say("acknowledged")
        neighbour.say("acknowledged")
        faulty.arm(method, late=late)
        with pytest.raises(DiskFull, match="planted"):
            pen.say("never acknowledged")
        assert faulty.after_the_fault == ["rollback"]
        before = photograph(tmp_path)
        for attempt in (pen.say, neighbour.say, store.check_alive, lambda: Pen(store, "u")):
            with pytest.raises(StoreStopped, match="planted: no space left"):
                attempt()
        assert all(call.startswith("read") for call in faulty.after_the_fault[1:])
        assert photograph(tmp_path) == before
        assert store.key_of("s") is not None, "reading still works"
    in_the_log = ["acknowledged"] + ["never acknowledged"] * (method == "commit" and late)
    assert (texts(path, "s"), texts(path, "t")) == (in_the_log, ["acknowledged"])


@pytest.mark.parametrize("error", [DiskFull, StoreError, MemoryError, OSError, KeyboardInterrupt])
def test_whatever_the_fault_is_it_stops_the_store_and_comes_through_as_it_is(
    tmp_path: Path, error: type[BaseException]
) -> None:
    with faulty_store(tmp_path / "log.db", lambda: error("planted")) as (store, faulty):
        pen = Pen(store)
        faulty.arm("commit")
        with pytest.raises(error, match="planted"):
            pen.say()
        with pytest.raises(StoreStopped, match="planted"):
            pen.say()


def test_a_failed_append_of_several_events_leaves_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    for failing in ("insert_blob", "insert_event"):
        with faulty_store(path, full) as (store, faulty):
            pen = Pen(store)
            pen.say("x" * 70_000)
            before = content(path)
            faulty.arm("write", ["insert_blob", "insert_event"].index(failing) + 1, late=True)
            with pytest.raises(DiskFull):
                pen.say("y" * 70_000)
            assert faulty.calls[-2] == f"write {failing}"
            assert content(path) == before


def test_a_busy_database_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with faulty_store(path, Busy) as (store, faulty):
        pen = Pen(store)
        pen.say("one")
        faulty.arm("begin")
        with pytest.raises(Busy):
            store.commit([pen.message("two")], barrier=True)
        store.check_alive()
        pen.say("two")
    assert texts(path) == ["one", "two"]


def test_a_store_that_stopped_does_not_mark_the_file_as_closed(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with faulty_store(path, full) as (store, faulty):
        pen = Pen(store)
        faulty.arm("commit")
        with pytest.raises(DiskFull):
            pen.say()
        faulty.calls.clear()
    assert faulty.calls == ["rollback"]
    with opened(path) as store:
        assert store.read("is_open") == [(1,)]


def test_a_fault_while_closing_leaves_a_file_that_opens(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    for number, method in enumerate(("begin", "write", "commit", "read")):
        with faulty_store(path, full) as (store, faulty):
            Pen(store).say(str(number))
            faulty.arm(method)
    assert texts(path) == ["0", "1", "2", "3"]
