"""A whole durable turn against bare apsw writing the same rows with the same commits.

A turn: message accepted, request, streamed answer with one tool call (300 characters of arguments),
tool run (2 KB result), second request, streamed final answer. Through the real loop: trio, plugins,
all events, all barriers, the self-check.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import trio

import flightlog
from flightlog.testing import Bundle, Cue, FakeModel, calls, words
from flightlog_hookspecs import BlockEvent, Finish, Request, ToolResult, tool
from floor import Commit, Floor, Recorder
from side_by_side import compare, timed

TURNS = 100
ANSWER = "I will look it up and tell you what I find. " * 3


@tool(mode="parallel", effect="read")
async def look_up(query: str) -> str:
    """Look something up.

    Args:
        query: what to look for

    """
    return "found " * 340


class Model:
    """Calls the tool once, then answers. Looks at the last message only, so that it costs the same for ever."""

    name = "bench"
    encode = staticmethod(FakeModel([]).encode)
    look: ClassVar[list[Cue]] = [
        *words(ANSWER, chunk=20),
        *calls(("look_up", {"query": "q" * 300})),
        Finish(reason="tool_calls"),
    ]
    tell: ClassVar[list[Cue]] = [*words(ANSWER, chunk=20), Finish(reason="stop")]

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:  # noqa: ARG002
        """Play the reply."""
        yield self._play(self.tell if isinstance(request.messages[-1], ToolResult) else self.look)

    async def _play(self, cues: list[Cue]) -> AsyncIterator[BlockEvent]:
        await trio.lowlevel.checkpoint()
        for cue in cues:
            yield cue


async def turns(folder: Path, number: int) -> float:
    """Run that many turns; the seconds they took."""
    plugin = Bundle(adapters=[Model()], tools=[look_up])
    async with flightlog.open_kernel(folder / "log.db", discover=False, plugins=[plugin]) as kernel:
        async with kernel.session("s", model="bench:m") as session:
            await session.followup("warm up")
            await session.run()
            start = time.perf_counter()
            for turn in range(1, number):
                await session.followup(f"question {turn}")
                ended = await session.run()
                assert ended is not None
                assert ended.reason == "completed"
            seconds = time.perf_counter() - start
        assert kernel.read("s").verify() > 0
    return seconds


def ours(folder: Path) -> float:
    """The whole loop."""
    return trio.run(turns, folder, TURNS + 1)


def floor(folder: Path) -> float:
    """Bare apsw with the rows and commits that the loop makes."""
    commits = recorded(folder)
    database = Floor(folder)
    seconds = timed(lambda: database.write(commits))
    database.check(sum(len(commit.rows) for commit in commits))
    return seconds


def recorded(folder: Path) -> list[Commit]:
    """The commits of all turns but the first."""
    with Recorder() as recorder:
        trio.run(turns, folder, TURNS + 1)
    ends = [i for i, commit in enumerate(recorder.commits) if any(row.kind == "turn/end" for row in commit.rows)]
    return recorder.commits[ends[0] + 1 : ends[-1] + 1]


def main() -> dict[str, float]:
    """Compare."""
    with tempfile.TemporaryDirectory(prefix="flightlog-bench-") as folder:
        commits = recorded(Path(folder))
    rows, barriers = sum(len(commit.rows) for commit in commits), sum(commit.barrier for commit in commits)
    print(f"\na turn makes {len(commits) / TURNS:g} commits, {barriers / TURNS:g} of them FULL, {rows / TURNS:g} rows")
    ratios = compare(
        f"a durable turn with one tool call, {TURNS} turns, flightlog {flightlog.__version__}",
        "bare apsw",
        {"bare apsw": floor, "flightlog": ours},
        rounds=3,
        unit="turn",
        per=TURNS,
    )
    return {"durable turn": ratios["flightlog"]}


if __name__ == "__main__":
    main()
