"""Putting a new log file in the place of the old one. Whenever it is cut short, one of them stands there, whole.

    1. the new file is complete and on the disk, under a name of its own that ends in ".part"
    2. the old one is checkpointed and closed: its -wal is empty, nobody has it open, nobody can open it
    3. -wal and -shm are deleted
    4. the witness names the last rows of both files; it and the deletions are brought to the disk
    5. the new file is renamed over the old one
    6. the witness names the last row of the new file alone

Before 2, old frames in the -wal would be part of the old log; after 5, SQLite would take them for the new
file's. So they go in between, when they hold nothing that the old file lacks. The witness has to change
together with the name: one that is too large refuses the new file, and one that is too small or gone would
let an old file pass that was refused for being cut. Hence 4, see `witness`.

Who waits for the old file meanwhile finds, once it has its locks, that another stands there, and takes that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Final, NamedTuple

from flightlog.store.backup import settled
from flightlog.store.codec import decode, payloads_of
from flightlog.store.connection import ApswDatabase
from flightlog.store.letter_codec import LetterRow, checked_files, decode_letter
from flightlog.store.log_file import LogFile, in_use
from flightlog.store.new_file import bring_to_disk, part_of
from flightlog.store.replay import Source
from flightlog.store.rows import EventRow
from flightlog.store.statements import schema_sql
from flightlog.store.witness import Witness, announce
from flightlog_hookspecs.errors import LogCorrupt, NotAFlightlog, StoreError

_BATCH_ROWS: Final = 500
_REFERS: Final = re.compile('"spill":|"type":"file"')


class Kept(NamedTuple):
    """A session that the new file is to hold, under the same key, name and uid."""

    key: int
    name: str
    uid: str


@contextmanager
def written_anew(
    path: str, sessions: Sequence[Kept], rows: Iterable[EventRow], letters: Iterable[LetterRow], source: Source
) -> Iterator[tuple[str, int]]:
    """A new log beside `path`, on the disk: yields its path and its last id. It is gone afterwards, unless renamed.

    `rows` are those of `sessions`, each session's in order, and get new ids in that order; so do `letters`.
    `source` has the texts of their deltas and the payloads they refer to, and nothing else is copied.
    """
    with part_of(path) as part:
        try:
            database = ApswDatabase(part)
            try:
                database.read("journal_mode_memory")  # a file that is not finished is thrown away
                database.begin(barrier=True)
                database.script(schema_sql())
                database.write("insert_session_as", sessions)
                known: set[bytes] = set()
                number = _copy(database, rows, source, known)
                _copy_letters(database, letters, source, known)
                database.commit()
            finally:
                database.rollback()
                database.close()
            last_id = settled(part)
            if last_id != number:
                raise StoreError(f"{path}: the new file holds {last_id} rows instead of {number}. Nothing was changed.")
            bring_to_disk(part)
            yield part, last_id
        finally:
            for suffix in ("-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.unlink(f"{part}{suffix}")


def _copy(database: ApswDatabase, rows: Iterable[EventRow], source: Source, known: set[bytes]) -> int:
    """Enter `rows` with all that belongs to them, payloads but for those `known`; returns how many there were."""
    number = 0
    batch: list[EventRow] = []
    for row in chain(rows, [None]):
        if row is not None:
            batch.append(row)
            _copy_blobs(database, _payloads(row, source), source, known)
        if row is None or len(batch) == _BATCH_ROWS:
            database.write("insert_event", batch)
            database.write("insert_delta", chain.from_iterable(_deltas(row, source) for row in batch))
            number += len(batch)
            batch = []
    return number


def _copy_letters(database: ApswDatabase, letters: Iterable[LetterRow], source: Source, known: set[bytes]) -> None:
    for letter in letters:
        if _REFERS.search(letter.data):
            files = checked_files(decode_letter(letter), letter.session, source.blob)
            _copy_blobs(database, files, source, known)
        database.write("insert_letter", [letter[1:]])


def _copy_blobs(database: ApswDatabase, digests: Iterable[bytes], source: Source, known: set[bytes]) -> None:
    for digest in digests:
        if digest not in known:
            known.add(digest)
            database.write("insert_blob", [(digest, source.blob(digest))])


def _payloads(row: EventRow, source: Source) -> Sequence[bytes]:
    if row.text_blob is None and not row.data.startswith('{"$blob":') and not _REFERS.search(row.data):
        return ()
    return payloads_of(row, decode(row, "", source.blob).event)


def _deltas(row: EventRow, source: Source) -> Iterator[tuple[Any, ...]]:
    if row.kind == "assistant/delta":
        for i, (at_ms, text) in enumerate(source.pieces(row.session, row.seq)):
            yield row.session, row.seq, i, at_ms, text


def replace(file: LogFile, part: str, last_id: int) -> None:
    """Put the finished log at `part`, which ends at `last_id`, in the place of `file`, which is held alone.

    Closes the connection of `file`; its locks stay. Raises `FileInUse` when another program has come to
    read it; then nothing was changed. Of a file that SQLite does not know any more nothing can be checkpointed:
    its -wal is deleted as it is, and stands beside the copy that a repair has made.
    """
    path, wal = file.path, f"{file.path}-wal"
    try:
        busy = file.database.read("checkpoint_truncate")[0][0]
        file.database.close()
        busy = busy or (os.path.exists(wal) and os.path.getsize(wal))
    except (LogCorrupt, NotAFlightlog):
        busy = False
        file.database.close()
    if busy or not file.locks.exclude():
        raise in_use(path)
    for companion in (wal, f"{path}-shm"):
        with suppress(FileNotFoundError):
            os.unlink(companion)
    announce(path, part, last_id)
    os.rename(part, path)
    bring_to_disk(os.path.dirname(path) or ".")
    Witness(path, last_id, None).close()
