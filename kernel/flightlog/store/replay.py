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
class Replay:
    """A session as far as it has been read. `digest` is the chain's, `seq` the last row's."""

    session: str
    uid: str
    seq: int = 0
    digest: bytes = b""
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


def _checked(store: Store, so_far: Replay, row: EventRow, *, deltas: bool) -> Record:
    def corrupt(rule: str, detail: str) -> LogCorrupt:
        return LogCorrupt(so_far.session, row.seq, rule, detail)

    if row.seq != so_far.seq + 1:
        raise corrupt("seq-dense", f"seq {row.seq} follows {so_far.seq}")
    try:
        intact = chained(so_far.digest, so_far.uid, row) == row.digest
    except (AttributeError, TypeError):
        intact = False  # a flipped bit can also change the type SQLite reads a value as
    if not intact:
        raise corrupt("hash-chain", f"the {row.kind} row, or the one before it, was changed after it was written")
    try:
        pieces = store.pieces(row.session, row.seq) if deltas and row.kind == "assistant/delta" else None
        record = decode(row, so_far.session, store.blob, pieces)
        check(so_far.state, record.event, record.epoch, (record.turn, record.step))
    except Undecodable as error:
        if error.rule == "kind-known":
            raise SchemaTooNew(
                f"session {so_far.session!r}, seq {row.seq}: {error.detail}. Upgrade flightlog to open it."
            ) from None
        raise corrupt(error.rule, error.detail) from error
    except Illegal as error:
        raise corrupt(error.rule, error.detail) from error
    if row.kind == "session/created" and so_far.uid != getattr(record.event, "uid", None):
        raise corrupt("uid", "session/created and session_keys disagree about the uid")
    return record
