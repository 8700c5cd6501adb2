"""The database file from outside: is it ours, may it be opened, is it whole, is it still there.

Everything here happens before a foreign byte is changed, and each refusal says what to do.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Final

from flightlog.store.connection import ApswDatabase, Busy, is_immutable, translated
from flightlog.store.file_identity import Watched
from flightlog.store.locks import FileLocks
from flightlog.store.new_file import bring_to_disk, not_created
from flightlog.store.raw_file import MAGIC, raw_file
from flightlog.store.statements import APPLICATION_ID, SCHEMA_VERSION, schema_sql, snapshots_sql
from flightlog.store.wal import read_wal
from flightlog.store.wholeness import check_whole
from flightlog.store.witness import Witness, read_witness, witness_path
from flightlog_hookspecs.errors import (
    FileInUse,
    FileReplaced,
    HeadMismatch,
    LogCorrupt,
    NotAFlightlog,
    ReadOnly,
    SchemaTooNew,
    StoreError,
)

_HEADER_BYTES: Final = 100
_OPEN_WAIT_S: Final = 10.0
_NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "glusterfs"}
    | {"fuse.sshfs", "fuse.glusterfs", "fuse.ceph-fuse", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse"}
)


class LogFile:
    """An open flightlog file: its connection, its locks and its witness."""

    def __init__(self, path: str, database: ApswDatabase, locks: FileLocks, witness: Witness | None) -> None:
        self.path = path
        self.database = database
        self.locks = locks
        self._witness = witness
        self._connection = database  # the real one, also where tests put another in front of it
        self._copying: ApswDatabase | None = None
        self._in_place = Watched(path, f"{path}-wal", f"{path}-shm")
        if self._in_place.first[0] != locks.identity():
            raise FileReplaced(f"{path}: was replaced while it was being opened. Try again.")

    def check_in_place(self) -> None:
        """Raise `FileReplaced` when the file, its -wal or its -shm is no longer the one that was opened."""
        if self._in_place.now() != self._in_place.first:
            raise FileReplaced(
                f"{self.path}: the file, its -wal or its -shm was moved, deleted or replaced while it was open. "
                "Nothing more is written; put the file back and reopen it."
            )

    def record_durable(self, last_id: int) -> None:
        """Note in the witness that the rows up to `last_id` are durable."""
        if self._witness and last_id:
            self._witness.record(last_id)

    def sync(self) -> None:
        """Bring all that was committed so far to the disk. From any thread."""
        try:
            bring_to_disk(f"{self.path}-wal")
        except OSError as error:
            raise translated(error, self.path) from error

    @property
    def is_full(self) -> bool:
        """Whether the -wal waits for `begin_wal_anew`."""
        return self._connection.full

    def leave_full(self, leave: bool) -> None:
        """Whether a commit that fills the -wal leaves it so."""
        self._connection.leave_full(leave)

    def begin_wal_anew(self) -> None:
        """Copy the -wal back, on a connection of its own: from any thread, but only one at a time."""
        if self._copying is None:
            self._copying = ApswDatabase(self.path)
            self._copying.configure(read_only=False)
            self._copying.never_wait()
        self._copying.begin_wal_anew()
        self._connection.full = False

    def close(self, *, clean: bool) -> None:
        """Close. With `clean`, the last one to close leaves the file marked as closed."""
        if self._copying:
            self._copying.close()
        try:
            if clean and self._witness and self.locks.alone():
                with suppress(Busy, StoreError):
                    self.database.begin(barrier=True)
                    self.database.write("set_open", [(0,)])
                    last_id = self.database.read("last_id")[0][0]
                    self.database.commit()
                    if not self.database.read("checkpoint_truncate")[0][0]:
                        self.record_durable(last_id)
        finally:
            self.database.rollback()
            # The connection goes first: SQLite must not find itself alone on the file while others live.
            self.database.close()
            if self._witness:
                self._witness.close()
            self.locks.close()


def open_log_file(path: str, *, create: bool, allow_network: bool = False) -> LogFile:
    """Open `path` to write, creating it when missing and `create`. Raises a named `StoreError`."""
    _check_kind(path, allow_network)
    if not os.path.exists(path):
        _create_empty(path, create)
    elif os.path.getsize(path) == 0:
        _check_never_held(path)
    _check_writable(path)
    ready = _inspect(path)
    locks = FileLocks(path)
    database: ApswDatabase | None = None
    witness: Witness | None = None
    try:
        if not ready:
            _set_up(path, locks)
        _wait(locks.present, path)
        _wait(locks.share, path)
        if _was_replaced(path, locks):
            locks.close()
            return open_log_file(path, create=create, allow_network=allow_network)
        witnessed = read_witness(path)
        database = ApswDatabase(path)
        database.configure(read_only=False)
        _check_mode(database, path)
        _check_version(path, database.read("user_version")[0][0])  # it may stand in the -wal only
        last_id = check_whole(database, path, witnessed)
        locks.keep_index()
        witness = _witness(path, locks, last_id, witnessed)
        _add_snapshots(database, path)
        _mark_open(database, path)
        database.never_wait()
        return LogFile(path, database, locks, witness)
    except BaseException:
        if database:
            database.rollback()
            database.close()
        if witness:
            witness.close()
        locks.close()
        raise


def open_log_file_to_read(path: str, *, damaged: bool = False) -> LogFile:
    """Open `path` to read only: changes no byte of the file or its -wal. `damaged`: it need not be whole."""
    _check_kind(path, allow_network=True)
    if not os.path.exists(path):
        raise StoreError(f"{path}: no such file")
    if not _inspect(path, damaged=damaged):
        raise StoreError(f"{path}: is empty or was never finished; open it to write once")
    locks = FileLocks(path, read_only=True)
    database: ApswDatabase | None = None
    try:
        _wait(locks.share, path)
        if _was_replaced(path, locks):
            locks.close()
            return open_log_file_to_read(path, damaged=damaged)
        immutable = is_immutable(path)
        witnessed = read_witness(path)
        database = ApswDatabase(path, read_only=True, immutable=immutable)
        database.configure(read_only=True)
        _check_version_in(database, path, damaged=damaged)
        if not damaged:
            check_whole(database, path, witnessed)
        locks.keep_index()
        return LogFile(path, database, locks, None)
    except BaseException:
        if database:
            database.close()
        locks.close()
        raise


def open_log_file_alone(path: str, *, damaged: bool = False) -> LogFile:
    """Open `path` to put another in its place: nobody else may have it open. `damaged`: SQLite need not read it.

    Who opens it to write waits until it is closed. Nothing is changed or checked yet. Raises `FileInUse`.
    """
    _check_kind(path, allow_network=False)
    if not os.path.exists(path):
        raise StoreError(f"{path}: no such file")
    _check_writable(path)
    if not _inspect(path, damaged=damaged):
        raise StoreError(f"{path}: is empty or was never finished; open it to write once")
    locks = FileLocks(path)
    if not (locks.alone() and locks.exclude() and locks.share()):
        locks.close()
        raise in_use(path)
    database: ApswDatabase | None = None
    try:
        database = ApswDatabase(path)
        database.configure(read_only=False)
        _check_version_in(database, path, damaged=damaged)
        return LogFile(path, database, locks, None)
    except BaseException:
        if database:
            database.close()
        locks.close()
        raise


def no_database(path: str) -> NotAFlightlog:
    """The error that the file has nothing to do with us."""
    return NotAFlightlog(f"{path}: is not a SQLite database. It was not changed.")


def in_use(path: str) -> FileInUse:
    """The error that somebody else has the file open."""
    return FileInUse(
        f"{path}: another program, or another kernel of this process, has the file open. Nothing was changed; "
        "close it there, then try again."
    )


def protected_paths(path: str) -> tuple[str, ...]:
    """The file and its companions, which no tool may touch."""
    real = os.path.realpath(path)
    return tuple(real + suffix for suffix in ("", "-wal", "-shm", "-journal", "-head"))


def _check_kind(path: str, allow_network: bool) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        mode = None
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise StoreError(f"{path!r} is not a path: {error}") from error
    if mode is not None and stat.S_ISLNK(mode):
        raise NotAFlightlog(f"{path}: is a symbolic link. Name the file it points to.")
    if mode is not None and not stat.S_ISREG(mode):
        raise NotAFlightlog(f"{path}: is not a regular file.")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise StoreError(f"{path}: its folder does not exist. Create {folder} first.")
    status = os.stat(folder)
    if not allow_network and (kind := _file_system(status.st_dev, status.st_ino)) in _NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path}: stands on {kind}, where SQLite's locks do not hold between machines. Use a local disk. "
            "If only this machine uses the file, open_kernel(allow_network=True) opens it."
        )


def _check_writable(path: str) -> None:
    if not os.access(path, os.W_OK) or not os.access(os.path.dirname(path) or ".", os.W_OK):
        raise ReadOnly(f"{path}: the file or its folder cannot be written. It can still be read with `flightlog show`.")


def _was_replaced(path: str, locks: FileLocks) -> bool:
    """Whether another file stands under the name than the one that `locks` are on: they were waited for."""
    return Watched(path).first[0] != locks.identity()


@lru_cache(maxsize=64)
def _file_system(device: int, folder: int) -> str:
    """The kind of file system that the folder with this inode stands on.

    Remembered, for the kernel lists all mounts to tell; by folder, since a device number may be given again.
    """
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
            for line in mounts:
                fields = line.split()
                if fields[2] == wanted:
                    return fields[fields.index("-") + 1]
    except OSError:
        pass
    return "unknown"


def _check_never_held(path: str) -> None:
    """Refuse to start anew where events have been: SQLite would delete a -wal it finds beside an empty file."""
    wal = f"{path}-wal"
    if read_witness(path) or (os.path.exists(wal) and os.path.getsize(wal)):
        raise HeadMismatch(
            f"{path}: the file is gone or empty, but its -wal or its witness {witness_path(path)} says it held events. "
            "Restore it from a backup; to start anew, delete -wal and witness too."
        )


def _create_empty(path: str, create: bool) -> None:
    _check_never_held(path)
    if not create:
        raise StoreError(f"{path}: no such file")
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass  # another process was faster; the checks below look at what it made
    except OSError as error:
        raise not_created(error, path) from error


def _inspect(path: str, *, damaged: bool = False) -> bool:
    """True for a finished flightlog file, False for one still to be set up; raises for a foreign one.

    A `damaged` one may be a file that lost its beginning: whether it is one of ours only its rows can show.
    """
    if os.path.getsize(path) == 0:
        return False
    with raw_file(path) as file:
        header = file.xRead(_HEADER_BYTES, 0)
    if not any(header) and os.path.exists(f"{path}-journal"):
        return False  # killed in the very first commit; its journal rolls the file back to nothing
    # SQLite takes a single byte for an empty file, and deletes the -wal beside it.
    may_have_lost_it = len(header) > 1
    if may_have_lost_it and not _is_header(header):
        header = read_wal(path).page(1)  # power that fails while page 1 is copied back may leave garbage in its place
    if not _is_header(header):
        if damaged and may_have_lost_it:
            return True
        if may_have_lost_it and read_witness(path):
            raise LogCorrupt("*", None, "sqlite-intact", f"{path} held a log, and its beginning is damaged")
        raise no_database(path)
    application, version = int.from_bytes(header[68:72], "big"), int.from_bytes(header[60:64], "big")
    if application != APPLICATION_ID:
        raise NotAFlightlog(f"{path}: is a SQLite database of another application. It was not changed.")
    _check_version(path, version)
    # A journal beside a file in WAL mode: killed in the very switch to it, which the journal takes back.
    return header[18] == 2 and not os.path.exists(f"{path}-journal")


def _is_header(data: bytes) -> bool:
    return data.startswith(MAGIC) and len(data) >= _HEADER_BYTES


def _check_version_in(database: ApswDatabase, path: str, *, damaged: bool) -> None:
    try:
        version = database.read("user_version")[0][0]
    except (LogCorrupt, NotAFlightlog):
        if damaged:
            return  # each row shows for itself whether it can be read
        raise
    _check_version(path, version)


def _check_version(path: str, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{path}: has schema {version}, this flightlog knows {SCHEMA_VERSION}. "
            "It was not changed; upgrade flightlog."
        )


def _set_up(path: str, locks: FileLocks) -> None:
    """Create the schema and switch to WAL, alone: SQLite needs the file for itself to do it."""
    _wait(lambda: locks.alone() or _inspect(path), path)
    if _inspect(path):
        return  # another process was faster
    database = ApswDatabase(path)
    try:
        if database.read("application_id")[0][0] != APPLICATION_ID:
            database.begin(barrier=True)
            database.script(schema_sql())
            database.commit()
        _check_mode(database, path, switch=True)
    finally:
        database.rollback()
        database.close()


def _check_mode(database: ApswDatabase, path: str, *, switch: bool = False) -> None:
    mode = database.read("journal_mode_wal" if switch else "journal_mode")[0][0]
    if mode != "wal":
        raise StoreError(f"{path}: SQLite refuses write-ahead logging here (journal mode {mode}). Use a local disk.")


def _witness(path: str, locks: FileLocks, last_id: int, found: int | None) -> Witness:
    """The witness, brought up to the log before the file is marked as open."""
    if found is None or found < last_id:
        # What a killed process wrote may be in the page cache only, and the witness must never lead.
        locks.sync()
        try:
            bring_to_disk(f"{path}-wal")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise translated(error, path) from error
    return Witness(path, last_id, found)


def _add_snapshots(database: ApswDatabase, path: str) -> None:
    """Give an older file the tables that it lacks."""
    if database.read("lacks_snapshots")[0][0]:
        _write(database, path, lambda: database.script(snapshots_sql()))


def _mark_open(database: ApswDatabase, path: str) -> None:
    if database.read("is_open")[0][0]:
        return
    _write(database, path, lambda: database.write("set_open", [(1,)]))
    # The mark must stand in the main file itself before anything is acknowledged.
    database.read("checkpoint_passive")


def _write(database: ApswDatabase, path: str, work: Callable[[], object]) -> None:
    """Commit what `work` writes, durably, once nobody else writes."""

    def attempt() -> bool:
        try:
            database.begin(barrier=True)
        except Busy:
            return False
        work()
        database.commit()
        return True

    _wait(attempt, path)


def _wait(attempt: Callable[[], bool], path: str) -> None:
    give_up = time.monotonic() + _OPEN_WAIT_S
    while not attempt():
        if time.monotonic() > give_up:
            raise StoreError(f"{path}: another process has kept the file locked for {_OPEN_WAIT_S:.0f} s. Try again.")
        time.sleep(0.001)
