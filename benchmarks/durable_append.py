"""The journal, everything on, against bare apsw writing the same rows with the same commits, and against a plain file.

Everything: legality, fold, codec, hash chain, guards, view indexes, witness, file checks. Alone, with several sessions
that share one writer, and with several processes on one file. An event has 500 characters.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import apsw
import trio

import flightlog
from flightlog.runtime.clock import no_boundary
from flightlog.runtime.group_commit import GroupCommit
from flightlog.runtime.journal import Journal
from flightlog.runtime.recovery import open_session
from flightlog.store.store import Store
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import InboxSplice, SessionCreated
from floor import Commit, Floor, Recorder
from measure import Answer, Ratio, Work, against, in_turns, show, table, timed

EVENTS: Final = 640
SESSIONS: Final = (1, 4, 16, 64)
PROCESSES: Final = 8
EVENTS_OF_A_PROCESS: Final = 80
ROUNDS: Final = 5
TEXT: Final = "The quick brown fox jumps over the lazy dog. " * 11


def splices(number: int) -> list[InboxSplice]:
    """A message enters the inbox and is withdrawn again, over and over, so that the inbox stays short."""
    content = text_blocks(TEXT)
    events = []
    for at in range(number // 2):
        message_id = f"{at:032x}"
        events += [
            InboxSplice(slot="next_turn", start=0, message_id=message_id, cause="accepted", content=content),
            InboxSplice(slot="next_turn", start=0, message_id=message_id, cause="withdrawn", removed=1),
        ]
    return events


async def opened(commits: GroupCommit, name: str) -> Journal:
    """The journal of a new session."""
    return await open_session(
        commits,
        name,
        created=SessionCreated,
        plugins=(),
        expect=None,
        clock=flightlog.Clock(),
        on_boundary=no_boundary,
    )


async def append_all(path: Path, names: list[str], number: int, *, barrier: bool, go: bool = True) -> float:
    """Append so many events, each on its own, evenly in all sessions at once; the seconds it took."""
    store = Store.open(str(path))
    commits = GroupCommit(store)
    journals = [await opened(commits, name) for name in names]
    each = number // len(names)
    events = splices(each)

    async def append(journal: Journal) -> None:
        for event in events:
            await journal.append(event, barrier=barrier)
        assert journal.seq == each + 2, "every event is in the log"

    if not go:  # another process says when
        print("ready", flush=True)
        sys.stdin.readline()
    start = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for journal in journals:
            nursery.start_soon(append, journal)
    seconds = time.perf_counter() - start
    store.close()
    return seconds


async def in_sessions(folder: Path, sessions: int, barrier: bool) -> float:
    """In one process."""
    return await append_all(folder / "log.db", [f"s{number}" for number in range(sessions)], EVENTS, barrier=barrier)


def ours(sessions: int, *, barrier: bool) -> Work:
    """The journals of so many sessions."""
    return lambda folder: trio.run(in_sessions, folder, sessions, barrier)


def floor(commits: list[Commit]) -> Work:
    """Bare apsw with the rows and commits that the journals make."""

    def run(folder: Path) -> float:
        database = Floor(folder)
        seconds = timed(lambda: database.write(commits))
        database.check(EVENTS)
        return seconds

    return run


def plain_file(commits: list[Commit], *, barrier: bool) -> Work:
    """The data of the same rows, appended to a file."""

    def run(folder: Path) -> float:
        file = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        lines = [[(row.data + (row.text or "") + "\n").encode() for row in commit.rows] for commit in commits]
        start = time.perf_counter()
        for commit in lines:
            os.write(file, b"".join(commit))
            if barrier:
                os.fdatasync(file)
        seconds = time.perf_counter() - start
        assert os.fstat(file).st_size == sum(len(line) for commit in lines for line in commit)
        os.close(file)
        return seconds

    return run


def recorded(sessions: int, *, barrier: bool) -> list[Commit]:
    """The commits of the events alone."""
    with tempfile.TemporaryDirectory(prefix="flightlog-bench-") as folder, Recorder(barrier=barrier) as recorder:
        trio.run(in_sessions, Path(folder), sessions, False)
    opening = sum(commit.rows[0].kind != "inbox/splice" for commit in recorder.commits)
    return recorder.commits[opening:]


def in_processes(verb: str) -> Work:
    """So many processes, each with its own session, on one file; the seconds until the last has ended."""

    def run(folder: Path) -> float:
        if verb == "floor":
            Floor(folder).connection.close()
        command = [sys.executable, __file__, verb, folder]
        processes = [
            subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for number in range(PROCESSES)
        ]
        for process in processes:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        start = time.perf_counter()
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            process.communicate()
            assert process.returncode == 0
        return time.perf_counter() - start

    return run


def one_of_many(verb: str, folder: Path, number: str) -> None:
    """In one of many processes."""
    if verb == "ours":
        trio.run(lambda: append_all(folder / "log.db", [f"s{number}"], EVENTS_OF_A_PROCESS, barrier=True, go=False))
        return
    commits = [
        Commit(tuple(row._replace(session=int(number) + 1) for row in commit.rows), (), True)
        for commit in recorded(1, barrier=True)[:EVENTS_OF_A_PROCESS]
    ]
    database = Floor(folder)
    database.connection.set_busy_timeout(60_000)
    print("ready", flush=True)
    sys.stdin.readline()
    database.write(commits)
    database.connection.close()


def alone() -> list[Ratio]:
    """One session, with fsync and without."""
    ratios = []
    for mode, barrier, reach, dream in (("FULL", True, 1.25, 1.1), ("NORMAL", False, 3, 2)):
        commits = recorded(1, barrier=barrier)
        seconds = in_turns(
            {
                "bare apsw": floor(commits),
                "flightlog's journal": ours(1, barrier=barrier),
                "plain file": plain_file(commits, barrier=barrier),
            },
            rounds=ROUNDS,
        )
        table(f"{EVENTS} appends, {mode}", seconds, per=EVENTS, unit="event", floor="bare apsw")
        mine = seconds["flightlog's journal"]
        ratios += [
            against(f"append {mode} / bare apsw", mine, seconds["bare apsw"], reach=reach, dream=dream),
            against(f"append {mode} / plain file", mine, seconds["plain file"]),
        ]
    return ratios


def shared() -> list[Ratio]:
    """Several sessions, one writer."""
    ratios = []
    contestants = {}
    for sessions in SESSIONS:
        contestants[f"bare apsw, {sessions}"] = floor(recorded(sessions, barrier=True))
        contestants[f"flightlog, {sessions}"] = ours(sessions, barrier=True)
    seconds = in_turns(contestants, rounds=ROUNDS)
    table(
        f"{EVENTS} appends FULL, by sessions that share a writer",
        seconds,
        per=EVENTS,
        unit="event",
        floor="bare apsw, 1",
    )
    for sessions in SESSIONS[1:]:
        mine, bare = seconds[f"flightlog, {sessions}"], seconds[f"bare apsw, {sessions}"]
        ratios.append(against(f"append FULL, {sessions} sessions / bare apsw, grouped alike", mine, bare))
    return ratios


def crowded() -> list[Ratio]:
    """Several processes, one file."""
    seconds = in_turns({"bare apsw": in_processes("floor"), "flightlog": in_processes("ours")}, rounds=3)
    events = EVENTS_OF_A_PROCESS * PROCESSES
    table(f"{events:,} appends FULL by {PROCESSES} processes", seconds, per=events, unit="event", floor="bare apsw")
    return [against(f"append FULL, {PROCESSES} processes / bare apsw", seconds["flightlog"], seconds["bare apsw"])]


def main() -> Answer:
    """Compare."""
    print(f"\nSQLite {apsw.sqlite_lib_version()}")
    answer = Answer([*alone(), *shared(), *crowded()])
    show(answer)
    return answer


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one_of_many(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
    else:
        main()
