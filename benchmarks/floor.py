"""The floor: bare apsw writing given rows with given commits, without guards, chain, views or indexes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import apsw
from attrs import frozen

from flightlog.store.rows import Encoded, EventRow
from flightlog.store.store import Blob, Store
from flightlog_hookspecs.errors import Fenced

Append = tuple[Sequence[Encoded], Sequence[Blob]]
COLUMNS = len(EventRow._fields)


@frozen
class Commit:
    """One transaction: its rows, and whether it is durable against power loss."""

    rows: tuple[EventRow, ...]
    deltas: tuple[tuple[int, int, int, int, str], ...]
    barrier: bool


def commit_of(appends: Iterable[Sequence[Encoded]], *, barrier: bool) -> Commit:
    """The transaction that the store makes of some appends."""
    all_rows = [encoded for append in appends for encoded in append]
    deltas = [
        (encoded.row.session, encoded.row.seq, i, at_ms, text)
        for encoded in all_rows
        for i, (at_ms, text) in enumerate(encoded.pieces)
    ]
    return Commit(tuple(encoded.row for encoded in all_rows), tuple(deltas), barrier)


class Floor:
    """A database with the same two tables and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.connection = apsw.Connection(str(folder / "floor.db"))
        names = ",".join(EventRow._fields)
        for sql in ("PRAGMA journal_mode=WAL", "PRAGMA wal_autocheckpoint=1000", "PRAGMA journal_size_limit=16777216"):
            self.connection.execute(sql)
        keep = ctypes.c_int(1)
        self.connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(keep))
        self.connection.execute(
            f"CREATE TABLE IF NOT EXISTS events(id INTEGER PRIMARY KEY, {names}, UNIQUE(session, seq))"
        )
        self.connection.execute(
            "CREATE TABLE IF NOT EXISTS deltas"
            "(session, seq, i, at_ms, text, PRIMARY KEY(session, seq, i)) WITHOUT ROWID"
        )
        self._insert = f"INSERT INTO events({names}) VALUES({','.join('?' * COLUMNS)})"
        self._full: bool | None = None

    def write(self, commits: Sequence[Commit]) -> None:
        """Make each commit."""
        execute, executemany = self.connection.execute, self.connection.executemany
        for commit in commits:
            if commit.barrier is not self._full:
                execute("PRAGMA synchronous=FULL" if commit.barrier else "PRAGMA synchronous=NORMAL")
                self._full = commit.barrier
            execute("BEGIN IMMEDIATE")
            executemany(self._insert, commit.rows)
            if commit.deltas:
                executemany("INSERT INTO deltas VALUES(?,?,?,?,?)", commit.deltas)
            execute("COMMIT")

    def check(self, rows: int) -> None:
        """Fail unless every row is there."""
        found = self.connection.execute("SELECT count(*) FROM events").get
        assert found == rows, f"{found} rows, expected {rows}"
        self.connection.close()


class Recorder:
    """While entered, keeps what every store of this process commits; with `barrier`, as if all were so."""

    def __init__(self, *, barrier: bool | None = None) -> None:
        self.commits: list[Commit] = []
        self._barrier = barrier
        self._original = Store.commit_group

    def __enter__(self) -> Self:
        def commit_group(store: Store, appends: Sequence[Append], *, barrier: bool) -> dict[int, Fenced]:
            recorded = barrier if self._barrier is None else self._barrier
            self.commits.append(commit_of((rows for rows, _ in appends), barrier=recorded))
            return self._original(store, appends, barrier=barrier)

        Store.commit_group = commit_group  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Store.commit_group = self._original  # type: ignore[method-assign]
