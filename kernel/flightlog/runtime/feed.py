"""What a kernel tells its live readers: the newest records of each session, and that there are more.

Nothing here waits for a reader: who is slow finds the older records in the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from weakref import WeakValueDictionary

import trio
from attrs import define

from flightlog.core.limits import LIVE_POLL_S, LIVE_RING_RECORDS
from flightlog_hookspecs.events import Record


@define
class Stay:
    """One time that a session is open in this kernel. `last` is its final row, None until then."""

    last: int | None = None


class Feed:
    """The newest committed records of one session, while this kernel owns it.

    `stay`: the present ownership, during which all that is written comes through here, or None.
    `seq`: the newest row of the last one. `closed`: the kernel is.
    """

    def __init__(self) -> None:
        self.stay: Stay | None = None
        self.closed = False
        self.seq = 0
        self._ring: deque[Record] = deque(maxlen=LIVE_RING_RECORDS)
        self._readers = trio.lowlevel.ParkingLot()

    def own(self, seq: int) -> Stay:
        """From now on the session is written here; its newest row is `seq`."""
        self._ring.clear()
        self.stay, self.seq = Stay(), seq
        self._readers.unpark_all()
        return self.stay

    def publish(self, records: Sequence[Record]) -> None:
        """Pass on what was just committed. Never waits."""
        self._ring.extend(records)
        self.seq = records[-1].seq
        self._readers.unpark_all()

    def disown(self) -> None:
        """The session is no longer written here."""
        if self.stay:
            self.stay.last = self.seq
        self.stay = None
        self._readers.unpark_all()

    def close(self) -> None:
        """The kernel is closed: nothing more will come."""
        self.closed = True
        self._readers.unpark_all()

    def behind(self, seq: int, most: int) -> list[Record]:
        """At most `most` records that follow `seq`; none when the first of them is no longer here."""
        if not self._ring or not self._ring[0].seq - 1 <= seq < self._ring[-1].seq:
            return []
        start = seq + 1 - self._ring[0].seq
        return list(islice(self._ring, start, start + most))

    async def wait(self) -> None:
        """Wait until there may be news: told by the owner, or, where others may write, for one poll."""
        if self.stay:
            await self._readers.park()
        else:
            with trio.move_on_after(LIVE_POLL_S):
                await self._readers.park()


class Feeds:
    """The feeds of one kernel by session name, each kept as long as its session or a reader lives."""

    def __init__(self) -> None:
        self._feeds: WeakValueDictionary[str, Feed] = WeakValueDictionary()
        self._closed = False

    def of(self, name: str) -> Feed:
        """The feed of session `name`."""
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = Feed()
        if self._closed:
            feed.close()
        return feed

    def close(self) -> None:
        """End all of them, once the session's owners have left."""
        self._closed = True
        for feed in list(self._feeds.values()):
            feed.close()
