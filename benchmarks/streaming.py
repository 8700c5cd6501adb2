"""Streaming: what a delta costs, and how soon a live reader in a second process sees it.

A session streams; each delta is timed as it arrives, and as `kernel.read(name).events()` hands out its row. Both
processes read the same monotonic clock.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import apsw
import trio

import flightlog
from flightlog.core.limits import LIVE_POLL_S
from flightlog.events import AssistantDelta
from flightlog.testing import Bundle, FakeModel, words
from flightlog_hookspecs import BlockEnd, BlockEvent, BlockStart, Finish, Request, TextBlock, TextDelta
from measure import Answer, Ratio, absolute, against, beside, in_turns, show, table, timed

DELTAS = 300
PACE_S = 0.008
MANY = 2_000


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
    """In the other process: one turn, begun when told to; prints when each delta arrived."""
    arrived: list[int] = []

    def boundary(name: str, session: str, seq: int) -> None:
        if name == "delta":
            arrived.append(time.monotonic_ns())

    async with (
        flightlog.open_kernel(
            path, discover=False, plugins=[Bundle(adapters=[Model()])], on_boundary=boundary
        ) as kernel,
        kernel.session("s", model="bench:m") as session,
    ):
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        await session.followup("go")
        await session.run()
        print(json.dumps(arrived), flush=True)


def delays_ms(path: Path) -> list[float]:
    """Milliseconds from the arrival of each delta to when it is seen here."""
    with beside(__file__, str(path)) as (go, said):
        seen = trio.run(follow, path, go)
        arrived = json.loads(said.readline())
    assert len(seen) == len(arrived) == DELTAS
    return [(then - now) / 1e6 for then, now in zip(seen, arrived, strict=True)]


async def follow(path: Path, go: IO[str]) -> list[int]:
    """Give the signal and follow the turn to its end: when each delta was seen."""
    seen: list[int] = []
    async with flightlog.open_kernel(path, discover=False) as kernel:
        go.write("go\n")
        go.flush()
        async for record in kernel.read("s").events():
            if isinstance(record.event, AssistantDelta):
                seen += [time.monotonic_ns()] * len(record.event.pieces)
            if record.event.kind == "turn/end":
                break
    return seen


async def replies(folder: Path, deltas: int) -> float:
    """Stream that many deltas in one answer; the seconds of the turn."""
    cues = [*words("word" * deltas), Finish(reason="stop")]

    class Quick(Model):
        async def _play(self) -> AsyncIterator[BlockEvent]:
            await trio.lowlevel.checkpoint()
            for cue in cues:
                yield cue

    async with (
        flightlog.open_kernel(folder / "log.db", discover=False, plugins=[Bundle(adapters=[Quick()])]) as kernel,
        kernel.session("s", model="bench:m") as session,
    ):
        for name in ("warm up", "go"):
            await session.followup(name)
            start = time.perf_counter()
            ended = await session.run()
            assert ended.text == "word" * deltas
        return time.perf_counter() - start


def committed_each(folder: Path) -> float:
    """Bare apsw, a commit without fsync for each delta."""
    connection = apsw.Connection(str(folder / "floor.db"))
    connection.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; CREATE TABLE deltas(text)").fetchall()
    seconds = timed(lambda: [connection.execute("INSERT INTO deltas VALUES(?)", ("word",)) for _ in range(MANY)])
    assert connection.execute("SELECT count(*) FROM deltas").get == MANY
    return seconds


def overhead() -> list[Ratio]:
    """What one more delta costs: the time of a long answer, without that of one in a single piece."""
    seconds = in_turns(
        {
            "in one piece": lambda folder: trio.run(replies, folder, 1),
            "flightlog": lambda folder: trio.run(replies, folder, MANY),
            "bare apsw, a commit each": committed_each,
        },
        rounds=5,
    )
    table(f"an answer of {MANY:,} deltas", seconds, per=MANY, unit="delta", floor="bare apsw, a commit each")
    more = [many - one for many, one in zip(seconds["flightlog"], seconds["in one piece"], strict=True)]
    return [
        absolute("overhead of a delta", [second / MANY * 1e6 for second in more], "us"),
        against("overhead of a delta / a commit without fsync each", more, seconds["bare apsw, a commit each"]),
    ]


def main() -> Answer:
    """Measure."""
    ratios = overhead()
    delays: list[float] = []
    for _ in range(3):
        with tempfile.TemporaryDirectory(prefix="flightlog-bench-") as folder:
            delays += delays_ms(Path(folder) / "log.db")
    print(f"\nfrom a delta's arrival to a live reader in another process: {len(delays)}, polled every {LIVE_POLL_S} s")
    cuts = statistics.quantiles(delays, n=100)
    ratios += [
        Ratio("seen by another process, p50", cuts[49], cuts[39], cuts[59], unit="ms"),
        Ratio("seen by another process, p99", cuts[98], cuts[97], max(delays), reach=50, dream=31, unit="ms"),
    ]
    answer = Answer(ratios)
    show(answer)
    return answer


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trio.run(write, sys.argv[1])
    else:
        main()
