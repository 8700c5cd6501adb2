"""File locks that survive what drops SQLite's own, and die with their process.

Open-file-description locks (Linux): not lost when some other descriptor of the file is closed in
this process (the stdlib sqlite3 module, pandas, a plain `open`), unlike POSIX locks. While one is
held on SQLite's SHARED range no other process can believe itself alone and delete the -wal.
"""

from __future__ import annotations

import fcntl
import os
import struct
import weakref
from typing import Final

from flightlog_hookspecs.errors import UnsupportedPlatform

SHARED_RANGE: Final = (0x40000002, 510)
PRESENCE_BYTE: Final = 2**61
SESSION_BYTE: Final = 2**62

_held: weakref.WeakSet[FileLocks] = weakref.WeakSet()


class FileLocks:
    """The locks one kernel holds on one database file."""

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        if not hasattr(fcntl, "F_OFD_SETLK"):
            raise UnsupportedPlatform("flightlog needs open-file-description locks, which only Linux offers here")
        flags = os.O_RDONLY if read_only else os.O_RDWR
        self._fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
        _held.add(self)

    def identity(self) -> tuple[int, int]:
        """Device and inode of the file as it was opened."""
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    def share(self) -> bool:
        """Hold the SHARED range until closed. False when a process has it exclusively just now."""
        return self._lock(fcntl.F_RDLCK, *SHARED_RANGE)

    def present(self) -> bool:
        """Count as one that has the file open. False while another is closing as the last one."""
        return self._lock(fcntl.F_RDLCK, PRESENCE_BYTE, 1)

    def alone(self) -> bool:
        """Become the only one that has the file open, if nobody else has."""
        return self._lock(fcntl.F_WRLCK, PRESENCE_BYTE, 1)

    def own_session(self, key: int) -> bool:
        """Take the write lock of session `key`. False when it is owned, also by another kernel here."""
        return self._lock(fcntl.F_WRLCK, SESSION_BYTE + key, 1)

    def release_session(self, key: int) -> None:
        """Give the session back."""
        self._lock(fcntl.F_UNLCK, SESSION_BYTE + key, 1)

    def close(self) -> None:
        """Release everything."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lock(self, kind: int, start: int, length: int) -> bool:
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True


def _close_in_child() -> None:
    # A forked child shares these descriptions: kept open they would outlive the parent's death.
    for locks in list(_held):
        locks.close()


os.register_at_fork(after_in_child=_close_in_child)
