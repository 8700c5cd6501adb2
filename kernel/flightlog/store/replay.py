"""Reading a session: chain, codec, legality and fold in one pass. The first fault refuses it."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

from flightlog.core.fold import fold
from flightlog.core.history import History
from flightlog.core.invariants import Illegal, check
from flightlog.core.state import EMPTY, State
from flightlog.store.codec import EventRow, Undecodable, chained, decode
from flightlog.store.store import Store
from flightlog_hookspecs.errors import LogCorrupt, SchemaTooNew
from flightlog_hookspecs.events import Record


@define
class Position:
    """How far a session has been read. `digest` is the chain's, `seq` the last row's."""

    session: str
    uid: str
    seq: int = 0
    digest: bytes = b""


@define
class Replay(Position):
    """A session as far as it has been read, and what its rows come to."""

    state: State = EMPTY
    history: History = field(factory=History)


def replay(store: Store, session: str, key: int, uid: str, *, deltas: bool = False) -> Replay:
    """Read and check all of a session. Raises `LogCorrupt` or `SchemaTooNew` naming seq and rule."""
    result = Replay(session=session, uid=uid)
    for _ in replaying(store, result, key, deltas=deltas):
        pass
    return result


def replaying(store: Store, result: Replay, key: int, *, deltas: bool = False) -> Iterator[Record]:
    """Advance `result` row by row, yielding each record once it is checked and folded in.

    With `deltas`, the texts of streamed deltas are read and checked against their hashes too.
    """
    for row in store.rows(key, result.seq):
        record = _checked(store, result, row, deltas=deltas)
        result.state = fold(result.state, record.event, record.seq, record.epoch)
        result.history.add(record.event, record.seq)
        result.seq, result.digest = row.seq, row.digest
        yield record
    if result.seq == 0:
        raise LogCorrupt(result.session, 1, "created-first", "the session has a key but no events")


def intact_record(store: Store, position: Position, row: EventRow, *, deltas: bool) -> Record:
    """The record in `row`, which must be the one that follows `position`: dense, chained and readable.

    Whether it may follow what came before is not asked: that takes the whole session. Raises
    `LogCorrupt` or `SchemaTooNew` naming seq and rule.
    """

    def corrupt(rule: str, detail: str) -> LogCorrupt:
        return LogCorrupt(position.session, row.seq, rule, detail)

    if row.seq != position.seq + 1:
        raise corrupt("seq-dense", f"seq {row.seq} follows {position.seq}")
    try:
        intact = chained(position.digest, position.uid, row) == row.digest
    except (AttributeError, TypeError):
        intact = False  # a flipped bit can also change the type SQLite reads a value as
    if not intact:
        raise corrupt("hash-chain", f"the {row.kind} row, or the one before it, was changed after it was written")
    try:
        pieces = store.pieces(row.session, row.seq) if deltas and row.kind == "assistant/delta" else None
        return decode(row, position.session, store.blob, pieces)
    except Undecodable as error:
        if error.rule == "kind-known":
            raise SchemaTooNew(
                f"session {position.session!r}, seq {row.seq}: {error.detail}. Upgrade flightlog to open it."
            ) from None
        raise corrupt(error.rule, error.detail) from error


def _checked(store: Store, so_far: Replay, row: EventRow, *, deltas: bool) -> Record:
    record = intact_record(store, so_far, row, deltas=deltas)
    try:
        check(so_far.state, record.event, record.epoch, (record.turn, record.step))
    except Illegal as error:
        raise LogCorrupt(so_far.session, row.seq, error.rule, error.detail) from error
    if row.kind == "session/created" and so_far.uid != getattr(record.event, "uid", None):
        raise LogCorrupt(so_far.session, row.seq, "uid", "session/created and session_keys disagree about the uid")
    return record
