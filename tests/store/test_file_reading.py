"""Reading a log: it changes nothing, needs nothing, disturbs nobody, and sees what is there."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import flightlog
from flightlog.store.connection import ApswDatabase
from flightlog.store.store import Store
from flightlog.testing import FakeModel, calls
from flightlog_hookspecs import tool
from support import kernels
from support.files import Child, Pen, content, copied, look, opened, photograph, plain, replayed, rich, texts, written

if TYPE_CHECKING:
    from collections.abc import Iterator

SPOKEN = ["one", "two", "three"]


def hold(channel: Connection, path: Path) -> None:
    """Write, and keep the log open until told to go."""
    with opened(path) as store:
        pen = Pen(store)
        for text in SPOKEN:
            pen.say(text)
        channel.send("written")
        channel.recv()


@contextmanager
def live(path: Path) -> Iterator[None]:
    """A log that another process has open."""
    with Child(hold, path) as owner:
        assert owner.receive() == "written"
        yield
        owner.send("go")
        owner.wait()


@contextmanager
def crashed(path: Path) -> Iterator[None]:
    """A log whose owner was killed."""
    with Child(hold, path) as owner:
        assert owner.receive() == "written"
        owner.kill()
    yield


@contextmanager
def looked_at(path: Path) -> Iterator[None]:
    """The same, whose -wal was deleted by a look with another program."""
    with crashed(path):
        look(path)
        yield


@contextmanager
def closed(path: Path) -> Iterator[None]:
    """A log that was closed cleanly."""
    written(path, *SPOKEN)
    yield


@contextmanager
def bare(path: Path) -> Iterator[None]:
    """The main file of a closed log, alone."""
    written(path.with_name("whole.db"), *SPOKEN)
    copied(path.with_name("whole.db"), path, "")
    yield


@pytest.mark.kill
@pytest.mark.parametrize("state", [live, crashed, looked_at, closed, bare])
def test_reading_changes_no_byte_and_leaves_no_file_behind(tmp_path: Path, state: Callable[..., object]) -> None:
    path = tmp_path / "log.db"
    with state(path):  # type: ignore[attr-defined]
        before = photograph(tmp_path)
        for _ in range(2):
            assert texts(path) == SPOKEN
        after = photograph(tmp_path)
        if f"{path.name}-wal" in before:
            after.pop(f"{path.name}-shm", None)  # SQLite needs one to read a -wal
            before.pop(f"{path.name}-shm", None)
        assert after == before


@pytest.mark.kill
@pytest.mark.parametrize("state", [live, crashed, looked_at, closed])
def test_listing_and_verifying_change_no_byte_either(tmp_path: Path, state: Callable[..., object]) -> None:
    path = tmp_path / "log.db"
    with state(path):  # type: ignore[attr-defined]
        before = photograph(tmp_path)
        with flightlog.open_log(path, discover=False) as log:
            log.check_file()
            assert [summary.session for summary in log.sessions()] == ["s"]
            assert log.session("s").verify() == 5
            assert log.session("s").timeline()
            assert log.session("s").messages() == []
        assert photograph(tmp_path) == before


async def test_reading_a_session_that_is_driven_recovers_and_repeats_nothing(tmp_path: Path) -> None:
    path, ran, seen = tmp_path / "log.db", [], []

    @tool(effect="write")
    def write(what: str) -> str:
        """Write it down."""
        ran.append(what)
        before = photograph(tmp_path)
        seen.extend(kernels.kinds_of(path))
        assert photograph(tmp_path) == before
        return "done"

    model = FakeModel([calls(("write", {"what": "a"}))])
    async with kernels.session_of(path, model, write) as session:
        await session.followup("go")
        await session.run()
    assert ran == ["a"]
    assert seen[-1] == "tool/call"
    assert kernels.outcomes_of(path) == ["ok"]


def test_a_reader_sees_what_was_committed_before_each_read(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        pen.say("one")
        reader = Store.open_to_read(str(path))
        assert len(replayed(reader)["s"]) == 3
        pen.say("two", barrier=False)
        assert len(replayed(reader)["s"]) == 4
        reader.close()
        pen.say("three")
    assert texts(path) == ["one", "two", "three"]


def test_a_reader_that_stays_open_hinders_neither_the_writer_nor_its_clean_end(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    written(path, "one")
    reader = Store.open_to_read(str(path))
    written(path, "two")
    with plain(path) as database:
        assert database.execute("SELECT is_open FROM open_mark").fetchone() == (0,)
    assert len(replayed(reader)["s"]) == 4
    reader.close()
    assert texts(path) == ["one", "two"]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_reader_of_a_bare_file_notices_that_somebody_has_begun_to_write(tmp_path: Path, checkpoint: bool) -> None:
    """Without a -wal the file is read as it stands, which is only right until a writer comes."""
    path = tmp_path / "log.db"
    with bare(path):
        reader = Store.open_to_read(str(path))
        assert len(replayed(reader)["s"]) == 5
        with opened(path) as store:
            pen = Pen(store)
            for number in range(60):
                pen.say(f"{number} " * 500)
                if checkpoint and number % 7 == 0:
                    store.read("checkpoint_passive")
                assert len(replayed(reader)["s"]) == pen.acked
        assert len(replayed(reader)["s"]) == pen.acked
        reader.close()


def test_a_bare_file_that_is_overtaken_in_the_middle_of_a_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.db"
    with bare(path):
        reader = Store.open_to_read(str(path))
        overtaken = ApswDatabase._was_overtaken

        def writer_comes(self: ApswDatabase) -> bool:
            if self is reader.database and not Path(f"{path}-wal").exists():
                written(path, "four")  # after the rows were fetched, before they are believed
            return overtaken(self)

        monkeypatch.setattr(ApswDatabase, "_was_overtaken", writer_comes)
        assert len(replayed(reader)["s"]) == 6
        reader.close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    from flightlog_hookspecs.errors import StoreError

    path = tmp_path / "log.db"
    written(path, "one")
    before = photograph(tmp_path)
    reader = Store.open_to_read(str(path))
    with pytest.raises(StoreError):
        Pen(reader).say("two")
    reader.close()
    assert photograph(tmp_path) == before


def read_and_wait(channel: Connection, path: Path) -> None:
    reader = Store.open_to_read(str(path))
    channel.send(len(replayed(reader)["s"]))
    channel.recv()
    channel.send(len(replayed(reader)["s"]))
    reader.close()


@pytest.mark.kill
def test_a_reader_in_another_process_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        pen.say("one")
        with Child(read_and_wait, path) as reader:
            assert reader.receive() == 3
            reader.kill()
        pen.say("two")
    assert os.path.getsize(f"{path}-wal") == 0, "the last one to close could not bring everything into the main file"
    assert texts(path) == ["one", "two"]


@pytest.mark.kill
def test_a_reader_in_another_process_outlives_a_crash_and_a_recovery(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with Child(hold, path) as owner:
        assert owner.receive() == "written"
        with Child(read_and_wait, path) as reader:
            assert reader.receive() == 5
            owner.kill()
            written(path, "four")
            reader.send("again")
            assert reader.receive() == 6
            reader.wait()
    assert texts(path) == [*SPOKEN, "four"]


def test_a_large_log_is_read_in_pages_without_one_long_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        for number in range(2500):
            pen.say(str(number), barrier=False)
        rows = store.rows(pen.key)
        first = next(rows)
        pen.say("while reading")
        assert store.read("checkpoint_truncate")[0][0] == 0, "a snapshot is being held"
        assert first.seq == 1
        assert [row.seq for row in rows] == list(range(2, pen.acked + 1))


def test_everything_of_a_rich_log_is_read_the_same_from_inside_and_outside(tmp_path: Path) -> None:
    rich(tmp_path / "log.db")
    outside = content(tmp_path / "log.db")
    with opened(tmp_path / "log.db") as store:
        assert replayed(store) == outside
