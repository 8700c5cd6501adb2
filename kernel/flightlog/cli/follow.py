"""Following a session that is being driven in this process, row by row as it is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import trio

from flightlog import SessionReader
from flightlog_hookspecs.events import Record

_ROWS_AT_A_TIME: Final = 200


class Follower:
    """Hands each new row of one session to `show`, once and in order. What is shown is durable."""

    def __init__(self, session: str, show: Callable[[Record], None]) -> None:
        self.seq = 0
        self._session = session
        self._show = show
        self._news = trio.Event()
        self._more: Callable[[], Iterator[Record]] | None = None

    def on_boundary(self, name: str, session: str, seq: int) -> None:  # noqa: ARG002
        """To be given to the kernel: hears of every commit."""
        if name == "committed" and session == self._session:
            self._news.set()

    async def follow(self, reader: SessionReader) -> None:
        """Show what comes, until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            await self.catch_up(reader)

    async def catch_up(self, reader: SessionReader) -> None:
        """Show all that is committed by now."""
        self._more = self._more or reader.tail(deltas=True)
        for count, record in enumerate(self._more(), 1):
            if record.seq > self.seq:
                self.seq = record.seq
                self._show(record)
            if count % _ROWS_AT_A_TIME == 0:
                await trio.lowlevel.checkpoint()
