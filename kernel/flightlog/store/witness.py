"""The witness file `<db>-head`: the last id that a FULL commit made durable.

SQLite takes a damaged or missing -wal for a shorter log. The witness is written after each such
commit and not synced: it may lag behind the log, it never leads. A log that is shorter than its
witness was cut.

While a file is being replaced by another, which may be shorter, the witness holds a record for each and
goes by which of them stands under the name: so it changes in the same instant as the file.
"""

from __future__ import annotations

import os
import stat
import struct
from contextlib import suppress
from typing import Final
from zlib import crc32

from flightlog.store.connection import translated
from flightlog.store.new_file import bring_to_disk, part_of
from flightlog_hookspecs.errors import StoreError

_RECORD: Final = struct.Struct("<QI")
_SUCCESSION: Final = struct.Struct("<QQQI")
"""Last id of the old file, last id and inode of the new one."""
_NONE: Final = 2**64 - 1


def witness_path(database: str) -> str:
    """Where the witness of `database` stands."""
    return f"{database}-head"


def read_witness(database: str) -> int | None:
    """The last id witnessed, or None when there is no witness or a torn one."""
    path = witness_path(database)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise translated(error, path) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StoreError(f"{path}: is not a regular file, so it cannot be the witness of the log. Move it away.")
        raw = os.read(fd, _SUCCESSION.size + 1)
    finally:
        os.close(fd)
    if len(raw) not in (_RECORD.size, _SUCCESSION.size) or crc32(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        return None
    if len(raw) == _RECORD.size:
        return int(_RECORD.unpack(raw)[0])
    before, after, inode, _ = _SUCCESSION.unpack(raw)
    last_id = after if os.path.exists(database) and os.stat(database).st_ino == inode else before
    return None if last_id == _NONE else int(last_id)


def announce(database: str, successor: str, last_id: int) -> None:
    """Note, on the disk, that `successor`, which ends at row `last_id`, is about to be renamed to `database`."""
    path, before = witness_path(database), read_witness(database)
    raw = struct.pack("<QQQ", _NONE if before is None else before, last_id, os.stat(successor).st_ino)
    with part_of(path) as part:
        with open(part, "wb") as file:
            file.write(raw + crc32(raw).to_bytes(4, "little"))
        bring_to_disk(part)
        os.rename(part, path)  # in place it could be torn, and a torn one is none
        bring_to_disk(os.path.dirname(path) or ".")


class Witness:
    """Writes the witness of one open database.

    `last_id` was durable at opening, `found` is what was witnessed until then. The file itself is
    synced here, once: a file that is marked open and lost its -wal to a look would be refused without.
    """

    def __init__(self, database: str, last_id: int, found: int | None) -> None:
        path = witness_path(database)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._fd = -1
        try:
            self._fd = os.open(path, flags, 0o600)
            if found is None or found < last_id or os.fstat(self._fd).st_size != _RECORD.size:
                self._write(last_id)
                os.ftruncate(self._fd, _RECORD.size)
                os.fsync(self._fd)
                bring_to_disk(os.path.dirname(path) or ".")
        except OSError as error:
            self.close()
            raise translated(error, path) from error

    def record(self, last_id: int) -> None:
        """Note that everything up to `last_id` is durable."""
        # A map would be a little faster, but on a full disk writing to one kills the host (SIGBUS).
        # A write that fails only lets the witness lag.
        with suppress(OSError):
            self._write(last_id)

    def _write(self, last_id: int) -> None:
        raw = last_id.to_bytes(8, "little")
        os.pwrite(self._fd, _RECORD.pack(last_id, crc32(raw)), 0)

    def close(self) -> None:
        """Close the file; it stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
