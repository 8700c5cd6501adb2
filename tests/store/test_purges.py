"""Purging: the sessions are gone from every byte, the others are as they were, and nobody else may be looking."""

from __future__ import annotations

import io
import sqlite3
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog.store.log_file import LogFile
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import tool
from flightlog_hookspecs.errors import FileInUse, LogCorrupt, UsageError
from support import kernels
from support.damage import unguarded
from support.files import Child, Pen, content, in_memory, look, opened, photograph, plain, rich, texts, written
from support.legal_logs import LegalFile, legal_files, write

SECRET = "tuatara"


def exports(path: Path) -> dict[str, bytes]:
    """Every session as it is exported."""
    found = {}
    with flightlog.open_log(path, discover=False) as log:
        for name in log.names():
            log.session(name).export(file := io.BytesIO())
            found[name] = file.getvalue()
    return found


def order(path: Path) -> list[tuple[int, int, int, int]]:
    """The rows of the file: id, session key, seq and time."""
    with plain(path) as database:
        return database.execute("SELECT id, session, seq, at FROM events ORDER BY id").fetchall()


@given(file=legal_files(), data=st.data())
def test_the_other_sessions_stay_as_they_were_byte_for_byte(file: LegalFile, data: st.DataObject) -> None:
    with in_memory() as folder:
        path = folder / "log.db"
        write(str(path), file.appends)
        before, rows = exports(path), order(path)
        names = data.draw(st.lists(st.sampled_from(sorted(before)), min_size=1, unique=True), label="purged")
        with opened(path) as store:
            keys = {found.key for name in names if (found := store.key_of(name))}
        report = flightlog.purge(path, *names)
        assert report.events == sum(row[1] in keys for row in rows)
        assert exports(path) == {name: export for name, export in before.items() if name not in names}
        left = [row[1:] for row in rows if row[1] not in keys]
        assert order(path) == [(number, *row) for number, row in enumerate(left, 1)]
        with flightlog.open_log(path, discover=False) as log:
            log.check_file()
            for name in log.names():
                log.session(name).verify()


def keep_secrets(path: Path) -> None:
    """Two sessions, one of which has told its secret to every table, and one that nobody has opened yet."""

    @tool
    def tell(text: str) -> str:
        """Tell it."""
        return f"{text} was told"

    def said(word: str) -> list[list[object]]:
        large = f"{word} " * 20_000
        return [
            [*words(f"I tell {word}.", chunk=2), *calls(("tell", {"text": word}), ("tell", {"text": large}))],
            words(f"{word} was told: {large}", chunk=40_000),
        ]

    async def tell_all() -> None:
        for name, word in ((SECRET, SECRET), ("open", "kiwi")):
            async with (
                kernels.opened(path, FakeModel(said(word)), tell) as kernel,
                kernel.session(name, model="fake:m", title=word) as session,
            ):
                await session.followup(f"tell {word}")
                await session.run()
                await session.followup(f"and wait, {word}")
                await kernel.mailbox(name).cancel(f"too much {word}", keep_queue=True)
                await kernel.mailbox(f"{word} too").followup(f"hello {word}", key=f"key {word}")

    trio.run(tell_all)


def test_no_byte_of_what_was_purged_remains_in_any_file(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    keep_secrets(path)
    with opened(path) as store:
        found = store.key_of(SECRET)
        assert found is not None
        uid = found.uid
        database = store.database
        tokens = {SECRET.encode(), uid.encode(), *(row[-1] for row in store.rows(found.key))}
        assert database.read("last_id")[0][0] > 20
    report = flightlog.purge(path, SECRET, f"{SECRET} too")
    assert report.letters == 2
    files = {name: data for name, (_, data) in photograph(tmp_path).items()}
    assert "log.db" in files
    for name, data in files.items():
        assert not [token for token in tokens if token in data], name
    assert b"kiwi" in files["log.db"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with sessions "s", "t" and a letter to "later"."""
    path = tmp_path / "log.db"
    rich(path)
    return path


def test_a_dry_run_says_what_would_go_and_changes_nothing(path: Path) -> None:
    before = photograph(path.parent)
    dry = flightlog.purge(path, "s", dry_run=True)
    after = photograph(path.parent)
    assert {name: after[name] for name in before} == before
    assert dry == flightlog.purge(path, "s")
    assert (dry.sessions, dry.letters) == (("s",), 1)
    assert dry.events > 20


def test_a_mailbox_that_nobody_opened_is_purged_by_its_name(path: Path) -> None:
    report = flightlog.purge(path, "later", "later")
    assert (report.sessions, report.events, report.letters) == (("later",), 0, 1)
    assert content(path).keys() == {"s", "t"}


def test_a_purged_name_is_free_again_and_the_file_goes_on(path: Path) -> None:
    flightlog.purge(path, "s", "t")
    with opened(path) as store:
        Pen(store, "s").say("anew")
    assert texts(path) == ["anew"]


@pytest.mark.parametrize("names", [("x",), ("s", "x"), ()])
def test_an_unknown_session_is_wrong_usage_and_nothing_is_purged(path: Path, names: tuple[str, ...]) -> None:
    before = content(path)
    with pytest.raises(UsageError):
        flightlog.purge(path, *names)
    assert content(path) == before


def test_another_session_that_is_damaged_stops_the_purge(path: Path) -> None:
    with plain(path) as database:
        unguarded(database).execute("UPDATE events SET at = at + 1 WHERE session = 1 AND seq = 4")
    look(path)
    before = photograph(path.parent)
    with pytest.raises(LogCorrupt):
        flightlog.purge(path, "t")
    after = photograph(path.parent)
    assert {name: after[name] for name in before} == before
    flightlog.purge(path, "s")
    assert content(path).keys() == {"t"}


def read_on(channel: Connection, path: Path) -> None:
    with flightlog.open_log(path, discover=False):
        channel.send("open")
        channel.recv()


def write_on(channel: Connection, path: Path) -> None:
    with opened(path):
        channel.send("open")
        channel.recv()


def select_on(channel: Connection, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("SELECT count(*) FROM events").fetchall()
    channel.send("open")
    channel.recv()
    connection.close()


@pytest.mark.kill
@pytest.mark.parametrize("other", [read_on, write_on, select_on])
def test_a_file_that_another_process_has_open_is_neither_purged_nor_repaired(path: Path, other: object) -> None:
    with plain(path) as database:
        unguarded(database).execute("UPDATE events SET at = at + 1 WHERE session = 1 AND seq = 4")
    look(path)
    damaged = photograph(path.parent)["log.db"]
    with Child(other, path) as child:  # type: ignore[arg-type]
        assert child.receive() == "open"
        with pytest.raises(FileInUse, match="has the file open"):
            flightlog.purge(path, "s")
        with pytest.raises(FileInUse, match="has the file open"):
            flightlog.repair(path, dry_run=False)
    if other is not write_on:
        assert photograph(path.parent)["log.db"] == damaged
    flightlog.purge(path, "s")
    assert content(path).keys() == {"t"}


def test_a_file_that_this_process_has_open_is_not_purged_either(path: Path) -> None:
    with opened(path), pytest.raises(FileInUse):
        flightlog.purge(path, "s")
    with flightlog.open_log(path, discover=False), pytest.raises(FileInUse):
        flightlog.purge(path, "s")
    flightlog.purge(path, "s")


def test_who_waits_for_the_file_while_it_is_purged_gets_the_new_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flightlog.store import log_file

    waited, wait = [], log_file._wait

    def purged_meanwhile(attempt: object, name: str) -> None:
        if not waited:
            waited.append(name)
            flightlog.purge(path, "s")
        wait(attempt, name)  # type: ignore[arg-type]

    monkeypatch.setattr(log_file, "_wait", purged_meanwhile)
    with opened(path) as store:
        assert isinstance(store._file, LogFile)
        assert store.key_of("s") is None
        Pen(store, "new").say("heard")
    assert texts(path, "new") == ["heard"]


def test_the_mode_of_the_file_stays_private(path: Path) -> None:
    flightlog.purge(path, "s")
    for file in path.parent.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file


def test_forks_that_name_a_purged_session_stay(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def work() -> None:
        async with kernels.opened(path, FakeModel([words("hi")])) as kernel:
            async with kernel.session("s", model="fake:m") as session:
                await session.followup("hello")
                await session.run()
            await kernel.fork("s", 1, "fork")

    trio.run(work)
    before = content(path)["fork"]
    flightlog.purge(path, "s")
    assert content(path) == {"fork": before}


def test_purging_everything_leaves_an_empty_log_that_opens(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    written(path, "one")
    flightlog.purge(path, "s")
    assert content(path) == {}
    written(path, "two")
    assert texts(path) == ["two"]
