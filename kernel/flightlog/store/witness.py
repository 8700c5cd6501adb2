"""The witness file `<db>-head`: the last id that a FULL commit made durable.

SQLite takes a damaged or missing -wal for a shorter log. The witness is written after each such
commit and never synced: it may lag behind the log, it never leads. A log that is shorter than its
witness was cut.
"""

from __future__ import annotations

import os
import struct
from typing import Final
from zlib import crc32

_RECORD: Final = struct.Struct("<QI")


def witness_path(database: str) -> str:
    """Where the witness of `database` stands."""
    return f"{database}-head"


def read_witness(database: str) -> int | None:
    """The last id witnessed, or None when there is no witness or a torn one."""
    try:
        with open(witness_path(database), "rb") as file:
            raw = file.read(_RECORD.size + 1)
    except FileNotFoundError:
        return None
    if len(raw) != _RECORD.size:
        return None
    last_id, crc = _RECORD.unpack(raw)
    return int(last_id) if crc == crc32(raw[:8]) else None


class Witness:
    """Writes the witness of one open database."""

    def __init__(self, database: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(witness_path(database), flags, 0o600)

    def record(self, last_id: int) -> None:
        """Note that everything up to `last_id` is durable."""
        raw = last_id.to_bytes(8, "little")
        os.pwrite(self._fd, _RECORD.pack(last_id, crc32(raw)), 0)

    def close(self) -> None:
        """Close the file; it stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
