"""Hooks that watch what is committed: behind the log, never in its way."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import trio

from flightlog.runtime.journal import Journal
from flightlog.runtime.subscription import Subscription
from flightlog.runtime.surroundings import Surroundings
from flightlog_hookspecs.errors import StoreError
from flightlog_hookspecs.events import PluginFault, Record
from flightlog_hookspecs.hooks import Point

POINT: Final[Point] = "event_committed"
FINISH_S: Final = 5.0


class Observer:
    """Calls the hooks at `event_committed` of one session with each record, in order.

    It reads the log like any live reader, so a slow hook delays nothing but itself, and nothing is lost.
    """

    def __init__(self, journal: Journal, around: Surroundings) -> None:
        self._journal = journal
        self._around = around
        self._done = trio.Event()
        self._scope = trio.CancelScope()

    async def run(self, records: Subscription) -> None:
        """Until the records end. Those from before the first hook was registered are not shown to it."""
        try:
            with self._scope, suppress(StoreError):  # whoever needs the log is told; watching it needs nothing more
                await self._watch(records)
        finally:
            self._done.set()

    async def _watch(self, records: Subscription) -> None:
        hooks = self._around.hooks
        while not hooks.any_at(POINT):
            await self._around.registry.changed()
            records.seq = self._journal.seq
        async for record in records:
            if not _is_ours(record):
                faults = await hooks.event_committed(record)
                if faults and not self._journal.state.closed:
                    await self._journal.append(*faults)

    async def finish(self) -> None:
        """Let the hooks see the last records, for a few seconds at most."""
        if self._around.hooks.any_at(POINT):
            with trio.move_on_after(FINISH_S):
                await self._done.wait()
        self._scope.cancel()


def _is_ours(record: Record) -> bool:
    """Whether it says that a hook failed here: telling it of that might go on for ever."""
    return isinstance(record.event, PluginFault) and record.event.hook.startswith(POINT)
