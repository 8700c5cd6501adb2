"""Bugs in reading a log that was damaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import evolve

from flightlog.core import snapshot
from flightlog.core.fold import fold
from flightlog.core.history import Outline
from flightlog.core.snapshot import Items, Kept, Snapshot
from flightlog.core.state import State
from flightlog.store import log_file, replay
from flightlog.store.replay import Replay
from flightlog.store.rows import EventRow
from flightlog_hookspecs.errors import LogCorrupt
from flightlog_hookspecs.events import Record
from planted import replaced


@contextmanager
def bad_row_skipped() -> Iterator[None]:
    """A row that cannot be read is left out, and reading goes on."""

    def lenient(source: Any, result: Replay, key: int, *, deltas: bool = False) -> Iterator[tuple[EventRow, Record]]:
        for row in source.rows(key, result.seq):
            try:
                record = replay._checked(source, result, row, deltas=deltas)
            except LogCorrupt:
                result.seq, result.digest = row.seq, row.digest
                continue
            result.state = fold(result.state, record.event, record.seq, record.epoch)
            result.history.add(record.event, record.seq)
            result.seq, result.digest = row.seq, row.digest
            yield row, record

    with replaced(replay, "checking", lenient):
        yield


@contextmanager
def snapshot_that_forgets() -> Iterator[None]:
    """A session that is opened from a snapshot does not know which messages it has accepted before."""

    def forgetful(found: Snapshot, items: Sequence[Items]) -> tuple[State, Outline, Kept]:
        return filled(found, [evolve(each, accepted=frozenset()) for each in items])

    filled = snapshot.filled
    with replaced(snapshot, "filled", forgetful):
        yield


@contextmanager
def chain_not_compared() -> Iterator[None]:
    """Whatever digest a row has is taken for the right one."""
    with replaced(replay, "chained", lambda before, uid, row: row.digest):
        yield


@contextmanager
def witness_not_asked() -> Iterator[None]:
    """A log is taken for as long as it is."""
    with replaced(log_file, "read_witness", lambda path: None):
        yield
