"""File locks that survive what drops SQLite's own, and die with their process.

Open-file-description locks (Linux): not lost when some other descriptor of the file is closed in
this process (the stdlib sqlite3 module, pandas, a plain `open`), unlike POSIX locks. While one is
held on SQLite's SHARED range no other process can believe itself alone and delete the -wal; while
one is held in the -shm nobody can believe itself first and empty the wal-index under a live commit.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import weakref
from typing import Final

from attrs import define

from flightlog.store.connection import translated
from flightlog_hookspecs.errors import UnsupportedPlatform

SHARED_RANGE: Final = (0x40000002, 510)
PRESENCE_BYTE: Final = 2**61
GATE_BYTE: Final = 2**61 + 1
"""Held while it is looked how much of a quota is left, and what uses it is written: no two processes take the same."""
SESSION_BYTE: Final = 2**62
INDEX_BYTE: Final = 128
"""In the -shm: SQLite's "dead man's switch". Who finds it unlocked truncates the wal-index, then recovers it."""

_held: weakref.WeakSet[FileLocks] = weakref.WeakSet()


class FileLocks:
    """The locks one kernel holds on one database file."""

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        if not hasattr(fcntl, "F_OFD_SETLK"):
            raise UnsupportedPlatform("flightlog needs open-file-description locks, which only Linux offers here")
        flags = os.O_RDONLY if read_only else os.O_RDWR
        try:
            self._fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise translated(error, path) from error
        self._path = path
        self._index: _Index | None = None
        self._sessions: set[int] = set()  # the system does not tell us of our own
        _held.add(self)

    def identity(self) -> tuple[int, int]:
        """Device and inode of the file as it was opened."""
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    def share(self) -> bool:
        """Hold the SHARED range until closed. False when a process has it exclusively just now."""
        return self._lock(fcntl.F_RDLCK, *SHARED_RANGE)

    def keep_index(self) -> None:
        """Hold the -shm until closed. Call it once SQLite has the -shm open, not before: it must find it stale."""
        self._index = _hold_index(f"{self._path}-shm")

    def present(self) -> bool:
        """Count as one that has the file open. False while another is closing as the last one."""
        return self._lock(fcntl.F_RDLCK, PRESENCE_BYTE, 1)

    def alone(self) -> bool:
        """Become the only one that has the file open, if nobody else has."""
        return self._lock(fcntl.F_WRLCK, PRESENCE_BYTE, 1)

    def exclude(self) -> bool:
        """Hold the SHARED range alone, so that nobody can read the file either; `share` ends it.

        False while anybody has the file open, be it with another program.
        """
        return self._lock(fcntl.F_WRLCK, *SHARED_RANGE)

    def own_gate(self) -> bool:
        """Take the gate of quotas. False when somebody has it."""
        return self._lock(fcntl.F_WRLCK, GATE_BYTE, 1)

    def release_gate(self) -> None:
        """Give the gate back."""
        self._lock(fcntl.F_UNLCK, GATE_BYTE, 1)

    def own_session(self, key: int, number: int = 0) -> bool:
        """Take write lock `number` of session `key`. False when it is held, also by another kernel here."""
        owned = self._lock(fcntl.F_WRLCK, byte := _session_byte(key, number), 1)
        if owned:
            self._sessions.add(byte)
        return owned

    def release_session(self, key: int, number: int = 0) -> None:
        """Give the session back. Does nothing in a forked child, where nothing is held."""
        self._sessions.discard(byte := _session_byte(key, number))
        self._lock(fcntl.F_UNLCK, byte, 1)

    def session_owned(self, key: int, number: int = 0) -> bool:
        """Whether somebody holds write lock `number` of session `key`, here or elsewhere."""
        byte = _session_byte(key, number)
        return byte in self._sessions or (self._fd >= 0 and _is_locked(self._fd, byte))

    def sync(self) -> None:
        """Bring the database file itself to the disk. Raises a named `StoreError`."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise translated(error, self._path) from error

    def close(self) -> None:
        """Release everything."""
        self._sessions.clear()
        if self._index:
            _let_index_go(self._index)
            self._index = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lock(self, kind: int, start: int, length: int) -> bool:
        return self._fd >= 0 and _locked(self._fd, kind, start, length)


def _session_byte(key: int, number: int) -> int:
    # A session that is taken over from a living owner goes on under a lock of its own.
    return SESSION_BYTE + number * 2**32 + key


@define
class _Index:
    """A -shm held in this process, by its device and inode.

    One descriptor for all kernels here: closing one of several would drop SQLite's own locks in it.
    """

    identity: tuple[int, int]
    fd: int
    holders: int = 0


_indexes: dict[tuple[int, int], _Index] = {}
_indexes_guard = threading.Lock()


def _hold_index(path: str) -> _Index | None:
    with _indexes_guard:
        try:
            status = os.stat(path)
            identity = status.st_dev, status.st_ino
            if identity not in _indexes:
                _indexes[identity] = _Index(identity, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        except OSError:
            return None  # no -shm, or one that may not be read: then SQLite does not use it either
        index = _indexes[identity]
        index.holders += 1
        _locked(index.fd, fcntl.F_RDLCK, INDEX_BYTE, 1)
        return index


def _let_index_go(index: _Index) -> None:
    with _indexes_guard:
        index.holders -= 1
        if index.holders == 0 and _indexes.pop(index.identity, None) is index:
            os.close(index.fd)


def _is_locked(fd: int, byte: int) -> bool:
    """Whether another one holds a lock there."""
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    return bool(struct.unpack("hhqqi4x", found)[0] != fcntl.F_UNLCK)


def _locked(fd: int, kind: int, start: int, length: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _close_in_child() -> None:
    # A forked child shares these descriptions: kept open they would outlive the parent's death.
    global _indexes_guard  # noqa: PLW0603
    _indexes_guard = threading.Lock()  # a thread that is gone may have held it
    for locks in list(_held):
        locks.close()


os.register_at_fork(after_in_child=_close_in_child)
