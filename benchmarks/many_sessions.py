"""Do many sessions in one kernel cost more an event than one alone? Against bare apsw writing what one alone writes.

Short turns with one tool call (see durable_turn), as many turns in all either way: all in one session, or
one in each of 64 that run at the same time.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import trio

import flightlog
from durable_turn import Model, look_up
from flightlog import Session
from flightlog.testing import Bundle
from floor import Commit, Floor, Recorder
from side_by_side import Contestant, compare, timed

SESSIONS = 64


async def turns(folder: Path, sessions: int, each: int) -> float:
    """Run `each` turns in every session, all sessions at once; the seconds they took."""
    plugin = Bundle(adapters=[Model()], tools=[look_up])
    async with flightlog.open_kernel(folder / "log.db", discover=False, plugins=[plugin]) as kernel:
        async with AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(kernel.session(f"s{number}", model="bench:m"))
                for number in range(sessions)
            ]
            start = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for session in opened:
                    nursery.start_soon(work, session, each)
            seconds = time.perf_counter() - start
        for session in opened:
            assert kernel.read(session.id).verify() > 0
    return seconds


async def work(session: Session, number: int) -> None:
    """Run that many turns."""
    for turn in range(number):
        await session.followup(f"question {turn}")
        ended = await session.run()
        assert ended is not None
        assert ended.reason == "completed"


def recorded(folder: Path) -> list[Commit]:
    """The commits of all turns, run in one session."""
    with Recorder() as recorder:
        trio.run(turns, folder, 1, SESSIONS)
    first = next(i for i, commit in enumerate(recorder.commits) if commit.rows[0].kind == "inbox/splice")
    last = max(i for i, commit in enumerate(recorder.commits) if any(row.kind == "turn/end" for row in commit.rows))
    return recorder.commits[first : last + 1]


def ours(sessions: int) -> Contestant:
    """The whole loop."""
    return lambda folder: trio.run(turns, folder, sessions, SESSIONS // sessions)


def floor(folder: Path) -> float:
    """Bare apsw with the rows and commits that one session makes."""
    commits = recorded(folder)
    database = Floor(folder)
    seconds = timed(lambda: database.write(commits))
    database.check(sum(len(commit.rows) for commit in commits))
    return seconds


def main() -> dict[str, float]:
    """Compare."""
    with tempfile.TemporaryDirectory(prefix="flightlog-bench-") as folder:
        events = sum(len(commit.rows) for commit in recorded(Path(folder)))
    ratios = compare(
        f"{SESSIONS} turns of {events / SESSIONS:g} events, in one session and in {SESSIONS} at once",
        "bare apsw",
        {"bare apsw": floor, "one session": ours(1), f"{SESSIONS} sessions": ours(SESSIONS)},
        rounds=3,
        unit="event",
        per=events,
    )
    many = ratios[f"{SESSIONS} sessions"]
    return {f"{SESSIONS} sessions": many, f"{SESSIONS} sessions / one session": many / ratios["one session"]}


if __name__ == "__main__":
    main()
