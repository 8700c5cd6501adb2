"""Writing a session as JSONL: every row is checked before it leaves, so no fault is passed on."""

from __future__ import annotations

from collections.abc import Iterator

from flightlog.store.codec import payloads_of
from flightlog.store.jsonl import BlobLine, Closing, Header, RowLine, written
from flightlog.store.replay import Replay, checking
from flightlog.store.store import SessionKey, Store


def exported(store: Store, session: str, key: SessionKey) -> Iterator[bytes]:
    """The lines of the export of a session, as it stands when the last row is read.

    Raises `LogCorrupt` or `SchemaTooNew` at the first row that is not as it was written.
    """
    replay = Replay(session=session, uid=key.uid)
    sent: set[bytes] = set()
    yield written(Header(session, key.uid))
    for row, record in checking(store, replay, key.key, deltas=True):
        for digest in payloads_of(row, record.event):
            if digest not in sent:
                sent.add(digest)
                yield written(BlobLine(digest, store.blob(digest)))
        pieces = store.pieces(key.key, row.seq) if row.kind == "assistant/delta" else []
        yield written(RowLine(row, pieces))
    yield written(Closing(replay.seq, replay.digest))
