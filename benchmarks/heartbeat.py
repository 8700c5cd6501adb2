"""The longest time that the loop stands still for storage: while sessions work, beside another process, on a slow disk.

A task wants to run every millisecond. What it waits longer is a pause, and each pause is attributed to what
went on in it: calls of the database, the garbage collector, everything else. The slow disk is a layer over SQLite's
own files that takes ten milliseconds for each sync.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import trio
from attrs import define, field

import flightlog
from agent import agent, work
from flightlog.store.connection import ApswDatabase
from flightlog.store.log_file import LogFile
from flightlog.testing.memory import memory_folder
from measure import Answer, Ratio, beside, show

SESSIONS = 16
TURNS = 6
TICK_S = 0.001
LIMIT_MS = 10.0
SYNC_S = 0.010


class SlowDisk(apsw.VFS):
    """Files in memory, as if on a disk that takes its time for a sync."""

    def __init__(self) -> None:
        super().__init__("slow-disk", "unix")
        self.syncs = 0

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        """Open a file."""
        return SlowFile(self, name, flags)


class SlowFile(apsw.VFSFile):
    """One of its files."""

    def __init__(self, disk: SlowDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk

    def xSync(self, flags: int) -> None:  # noqa: N802
        """Sync."""
        self._disk.syncs += 1
        time.sleep(SYNC_S)
        super().xSync(flags)


@contextmanager
def slow_disk() -> Iterator[SlowDisk]:
    """All files that are opened meanwhile are on a slow disk, for SQLite and for the store's own syncs."""
    disk, before, sync = SlowDisk(), apsw.vfs_names()[0], LogFile.sync

    def slow(file: LogFile) -> None:
        disk.syncs += 1
        time.sleep(SYNC_S)
        sync(file)

    apsw.set_default_vfs("slow-disk")
    LogFile.sync = slow  # type: ignore[method-assign]
    try:
        yield disk
    finally:
        LogFile.sync = sync  # type: ignore[method-assign]
        apsw.set_default_vfs(before)


@define
class Attribution:
    """How long the loop's thread has spent in the database and in the collector so far, in seconds."""

    database_s: float = 0.0
    collector_s: float = 0.0
    _began: float = 0.0

    def collecting(self, phase: str, info: dict[str, Any]) -> None:  # noqa: ARG002
        """Told by the collector."""
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.collector_s += time.perf_counter() - self._began

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, its time on the loop's thread counted but for what the collector takes of it."""

        def call(*arguments: Any, **named: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*arguments, **named)
            began, collected_s = time.perf_counter(), self.collector_s
            try:
                return function(*arguments, **named)
            finally:
                self.database_s += time.perf_counter() - began - (self.collector_s - collected_s)

        return call


@define
class Pauses:
    """The pauses of a run: (pause, of it in the database, of it in the collector), in milliseconds."""

    all: list[tuple[float, float, float]] = field(factory=list)

    async def watch(self, spent: Attribution) -> None:
        """Tick until cancelled."""
        while True:
            began, database_s, collector_s = time.perf_counter(), spent.database_s, spent.collector_s
            await trio.sleep(TICK_S)
            self.all.append(
                (
                    (time.perf_counter() - began - TICK_S) * 1000,
                    (spent.database_s - database_s) * 1000,
                    (spent.collector_s - collector_s) * 1000,
                )
            )


async def watched(path: Path, sessions: int) -> tuple[Pauses, Pauses]:
    """The pauses while that many sessions are opened, all at once, and while they work."""
    spent = Attribution()
    names = ("read", "write", "begin", "commit", "rollback")
    originals = {name: getattr(ApswDatabase, name) for name in names}
    for name in names:
        setattr(ApswDatabase, name, spent.timed(originals[name]))
    gc.callbacks.append(spent.collecting)
    plugin = agent()
    opened: list[flightlog.Session] = []
    try:
        async with (
            flightlog.open_kernel(path, discover=False, plugins=[plugin]) as kernel,
            trio.open_nursery() as holding,
        ):

            async def hold(name: str) -> None:
                async with kernel.session(name, model="bench:m") as session:
                    opened.append(session)
                    await trio.sleep_forever()

            async def open_all() -> None:
                for number in range(sessions):
                    holding.start_soon(hold, f"s{number}")
                while len(opened) < sessions:  # noqa: ASYNC110
                    await trio.sleep(TICK_S)

            async def work_all() -> None:
                async with trio.open_nursery() as working:
                    for session in opened:
                        working.start_soon(work, session, TURNS)
                if not opened:
                    await trio.sleep(1)

            opening, working = await pauses_during(open_all, spent), await pauses_during(work_all, spent)
            holding.cancel_scope.cancel()
    finally:
        gc.callbacks.remove(spent.collecting)
        for name in names:
            setattr(ApswDatabase, name, originals[name])
    return opening, working


async def pauses_during(doing: Callable[[], Awaitable[None]], spent: Attribution) -> Pauses:
    """The pauses while `doing` runs."""
    pauses = Pauses()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pauses.watch, spent)
        await trio.sleep(10 * TICK_S)
        await doing()
        nursery.cancel_scope.cancel()
    return pauses


async def write(path: str) -> None:
    """In the other process: work until the input ends."""
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[agent()]) as kernel,
        kernel.session("other", model="bench:m") as session,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(work, session, sys.maxsize)
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


def found(name: str, pauses: Pauses) -> Ratio:
    """Print the longest pause and what it was made of; returns the longest that the database alone stood in the way."""
    longest, database, collector = max(pauses.all)
    over = sum(pause > LIMIT_MS for pause, *_ in pauses.all)
    print(
        f"  {name:<44} {longest:9.1f} ms   of it database {database:.1f}, collector {collector:.1f}; "
        f"{over} of {len(pauses.all)} over {LIMIT_MS:g} ms"
    )
    stored = sorted(min(pause, database) for pause, database, _ in pauses.all)
    return Ratio(
        f"longest pause by storage: {name}", stored[-1], stored[len(stored) // 2], stored[-1], LIMIT_MS, unit="ms"
    )


def main() -> Answer:
    """Measure: an idle kernel, the sessions alone, with another process, and on a slow disk."""
    print(f"\nthe longest pause of a task that wants to run every {TICK_S * 1000:g} ms")
    with tempfile.TemporaryDirectory(prefix="flightlog-bench-") as folder:
        path = Path(folder) / "log.db"
        _, idle = trio.run(watched, path, 0)
        opening, alone = trio.run(watched, path, SESSIONS)
        with beside(__file__, str(path)):
            _, both = trio.run(watched, path, SESSIONS)
    with memory_folder() as memory, slow_disk() as disk:
        _, slow = trio.run(watched, memory / "log.db", SESSIONS)
        assert disk.syncs > TURNS, "its syncs are slow"
        _, slow_alone = trio.run(watched, memory / "log.db", 1)
    answer = Answer(
        [
            found("an idle kernel", idle),
            found(f"{SESSIONS} sessions are created at once", opening),
            found(f"{SESSIONS} sessions work", alone),
            found(f"{SESSIONS} sessions work, another process too", both),
            found(f"{SESSIONS} sessions work, syncs of {SYNC_S * 1000:g} ms", slow),
            found(f"one session works, syncs of {SYNC_S * 1000:g} ms", slow_alone),
        ]
    )
    show(answer)
    return answer


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trio.run(write, sys.argv[1])
    else:
        main()
