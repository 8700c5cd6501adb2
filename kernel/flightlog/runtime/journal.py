"""The journal of one session: the only way an event gets into the log.

An append is checked against the law, folded, encoded, committed, and only then becomes the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, repeat

from attrs import evolve, frozen

from flightlog.core.files import bare
from flightlog.core.fold import fold, placed
from flightlog.core.history import History
from flightlog.core.invariants import Illegal, check, check_replacement
from flightlog.core.state import State
from flightlog.runtime.clock import Boundary, Clock
from flightlog.runtime.feed import Feed
from flightlog.runtime.group_commit import GroupCommit, Made, Reached
from flightlog.store.codec import encode
from flightlog.store.replay import Replay
from flightlog.store.rows import Encoded
from flightlog.store.snapshots import Snapshots
from flightlog.store.store import Blob
from flightlog_hookspecs.errors import Fenced, InvariantViolation
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
    """Appends to one session and knows its state. One per owned session; `leave` it in the end.

    `opened_behind` is the last row of the owner before.
    """

    def __init__(
        self,
        commits: GroupCommit,
        key: int,
        replay: Replay,
        snapshots: Snapshots,
        clock: Clock,
        on_boundary: Boundary,
        feed: Feed | None = None,
    ) -> None:
        self.store = commits.store
        self.feed = feed or Feed()
        self.key = key
        self.session = replay.session
        self.uid = replay.uid
        self.clock = clock
        self.on_boundary = on_boundary
        self.history: History = replay.history
        self.reached = self._durable = Reached(replay.state, replay.seq, replay.digest)
        self.opened_behind = replay.seq
        self._snapshots = snapshots
        self.stay = self.feed.own(self.seq)
        self._commits = commits
        commits.join()

    @property
    def state(self) -> State:
        """What the log amounts to."""
        return self.reached.state

    @property
    def seq(self) -> int:
        """The newest committed row."""
        return self.reached.seq

    @property
    def token(self) -> HeadToken:
        """Proof of the newest row that survives a power loss, too.

        Not of one that an ordinary commit brought: given back after a power loss, it would have a log
        refused that lost nothing that was promised.
        """
        reached = self._durable  # one read, so that other threads may ask too
        return HeadToken(session=self.session, seq=reached.seq, digest=reached.digest.hex())

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
        try:
            return await self._commits.append(self, partial(self._make, events, times_us, blobs, barrier))
        except Fenced as error:
            self.feed.disown()
            raise Fenced(
                f"session {self.session!r} was taken over by another owner. Nothing more is written here."
            ) from error

    def leave(self) -> None:
        """Nothing more will be appended."""
        self._commits.leave()

    def _make(
        self,
        events: Sequence[Due],
        times_us: Sequence[int],
        blobs: Sequence[Blob],
        barrier: bool,
    ) -> Made:
        now_us = self.clock.now_us()
        state, seq, digest = self.reached.state, self.reached.seq, self.reached.digest
        records: list[Record] = []
        rows: list[Encoded] = []
        at = chain(times_us, repeat(now_us))
        for due in events:
            made = due(state) if callable(due) else due
            for event in made if isinstance(made, Sequence) else (made,):
                seq += 1
                record = self._record(state, event, seq, next(at))
                encoded = encode(record, self.key, self.uid, digest)
                if encoded.blobs:
                    record = evolve(record, event=bare(record.event))
                state, digest = fold(state, record.event, seq, record.epoch, record.at_us), encoded.row.digest
                barrier = barrier or type(event) is TurnEnd
                records.append(record)
                rows.append(encoded)
        if records:
            before = self.reached
            if snapshot := self._snapshots.due(before.state, self.history, before.seq, before.digest):
                rows[0] = rows[0]._replace(snapshot=snapshot)
            self.on_boundary("commit", self.session, seq)
        return Made(
            records=tuple(records), rows=rows, blobs=blobs, barrier=barrier, reached=Reached(state, seq, digest)
        )

    def accept(self, made: Made) -> None:
        """Take note of what is committed now."""
        self.reached = made.reached
        if made.barrier:
            self._durable = made.reached
        if made.rows[0].snapshot:
            self._snapshots.kept()
        self.feed.publish(made.records)
        for record in made.records:
            self.history.add(record.event, record.seq)
        self.on_boundary("committed", self.session, self.seq)

    def _record(self, state: State, event: Event, seq: int, at_us: int) -> Record:
        epoch = state.epoch + (type(event) is SessionOpened)
        turn, step = placed(state, event)
        try:
            check(state, event, epoch, (turn, step))
            check_replacement(event, self.history)
        except Illegal as error:
            raise InvariantViolation(f"session {self.session!r}, seq {seq}: {error}") from None
        return Record(session=self.session, seq=seq, at_us=at_us, turn=turn, step=step, epoch=epoch, event=event)
