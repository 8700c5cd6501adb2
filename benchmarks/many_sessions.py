"""Many sessions: 64 that work at once, and 10,000 in one file of which the newest are listed and one is opened.

Durable turns with one tool call. The 64 are set against bare apsw that writes the same rows with the same commits, and
against as many turns of one session.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import trio

import flightlog
from agent import agent, work
from flightlog.testing.memory import memory_folder
from floor import Commit, Floor, Recorder
from measure import Answer, Ratio, Work, absolute, against, in_turns, show, table, timed

SESSIONS: Final = 64
ROUNDS: Final = 5
FEW: Final = 10
MANY: Final = 10_000
LISTED: Final = 50


async def turns(folder: Path, sessions: int) -> float:
    """Run so many turns in all, one session or several at once; the seconds they took."""
    async with flightlog.open_kernel(folder / "log.db", discover=False, plugins=[agent()]) as kernel:
        async with AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(kernel.session(f"s{number}", model="bench:m"))
                for number in range(sessions)
            ]
            start = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for session in opened:
                    nursery.start_soon(work, session, SESSIONS // sessions)
            seconds = time.perf_counter() - start
        for session in opened:
            assert kernel.read(session.id).verify() > 0
    return seconds


def recorded(sessions: int) -> list[Commit]:
    """The commits of all turns."""
    with tempfile.TemporaryDirectory(prefix="flightlog-bench-") as folder, Recorder() as recorder:
        trio.run(turns, Path(folder), sessions)
    commits = recorder.commits
    first = next(i for i, commit in enumerate(commits) if commit.rows[0].kind == "inbox/splice")
    last = max(i for i, commit in enumerate(commits) if any(row.kind == "turn/end" for row in commit.rows))
    return commits[first : last + 1]


def floor(commits: list[Commit]) -> Work:
    """Bare apsw with these commits."""

    def run(folder: Path) -> float:
        database = Floor(folder)
        seconds = timed(lambda: database.write(commits))
        database.check(sum(len(commit.rows) for commit in commits))
        return seconds

    return run


def at_once() -> list[Ratio]:
    """64 sessions, and one."""
    commits = recorded(SESSIONS)
    events = sum(len(commit.rows) for commit in commits)
    seconds = in_turns(
        {
            "bare apsw, grouped alike": floor(commits),
            "bare apsw, as one session": floor(recorded(1)),
            "one session": lambda folder: trio.run(turns, folder, 1),
            f"{SESSIONS} sessions": lambda folder: trio.run(turns, folder, SESSIONS),
        },
        rounds=ROUNDS,
    )
    title = f"{SESSIONS} turns of {events / SESSIONS:g} events; {SESSIONS} sessions share {len(commits)} commits"
    table(title, seconds, per=events, unit="event", floor="bare apsw, grouped alike")
    many = seconds[f"{SESSIONS} sessions"]
    return [
        against(
            f"durable events a second, {SESSIONS} sessions / bare apsw, grouped alike",
            seconds["bare apsw, grouped alike"],
            many,
            reach=0.5,
            dream=0.8,
            more_is_better=True,
        ),
        against(f"{SESSIONS} sessions / bare apsw writing as one session", many, seconds["bare apsw, as one session"]),
        against(f"{SESSIONS} sessions / one session", many, seconds["one session"]),
    ]


async def looked_at(path: Path, sessions: int) -> tuple[list[float], list[float]]:
    """Seconds to list the newest sessions of a file that has so many, and to open one of them."""
    async with flightlog.open_kernel(path, discover=False, plugins=[agent()]) as kernel:
        for number in range(sessions):
            async with kernel.session(f"s{number}", model="bench:m"):
                pass
        listing, opening = list[float](), list[float]()
        for number in range(ROUNDS + 1):
            with flightlog.open_log(path) as log:
                start = time.perf_counter()
                listed = log.sessions(limit=LISTED)
                listing.append(time.perf_counter() - start)
            assert len(listed) == min(sessions, LISTED)
            start = time.perf_counter()
            async with kernel.session(f"s{sessions // 2 + number % 2}", model="bench:m"):
                opening.append(time.perf_counter() - start)
    return listing[1:], opening[1:]


def in_one_file() -> list[Ratio]:
    """Ten sessions, and ten thousand."""
    with memory_folder() as folder:
        few = trio.run(looked_at, folder / "few.db", FEW)
        many = trio.run(looked_at, folder / "many.db", MANY)
    ratios = []
    for what, a, b in (("list the newest", many[0], few[0]), ("open one", many[1], few[1])):
        ratios += [
            absolute(f"{what} of {MANY:,} sessions", [second * 1e3 for second in a], "ms"),
            against(f"{what} of {MANY:,} sessions / of {FEW}", a, b),
        ]
    return ratios


def main() -> Answer:
    """Measure."""
    answer = Answer([*at_once(), *in_one_file()])
    show(answer)
    return answer


if __name__ == "__main__":
    main()
