"""Opening a log file: what is refused, by which name, and that a refusal leaves everything as it was."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import flightlog
from flightlog.store import log_file
from flightlog.store.statements import APPLICATION_ID, SCHEMA_VERSION
from flightlog.store.store import Store
from flightlog_hookspecs.errors import (
    HeadMismatch,
    LogCorrupt,
    NotAFlightlog,
    NotCreated,
    ReadOnly,
    SchemaTooNew,
    StoreError,
)
from support.files import Child, Pen, content, copied, look, opened, outcome, photograph, plain, texts, written

Refusal = tuple[type[StoreError], str]


def refused(path: Path, *, to_read: bool = False) -> StoreError:
    """The error of opening `path`, which must leave the whole folder as it is."""
    folder = next(parent for parent in path.parents if parent.is_dir())
    before = photograph(folder)
    with pytest.raises(StoreError) as caught:
        (Store.open_to_read if to_read else Store.open)(str(path))
    assert photograph(folder) == before
    assert str(path) in str(caught.value)
    return caught.value


def foreign_database(path: Path) -> None:
    with plain(path) as database:
        database.execute("CREATE TABLE notes(note)")


def other_application(path: Path) -> None:
    with plain(path) as database:
        database.execute("PRAGMA application_id = 252006675")
        database.execute("CREATE TABLE notes(note)")


def newer_schema(path: Path) -> None:
    written(path, "kept")
    with plain(path) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    look(path)  # brings it into the main file


def half_a_header(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"\0" * 20)


KINDS: dict[str, tuple[Callable[[Path], object], type[StoreError], str]] = {
    "a directory": (Path.mkdir, NotAFlightlog, "not a regular file"),
    "a FIFO": (os.mkfifo, NotAFlightlog, "not a regular file"),
    "a symbolic link": (lambda path: path.symlink_to("elsewhere.db"), NotAFlightlog, "Name the file it points to"),
    "a text file": (lambda path: path.write_text("dear diary, " * 50), NotAFlightlog, "not a SQLite database"),
    "a short text file": (lambda path: path.write_text("hi"), NotAFlightlog, "not a SQLite database"),
    "half a header": (half_a_header, NotAFlightlog, "It was not changed"),
    "a foreign database": (foreign_database, NotAFlightlog, "another application"),
    "another application's database": (other_application, NotAFlightlog, "another application"),
    "a newer schema": (newer_schema, SchemaTooNew, "upgrade flightlog"),
}


@pytest.mark.parametrize("to_read", [False, True], ids=["to write", "to read"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_log_of_ours_is_refused_by_name_and_left_as_it_is(
    tmp_path: Path, kind: str, to_read: bool
) -> None:
    make, error, advice = KINDS[kind]
    make(tmp_path / "log.db")
    refusal = refused(tmp_path / "log.db", to_read=to_read)
    assert type(refusal) is error
    assert advice in str(refusal)


@pytest.mark.parametrize("to_read", [False, True], ids=["to write", "to read"])
def test_a_newer_schema_that_stands_in_the_wal_only_is_refused(tmp_path: Path, to_read: bool) -> None:
    written(tmp_path / "live.db", "kept")
    path = tmp_path / "log.db"
    with plain(tmp_path / "live.db") as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        copied(tmp_path / "live.db", path)
    assert type(refused(path, to_read=to_read)) is SchemaTooNew


def test_a_symbolic_link_to_a_log_is_refused_too(tmp_path: Path) -> None:
    written(tmp_path / "real.db", "kept")
    (tmp_path / "log.db").symlink_to("real.db")
    assert type(refused(tmp_path / "log.db")) is NotAFlightlog


async def test_a_file_on_a_network_is_refused_unless_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "_NETWORK_FILE_SYSTEMS", {file_system_of(tmp_path)})
    with pytest.raises(StoreError, match=r"between machines.*allow_network=True"):
        async with flightlog.open_kernel(tmp_path / "log.db", discover=False):
            pass
    assert photograph(tmp_path) == {}
    async with flightlog.open_kernel(tmp_path / "log.db", discover=False, allow_network=True) as kernel:
        await kernel.mailbox("s").followup("hello")
    with flightlog.open_log(tmp_path / "log.db", discover=False) as log:
        assert log.names() == []  # who only reads needs no lock of another machine


def file_system_of(folder: Path) -> str:
    status = folder.stat()
    kind = log_file._file_system(status.st_dev, status.st_ino)
    assert kind != "unknown", "the list of mounts has it"
    return kind


def test_a_missing_folder_is_named_with_what_to_do(tmp_path: Path) -> None:
    refusal = refused(tmp_path / "no" / "such" / "log.db")
    assert f"Create {tmp_path}/no/such first" in str(refusal)


def test_a_file_in_place_of_the_folder_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert type(refused(tmp_path / "file" / "log.db")) is StoreError


@pytest.mark.parametrize("name", ["x" * 300, "nul\0byte.db"])
def test_an_impossible_name_is_a_named_error(tmp_path: Path, name: str) -> None:
    for to_read in (Store.open, Store.open_to_read):
        with pytest.raises(StoreError):
            to_read(f"{tmp_path}/{name}")
    assert photograph(tmp_path) == {}


def test_a_missing_file_is_not_created_by_reading(tmp_path: Path) -> None:
    assert "no such file" in str(refused(tmp_path / "log.db", to_read=True))


def test_a_missing_file_is_not_created_unless_wanted(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file"):
        Store.open(str(tmp_path / "log.db"), create=False)
    assert photograph(tmp_path) == {}


def test_an_empty_file_becomes_a_log(tmp_path: Path) -> None:
    (tmp_path / "log.db").touch()
    written(tmp_path / "log.db", "first")
    assert texts(tmp_path / "log.db") == ["first"]


def test_an_empty_file_is_not_readable_yet_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "log.db").touch()
    assert "never finished" in str(refused(tmp_path / "log.db", to_read=True))


def test_our_empty_schema_without_its_one_mutable_row_is_damage(tmp_path: Path) -> None:
    written(tmp_path / "log.db", "kept")
    with plain(tmp_path / "log.db") as database:
        for (name,) in database.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'open_mark'"
        ).fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute("DELETE FROM open_mark")
    copied(tmp_path / "log.db", tmp_path / "copy.db")
    refusal = refused_as_damaged(tmp_path / "copy.db")
    assert isinstance(refusal, LogCorrupt)


def refused_as_damaged(path: Path) -> StoreError:
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        Store.open(str(path))
    assert path.read_bytes() == before
    return caught.value


@pytest.mark.parametrize("name", ["log.db", "ü ñ.db", "per%cent%20.db", "que?stion.db", "#hash.db", "-dash.db"])
def test_any_name_works_to_write_and_to_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    written(path, "kept")
    assert texts(path) == ["kept"]
    Path(f"{path}-wal").unlink()  # read as an immutable file, whose name travels in a URI
    assert texts(path) == ["kept"]
    assert texts(Path(f"/{path}")) == ["kept"]


def test_a_relative_path_works_to_write_and_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("log.db"), "kept")
    Path("log.db-wal").unlink()
    assert texts(Path("log.db")) == ["kept"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_the_owner_can_read_the_file_and_its_companions(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with opened(tmp_path / "log.db") as store:
            Pen(store).say()
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("log.db", "log.db-wal", "log.db-shm", "log.db-head"), 0o600)


def test_the_file_names_us_as_its_application(tmp_path: Path) -> None:
    written(tmp_path / "log.db")
    with plain(tmp_path / "log.db") as database:
        assert database.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# ---------------------------------------------------------------- files that may not be written


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that any user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="flightlog-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def open_error(path: str) -> Refusal:
    try:
        store = Store.open(path)
    except StoreError as error:
        return type(error), str(error)
    store.close()
    raise AssertionError("was opened")


def give_away(folder: Path, *, file_mode: int, folder_mode: int) -> None:
    """Let an unprivileged reader have `folder`, with these modes."""
    for path in folder.iterdir():
        path.chmod(file_mode)
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
    folder.chmod(folder_mode)


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o755), (0o644, 0o555), (0o444, 0o555)])
def test_a_file_or_folder_that_cannot_be_written_is_refused_but_can_be_read(
    public_folder: Path, file_mode: int, folder_mode: int
) -> None:
    path = public_folder / "log.db"
    written(path, "one", "two")
    give_away(public_folder, file_mode=file_mode, folder_mode=folder_mode)
    before = photograph(public_folder)
    error, message = outcome(open_error, str(path), as_nobody=True)
    assert error is ReadOnly
    assert "can still be read" in message
    assert outcome(texts, path, as_nobody=True) == ["one", "two"]
    assert photograph(public_folder) == before
    public_folder.chmod(0o755)


@pytest.mark.parametrize("index", [True, False], ids=["with its -shm", "without its -shm"])
def test_a_crashed_file_in_a_folder_that_cannot_be_written_can_be_read_unless_its_index_is_missing(
    public_folder: Path, index: bool
) -> None:
    path = public_folder / "log.db"
    with opened(public_folder / "live.db") as store:
        pen = Pen(store)
        for text in ("one", "two"):
            pen.say(text)
        copied(public_folder / "live.db", path, "", "-wal", "-head", *(["-shm"] if index else []))
    give_away(public_folder, file_mode=0o444, folder_mode=0o555)
    before = photograph(public_folder)
    if index:
        assert outcome(texts, path, as_nobody=True) == ["one", "two"]
    else:
        with pytest.raises(StoreError, match="Check that its folder exists and may be written"):
            outcome(texts, path, as_nobody=True)
    assert photograph(public_folder) == before
    public_folder.chmod(0o755)


def test_a_log_is_not_created_where_nothing_may_be_written(public_folder: Path) -> None:
    give_away(public_folder, file_mode=0o644, folder_mode=0o555)
    error, message = outcome(open_error, str(public_folder / "log.db"), as_nobody=True)
    assert error is NotCreated
    assert "permissions" in message
    assert photograph(public_folder) == {}
    public_folder.chmod(0o755)


def test_a_file_of_somebody_else_is_a_named_error(public_folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a second user")
    path = public_folder / "log.db"
    written(path, "secret")
    before = photograph(public_folder)
    public_folder.chmod(0o777)
    error, _ = outcome(open_error, str(path), as_nobody=True)
    assert issubclass(error, StoreError)
    public_folder.chmod(0o755)
    assert photograph(public_folder) == before


# ---------------------------------------------------------------- companions out of place


@pytest.mark.parametrize("suffix", ["-head"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("elsewhere")])
def test_a_witness_that_is_no_file_is_a_named_error_and_no_hang(
    tmp_path: Path, suffix: str, make: Callable[[Path], object]
) -> None:
    written(tmp_path / "log.db", "kept")
    (tmp_path / f"log.db{suffix}").unlink()
    make(tmp_path / f"log.db{suffix}")
    for to_read in (False, True):
        assert str(tmp_path / "log.db") in str(refused(tmp_path / "log.db", to_read=to_read))


def test_a_deleted_file_whose_witness_remains_is_not_begun_anew(tmp_path: Path) -> None:
    written(tmp_path / "log.db", "kept")
    (tmp_path / "log.db").unlink()
    refusal = refused(tmp_path / "log.db")
    assert type(refusal) is HeadMismatch
    assert "Restore it from a backup" in str(refusal)


@pytest.mark.parametrize("witness", [True, False])
def test_an_emptied_file_is_refused_before_sqlite_deletes_its_wal(tmp_path: Path, witness: bool) -> None:
    with opened(tmp_path / "live.db") as store:
        Pen(store).say("kept")
        copied(tmp_path / "live.db", tmp_path / "log.db", "", "-wal", *(["-head"] if witness else []))
    (tmp_path / "log.db").write_bytes(b"")
    assert type(refused(tmp_path / "log.db")) is HeadMismatch


def test_a_leftover_witness_of_an_empty_log_does_not_keep_one_from_starting_anew(tmp_path: Path) -> None:
    with opened(tmp_path / "log.db"):
        pass
    (tmp_path / "log.db").unlink()
    with opened(tmp_path / "log.db"):
        pass
    assert content(tmp_path / "log.db") == {}


def test_a_database_in_another_journal_mode_is_put_back_to_wal(tmp_path: Path) -> None:
    written(tmp_path / "log.db", "one")
    with plain(tmp_path / "log.db") as database:
        assert database.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    with opened(tmp_path / "log.db") as store:
        Pen(store).say("two")
    assert texts(tmp_path / "log.db") == ["one", "two"]


def hold_exclusively(channel: Connection, path: Path) -> None:
    with plain(path) as database:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("BEGIN EXCLUSIVE")
        channel.send("held")
        channel.recv()


@pytest.mark.parametrize("to_read", [False, True], ids=["to write", "to read"])
def test_a_file_that_another_program_keeps_to_itself_is_refused_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_read: bool
) -> None:
    monkeypatch.setattr("flightlog.store.log_file._OPEN_WAIT_S", 0.01)
    monkeypatch.setattr("flightlog.store.connection._OPEN_WAIT_MS", 10)
    path = tmp_path / "log.db"
    written(path, "kept")
    look(path)
    with Child(hold_exclusively, path) as child:
        assert child.receive() == "held"
        assert "Try again" in str(refused(path, to_read=to_read))
        child.send("let go")
        child.wait()
    assert texts(path) == ["kept"]


def test_sqlite_of_the_standard_library_can_read_every_view(tmp_path: Path) -> None:
    written(tmp_path / "log.db", "kept")
    with plain(tmp_path / "log.db") as database:
        views = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")]
        assert views
        for view in views:
            database.execute(f"SELECT * FROM {view}").fetchall()
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            database.execute("DELETE FROM events")
