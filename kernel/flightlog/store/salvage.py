"""Reading a damaged file: whatever SQLite can still find, page by page and row by row, past its indexes."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from typing import Final

from attrs import define, field

from flightlog.core.limits import READ_PAGE_ROWS
from flightlog.store.connection import Database, Row
from flightlog.store.letter_codec import LetterRow, checked_files, decode_letter
from flightlog.store.replacing import Kept
from flightlog.store.rows import EventRow
from flightlog_hookspecs.errors import FlightlogError, LogCorrupt, StoreError

_ROW_BYTES_MIN: Final = 64
"""No event takes less of the file, its indexes included; so an id or seq beyond that is damage, too."""
_PAGE_ROWS_MAX: Final = 64
"""No page of the file holds more rows, so more that cannot be read are a larger part of the table."""
_BLOBS_AT_ONCE: Final = 8
_ROWS_AHEAD: Final = 16
"""Rows read with the one that is wanted: most likely they are wanted next."""


@define
class Salvage:
    """The sessions of a damaged file, as a `Source`. Made by `salvaged`.

    `places` has for each session key, by seq, the ids of its rows (0: none), eight bytes an event: an index
    made anew. `missing` counts the rows that there must have been and that are not in it: they cannot be
    found, or name no possible session and seq, or one that is taken. `misplaced` counts the payloads asked
    for that do not stand under their digest. `last_seqs` has the last seq of each session by the index or the
    rows, whichever knows of more; `indexed` says whether that index could be read.
    """

    database: Database
    rows_max: int
    indexed: bool = True
    last_seqs: dict[int, int] = field(factory=dict)
    names: dict[int, tuple[str, str]] = field(factory=dict)
    places: dict[int, array[int]] = field(factory=dict)
    missing: int = 0
    misplaced: int = 0
    _blob_ids: dict[bytes, int] | None = None
    _page: dict[int, Row] = field(factory=dict)

    def rows(self, key: int, after: int = 0) -> Iterator[EventRow]:
        """The rows of session `key` behind seq `after`, as far as they were found."""
        for id_ in self.places.get(key, ())[after:]:
            if id_:
                yield self._row(id_)

    def in_order(self, keys: dict[int, int]) -> Iterator[EventRow]:
        """The first rows of the sessions `keys`, as many as it says, in the order in which they were written."""
        waiting = {key: iter(range(1, length + 1)) for key, length in keys.items()}
        due = {key: next(seqs, 0) for key, seqs in waiting.items()}
        for session, _, id_ in pages(self.database.read, "places_by_id", self.rows_max):
            # A row that was found too early waits for those before it.
            while (seq := due.get(session, 0)) and self.places[session][seq - 1] <= id_:
                yield self._row(self.places[session][seq - 1])
                due[session] = next(waiting[session], 0)
        if any(due.values()):
            raise StoreError(
                "rows that could be read cannot be read any more: the disk is failing. Nothing was changed."
            )

    def _row(self, id_: int) -> EventRow:
        if id_ not in self._page:
            try:
                page = self.database.read("events_by_id", id_, _ROWS_AHEAD)
            except StoreError:
                page = self.database.read("events_by_id", id_, 1)
            self._page = {row[-1]: row for row in page}
        if id_ not in self._page:
            raise LogCorrupt("*", None, "sqlite-intact", f"row {id_} of the file was found and cannot be read")
        return EventRow._make(self._page[id_][:-1])

    def blob(self, digest: bytes) -> bytes:
        """The payload with sha256 `digest`, b"" when it cannot be found."""
        with suppress(StoreError):
            for (content,) in self.database.read("blob", digest):
                if isinstance(content, bytes) and sha256(content).digest() == digest:
                    return content
        if self._blob_ids is None:
            blobs = pages(self.database.read, "blobs_by_id", self.rows_max, _BLOBS_AT_ONCE)
            self._blob_ids = {sha256(b).digest(): id_ for b, id_ in blobs if isinstance(b, bytes)}
        if (found := self._blob_ids.get(digest)) is None:
            return b""
        self.misplaced += 1
        return bytes(self.database.read("blobs_by_id", found, 1)[0][0])

    def pieces(self, key: int, seq: int) -> list[tuple[int, str]]:
        """The delta texts of the row at `seq`."""
        return [(at_ms, text) for at_ms, text in self.database.read("deltas_of_event", key, seq)]

    def sessions(self) -> list[Kept]:
        """All sessions of which anything was found. One that lost its name is called by its uid."""
        found: list[Kept] = []
        for key in sorted({*self.names, *self.places}):
            name, uid = self.names.get(key, ("", ""))
            uid = self._uid_in_log(key) or uid
            names, uids = {session.name for session in found}, {session.uid for session in found}
            if uid in uids:
                uid = f"{uid} of session {key}"  # no chain fits it
            if not name or name in names:
                name = f"lost-{uid or key}"
            found.append(Kept(key, name, uid))
        return found

    def _uid_in_log(self, key: int) -> str | None:
        """The uid in session/created, which the chain is going to prove."""
        try:
            uid = json.loads(next(self.rows(key)).data)["uid"]
        except (StopIteration, StoreError, ValueError, TypeError, KeyError):
            return None
        return uid if isinstance(uid, str) else None

    def letters(self) -> Iterator[LetterRow | None]:
        """The letters in order, None for each that is not as it was posted or cannot be read."""
        uids, keys, expected = set[str](), set[tuple[str, str]](), 1
        for *columns, id_ in pages(self.database.read, "letters_by_id", self.rows_max):
            yield from [None] * min(id_ - expected, self.rows_max)
            expected = id_ + 1
            letter = LetterRow(id_, *columns)
            try:
                checked_files(decode_letter(letter), letter.session, self.blob)
                taken = letter.uid in uids or (letter.session, letter.key) in keys
            except (FlightlogError, TypeError, ValueError, AttributeError):
                taken = True
            if taken:
                yield None
                continue
            uids.add(letter.uid)
            if letter.key is not None:
                keys.add((letter.session, letter.key))
            yield letter


def salvaged(database: Database, index: Database, size_bytes: int, witnessed: int) -> Salvage:
    """What can be found in the tables of `database`: a file of `size_bytes` that once held `witnessed` rows at least.

    Of those what `index` says, which is the file itself; `database` may be what was regained of it.
    """
    found = Salvage(database, max(size_bytes // _ROW_BYTES_MIN, witnessed, 1))
    placed, last = 0, 0
    for session, seq, id_ in pages(database.read, "places_by_id", found.rows_max):
        last = max(last, id_ if id_ <= found.rows_max else 0)
        if type(session) is int and type(seq) is int and session > 0 and 0 < seq <= found.rows_max:
            ids = found.places.setdefault(session, array("q"))
            ids.extend([0] * (seq - len(ids)))
            if not ids[seq - 1]:
                ids[seq - 1] = id_
                placed += 1
    found.missing = max(last, witnessed) - placed
    found.names = _names(database, index, found.rows_max)
    found.last_seqs = {key: len(ids) for key, ids in found.places.items()}
    try:
        for key, seq in index.read("last_seqs"):
            if type(key) is int and type(seq) is int and seq <= found.rows_max:
                found.last_seqs[key] = max(seq, found.last_seqs.get(key, 0))
    except StoreError:
        found.indexed = False
    return found


def _names(database: Database, index: Database, rows_max: int) -> dict[int, tuple[str, str]]:
    names: dict[int, tuple[str, str]] = {}
    with suppress(StoreError):
        names = {key: (name, "") for name, key in index.read("names_in_index")}
    for name, uid, key in pages(database.read, "sessions_by_id", rows_max):
        if isinstance(name, str) and isinstance(uid, str):
            names[key] = (name, uid)
    return {key: found for key, found in names.items() if type(key) is int and key > 0 and isinstance(found[0], str)}


def pages(
    read: Callable[[str, int, int], list[Row]], name: str, ids_max: int, page_rows: int = READ_PAGE_ROWS
) -> Iterator[Row]:
    """All rows of a table that can be read, by id, which stands last in them; what cannot is left out."""
    start, limit = 1, page_rows
    while True:
        try:
            page = read(name, start, limit)
        except StoreError:
            if limit > 1:
                limit = 1
                continue
            if (beyond := _beyond(lambda id_: _is_readable(read, name, id_), start, ids_max)) is None:
                return
            start = beyond
            continue
        yield from page
        # Damage may also lead SQLite in circles.
        if len(page) < limit or (page[-1][-1] < start and start > ids_max):
            return
        start = max(start, page[-1][-1]) + 1
        limit = min(limit * 2, page_rows)


def _is_readable(read: Callable[[str, int, int], list[Row]], name: str, id_: int) -> bool:
    try:
        read(name, id_, 1)
    except StoreError:
        return False
    return True


def _beyond(is_readable: Callable[[int], bool], start: int, ids_max: int) -> int | None:
    """The first id behind `start` from which on the table can be read again, None when there is none.

    What stands between larger parts that cannot be read may be overlooked.
    """
    near = range(start + 1, start + 1 + _PAGE_ROWS_MAX)
    for id_ in near:
        if is_readable(id_):
            return id_
    low, high = near[-1], near[-1] * 2
    while not is_readable(high):
        if high > ids_max:
            return None
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_readable(middle) else (middle, high)
    return high
