"""Each public view says exactly what its Python twin says, through our connection and through anybody's."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given

from flightlog.core.projections import TWINS, Row
from flightlog.runtime.plugins import load_plugins
from flightlog.runtime.reader import LogReader
from flightlog.store.codec import decode_message
from flightlog.store.replay import Replay, replaying
from flightlog.store.statements import view_descriptions
from flightlog.store.store import Store
from flightlog.testing import Bundle, FakeModel
from support import sample_log
from support.legal_logs import LegalFile, LegalLog, folded, legal_files, legal_logs, write

ORDERED = {"messages", "inbox", "timeline"}
WITH_ITS_MODEL = load_plugins(discover=False, plugins=[Bundle(adapters=[FakeModel(())])])
numbers = count()


@contextmanager
def anybody(path: Path) -> Iterator[sqlite3.Connection]:
    """The file as a stranger opens it who distrusts its schema."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF")
        yield connection


def rows_of(connection: Any, view: str) -> list[Row]:
    """All rows of a view; in `messages` with the message itself in place of the codec's data."""
    rows = [tuple(row) for row in connection.execute(f"SELECT * FROM {view}")]
    if view != "messages":
        return rows

    def blob(digest: bytes) -> bytes:
        found: bytes = connection.execute("SELECT bytes FROM blobs WHERE digest = ?", (digest,)).fetchone()[0]
        return found

    return [(*row[:-1], decode_message(row[6], row[-2], row[-1], blob)) for row in rows]


def same(view: str, viewed: list[Row], twin: list[Row]) -> bool:
    """The same rows as often; in the same order where the view has one."""
    if view in ORDERED:
        return viewed == twin
    return Counter(viewed) == Counter(twin)


def check_views(path: Path, file: LegalFile) -> None:
    twins = {view: twin(file.records) for view, twin in TWINS.items()}
    store = Store.open(str(path))
    try:
        ours = {view: rows_of(store.database._connection, view) for view in TWINS}  # type: ignore[attr-defined]
    finally:
        store.close()
    with anybody(path) as connection:
        theirs = {view: rows_of(connection, view) for view in TWINS}
    for view, twin in twins.items():
        assert same(view, ours[view], twin), view
        assert same(view, theirs[view], twin), f"{view} through another SQLite"


@given(legal_files())
def test_every_view_is_its_twin(tmp_path: Path, file: LegalFile) -> None:
    path = tmp_path / f"{next(numbers)}.db"
    write(str(path), file.appends)
    check_views(path, file)
    event(f"{len({record.session for record in file.records})} sessions")


def test_the_views_of_a_log_of_nearly_everything_are_their_twins(tmp_path: Path) -> None:
    appends = (sample_log.RECORDS[:1], sample_log.RECORDS[1:], sample_log.TASK_RECORDS[:2], sample_log.TASK_RECORDS[2:])
    file = LegalFile(appends)
    write(str(tmp_path / "s.db"), file.appends)
    check_views(tmp_path / "s.db", file)
    assert all(twin(file.records) for twin in TWINS.values()), "there is something to see in every view"


def test_every_view_has_a_twin_with_its_columns(tmp_path: Path) -> None:
    assert list(TWINS) == list(view_descriptions())
    assert all(description.endswith(".") for description in view_descriptions().values())
    path = tmp_path / "s.db"
    Store.open(str(path)).close()
    with anybody(path) as connection:
        for view, twin in TWINS.items():
            columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({view})")]
            assert columns[-1] == "data" if view == "messages" else columns
            stated = (twin.__doc__ or "").partition(")")[0].removeprefix("(").replace("\n", " ")
            named = [name.strip() for name in stated.split(",")]
            if named[-1] == "...":
                named[-1:] = columns[len(named) - 1 :]
            if view == "messages":
                named[-1] = "data"
            assert named == columns, view


@given(legal_logs())
def test_a_log_read_back_folds_to_the_state_it_was_written_from(tmp_path: Path, log: LegalLog) -> None:
    path = tmp_path / f"{next(numbers)}.db"
    write(str(path), log.appends())
    store = Store.open_to_read(str(path))
    try:
        key = store.key_of("s")
        assert key is not None
        result = Replay(session="s", uid=key.uid)
        assert tuple(replaying(store, result, key.key, deltas=True)) == log.records
        assert result.state == folded(log.records)
        reader = LogReader(store, WITH_ITS_MODEL).session("s")
        assert reader.verify() == len(log.records)
        assert reader.messages() == [message for _, message in result.history.since(0)]
    finally:
        store.close()


@pytest.mark.parametrize("view", TWINS)
def test_a_view_of_an_empty_file_is_empty(tmp_path: Path, view: str) -> None:
    path = tmp_path / "s.db"
    Store.open(str(path)).close()
    with anybody(path) as connection:
        assert rows_of(connection, view) == TWINS[view](()) == []
