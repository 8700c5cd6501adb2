"""One attempt at a request: stream it, keep every delta, assemble the answer."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby
from operator import itemgetter
from typing import Protocol, get_args

import trio

from flightlog.core.assembler import Assembler
from flightlog.core.limits import RETRY_WISH_MAX_S, Limits
from flightlog.core.saying import described
from flightlog.runtime.error_groups import interrupt, single_error, unwrapped
from flightlog.runtime.journal import Journal
from flightlog.runtime.metering import Meter
from flightlog.runtime.plugin_call import Failed, contained
from flightlog_hookspecs.adapters import Adapter, Request
from flightlog_hookspecs.content import BlockType
from flightlog_hookspecs.errors import FailureKind, ProviderError
from flightlog_hookspecs.events import AssistantDelta, AssistantMessage, DeltaPiece
from flightlog_hookspecs.stream import BlockEvent


class Recorder(Protocol):
    """Takes the deltas of attempt `attempt`."""

    @property
    def attempt(self) -> int:
        """Whose deltas these are."""

    def take(self, block: int, block_type: BlockType, text: str) -> None:
        """Take one delta."""

    async def flush_late(self) -> None:
        """Keep what is waiting, again and again, until it is to `finish`."""

    def finish(self) -> None:
        """No more deltas come. Those that are waiting are left to the caller."""

    async def flush(self) -> None:
        """Keep what is waiting."""


async def call_model(
    journal: Journal, adapter: Adapter, request: Request, recorder: Recorder, limits: Limits, meter: Meter
) -> AssistantMessage | ProviderError:
    """Make one attempt; the failure is a value. Deltas reach the log as they arrive, and `meter` counts what does.

    The last of them wait in `recorder`, to be written with what the attempt came to. When it is
    cancelled they are written before it returns.
    """
    assembler = Assembler()
    failure: ProviderError | None = None
    try:
        with single_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(recorder.flush_late)
                failure = await _stream(adapter, request, limits, assembler, recorder, journal, meter)
                recorder.finish()  # cancelling the nursery would do, and cost three times as much
    except BaseException:
        await recorder.flush()
        raise
    meter.said = assembler.usage
    if failure:
        return failure
    try:
        return assembler.message(recorder.attempt)
    except ProviderError as error:
        return error


async def _stream(
    adapter: Adapter,
    request: Request,
    limits: Limits,
    assembler: Assembler,
    recorder: Recorder,
    journal: Journal,
    meter: Meter,
) -> ProviderError | None:
    """Feed the stream to assembler and recorder. Returns the failure, None for a clean end."""
    renew_at, clock = 0.0, trio.lowlevel.current_clock()
    with trio.move_on_after(limits.model_idle_s) as idle:
        try:
            async with adapter.stream(request, recorder.attempt) as events, hung_up(events):
                async for event in events:
                    # Moving a deadline costs as much as everything else here, so it is not moved each time.
                    if (now := clock.current_time()) >= renew_at:
                        idle.deadline = now + limits.model_idle_s
                        renew_at = now + limits.model_idle_s / 100
                    delta = assembler.push(event)
                    meter.take(event, delta)
                    if delta:
                        recorder.take(*delta)
                        journal.on_boundary("delta", journal.session, journal.seq)
                    if assembler.finished or meter.full:
                        break
        except BaseException as error:
            if (stop := interrupt(error)) is not None:
                raise stop from None
            # Many libraries answer a time-out's cancel with an error of their own; it is a time-out all the same.
            if not idle.cancel_called:
                return None if assembler.finished else _failure_of(error)
    if idle.cancel_called and not assembler.finished:
        return ProviderError("timeout", f"nothing arrived for {limits.model_idle_s:g} s")
    if meter.full and not assembler.finished:
        return ProviderError("length", f"cut off: the budget has room for {meter.room} tokens of it")
    return None


@asynccontextmanager
async def hung_up(events: AsyncIterator[BlockEvent]) -> AsyncIterator[None]:
    """Close a generator that was left before its end, rather than leave that to the garbage collector."""
    try:
        yield
    finally:
        if close := getattr(events, "aclose", None):
            await close()


def _failure_of(error: BaseException) -> ProviderError:
    """What the log can keep of `error`: adapters raise anything, also a `ProviderError` full of nonsense."""
    error = unwrapped(error)
    try:
        with contained():
            if isinstance(error, ProviderError):
                return _kept(error)
    except Failed:  # it has a class of its own, whose fields cannot be read
        pass
    return ProviderError("adapter", f"the adapter failed: {described(error)}")


def _kept(error: ProviderError) -> ProviderError:
    # Read with care: a subclass that never called its base has none of them.
    given, wish = getattr(error, "kind", None), getattr(error, "retry_after_s", None)
    kind: FailureKind = next((kind for kind in get_args(FailureKind) if kind == given), "adapter")
    message = getattr(error, "message", None)
    sensible = isinstance(wish, (int, float)) and 0 <= wish < math.inf
    return ProviderError(
        kind,
        message if type(message) is str else described(error),
        retryable=getattr(error, "retryable", False) is True,
        retry_after_s=float(min(wish, RETRY_WISH_MAX_S)) if wish is not None and sensible else None,
    )


class DeltaRecorder:
    """Collects deltas and commits them at most `flush_ms` milliseconds late."""

    def __init__(self, journal: Journal, attempt: int, flush_ms: int) -> None:
        self._journal = journal
        self.attempt = attempt
        self._flush_s = flush_ms / 1000
        self._waiting: list[tuple[int, BlockType, int, str]] = []
        self._filled = trio.Event()
        self._over = trio.Event()

    def take(self, block: int, block_type: BlockType, text: str) -> None:
        """Keep one delta, stamped with the time it arrived."""
        self._waiting.append((block, block_type, self._journal.clock.now_us(), text))
        self._filled.set()

    async def flush_late(self) -> None:
        """Commit what is waiting, again and again, a little after it came in, until it is to `finish`."""
        while not self._over.is_set():
            await self._filled.wait()
            with trio.move_on_after(self._flush_s):
                await self._over.wait()
                return
            await self.flush()

    def finish(self) -> None:
        """No more deltas come: leave those that are waiting to `drain`."""
        self._over.set()
        self._filled.set()

    async def flush(self) -> None:
        """Commit what is waiting, without an fsync."""
        events, times_us = self.drain()
        if events:
            await self._journal.append(*events, times_us=times_us)

    def drain(self) -> tuple[list[AssistantDelta], list[int]]:
        """Take what is waiting: one event per block and run, and the time of each."""
        waiting, self._waiting, self._filled = self._waiting, [], trio.Event()
        events, times_us = [], []
        for (block, block_type), run in groupby(waiting, key=itemgetter(0, 1)):
            deltas = list(run)
            start_us = deltas[0][2]
            # A wall clock that jumps back must not give a delta a time before its row's.
            pieces = tuple(
                DeltaPiece(at_ms=max(0, at_us - start_us) // 1000, text=text) for _, _, at_us, text in deltas
            )
            events.append(AssistantDelta(attempt=self.attempt, block=block, type=block_type, pieces=pieces))
            times_us.append(start_us)
        return events, times_us
