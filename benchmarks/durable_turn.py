"""What does a whole durable turn cost, against bare apsw writing the same rows with the same commits?

A turn: message accepted, request, streamed answer with one tool call (300 characters of arguments),
tool run (2 KB result), second request, streamed final answer. Through the real loop: trio, plugins,
all events, all barriers, the self-check.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import trio
from floor import Commit, Floor, commit_of
from side_by_side import compare, timed

import flightlog
from flightlog.store.store import Store
from flightlog.testing import Bundle, Cue, FakeModel, calls, words
from flightlog_hookspecs import BlockEvent, Finish, Request, ToolResult, tool

TURNS = 200
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
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        """Play the reply."""
        yield self._play(self.tell if isinstance(request.messages[-1], ToolResult) else self.look)

    async def _play(self, cues: list[Cue]) -> AsyncIterator[BlockEvent]:
        await trio.lowlevel.checkpoint()
        for cue in cues:
            yield cue


class Recorder:
    """Keeps the commits of a store as they are made."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self._commit = Store.commit

    def __enter__(self) -> Recorder:
        original = self._commit

        def commit(store: Store, append, blobs=(), *, barrier: bool) -> None:  # type: ignore[no-untyped-def]
            self.commits.append(commit_of(append, barrier=barrier))
            original(store, append, blobs, barrier=barrier)

        Store.commit = commit  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Store.commit = self._commit  # type: ignore[method-assign]


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
    return trio.run(turns, folder, TURNS + 1)


def floor(folder: Path) -> float:
    with Recorder() as recorder:
        trio.run(turns, folder, TURNS + 1)
    bounds = [i for i, commit in enumerate(recorder.commits) if any(row.kind == "turn/end" for row in commit.rows)]
    commits = recorder.commits[bounds[0] + 1 : bounds[-1] + 1]
    database = Floor(folder)
    seconds = timed(lambda: database.write(commits))
    database.check(sum(len(commit.rows) for commit in commits))
    full = sum(commit.barrier for commit in commits)
    if not floor.__dict__.get("told"):
        floor.__dict__["told"] = True
        print(
            f"a turn makes {len(commits) / TURNS:.1f} commits, {full / TURNS:.1f} of them FULL, {sum(len(c.rows) for c in commits) / TURNS:.1f} rows"
        )
    return seconds


def main() -> dict[str, float]:
    """Compare."""
    ratios = compare(
        f"a durable turn with one tool call, {TURNS} turns, flightlog {flightlog.__version__}",
        "bare apsw",
        {"bare apsw": floor, "flightlog": ours},
        rounds=5,
        unit="turn",
        per=TURNS,
    )
    return {"turn": ratios["flightlog"]}


if __name__ == "__main__":
    main()
