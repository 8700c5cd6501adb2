"""The database port: about six methods, behind which apsw stands. Tests put faults there."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import apsw

from flightlog.store.statements import statements
from flightlog_hookspecs.errors import (
    DiskFull,
    Fenced,
    LogCorrupt,
    NotAFlightlog,
    ReadOnly,
    SchemaTooNew,
    StoreError,
    UsageError,
)

Row = tuple[Any, ...]
Value = int | str | bytes | float | None

_OPEN_WAIT_MS: Final = 10_000


class Database(Protocol):
    """What the store needs of a database. Statements are named, see `sql/queries.sql`.

    Errors are `StoreError`s, except `Busy` from `begin`: another process holds the write lock.
    """

    def read(self, name: str, *arguments: Value) -> list[Row]:
        """All rows of a query."""

    def write(self, name: str, rows: Iterable[Sequence[Value]]) -> int:
        """Run a statement once per row of arguments, inside a transaction; returns the last row's id."""

    def begin(self, *, barrier: bool) -> None:
        """Start a write transaction. With `barrier` its commit survives power loss, else a process death."""

    def commit(self) -> None:
        """Make the transaction durable."""

    def rollback(self) -> None:
        """Forget the transaction; does nothing outside of one."""

    def close(self) -> None:
        """Close for good; the file stays valid whatever happened before."""


class Busy(Exception):
    """Another connection holds the write lock; nothing was done, try again."""


class ApswDatabase(Database):
    """The real thing: one connection, used on one thread."""

    def __init__(self, path: str, *, read_only: bool = False, immutable: bool = False, vfs: str | None = None) -> None:
        self._path = path
        self._sql = statements()
        self._barrier: bool | None = None
        self._immutable = immutable
        self._full_pages = 0
        self.full = False
        """Whether the -wal waits for somebody who copies it back: see `leave_full`."""
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
        name = path
        if immutable:
            name, flags = immutable_name(path), flags | apsw.SQLITE_OPEN_URI
        self._connection = self._connect(name, flags, vfs)

    def _connect(self, name: str, flags: int, vfs: str | None = None) -> apsw.Connection:
        try:
            connection = apsw.Connection(name, flags=flags, vfs=vfs)
        except apsw.Error as error:
            raise translated(error, self._path) from error
        # Who opens a crashed file first recovers it; the others wait that long for it.
        connection.set_busy_timeout(_OPEN_WAIT_MS)
        return connection

    def script(self, sql: str) -> None:
        """Run `sql`, which may hold many statements."""
        try:
            self._connection.execute(sql).fetchall()  # it stops at the first row that nobody takes
        except apsw.Error as error:
            raise self._translated(error) from error

    def configure(self, *, read_only: bool) -> None:
        """Our settings for this connection (`apsw.bestpractice.apply` would be process-wide)."""
        self.script(self._sql["connection_settings"])
        self._connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        # Else SQLite plans a query anew whenever it is run, to see whether its arguments allow a partial index.
        self._connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        if read_only:
            self.script(self._sql["query_only"])
        else:
            # A recycled -wal halves the price of a commit, so it outlives the connection.
            keep = ctypes.c_int(1)
            self._connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(keep))

    def tolerate_damage(self) -> None:
        """From now on go by as much of the schema as can be read, and do not mind that pages are missing at the end."""
        self._connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        self._connection.config(apsw.SQLITE_DBCONFIG_WRITABLE_SCHEMA, 1)
        with suppress(StoreError):  # the first statement still fails where the schema does
            self.read("tables")

    def never_wait(self) -> None:
        """From now on a lock held elsewhere is reported at once: the loop must not block."""
        self._connection.set_busy_timeout(0)

    def read(self, name: str, *arguments: Value) -> list[Row]:
        """All rows of a query."""
        try:
            rows = self._connection.execute(self._sql[name], arguments).fetchall()
        except UnicodeEncodeError as error:
            raise UsageError(f"{error.object!r} is no Unicode text, and so nothing in {self._path}") from None
        except (apsw.Error, UnicodeDecodeError) as error:
            if self._was_overtaken():
                return self.read(name, *arguments)
            raise self._translated(error) from error
        return self.read(name, *arguments) if self._was_overtaken() else rows

    def copy_into(self, path: str) -> None:
        """Copy all of the database, as it is at one moment, into the empty file `path`."""
        try:
            # The file itself is open read only; the setting would forbid to write the copy too.
            self._connection.execute(self._sql["query_more"])
            self._connection.execute(self._sql["copy_into"], (path,))
        except apsw.Error as error:
            if not self._was_overtaken():
                known = self._translated(error)
                raise (
                    translated(apsw.FullError(str(error)), path) if isinstance(known, DiskFull) else known
                ) from error
        else:
            if not self._was_overtaken():
                return
        os.truncate(path, 0)
        self.copy_into(path)

    def _was_overtaken(self) -> bool:
        """Whether an immutable file has got a writer after all. Then it is read as a live one from now on."""
        if not self._immutable or not os.path.exists(f"{self._path}-wal"):
            return False
        self.close()
        self._immutable = False
        self._connection = self._connect(self._path, apsw.SQLITE_OPEN_READONLY)
        self.configure(read_only=True)
        return True

    def write(self, name: str, rows: Iterable[Sequence[Value]]) -> int:
        """Run a statement once per row."""
        try:
            self._connection.executemany(self._sql[name], rows)
            return self._connection.last_insert_rowid()
        except apsw.Error as error:
            raise self._translated(error) from error

    def begin(self, *, barrier: bool) -> None:
        """Start a write transaction."""
        try:
            if self._barrier is not barrier:
                self._connection.execute(self._sql["synchronous_full" if barrier else "synchronous_normal"])
                self._barrier = barrier
            self._connection.execute(self._sql["begin"])
        except apsw.BusyError as error:
            raise Busy from error
        except apsw.Error as error:
            raise self._translated(error) from error

    def commit(self) -> None:
        """Make it durable."""
        try:
            self._connection.execute(self._sql["commit"])
        except apsw.Error as error:
            raise self._translated(error) from error

    def rollback(self) -> None:
        """Forget the transaction, if any."""
        # A failed rollback changes nothing for us: the kernel has stopped, SQLite rolls back on open.
        with suppress(apsw.Error):
            if self._connection.in_transaction:
                self._connection.execute(self._sql["rollback"])

    def leave_full(self, leave: bool) -> None:
        """Leave a full -wal to `begin_wal_anew`, or do as SQLite does by default: copy it back within the commit."""
        self._full_pages = self._full_pages or self.read("wal_autocheckpoint")[0][0]
        if leave:
            self._connection.set_wal_hook(self._filled)
        else:
            self._connection.wal_autocheckpoint(self._full_pages)
            self.full = False

    def _filled(self, _: object, __: str, pages: int) -> int:
        self.full = pages >= self._full_pages
        return apsw.SQLITE_OK

    def begin_wal_anew(self) -> None:
        """Copy the -wal back into the file, and if nobody still needs it let it begin anew.

        The first commit in a new -wal syncs its header, so that is made here too; it changes nothing.
        """
        _, pages, copied = self.read("checkpoint_passive")[0]
        if pages == copied:
            try:
                self.begin(barrier=False)
                self.write("set_open", [(1,)])
                self.commit()
            except Busy:
                pass  # then it is the other's commit that syncs it
            finally:
                self.rollback()

    def close(self) -> None:
        """Close for good."""
        with suppress(apsw.Error):
            self._connection.close(True)

    def _translated(self, error: Exception) -> StoreError:
        if isinstance(error, apsw.IOError):
            number = self._connection.system_errno
            if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                error = OSError(number, str(error))  # SQLite takes a quota for a broken disk
        return translated(error, self._path)


def is_immutable(path: str) -> bool:
    """Whether to read `path` as a file that nobody writes.

    Without a -wal SQLite would create one; then nothing can be in it, so the file is read as it is.
    """
    wal = f"{path}-wal"
    return not os.path.exists(wal) or (
        os.path.getsize(wal) == 0 and not os.access(os.path.dirname(path) or ".", os.W_OK)
    )


def immutable_name(path: str) -> str:
    """The URI under which SQLite reads `path` without looking for a -wal."""
    quoted = os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file://{quoted}?immutable=1"


def translated(error: Exception, path: str) -> StoreError:
    """An error of apsw or the system as ours: what happened, whose fault it is, what to do."""
    text = str(error)
    match error:
        case apsw.FullError() | OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG):
            return DiskFull(
                f"{path}: the disk is full ({text}). Nothing acknowledged is lost; free space, then reopen."
            )
        case apsw.ReadOnlyError() | apsw.PermissionsError() | OSError(errno=errno.EROFS | errno.EACCES | errno.EPERM):
            return ReadOnly(f"{path}: cannot be written ({text}). Check the permissions of the file and its folder.")
        case apsw.CantOpenError():
            return StoreError(f"{path}: cannot be opened ({text}). Check that its folder exists and may be written.")
        case apsw.NotADBError():
            return NotAFlightlog(f"{path}: not a SQLite database ({text}). It was not changed.")
        case apsw.IOError():
            return StoreError(f"{path}: the disk failed ({text}). Nothing acknowledged is lost; check it, then reopen.")
        case apsw.CorruptError():
            return LogCorrupt("*", None, "sqlite-intact", f"SQLite finds {path} damaged ({text})")
        case UnicodeDecodeError():
            return LogCorrupt("*", None, "text-utf8", f"{path} holds text that is not UTF-8")
        case apsw.ConstraintError() if text.startswith("fenced") or "seq-dense" in text:
            return Fenced(f"{path}: another owner has written to this session ({text}). Stop; reopen it to go on.")
        case apsw.SchemaChangeError():
            return SchemaTooNew(f"{path}: its schema was changed by another program ({text}).")
        case _:
            return StoreError(f"{path}: {type(error).__name__}: {text}")
