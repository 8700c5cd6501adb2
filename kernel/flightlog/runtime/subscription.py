"""Following a session: the records that are there, then those that come, without a gap or a repeat.

There is one place, the seq reached. What follows it is taken from the feed's ring if it is still
there and from the store if not, so there is no seam between old and live. No read is held across an
await, and a reader that stops reading costs the few rows it has at hand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Self

import trio

from flightlog.core.limits import LIVE_PAGE_ROWS
from flightlog.runtime.feed import Feed, Stay
from flightlog.store.replay import Position, intact_record
from flightlog.store.rows import EventRow
from flightlog.store.store import SessionKey, Store
from flightlog_hookspecs.errors import StoreError, UsageError
from flightlog_hookspecs.events import AssistantDelta, Record


class Subscription(AsyncIterator[Record]):
    """The records of a session behind `after`, and those to come. It can simply be dropped.

    With `stay`, it ends once the session's owner has left; without, when the kernel is closed.
    Records read from the store are checked against the hash chain; for the law see `SessionReader.records`.
    """

    def __init__(
        self,
        store: Store,
        session: str,
        key: SessionKey,
        feed: Feed,
        *,
        after: int,
        deltas: bool,
        stay: Stay | None = None,
    ) -> None:
        if isinstance(after, bool) or not isinstance(after, int) or after < 0:
            raise UsageError(f"`after` is the seq of the last record you have, 0 for none, not {after!r}")
        self._store = store
        self._session = session
        self._key = key
        self._feed = feed
        self._deltas = deltas
        self._stay = stay
        self._at_hand: deque[Record] = deque()
        self._digest: bytes | None = None
        self.seq = after

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        if not self._at_hand:
            self._at_hand.extend(await self.batch())
        if not self._at_hand:
            raise StopAsyncIteration
        return self._at_hand.popleft()

    async def batch(self, after: int | None = None) -> list[Record]:
        """The next records, as many as are at hand; waits for one, [] at the end.

        `after` says what has really arrived, for callers whose waiting may be cut off while this
        returns. A page is the most.
        """
        self._go_to(after)
        while True:
            await trio.lowlevel.checkpoint()
            found = self._wanted()
            if found:
                return found
            if found is None:
                if self._is_over():
                    return []
                await self._feed.wait()

    def rest(self, after: int) -> list[Record]:
        """What a closed kernel still has in memory. Raises UsageError if that does not go on after `after`."""
        self._go_to(after)
        while (found := self._wanted()) == []:
            pass
        return found or []

    def _go_to(self, after: int | None) -> None:
        if after is not None and after != self.seq:
            self.seq, self._digest = after, None

    def _wanted(self) -> list[Record] | None:
        """Of the next page those that were asked for, perhaps none; None if there is no page."""
        found = self._page()
        if not found:
            return None
        self.seq = found[-1].seq
        return [record for record in found if self._deltas or not isinstance(record.event, AssistantDelta)]

    def _page(self) -> list[Record]:
        found = self._feed.behind(self.seq, LIVE_PAGE_ROWS)
        if found:
            self._digest = None  # the next row from the store has to find its predecessor again
        elif self._feed.closed:
            self._check_complete()
        elif self._feed.stay is None or self.seq != self._feed.seq:
            found = self._stored()
        last = self._stay.last if self._stay else None
        return found if last is None else [record for record in found if record.seq <= last]

    def _stored(self) -> list[Record]:
        rows = self._store.read("events_page", self._key.key, self.seq, LIVE_PAGE_ROWS)
        if self._digest is None:
            self._digest = self._digest_at(self.seq)
        at = Position(session=self._session, uid=self._key.uid, seq=self.seq, digest=self._digest)
        found: list[Record] = []
        for row in map(EventRow._make, rows):
            try:
                found.append(intact_record(self._store, at, row, deltas=self._deltas))
            except StoreError:
                if found:
                    break  # what stands before it is shown first
                raise
            at.seq, at.digest = row.seq, row.digest
        self._digest = at.digest
        return found

    def _digest_at(self, seq: int) -> bytes:
        if seq == 0:
            return b""
        row = self._store.row(self._key.key, seq)
        if row is None:
            raise UsageError(
                f"session {self._session!r} has no record {seq} to go on after: it is not that long (any more)"
            )
        return row.digest

    def _is_over(self) -> bool:
        return self._feed.closed or (self._stay is not None and self._stay.last is not None)

    def _check_complete(self) -> None:
        last = self._stay.last if self._stay and self._stay.last else self._feed.seq
        if self.seq < last:
            raise UsageError(
                f"session {self._session!r}: the kernel was closed while this reader stood at {self.seq} of {last} "
                f"records; go on with events(after={self.seq}) of another one"
            )
