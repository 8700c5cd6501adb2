"""One attempt at a request: stream it, keep every delta, assemble the answer."""

from __future__ import annotations

from itertools import groupby

import trio

from flightlog.core.assembler import Assembler
from flightlog.core.limits import Limits
from flightlog.runtime.error_groups import single_error, unwrapped
from flightlog.runtime.journal import Journal
from flightlog_hookspecs.adapters import Adapter, Request
from flightlog_hookspecs.content import BlockType
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import AssistantDelta, AssistantMessage, DeltaPiece


async def call_model(
    journal: Journal, adapter: Adapter, request: Request, attempt: int, limits: Limits
) -> AssistantMessage | ProviderError:
    """Make attempt `attempt`; the failure is a value. Deltas reach the log as they arrive.

    However it ends, also by a cancel, every delta that arrived is in the log when it returns.
    """
    recorder = DeltaRecorder(journal, attempt, limits.delta_flush_ms)
    assembler = Assembler()
    failure: ProviderError | None = None
    try:
        with single_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(recorder.flush_late)
                failure = await _stream(adapter, request, attempt, limits, assembler, recorder, journal)
                nursery.cancel_scope.cancel()
    finally:
        await recorder.flush()
    if failure:
        return failure
    try:
        return assembler.message(attempt)
    except ProviderError as error:
        return error


async def _stream(
    adapter: Adapter,
    request: Request,
    attempt: int,
    limits: Limits,
    assembler: Assembler,
    recorder: DeltaRecorder,
    journal: Journal,
) -> ProviderError | None:
    """Feed the stream to assembler and recorder. Returns the failure, None for a clean end."""
    with trio.move_on_after(limits.model_idle_s) as idle:
        try:
            async with adapter.stream(request, attempt) as events:
                async for event in events:
                    idle.deadline = trio.current_time() + limits.model_idle_s
                    delta = assembler.push(event)
                    if delta:
                        recorder.take(*delta)
                        journal.on_boundary("delta", journal.session, journal.seq)
                    if assembler.finished:
                        break
        except (Exception, SystemExit, GeneratorExit) as error:
            return _failure_of(error)
    if idle.cancelled_caught:
        return ProviderError("timeout", f"nothing arrived for {limits.model_idle_s:g} s")
    return None


def _failure_of(error: BaseException) -> ProviderError:
    error = unwrapped(error)
    if isinstance(error, ProviderError):
        return error
    return ProviderError("adapter", f"the adapter failed: {type(error).__name__}: {error}")


class DeltaRecorder:
    """Collects deltas and commits them at most `flush_ms` milliseconds late."""

    def __init__(self, journal: Journal, attempt: int, flush_ms: int) -> None:
        self._journal = journal
        self._attempt = attempt
        self._flush_s = flush_ms / 1000
        self._waiting: list[tuple[int, BlockType, int, str]] = []
        self._filled = trio.Event()

    def take(self, block: int, block_type: BlockType, text: str) -> None:
        """Keep one delta, stamped with the time it arrived."""
        self._waiting.append((block, block_type, self._journal.clock.now_us(), text))
        self._filled.set()

    async def flush_late(self) -> None:
        """Commit what is waiting, again and again, a little after it came in. Runs until cancelled."""
        while True:
            await self._filled.wait()
            await trio.sleep(self._flush_s)
            await self.flush()

    async def flush(self) -> None:
        """Commit what is waiting: one event per block and run, no fsync."""
        if not self._waiting:
            return
        waiting, self._waiting, self._filled = self._waiting, [], trio.Event()
        events, times_us = [], []
        for (block, block_type), run in groupby(waiting, key=lambda delta: delta[:2]):
            deltas = list(run)
            start_us = deltas[0][2]
            # A wall clock that jumps back must not give a delta a time before its row's.
            pieces = tuple(
                DeltaPiece(at_ms=max(0, at_us - start_us) // 1000, text=text) for _, _, at_us, text in deltas
            )
            events.append(AssistantDelta(attempt=self._attempt, block=block, type=block_type, pieces=pieces))
            times_us.append(start_us)
        await self._journal.append(*events, times_us=times_us)
