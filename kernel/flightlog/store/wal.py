"""The -wal of a file, read without SQLite: where in it the newest committed version of each page stands."""

from __future__ import annotations

import struct
from typing import Final

from attrs import field, frozen

_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_MAGIC: Final = 0x377F0682
"""Plus one when the checksums are over big-endian words."""
_Sums = tuple[int, int]


@frozen
class Wal:
    """The committed pages of a -wal as SQLite recovers them: up to the first frame that does not fit its checksum."""

    path: str
    page_bytes: int = 0
    places: dict[int, int] = field(factory=dict)

    def page(self, number: int) -> bytes:
        """The newest version of page `number`, b"" when there is none."""
        if number not in self.places:
            return b""
        with open(self.path, "rb") as file:
            file.seek(self.places[number])
            return file.read(self.page_bytes)


def read_wal(path: str) -> Wal:
    """The -wal of the database at `path`; one without pages when it is missing or not sound from its beginning."""
    path = f"{path}-wal"
    places: dict[int, int] = {}
    page_bytes = 0
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return Wal(path)
            magic, _, page_bytes, _, *salts, first, second = _HEADER.unpack(header)
            order = ">" if magic & 1 else "<"
            sums = _summed(order, header[:24], (0, 0))
            if magic & ~1 != _MAGIC or sums != (first, second):
                return Wal(path)
            uncommitted: dict[int, int] = {}
            while len(frame := file.read(_FRAME.size + page_bytes)) == _FRAME.size + page_bytes:
                number, pages_after, *salted, first, second = _FRAME.unpack_from(frame)
                sums = _summed(order, frame[_FRAME.size :], _summed(order, frame[:8], sums))
                if salted != salts or sums != (first, second):
                    break
                uncommitted[number] = file.tell() - page_bytes
                if pages_after:  # the last frame of a commit
                    places |= uncommitted
                    uncommitted = {}
    except OSError:
        return Wal(path)
    return Wal(path, page_bytes, places)


def _summed(order: str, data: bytes, sums: _Sums) -> _Sums:
    one, two = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        one = (one + even + two) & 0xFFFFFFFF
        two = (two + odd + one) & 0xFFFFFFFF
    return one, two
