"""The records in the pages of a file, read without SQLite, which finds no table once it cannot read the schema.

Every page is looked at for itself, whatever leads to it: a record is lost with the pages that hold its bytes and
with no others. Nothing here is proven; see https://sqlite.org/fileformat2.html for the format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import apsw
from attrs import frozen

from flightlog.store.connection import Value
from flightlog.store.raw_file import MAGIC, raw_file
from flightlog.store.wal import Wal, read_wal

_PAGE_BYTES_DEFAULT: Final = 4096
_PAGE_BYTES: Final = frozenset(2**power for power in range(9, 17))
_TABLE_LEAF: Final = 0x0D
_HEADER_BYTES: Final = {_TABLE_LEAF: 8, 0x0A: 8, 0x02: 12}
"""Of the pages whose cells hold records: leaves of tables, leaves and inner pages of indexes."""
_INNER_INDEX: Final = 0x02
_INT_BYTES: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


class Found(NamedTuple):
    """A record: the row of a table under its id, or an entry of an index or of a table without ids."""

    id: int | None
    values: list[Value]


@frozen
class _Pages:
    """The pages of a file as its -wal leaves them; what is missing of one is zero."""

    file: apsw.VFSFile
    wal: Wal
    size: int
    usable: int
    count: int

    def page(self, number: int) -> bytes:
        found = self.wal.page(number) or self.file.xRead(self.size, (number - 1) * self.size)
        return found.ljust(self.size, b"\0")


def records(path: str) -> Iterator[Found]:
    """All records of the file at `path` that can be read, in the order of its pages."""
    with _pages(path) as pages:
        for number in range(2, pages.count + 1):  # the first holds the schema only
            page = pages.page(number)
            if header := _HEADER_BYTES.get(page[0], 0):
                cells = struct.unpack_from(">H", page, 3)[0]
                for place in range(header, min(header + 2 * cells, pages.size - 1), 2):
                    found = _found(pages, page, struct.unpack_from(">H", page, place)[0])
                    if found is not None:
                        yield found


@contextmanager
def _pages(path: str) -> Iterator[_Pages]:
    wal = read_wal(path)
    with raw_file(path) as file:
        header = wal.page(1) or file.xRead(100, 0)
        sizes = wal.page_bytes, _page_bytes(header), _PAGE_BYTES_DEFAULT
        size = next(size for size in sizes if size in _PAGE_BYTES)
        count = max(-(-file.xFileSize() // size), *wal.places, 0)
        yield _Pages(file, wal, size, size - _reserved_bytes(header), count)


def _page_bytes(header: bytes) -> int:
    size = int.from_bytes(header[16:18], "big") if header.startswith(MAGIC) else 0
    return 65536 if size == 1 else size


def _reserved_bytes(header: bytes) -> int:
    return header[20] if header.startswith(MAGIC) and len(header) > 20 and header[20] <= 32 else 0


def _found(pages: _Pages, page: bytes, at: int) -> Found | None:
    """The record in the cell at `at`, None when it cannot be read."""
    try:
        if page[0] == _INNER_INDEX:
            at += 4  # the page to its left
        size, at = _varint(page, at)
        id_ = None
        if page[0] == _TABLE_LEAF:
            id_, at = _varint(page, at)
        return Found(id_, _values(_payload(pages, page, at, size)))
    except (IndexError, ValueError, struct.error):
        return None


def _payload(pages: _Pages, page: bytes, at: int, size: int) -> bytes:
    """The record of `size` bytes that begins at `at` and goes on in a chain of pages if it is large."""
    usable = pages.usable
    local = most = usable - 35 if page[0] == _TABLE_LEAF else (usable - 12) * 64 // 255 - 23
    if size > most:
        least = (usable - 12) * 32 // 255 - 23
        local = least + (size - least) % (usable - 4)
        local = local if local <= most else least
    payload = bytearray(page[at : at + min(size, local)])
    follows, seen = page[at + local : at + local + 4], set[int]()
    while len(payload) < size:
        number = int.from_bytes(follows, "big")
        if number in seen or not 1 < number <= pages.count:
            raise ValueError("its chain of pages is broken")
        seen.add(number)
        overflow = pages.page(number)
        follows = overflow[:4]
        payload += overflow[4 : min(usable, 4 + size - len(payload))]
    return bytes(payload)


def _values(record: bytes) -> list[Value]:
    end, at = _varint(record, 0)
    types: list[int] = []
    while at < end:
        type_, at = _varint(record, at)
        types.append(type_)
    values: list[Value] = []
    for type_ in types:
        value, at = _value(record, at, type_)
        values.append(value)
    if at != len(record):
        raise ValueError("it is longer or shorter than it says")
    return values


def _value(record: bytes, at: int, type_: int) -> tuple[Value, int]:
    """The value of that serial type at `at`, and where it ends."""
    match type_:
        case 0:
            return None, at
        case 7:
            return struct.unpack_from(">d", record, at)[0], at + 8
        case 8 | 9:
            return type_ - 8, at
        case _ if type_ in _INT_BYTES:
            end = at + _INT_BYTES[type_]
            return int.from_bytes(record[at:end], "big", signed=True), end
        case _ if type_ >= 12:
            end = at + (type_ - 12) // 2
            return record[at:end].decode() if type_ % 2 else record[at:end], end
        case _:
            raise ValueError(f"no value has type {type_}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    value = 0
    for place in range(at, at + 8):
        value = value << 7 | data[place] & 0x7F
        if data[place] < 0x80:
            return value, place + 1
    value = value << 8 | data[at + 8]
    return value - 2**64 if value >= 2**63 else value, at + 9
