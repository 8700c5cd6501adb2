"""The journal of one session: the only way an event gets into the log.

An append is checked against the law, folded, encoded, committed, and only then becomes the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat

import trio
from attrs import frozen

from flightlog.core.fold import fold, placed
from flightlog.core.history import History
from flightlog.core.invariants import Illegal, check
from flightlog.core.state import State
from flightlog.runtime.clock import Boundary, Clock
from flightlog.runtime.feed import Feed
from flightlog.runtime.write_lock import when_free
from flightlog.store.codec import Encoded, encode
from flightlog.store.connection import Busy
from flightlog.store.replay import Replay
from flightlog.store.store import Blob, Store
from flightlog_hookspecs.errors import InvariantViolation
from flightlog_hookspecs.events import Event, Record, SessionOpened, TurnEnd


@frozen(kw_only=True)
class HeadToken:
    """Proof of how far the log had come: give it back as `session(expect=...)` to rule out a rollback."""

    session: str
    seq: int
    digest: str


Due = Event | Callable[[State], Event | Sequence[Event]]
"""What to append: an event, or a function that makes one, several or none of the state they will follow.

Appends may have to wait, so what depends on the state is decided when its turn has come, maybe more than
once. The function may raise to call the whole append off.
"""


class Journal:
    """Appends to one session and knows its state. One per owned session."""

    def __init__(
        self,
        store: Store,
        key: int,
        replay: Replay,
        clock: Clock,
        on_boundary: Boundary,
        feed: Feed | None = None,
    ) -> None:
        self.store = store
        self.feed = feed or Feed()
        self.key = key
        self.session = replay.session
        self.uid = replay.uid
        self.clock = clock
        self.on_boundary = on_boundary
        self.state: State = replay.state
        self.history: History = replay.history
        self.seq = replay.seq
        self._newest = (replay.seq, replay.digest)
        self.stay = self.feed.own(self.seq)
        self._lock = trio.Lock()

    @property
    def token(self) -> HeadToken:
        """The newest committed row."""
        seq, digest = self._newest  # one read, so that other threads may ask too
        return HeadToken(session=self.session, seq=seq, digest=digest.hex())

    async def append(
        self,
        *events: Due,
        barrier: bool = False,
        times_us: Sequence[int] = (),
        blobs: Sequence[Blob] = (),
    ) -> tuple[Record, ...]:
        """Commit `events` as one: all of them or none. Returns once they are durable. A turn's end is a barrier.

        Cancelling does not interrupt it: saving is never cancelled by cancelling. `times_us` are the
        first events' own times, the clock's for all further ones. Raises `InvariantViolation` when one may not follow
        the log, `BadPayload` when one cannot be kept, else a `StoreError`; then nothing was written.
        """
        # A commit is shorter than a round of the loop, so there is no checkpoint unless one must wait.
        if not self._lock.locked():
            try:
                return self._append(events, times_us, blobs, barrier=barrier)
            except Busy:
                pass
        with trio.CancelScope(shield=True):
            async with self._lock:
                records = await when_free(self.store, lambda: self._append(events, times_us, blobs, barrier=barrier))
        return records

    @trio.lowlevel.enable_ki_protection  # a Ctrl-C between commit and state would leave us behind our own log
    def _append(
        self, events: Sequence[Due], times_us: Sequence[int], blobs: Sequence[Blob], *, barrier: bool
    ) -> tuple[Record, ...]:
        now_us = self.clock.now_us()
        state, (_, digest) = self.state, self._newest
        records: list[Record] = []
        rows: list[Encoded] = []
        at = chain(times_us, repeat(now_us))
        for due in events:
            made = due(state) if callable(due) else due
            for event in made if isinstance(made, Sequence) else (made,):
                record = self._record(state, event, self.seq + len(records) + 1, next(at))
                encoded = encode(record, self.key, self.uid, digest)
                state, digest = fold(state, event, record.seq, record.epoch), encoded.row.digest
                barrier = barrier or type(event) is TurnEnd
                records.append(record)
                rows.append(encoded)
        if not records:
            return ()
        self.on_boundary("commit", self.session, records[-1].seq)
        self.store.commit(rows, blobs, barrier=barrier)
        self.state, self.seq = state, records[-1].seq
        self._newest = (self.seq, digest)
        self.feed.publish(records)
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
