"""The journal of one session: the only way an event gets into the log.

An append is checked against the law, folded, encoded, committed, and only then becomes the state.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio
from attrs import frozen

from flightlog.core.fold import fold, placed
from flightlog.core.history import History
from flightlog.core.invariants import Illegal, check
from flightlog.core.limits import BUSY_POLL_S, BUSY_WAIT_MAX_S
from flightlog.core.state import State
from flightlog.runtime.clock import Boundary, Clock
from flightlog.store.codec import Encoded, encode
from flightlog.store.connection import Busy
from flightlog.store.replay import Replay
from flightlog.store.store import Blob, Store
from flightlog_hookspecs.errors import InvariantViolation, StoreError
from flightlog_hookspecs.events import Event, Record, SessionOpened


@frozen(kw_only=True)
class HeadToken:
    """Proof of how far the log had come: give it back as `session(expect=...)` to rule out a rollback."""

    session: str
    seq: int
    digest: str


class Journal:
    """Appends to one session and knows its state. One per owned session."""

    def __init__(self, store: Store, key: int, replay: Replay, clock: Clock, on_boundary: Boundary) -> None:
        self.store = store
        self.key = key
        self.session = replay.session
        self.uid = replay.uid
        self.clock = clock
        self.on_boundary = on_boundary
        self.state: State = replay.state
        self.history: History = replay.history
        self.seq = replay.seq
        self._digest = replay.digest
        self._lock = trio.Lock()

    @property
    def token(self) -> HeadToken:
        """The newest committed row."""
        return HeadToken(session=self.session, seq=self.seq, digest=self._digest.hex())

    async def append(
        self,
        *events: Event,
        barrier: bool = False,
        times_us: Sequence[int] | None = None,
        blobs: Sequence[Blob] = (),
    ) -> tuple[Record, ...]:
        """Commit `events` as one: all of them or none. Returns once they are durable.

        Cancelling does not interrupt it: saving is never cancelled by cancelling. `times_us` are the
        events' own times, the clock's by default. Raises `InvariantViolation` when one may not follow
        the log, `BadPayload` when one cannot be kept, else a `StoreError`; then nothing was written.
        """
        with trio.CancelScope(shield=True):
            # No checkpoint while nobody else is appending: a commit is shorter than a round of the loop.
            try:
                self._lock.acquire_nowait()
            except trio.WouldBlock:
                await self._lock.acquire()
            try:
                records = await self._append(events, times_us, blobs, barrier=barrier)
            finally:
                self._lock.release()
        return records

    async def _append(
        self, events: Sequence[Event], times_us: Sequence[int] | None, blobs: Sequence[Blob], *, barrier: bool
    ) -> tuple[Record, ...]:
        times_us = times_us or [self.clock.now_us()] * len(events)
        state, digest = self.state, self._digest
        records: list[Record] = []
        rows: list[Encoded] = []
        for seq, (event, at_us) in enumerate(zip(events, times_us, strict=True), self.seq + 1):
            record = self._record(state, event, seq, at_us)
            encoded = encode(record, self.key, self.uid, digest)
            state, digest = fold(state, event, seq, record.epoch), encoded.row.digest
            records.append(record)
            rows.append(encoded)
        self.on_boundary("commit", self.session, records[-1].seq)
        await self._commit(rows, blobs, barrier=barrier)
        self.state, self._digest, self.seq = state, digest, records[-1].seq
        for record in records:
            self.history.add(record.event, record.seq)
        self.on_boundary("committed", self.session, self.seq)
        return tuple(records)

    def _record(self, state: State, event: Event, seq: int, at_us: int) -> Record:
        epoch = state.epoch + (type(event) is SessionOpened)
        turn, step = placed(state, event)
        try:
            check(state, event, epoch, (turn, step))
        except Illegal as error:
            raise InvariantViolation(f"session {self.session!r}, seq {seq}: {error}") from None
        return Record(session=self.session, seq=seq, at_us=at_us, turn=turn, step=step, epoch=epoch, event=event)

    async def _commit(self, rows: Sequence[Encoded], blobs: Sequence[Blob], *, barrier: bool) -> None:
        give_up = trio.current_time() + BUSY_WAIT_MAX_S
        while True:
            try:
                self.store.commit(rows, blobs, barrier=barrier)
            except Busy:
                if trio.current_time() > give_up:
                    raise StoreError(
                        f"{self.store.path}: another process has held the write lock for {BUSY_WAIT_MAX_S:.0f} s"
                    ) from None
                await trio.sleep(BUSY_POLL_S)
            else:
                return
