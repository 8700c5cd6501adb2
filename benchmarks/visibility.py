"""How long after its commit in one process does a row reach a live reader in another? Against the poll interval.

A session streams; each commit is timed as it returns, each row as `kernel.read(name).events()` hands it out.
Both processes read the same monotonic clock.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import trio

import flightlog
from flightlog.core.limits import LIVE_POLL_S
from flightlog.testing import Bundle, FakeModel
from flightlog_hookspecs import BlockEnd, BlockEvent, BlockStart, Finish, Request, TextBlock, TextDelta

DELTAS = 300
PACE_S = 0.008
FLUSH_MS = 5


class Model:
    """Streams a piece every now and then, out of step with whoever polls."""

    name = "bench"
    encode = staticmethod(FakeModel([]).encode)

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:  # noqa: ARG002
        """Stream."""
        yield self._play()

    async def _play(self) -> AsyncIterator[BlockEvent]:
        yield BlockStart(index=0, type="text")
        chance = random.Random(1)
        for _ in range(DELTAS):
            await trio.sleep(2 * PACE_S * chance.random())
            yield TextDelta(index=0, text="word ")
        yield BlockEnd(index=0, block=TextBlock(text="word " * DELTAS))
        yield Finish(reason="stop")


async def write(path: str) -> None:
    """In the other process: one turn, begun when told to; prints when each row was committed."""
    committed = [0]  # by seq

    def boundary(name: str, session: str, seq: int) -> None:
        if name == "committed":
            committed.extend([time.monotonic_ns()] * (seq + 1 - len(committed)))

    plugin = Bundle(adapters=[Model()])
    limits = flightlog.Limits(delta_flush_ms=FLUSH_MS)
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[plugin], on_boundary=boundary) as kernel,
        kernel.session("s", model="bench:m", limits=limits) as session,
    ):
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        await session.followup("go")
        await session.run()
        print(json.dumps(committed), flush=True)


def delays_ms(path: Path) -> list[float]:
    """Milliseconds from the commit of each streamed row to its arrival here."""
    with subprocess.Popen(
        [sys.executable, __file__, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdin
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
        arrived = trio.run(follow, path, writer.stdin)
        committed = json.loads(writer.stdout.readline())
    assert len(arrived) > DELTAS / 3, "there was something to see"
    return [(at - committed[seq]) / 1e6 for seq, at in arrived]


async def follow(path: Path, go: IO[str]) -> list[tuple[int, int]]:
    """Give the signal and follow the turn to its end: (seq, time) of each streamed row as it arrives."""
    arrived: list[tuple[int, int]] = []
    async with flightlog.open_kernel(path, discover=False) as kernel:
        go.write("go\n")
        go.flush()
        async for record in kernel.read("s").events():
            if record.event.kind == "assistant/delta":
                arrived.append((record.seq, time.monotonic_ns()))
            if record.event.kind == "turn/end":
                break
    return arrived


def main() -> dict[str, float]:
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="flightlog-bench-") as folder:
        delays = delays_ms(Path(folder) / "log.db")
    *_, p95 = quantiles = statistics.quantiles(delays, n=20)
    p50, poll_ms = quantiles[9], LIVE_POLL_S * 1000
    print(f"\nfrom a commit to a live reader in another process, {len(delays)} rows, polled every {poll_ms:g} ms")
    for name, delay in (("p50", p50), ("p95", p95), ("longest", max(delays))):
        print(f"  {name:<44} {delay:9.1f} ms      {delay / poll_ms:5.2f}x")
    return {"seen elsewhere, p50 / poll": p50 / poll_ms, "seen elsewhere, p95 / poll": p95 / poll_ms}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trio.run(write, sys.argv[1])
    else:
        main()
