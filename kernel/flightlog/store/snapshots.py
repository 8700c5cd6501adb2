"""The snapshots of a session: when there is another, and the opening with one. See `core.snapshot` for what they are.

Whatever is amiss with a snapshot, or with the rows that it refers to, all rows are read from the first as if there was
none. So no snapshot has a log refused, and a log is refused for the same row and rule with it and without.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from attrs import define, evolve

from flightlog.core import snapshot
from flightlog.core.history import History
from flightlog.core.limits import READ_PAGE_ROWS
from flightlog.core.snapshot import NOTHING_KEPT, Kept, Snapshot
from flightlog.core.state import State
from flightlog.store.replay import Position, Replay, check_files, intact_record
from flightlog.store.rows import EventRow, KeptSnapshot, SnapshotRow
from flightlog.store.snapshot_codec import checksum, linked, text_of, value_of, version, written
from flightlog.store.store import Store
from flightlog_hookspecs.errors import BadPayload, LogCorrupt, SchemaTooNew, StoreError
from flightlog_hookspecs.events import Event


@define
class Snapshots:
    """Those of one session: which row the newest stands for, 0 when there is none, and how large it is.

    `items` is what all items that were kept by then hold, `link` is theirs.
    """

    key: int
    uid: str
    seq: int = 0
    chars: int = 0
    items: Kept = NOTHING_KEPT
    link: bytes = b""
    _next: tuple[KeptSnapshot, Kept] | None = None

    def due(self, state: State, history: History, seq: int, digest: bytes) -> KeptSnapshot | None:
        """One of the session as it is now, up to row `seq`, if it is time. Say when it is `kept`."""
        if not snapshot.is_due(seq - self.seq, self.chars):
            return None
        if self._next is None or self._next[0].row.seq != seq:  # an append may be made more than once
            try:
                self._next = self.taken(state, history, seq, digest)
            except BadPayload:  # words that are no JSON when they stand together
                self.seq = seq
                return None
        return self._next[0]

    def taken(self, state: State, history: History, seq: int, digest: bytes) -> tuple[KeptSnapshot, Kept]:
        """The one of the session as it is now, and what all items hold with those of this one. Raises `BadPayload`."""
        made, added, items = snapshot.taken(state, history, self.items)
        text = text_of(added)
        row = written(made, self.key, self.uid, seq, digest, linked(self.link, text))
        return KeptSnapshot(row, text, begins=not self.link), items

    def kept(self) -> None:
        """The one that was due is in the file."""
        if self._next:
            (row, text, _), items = self._next
            self.found(row, items, linked(self.link, text))

    def found(self, row: SnapshotRow, items: Kept, link: bytes) -> None:
        """`row` is in the file, and all its items, which have that link."""
        self.seq, self.chars, self.items, self.link, self._next = row.seq, len(row.data), items, link, None


def restoring(store: Store, loaded: Replay, snapshots: Snapshots) -> Iterator[None]:
    """Bring `loaded`, which has read nothing yet, as far as there is a snapshot; nowhere when none is good.

    Each row that the model will be shown is read, and checked by itself and against the digest of the row before it.
    Yields after each page of them. The rows behind the snapshot are still to be read.
    """
    try:
        row, items = store.snapshot(snapshots.key), store.snapshot_items(snapshots.key)
        link = reduce(linked, items, b"")
        if row is None or row.version != version() or row.checksum != checksum(row, loaded.uid, link):
            return
        last = store.row(row.session, row.seq)
        if last is None or last.digest != row.digest:
            return
        state, outline, kept = snapshot.filled(
            value_of(row.data, Snapshot), [value_of(text, snapshot.Items) for text in items]
        )
        shown, messages = evolve(loaded, files=set()), list[Event]()
        for start in range(0, len(outline.rows), READ_PAGE_ROWS):
            page = outline.rows[start : start + READ_PAGE_ROWS]
            messages += [_shown(store, shown, *each) for each in store.rows_at(row.session, page)]
            yield
        history = History.outlined(outline, messages)
    except Exception as error:
        if isinstance(error, StoreError) and not isinstance(error, (LogCorrupt, SchemaTooNew)):
            raise
        return  # if a row is at fault, it is named by reading all of them
    loaded.state, loaded.history, loaded.files = state, history, shown.files
    loaded.seq, loaded.digest = row.seq, row.digest
    snapshots.found(row, kept, link)


def _shown(store: Store, shown: Replay, row: EventRow, before: bytes) -> Event:
    """The message in `row`, which stands behind a row with the digest `before`."""
    record = intact_record(store, Position(shown.session, shown.uid, row.seq - 1, before), row, deltas=False)
    check_files(store, shown, record)
    return record.event
