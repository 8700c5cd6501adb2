"""A whole durable turn against bare apsw writing the same rows with the same commits.

A turn: message accepted, request, streamed answer with one tool call (300 characters of arguments),
tool run (2 KB result), second request, streamed final answer. Through the real loop: trio, plugins,
all events, all barriers, the self-check.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import trio

import flightlog
from agent import agent, work
from floor import Commit, Floor, Recorder
from measure import Answer, against, in_turns, show, table, timed

TURNS = 100


async def turns(folder: Path) -> float:
    """Run all turns, and one before them; the seconds they took."""
    async with flightlog.open_kernel(folder / "log.db", discover=False, plugins=[agent()]) as kernel:
        async with kernel.session("s", model="bench:m") as session:
            await work(session, 1)
            start = time.perf_counter()
            await work(session, TURNS)
            seconds = time.perf_counter() - start
        assert kernel.read("s").verify() > 0
    return seconds


def ours(folder: Path) -> float:
    """The whole loop."""
    return trio.run(turns, folder)


def recorded() -> list[Commit]:
    """The commits of all turns but the first."""
    with tempfile.TemporaryDirectory(prefix="flightlog-bench-") as folder, Recorder() as recorder:
        trio.run(turns, Path(folder))
    ends = [i for i, commit in enumerate(recorder.commits) if any(row.kind == "turn/end" for row in commit.rows)]
    return recorder.commits[ends[0] + 1 : ends[-1] + 1]


def main() -> Answer:
    """Compare."""
    commits = recorded()
    rows, barriers = sum(len(commit.rows) for commit in commits), sum(commit.barrier for commit in commits)

    def floor(folder: Path) -> float:
        database = Floor(folder)
        seconds = timed(lambda: database.write(commits))
        database.check(rows)
        return seconds

    seconds = in_turns({"bare apsw": floor, "flightlog": ours}, rounds=5)
    made = f"{len(commits) / TURNS:g} commits, {barriers / TURNS:g} of them FULL, {rows / TURNS:g} rows"
    table(f"a durable turn with one tool call: {made}", seconds, per=TURNS, unit="turn", floor="bare apsw")
    answer = Answer(
        [against("durable turn / bare apsw", seconds["flightlog"], seconds["bare apsw"], reach=2, dream=1.4)]
    )
    show(answer)
    return answer


if __name__ == "__main__":
    main()
