"""The file and its companions deleted, emptied, copied, put back: what is refused and what is not; what a look does."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from flightlog.store.store import Store
from flightlog_hookspecs.errors import HeadMismatch, StoreError
from support.files import Child, Pen, copied, look, opened, outcome, photograph, plain, texts, written

SPOKEN = ["one", "two", "three"]


def speak(channel: Connection, path: Path, spoken: list[str], end: str) -> None:
    """Say all of it, then wait for the order to end: to die or to close."""
    with opened(path) as store:
        pen = Pen(store)
        for text in spoken:
            pen.say(text)
        channel.send("said")
        channel.recv()
        if end == "die":
            os._exit(1)


def crashed(path: Path) -> None:
    """A log whose only owner was killed."""
    with Child(speak, path, SPOKEN, "die") as child:
        assert child.receive() == "said"
        child.kill()


def looked_at(path: Path) -> None:
    """The same, and then somebody looked at it with another program, which deleted the -wal."""
    crashed(path)
    look(path)
    assert not Path(f"{path}-wal").exists()


def closed(path: Path) -> None:
    """A log that was closed cleanly."""
    written(path, *SPOKEN)


def delete(*suffixes: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        for suffix in suffixes:
            Path(f"{path}{suffix}").unlink(missing_ok=True)

    return damage


def empty(path: Path) -> None:
    os.close(os.open(f"{path}-wal", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))


def garble(path: Path) -> None:
    wal = Path(f"{path}-wal")
    if wal.exists():
        wal.write_bytes(b"\xa5" * len(wal.read_bytes()))


def empty_without_witness(path: Path) -> None:
    empty(path)
    delete("-head")(path)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda path: None,
    "-shm deleted": delete("-shm"),
    "-wal deleted": delete("-wal"),
    "-wal and -shm deleted": delete("-wal", "-shm"),
    "-wal emptied": empty,
    "-wal garbled": garble,
    "witness deleted": delete("-head"),
    "-wal and witness deleted": delete("-wal", "-head"),
    "all three deleted": delete("-wal", "-shm", "-head"),
    "-wal emptied, witness deleted": empty_without_witness,
}
REFUSED = {
    (crashed, "-wal deleted"),
    (crashed, "-wal and -shm deleted"),
    (crashed, "-wal emptied"),
    (crashed, "-wal garbled"),
    (crashed, "-wal and witness deleted"),
    (crashed, "all three deleted"),
    (crashed, "-wal emptied, witness deleted"),
    # Nothing is lost here, but nothing is left that could tell it from a loss.
    (looked_at, "witness deleted"),
    (looked_at, "-wal and witness deleted"),
    (looked_at, "all three deleted"),
    (looked_at, "-wal emptied, witness deleted"),
}


@pytest.mark.parametrize("to_read", [False, True], ids=["to write", "to read"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("state", [closed, crashed, looked_at])
def test_a_log_that_lost_a_companion_is_complete_or_refused(
    tmp_path: Path, state: Callable[[Path], None], damage: str, to_read: bool
) -> None:
    path = tmp_path / "log.db"
    state(path)
    DAMAGES[damage](path)
    before = photograph(tmp_path)
    if (state, damage) not in REFUSED:
        if not to_read:
            with opened(path):
                pass
        assert texts(path) == SPOKEN
        return
    with pytest.raises(HeadMismatch) as caught:
        (Store.open_to_read if to_read else Store.open)(str(path))
    assert str(path) in str(caught.value)
    after = photograph(tmp_path)
    for companion in ("log.db-wal", "log.db-shm"):  # SQLite may create them, empty
        if companion not in before:
            assert after.pop(companion, (None, b""))[1] == b""
    assert after == before


@pytest.mark.parametrize("with_wal", [True, False])
def test_an_older_copy_put_back_in_its_place_is_refused(tmp_path: Path, with_wal: bool) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        pen.say("one")
        copied(path, tmp_path / "old.db", "", "-wal")
        pen.say("two")
    copied(tmp_path / "old.db", path, *(["", "-wal"] if with_wal else [""]))
    with pytest.raises(HeadMismatch, match="an older copy was put in its place"):
        Store.open(str(path))


def test_a_loss_can_be_accepted_by_deleting_the_witness(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    written(path, "one")
    copied(path, tmp_path / "old.db", "")
    written(path, "two")
    copied(tmp_path / "old.db", path, "")
    Path(f"{path}-head").unlink()
    with opened(path):
        pass
    assert texts(path) == ["one"]


@pytest.mark.parametrize("suffixes", [[""], ["", "-shm"], ["", "-wal"], ["", "-head"], ["", "-wal", "-shm", "-head"]])
def test_a_copy_of_a_live_log_is_complete_or_refused(tmp_path: Path, suffixes: list[str]) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        for text in SPOKEN:
            pen.say(text)
        copy = copied(path, tmp_path / "copy.db", *suffixes)
        if "-wal" in suffixes:
            assert texts(copy) == SPOKEN
        else:
            with pytest.raises(HeadMismatch, match="copy"):
                Store.open(str(copy))
        pen.say("four")
    assert texts(path) == [*SPOKEN, "four"]


def test_a_copy_of_the_main_file_of_a_closed_log_is_complete(tmp_path: Path) -> None:
    written(tmp_path / "log.db", *SPOKEN)
    assert texts(copied(tmp_path / "log.db", tmp_path / "copy.db", "")) == SPOKEN


# ---------------------------------------------------------------- kills, looks and second processes


@pytest.mark.kill
@pytest.mark.parametrize("looks", [0, 1, 2])
def test_a_killed_log_that_somebody_looked_at_is_complete_and_goes_on(tmp_path: Path, looks: int) -> None:
    path = tmp_path / "log.db"
    for number in range(3):
        with Child(speak, path, [f"{number}"], "die") as child:
            assert child.receive() == "said"
            child.kill()
        for _ in range(looks):
            look(path)
    assert texts(path) == ["0", "1", "2"]


@pytest.mark.kill
def test_a_log_killed_right_after_opening_and_then_looked_at_is_not_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with Child(speak, path, [], "die") as child:
        assert child.receive() == "said"
        child.kill()
    look(path)
    written(path, "first")
    assert texts(path) == ["first"]


def join(channel: Connection, path: Path, name: str, end: str) -> None:
    """Open, and write each message that comes; at the end die or close."""
    with opened(path) as store:
        pen = Pen(store, name)
        while text := channel.recv():
            pen.say(text)
            channel.send(text)
        if end == "die":
            os._exit(1)


@pytest.mark.kill
@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize("ends", [("close", "die"), ("die", "close"), ("die", "die"), ("close", "close")])
def test_two_processes_that_end_in_any_way_leave_a_complete_log(
    tmp_path: Path, ends: tuple[str, str], looked: bool
) -> None:
    path = tmp_path / "log.db"
    with Child(join, path, "a", ends[0]) as one, Child(join, path, "b", ends[1]) as two:
        for child in (one, two, one):
            child.send("hello")
            assert child.receive() == "hello"
        one.send("")
        one.wait()
        if looked:
            look(path)
        two.send("after")
        assert two.receive() == "after"
        two.send("")
        two.wait()
    if looked:
        look(path)
    with opened(path):
        pass
    assert (texts(path, "a"), texts(path, "b")) == (["hello", "hello"], ["hello", "after"])


def select_in_process(path: Path) -> None:
    with plain(path) as database:
        assert database.execute("SELECT count(*) FROM events").fetchone()[0] > 0


def open_plainly(path: Path) -> None:
    path.read_bytes()


def open_and_close_everything(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-head"):
        os.close(os.open(f"{path}{suffix}", os.O_RDWR))


def look_from_elsewhere(channel: Connection, path: Path, writing: bool) -> None:
    with plain(path) as database:
        rows = database.execute("SELECT text FROM events WHERE slot IS NOT NULL ORDER BY id").fetchall()
        if writing:
            database.execute("UPDATE open_mark SET is_open = 1")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    channel.send([text for (text,) in rows])


@pytest.mark.kill
@pytest.mark.parametrize("writing", [False, True], ids=["reading", "checkpointing"])
@pytest.mark.parametrize("access", [select_in_process, open_plainly, open_and_close_everything])
def test_access_inside_the_owner_process_followed_by_another_process_loses_no_commit(
    tmp_path: Path, access: Callable[[Path], None], writing: bool
) -> None:
    path = tmp_path / "log.db"
    said = []
    with opened(path) as store:
        pen = Pen(store)
        for number in range(4):
            pen.say(f"before {number}")
            access(path)  # drops whatever POSIX locks SQLite holds in this process
            said += [f"before {number}", f"after {number}"]
            with Child(look_from_elsewhere, path, writing) as child:
                assert child.receive() == said[:-1]
                child.wait()
            pen.say(f"after {number}")
            with Child(look_from_elsewhere, path, writing) as child:
                assert child.receive() == said
                child.wait()
        assert Path(f"{path}-wal").exists()
    assert texts(path) == said


MAINTENANCE = (
    "VACUUM",
    "REINDEX",
    "ANALYZE",
    "PRAGMA optimize",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA auto_vacuum = FULL; VACUUM",
    "PRAGMA page_size = 8192; VACUUM",
    "CREATE VIEW mine AS SELECT * FROM events",
    "CREATE INDEX mine ON events(kind)",
)


def maintain(path: Path, statement: str) -> None:
    with plain(path) as database:
        database.execute("PRAGMA busy_timeout = 0")
        with suppress(sqlite3.OperationalError):  # locked: also fine
            database.executescript(statement)


@pytest.mark.kill
@pytest.mark.parametrize("statement", MAINTENANCE)
def test_maintenance_by_another_program_while_the_log_is_open_harms_nothing(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        for text in ("one", "two"):
            pen.say(text)
            assert outcome(maintain, path, statement) is None
        pen.say("three", barrier=False)
        assert store.read("integrity_check") == [("ok",)]
    assert texts(path) == ["one", "two", "three"]
    assert outcome(maintain, path, statement) is None
    written(path, "four")
    assert texts(path) == ["one", "two", "three", "four"]


def test_nobody_empties_the_wal_index_while_the_log_is_open(tmp_path: Path) -> None:
    """Else a commit that runs meanwhile would meet a missing page of it (SIGBUS) or forget where its pages are."""
    path = tmp_path / "log.db"
    unused_at = 136 + 4 * 4000  # the place of frame 4000 in the first block of the index
    with opened(path) as store, open(f"{path}-shm", "r+b", buffering=0) as index:
        Pen(store).say("one")
        os.pwrite(index.fileno(), b"mark", unused_at)
        select_in_process(path)
        with Child(look_from_elsewhere, path, False) as child:
            assert child.receive() == ["one"]
            child.wait()
        assert os.pread(index.fileno(), 4, unused_at) == b"mark"


def test_the_wal_index_is_emptied_by_a_look_once_nobody_has_the_log_open(tmp_path: Path) -> None:
    """The mark itself: what the test above looks for does happen when nothing protects it."""
    path = tmp_path / "log.db"
    with opened(path) as store:
        Pen(store).say("one")
        copied(path, tmp_path / "copy.db", "", "-wal", "-shm")
    unused_at = 136 + 4 * 4000
    with open(tmp_path / "copy.db-shm", "r+b", buffering=0) as index:
        os.pwrite(index.fileno(), b"mark", unused_at)
        with plain(tmp_path / "copy.db") as database:
            database.execute("SELECT count(*) FROM events").fetchone()
            assert os.pread(index.fileno(), 4, unused_at) == b"\0\0\0\0"


def test_an_error_of_a_refused_log_is_a_store_error_also_for_hosts_that_catch_broadly(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    crashed(path)
    Path(f"{path}-wal").unlink()
    with pytest.raises(StoreError):
        Store.open(str(path))
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA quick_check").fetchone() == ("ok",), "SQLite itself finds nothing wrong"
    database.close()
