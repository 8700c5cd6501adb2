"""One call's transaction in a database of the host's: its effect and the row that says so, both or neither.

Through the SQLite of the standard library, not the log's. The host has its database open through `sqlite3`, by
itself or under SQLAlchemy or Django, and SQLite takes locks per process: two copies of it in one process do not
see each other's. Measured: of 800 increments by both at once, 443 were left.

A call has one row in `flightlog_done`, or none. With a result, it took effect. Without one, an owner has given it up:
it has not taken effect and cannot any more, since whoever still runs it would fail at that row.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote

from attrs import frozen

from flightlog.core.limits import DATABASE_POLL_S, DATABASE_WAIT_MAX_S
from flightlog.store.statements import APPLICATION_ID, foreign_statements
from flightlog_hookspecs.errors import OutcomeUnknown, ToolError, UsageError
from flightlog_hookspecs.tools import SqlParameters, ToolDatabase

T = TypeVar("T")

_DONE: Final = "flightlog_done"
_STEPS_BETWEEN_LOOKS: Final = 10_000
_NOTHING: Final = "Nothing happened."
_SHOWS: Final = frozenset(
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"}
    | {"foreign_key_check", "integrity_check", "quick_check", "defer_foreign_keys"}
)
"""The PRAGMAs that a body may use; others set how the transaction is kept."""
_LEADS_OUT: Final = {
    sqlite3.SQLITE_TRANSACTION: "{}",
    sqlite3.SQLITE_ATTACH: "ATTACH",
    sqlite3.SQLITE_DETACH: "DETACH",
}
_READS: Final = frozenset({sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION})


class DatabaseFault(ToolError):
    """The database cannot be used, or did not take the transaction. Nothing happened."""


@frozen
class DoneRow:
    """What the database says of a call: its result or, with None, that it was given up and has no effect."""

    result: str | None


class Transaction(ToolDatabase):
    """One call's transaction: `begin`, the body's statements, `commit`; `close` forgets what was not committed.

    All by one thread, but for `cut_off`. `log` is the kernel's own file, which is refused.
    """

    def __init__(self, path: str, invocation_id: str, log: str) -> None:
        self.path = path
        self._invocation_id = invocation_id
        self._log = log
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._cut_off = False
        self._refused = ""
        self.done: DoneRow | None = None
        """What this transaction has entered for certain."""

    def begin(self) -> DoneRow | None:
        """Wait for the write lock and take it. The call's row, when it has one: then its body must not run.

        Raises `DatabaseFault`.
        """
        connection = _begun(self.path, self._log, lambda: self._cut_off)
        with self._lock:
            self._connection = connection
        with self._using() as connection, _faults(self.path):
            row = _found(connection, self._invocation_id)
            if row is not None:
                _end(connection, self.path)
            else:
                connection.set_authorizer(self._authorize)
                connection.set_progress_handler(lambda: self._cut_off, _STEPS_BETWEEN_LOOKS)
            return row

    def execute(self, sql: str, parameters: SqlParameters = (), /) -> list[tuple[Any, ...]]:
        """Run one statement of the body's."""
        return self._run(lambda connection: connection.execute(sql, parameters).fetchall())

    def executemany(self, sql: str, rows: Iterable[SqlParameters], /) -> None:
        """Run one statement of the body's for each of `rows`."""
        given = list(rows)  # drawn here: what they are made of may be this database
        self._run(lambda connection: connection.executemany(sql, given))

    def _run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        with self._using() as connection:
            self._refused = ""
            try:
                return action(connection)
            except sqlite3.Error:
                if self._cut_off:
                    raise _cut_off() from None
                if self._refused:
                    raise UsageError(
                        f"{self._refused} is refused in a transactional tool: the kernel begins and ends its "
                        "transaction, which stays inside its one database"
                    ) from None
                raise

    def commit(self, result: str, now_us: int) -> None:
        """Enter the call's row and make all of it durable.

        Raises `DatabaseFault` when that surely failed, `OutcomeUnknown` when nobody can say.
        """
        with self._using() as connection, _faults(self.path):
            connection.set_authorizer(None)
            connection.execute(foreign_statements()["insert_done"], (self._invocation_id, result, now_us))
        for _ in _patience(self.path):
            with self._using() as connection:
                if self._committed(connection, now_us):
                    self.done = DoneRow(result)
                    return

    def _committed(self, connection: sqlite3.Connection, now_us: int) -> bool:
        """Commit. False when another connection has to be waited for."""
        try:
            with _faults(self.path):
                return _tried(connection, "commit")
        except DatabaseFault as fault:
            if connection.in_transaction:  # at a deferred constraint: it was not begun
                raise
            self._close()
            if self._is_done(fault, now_us):
                return True
            raise

    def _is_done(self, fault: DatabaseFault, now_us: int) -> bool:
        """Whether a commit that failed was one all the same: its last page may be on the disk."""
        try:
            if _is(fault.__cause__, sqlite3.SQLITE_FULL):  # there was no place for the last page
                return row_of(self.path, self._invocation_id, self._log) is not None
            return given_up(self.path, self._invocation_id, self._log, now_us).result is not None
        except DatabaseFault as unreadable:
            raise OutcomeUnknown(f"Its commit failed, and so did looking for it afterwards. {unreadable}") from fault

    def cut_off(self) -> bool:
        """Forget the transaction, whatever its body does. False when its commit hangs.

        Otherwise, what it has not `done` then it never will.
        """
        self._cut_off = True
        if not self._lock.acquire(timeout=DATABASE_WAIT_MAX_S):
            return False
        try:
            self._close()
        finally:
            self._lock.release()
        return True

    def close(self) -> None:
        """Forget what was not committed."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            _forget(self._connection)
            self._connection = None

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._cut_off:
                self._close()
                raise _cut_off()
            if self._connection is None:
                raise UsageError("the database of a transactional tool can be used only while its call runs")
            if not self._connection.in_transaction:
                raise DatabaseFault(
                    f"{self.path}: SQLite itself rolled the transaction back (a full disk, a fault of the disk, "
                    f"ON CONFLICT ROLLBACK). {_NOTHING}"
                )
            yield self._connection

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() not in _SHOWS:
            self._refused = f"PRAGMA {first}"
        elif action in _LEADS_OUT:
            self._refused = _LEADS_OUT[action].format(first)
        elif action not in _READS and _DONE in ((first or "").lower(), (second or "").lower()):
            self._refused = f"changing {_DONE}"
        else:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY


def row_of(path: str, invocation_id: str, log: str) -> DoneRow | None:
    """The row of a call, which is durable then; None when there is none so far. Raises `DatabaseFault`."""
    with closing(_begun(path, log)) as connection, _faults(path):
        row = _found(connection, invocation_id)
        if row is None:
            _forget(connection)
        else:
            _end(connection, path)
        return row


def given_up(path: str, invocation_id: str, log: str, now_us: int) -> DoneRow:
    """The row of a call that nobody runs any more: if it has none, one that gives it up.

    Durable, and final. Raises `DatabaseFault`.
    """
    with closing(_begun(path, log)) as connection, _faults(path):
        row = _found(connection, invocation_id)
        if row is None:
            connection.execute(foreign_statements()["insert_done"], (invocation_id, None, now_us))
        _end(connection, path)
        return row or DoneRow(None)


def _found(connection: sqlite3.Connection, invocation_id: str) -> DoneRow | None:
    """The call's row, which is written to, so that the commit to come makes it durable if it was not."""
    sql = foreign_statements()
    connection.execute(sql["create_done"])
    connection.execute(sql["ask_done"], (invocation_id,))
    row = connection.execute(sql["find_done"], (invocation_id,)).fetchone()
    return DoneRow(*row) if row else None


def _begun(path: str, log: str, stopped: Callable[[], bool] = lambda: False) -> sqlite3.Connection:
    """A connection to `path` in a write transaction, once nobody else is in one. Raises `DatabaseFault`."""
    _check(path, log)
    with _faults(path):
        name = f"file:{quote(os.path.abspath(path))}?mode=rw"
        connection = sqlite3.connect(name, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        with _faults(path):
            _begin(connection, path, stopped)
    except BaseException:
        _forget(connection)
        raise
    return connection


def _begin(connection: sqlite3.Connection, path: str, stopped: Callable[[], bool]) -> None:
    for _ in _patience(path):
        if stopped():
            raise _cut_off()
        if _tried(connection, "synchronous", "foreign_keys", "begin"):
            break
    if connection.execute(foreign_statements()["whose"]).fetchone() == (APPLICATION_ID,):
        raise DatabaseFault(f"{path}: is a flightlog log, which only a kernel writes. {_NOTHING}")


def _check(path: str, log: str) -> None:
    """Refuse what is no file, and the log: before it is opened, since closing it would take its locks away."""
    try:
        here = os.stat(path)
    except OSError as error:
        raise DatabaseFault(f"{path}: cannot be opened ({error.strerror}). {_NOTHING}") from error
    if not stat.S_ISREG(here.st_mode):
        raise DatabaseFault(f"{path}: is not a file. {_NOTHING}")
    with suppress(FileNotFoundError):
        if os.path.samestat(here, os.stat(log)):
            raise DatabaseFault(f"{path}: is the log itself, which only the kernel writes. {_NOTHING}")


def _tried(connection: sqlite3.Connection, *names: str) -> bool:
    """Run these statements. False when another connection has the lock they need."""
    for name in names:
        try:
            connection.execute(foreign_statements()[name])
        except sqlite3.OperationalError as error:
            if _is(error, sqlite3.SQLITE_BUSY):
                return False
            raise
    return True


def _end(connection: sqlite3.Connection, path: str) -> None:
    """Commit, once nobody reads who is in the way."""
    for _ in _patience(path):
        if _tried(connection, "commit"):
            return


def _patience(path: str) -> Iterator[None]:
    """Again and again until it has lasted too long; then `DatabaseFault`."""
    deadline = time.monotonic() + DATABASE_WAIT_MAX_S
    while time.monotonic() < deadline:
        yield
        time.sleep(DATABASE_POLL_S)
    raise DatabaseFault(
        f"{path}: another connection has kept it locked for {DATABASE_WAIT_MAX_S:g} s. {_NOTHING} Try again later."
    )


def _forget(connection: sqlite3.Connection) -> None:
    # An error here changes nothing: what has no commit is undone by whoever opens the database next.
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.set_authorizer(None)
            connection.execute(foreign_statements()["rollback"])
    with suppress(sqlite3.Error):
        connection.close()


@contextmanager
def _faults(path: str) -> Iterator[None]:
    """Errors of SQLite as `DatabaseFault`: what happened, and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise DatabaseFault(f"{path}: {_said(error)} ({error}). {_NOTHING}") from error


def _said(error: sqlite3.Error) -> str:
    for code, said in _SAID.items():
        if _is(error, code):
            return said
    return "SQLite refused the transaction"


_SAID: Final = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "cannot be written; check the permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check the permissions of the file and its folder",
    sqlite3.SQLITE_NOTADB: "is not a SQLite database",
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_IOERR: "the disk failed",
    sqlite3.SQLITE_CONSTRAINT: "a constraint does not hold",
}


def _is(error: BaseException | None, code: int) -> bool:
    """Whether SQLite's error is of that kind, in its plain or one of its extended codes."""
    return (getattr(error, "sqlite_errorcode", -1) & 0xFF) == code


def _cut_off() -> DatabaseFault:
    return DatabaseFault(f"The call was cut off, and its transaction was rolled back. {_NOTHING}")
