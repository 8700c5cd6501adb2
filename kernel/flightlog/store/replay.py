"""Reading a session: chain, codec, legality and fold in one pass. The first fault refuses it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Protocol

from attrs import define, field

from flightlog.core.files import files_in
from flightlog.core.fold import fold
from flightlog.core.history import History
from flightlog.core.invariants import Illegal, check, check_replacement
from flightlog.core.state import EMPTY, State
from flightlog.store.codec import Undecodable, chained, decode, fetched, with_files
from flightlog.store.rows import EventRow
from flightlog_hookspecs.errors import LogCorrupt, SchemaTooNew
from flightlog_hookspecs.events import Message, Record, ToolResult


class Source(Protocol):
    """Where a session's rows come from: an open store, or an export."""

    def rows(self, key: int, after: int = 0) -> Iterable[EventRow]:
        """The rows of session `key` behind seq `after`, in order."""

    def blob(self, digest: bytes) -> bytes:
        """The payload with sha256 `digest`, b"" when it is missing."""

    def pieces(self, key: int, seq: int) -> list[tuple[int, str]]:
        """The delta texts of the row at `seq`: (at_ms, text)."""


@define
class Position:
    """How far a session has been read. `digest` is the chain's, `seq` the last row's."""

    session: str
    uid: str
    seq: int = 0
    digest: bytes = b""


@define
class Replay(Position):
    """A session as far as it has been read, and what its rows come to. `files` are the hashes of those in it."""

    state: State = EMPTY
    history: History = field(factory=History)
    files: set[str] = field(factory=set)


def replay(source: Source, session: str, key: int, uid: str, *, deltas: bool = False) -> Replay:
    """Read and check all of a session. Raises `LogCorrupt` or `SchemaTooNew` naming seq and rule."""
    result = Replay(session=session, uid=uid)
    for _ in replaying(source, result, key, deltas=deltas):
        pass
    return result


def replaying(source: Source, result: Replay, key: int, *, deltas: bool = False) -> Iterator[Record]:
    """Advance `result` row by row, yielding each record once it is checked and folded in.

    With `deltas`, the side tables are checked against their hashes too: texts of deltas, spilled results.
    """
    for _, record in checking(source, result, key, deltas=deltas):
        yield record


def checking(source: Source, result: Replay, key: int, *, deltas: bool = False) -> Iterator[tuple[EventRow, Record]]:
    """What `replaying` yields, each with the row it stands in."""
    for row in source.rows(key, result.seq):
        record = _checked(source, result, row, deltas=deltas)
        result.state = fold(result.state, record.event, record.seq, record.epoch, record.at_us)
        result.history.add(record.event, record.seq)
        result.seq, result.digest = row.seq, row.digest
        yield row, record
    if result.seq == 0:
        raise LogCorrupt(result.session, 1, "created-first", "the session has a key but no events")


def lone_record(source: Source, session: str, row: EventRow, *, deltas: bool = False) -> Record:
    """The record in `row`, read by itself: whether it fits in with the others is not looked at. Raises `LogCorrupt`."""
    try:
        return decode(row, session, source.blob, source.pieces(row.session, row.seq) if deltas else None)
    except Undecodable as error:
        raise LogCorrupt(session, row.seq, error.rule, error.detail) from error


def whole(source: Source, session: str, message: Message) -> Message:
    """`message` with the bytes of its files. Raises `LogCorrupt`."""
    try:
        return with_files(message, source.blob)
    except Undecodable as error:
        raise LogCorrupt(session, None, error.rule, error.detail) from error


def check_ending(loaded: Replay) -> None:
    """Raise `LogCorrupt` when the log ends inside an append: no death leaves it so, it was shortened."""
    if loaded.state.claimed:
        lost = loaded.state.claimed[0].message_id
        raise LogCorrupt(loaded.session, loaded.seq, "claim-lost", f"message {lost!r} was claimed and never entered")


def intact_record(source: Source, position: Position, row: EventRow, *, deltas: bool) -> Record:
    """The record in `row`, which must be the one that follows `position`: dense, chained and readable.

    Whether it may follow what came before is not asked: that takes the whole session. Raises
    `LogCorrupt` or `SchemaTooNew` naming seq and rule.
    """
    if row.seq != position.seq + 1:
        raise LogCorrupt(position.session, row.seq, "seq-dense", f"seq {row.seq} follows {position.seq}")
    try:
        intact = chained(position.digest, position.uid, row) == row.digest
    except (AttributeError, TypeError):
        intact = False  # a flipped bit can also change the type SQLite reads a value as
    if not intact:
        changed = f"the {row.kind} row, or the one before it, was changed after it was written"
        raise LogCorrupt(position.session, row.seq, "hash-chain", changed)
    try:
        pieces = source.pieces(row.session, row.seq) if deltas and row.kind == "assistant/delta" else None
        record = decode(row, position.session, source.blob, pieces)
        if deltas:
            _check_spill(source, record)
    except Undecodable as error:
        if error.rule == "kind-known":
            raise SchemaTooNew(
                f"session {position.session!r}, seq {row.seq}: {error.detail}. Upgrade flightlog to open it."
            ) from None
        raise LogCorrupt(position.session, row.seq, error.rule, error.detail) from error
    return record


def _checked(source: Source, so_far: Replay, row: EventRow, *, deltas: bool) -> Record:
    record = intact_record(source, so_far, row, deltas=deltas)
    try:
        check(so_far.state, record.event, record.epoch, (record.turn, record.step))
        check_replacement(record.event, so_far.history)
    except Illegal as error:
        raise LogCorrupt(so_far.session, row.seq, error.rule, error.detail) from error
    if row.kind == "session/created" and so_far.uid != getattr(record.event, "uid", None):
        raise LogCorrupt(so_far.session, row.seq, "uid", "session/created and session_keys disagree about the uid")
    check_files(source, so_far, record)
    return record


def check_files(source: Source, so_far: Replay, record: Record) -> None:
    """Raise `LogCorrupt` unless the files that `record` is the first to name are there, as they were given."""
    for file in files_in(record.event):
        if file.sha256 not in so_far.files:
            try:
                fetched(source.blob, bytes.fromhex(file.sha256))
            except Undecodable as error:
                raise LogCorrupt(so_far.session, record.seq, error.rule, f"{file.label}: {error.detail}") from error
            so_far.files.add(file.sha256)


def _check_spill(source: Source, record: Record) -> None:
    spill = record.event.spill if isinstance(record.event, ToolResult) else None
    if spill is None:
        return
    try:
        intact = sha256(source.blob(bytes.fromhex(spill.sha256))).hexdigest() == spill.sha256
    except ValueError:
        intact = False
    if not intact:
        raise Undecodable("blob-hash", f"the whole of the result, {spill.sha256}, is missing or differs from its hash")
