"""Which files stand under some names: compared before each acknowledgement, so it must cost next to nothing."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

Identity = tuple[int, int]
"""Device and inode."""

_AT_FDCWD: Final = -100
_STATX_INO: Final = 0x100
_STATX_BYTES: Final = 256
_INODE: Final = struct.Struct("@32xQ96xII")
"""The fields stx_ino, stx_dev_major and stx_dev_minor of `struct statx`."""

_statx = getattr(ctypes.CDLL(None), "statx", None)


class Watched:
    """Some names, and the files that stood under them when it was made. For one thread."""

    def __init__(self, *paths: str) -> None:
        self._names = tuple(os.fsencode(path) for path in paths)
        self._buffer = ctypes.create_string_buffer(_STATX_BYTES)
        self.first = self.now()

    def now(self) -> list[Identity | None]:
        """The file under each name, None where there is none."""
        return [self._identity(name) for name in self._names]

    def _identity(self, name: bytes) -> Identity | None:
        if _statx is None:
            try:
                status = os.stat(name)
            except OSError:
                return None
            return status.st_dev, status.st_ino
        # Not os.stat: asking for the times of the -wal makes the next fsync write them, a fifth of a commit.
        if _statx(_AT_FDCWD, name, 0, _STATX_INO, self._buffer):
            return None
        inode, major, minor = _INODE.unpack_from(self._buffer)
        return os.makedev(major, minor), inode
