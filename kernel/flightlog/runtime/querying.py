"""Queries of a host, each in a worker thread: the loop never waits for one, and none outlives its caller."""

from __future__ import annotations

import threading
from functools import partial

import trio

from flightlog.core.limits import QUERIES_AT_ONCE
from flightlog.store.query import Parameter, QueryResult, run_query
from flightlog.store.store import Store
from flightlog_hookspecs.errors import LimitExceeded, UsageError


class Queries:
    """Runs the queries of one kernel, a few at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._slots = trio.CapacityLimiter(QUERIES_AT_ONCE)
        self._closing = threading.Event()
        self._running = 0
        self._ended = trio.lowlevel.ParkingLot()

    async def run(self, sql: str, parameters: tuple[Parameter, ...], *, limit_rows: int, limit_s: float) -> QueryResult:
        """Run one. Cancelling stops it and waits the moment that takes. See `run_query` for the errors."""
        self._store.check_process()
        async with self._slots:
            if self._closing.is_set():
                raise UsageError("the kernel is closed")
            self._running += 1
            try:
                return await self._in_thread(
                    partial(run_query, self._store.path, sql, parameters, limit_rows=limit_rows, limit_s=limit_s)
                )
            finally:
                self._running -= 1
                self._ended.unpark_all()

    async def close(self) -> None:
        """Stop those that run and wait for them: none may use the file once its locks are gone."""
        self._closing.set()
        with trio.CancelScope(shield=True):
            while self._running:
                await self._ended.park()

    async def _in_thread(self, query: partial[QueryResult]) -> QueryResult:
        cancelled, ended, token = threading.Event(), trio.Event(), trio.lowlevel.current_trio_token()

        def work() -> QueryResult:
            try:
                return query(stopped=lambda: cancelled.is_set() or self._closing.is_set())
            finally:
                token.run_sync_soon(ended.set)

        await trio.lowlevel.checkpoint_if_cancelled()  # from here on the thread is certain to start
        try:
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))
        except LimitExceeded:
            if self._closing.is_set():
                raise UsageError("the kernel was closed before the query had ended") from None
            raise
        finally:
            cancelled.set()
            with trio.CancelScope(shield=True):
                await ended.wait()
