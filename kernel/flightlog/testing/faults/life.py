"""One life of a kernel on given files: it opens them, works, and leaves them; and what came of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final

import trio
from attrs import define, frozen

from flightlog.api import Kernel, open_kernel
from flightlog.runtime.clock import no_boundary
from flightlog.runtime.error_groups import beside
from flightlog.runtime.plugins import load_plugins
from flightlog.runtime.reader import LogReader
from flightlog.runtime.registry import Registry
from flightlog.store.replay import Replay, replaying
from flightlog.store.snapshots import Snapshots, restoring
from flightlog.store.store import SessionKey, Store
from flightlog.testing.faults.determinism import clock_of, reseed
from flightlog.testing.faults.disk import WORKSPACE, Disk, Files, Op
from flightlog.testing.faults.recorder import Recorder, recording
from flightlog.testing.faults.workloads import Workload, mode_of, watched
from flightlog.testing.faults.world import Fact, World
from flightlog.testing.memory import memory_folder
from flightlog_hookspecs.errors import StoreError
from flightlog_hookspecs.events import Message, Record

Row = tuple[Any, ...]
"""A row of the table `events`: id, session key, seq, ... , digest."""

_SUFFIXES: Final = {"db": "", "wal": "-wal", "journal": "-journal", "head": "-head"}
_ALL: Final = 2**62
_HANGS_S: Final = 36_000.0
"""Of trio's clock, which jumps: who is not through by then waits for what never comes."""


@define
class Bench:
    """A folder, in memory where there is one, where files are laid out and taken up again."""

    folder: str

    @property
    def path(self) -> str:
        """The database's."""
        return f"{self.folder}/a.db"

    @property
    def workspace(self) -> str:
        """The folder of what tools write: "files/..." among the files."""
        return workspace_of(self.path)

    def lay_out(self, files: Files) -> None:
        """Let exactly `files` be there. The -shm never is: whoever opens first makes it anew anyway."""
        self._lay_out_workspace({name: raw for name, raw in files.items() if name.startswith(WORKSPACE)})
        for name in ("-shm", *(suffix for file, suffix in _SUFFIXES.items() if file not in files)):
            if os.path.exists(self.path + name):
                os.unlink(self.path + name)
        for file, content in files.items():
            if file not in _SUFFIXES:
                continue
            # Not emptied first: that would give its memory back, only to take as much again.
            fd = os.open(self.path + _SUFFIXES[file], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(fd, content, 0)
            os.ftruncate(fd, len(content))
            os.close(fd)

    def photograph(self) -> Files:
        """The files as they are."""
        found = {}
        for file, suffix in _SUFFIXES.items():
            if os.path.exists(self.path + suffix):
                with open(self.path + suffix, "rb") as content:
                    found[file] = content.read()
        for path in self._in_workspace():
            with open(path, "rb") as content:
                found[WORKSPACE + os.path.relpath(path, self.workspace)] = content.read()
        return found

    def _lay_out_workspace(self, files: Files) -> None:
        for path in self._in_workspace():
            os.unlink(path)
        for name, content in files.items():
            path = os.path.join(self.workspace, name.removeprefix(WORKSPACE))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "xb") as file:
                file.write(content)

    def _in_workspace(self) -> list[str]:
        return [os.path.join(above, name) for above, _, names in os.walk(self.workspace) for name in names]


def workspace_of(path: str) -> str:
    """The folder beside the database `path` that tools write in."""
    return os.path.join(os.path.dirname(path), WORKSPACE.rstrip("/"))


@contextmanager
def bench() -> Iterator[Bench]:
    """A bench that is gone afterwards."""
    with memory_folder() as folder:
        place = Bench(str(folder))
        os.mkdir(place.workspace)
        yield place


@frozen
class Found:
    """What stands in a log that was just opened: all rows in order, the number of letters, each session's key.

    And the seqs that there are snapshots of, by key.
    """

    rows: list[Row]
    letters: int
    keys: dict[str, int]
    snapshots: dict[int, int]

    @property
    def state(self) -> tuple[object, ...]:
        """What a kernel goes by: the letters are only added to, and each row's digest covers all before it.

        A snapshot says what its rows say (see `misleading`), but where it stands decides when there is another.
        """
        last = {row[1]: row[-1] for row in self.rows}
        return (len(self.rows), self.letters, *sorted(last.items()), *sorted(self.snapshots.items()))

    def counts(self) -> dict[str, int]:
        """How many rows each session has."""
        by_key = Counter(row[1] for row in self.rows)
        return {name: by_key[key] for name, key in self.keys.items()}


def look(path: str) -> Found:
    """Open the log as a kernel does, read it, and leave it as a death would. Raises what opening raises."""
    store = Store.open(path)
    try:
        keys = {name: store.read("session_key", name)[0][0] for (name,) in store.read("session_names")}
        kept = {key: row.seq for key in keys.values() if (row := store.snapshot(key))}
        return Found(_rows(store), store.read("last_letter")[0][0], keys, kept)
    finally:
        store.stop(StoreError("looked at only"))  # so that closing does not mark it as closed
        store.close()


def misleading(path: str) -> Iterator[str]:
    """The sessions with a snapshot that is not used, or says something else than the rows it stands for."""
    store = Store.open_to_read(path)
    try:
        for (name,) in store.read("session_names"):
            key = store.key_of(name)
            if key is not None and (row := store.snapshot(key.key)) and not _leads(store, name, key, row.seq):
                yield name
    finally:
        store.close()


def _leads(store: Store, name: str, key: SessionKey, seq: int) -> bool:
    """Whether the snapshot of a session leads where its rows up to `seq` do."""
    told, read = Replay(session=name, uid=key.uid), Replay(session=name, uid=key.uid)
    for _ in restoring(store, told, Snapshots(*key)):
        pass
    for record in replaying(store, read, key.key):
        if record.seq == seq:
            break
    return (told.seq, told.digest, told.state, told.history) == (seq, read.digest, read.state, read.history)


def _rows(store: Store) -> list[Row]:
    return [(row[-1], *row[:-1]) for row in store.read("events_by_id", 0, _ALL)]


@frozen(kw_only=True)
class Log:
    """What a life has left behind, by session."""

    records: dict[str, list[Record]]
    messages: dict[str, list[Message]]

    def all_records(self) -> list[Record]:
        """Those of all sessions."""
        return [record for records in self.records.values() for record in records]


@frozen(kw_only=True)
class Life:
    """A life that was watched: from `disk` on, what it did to the files, and all the world knows.

    `found` is what its log held in the end.
    """

    disk: Disk
    ops: Sequence[Op]
    facts: Sequence[Fact]
    found: Found
    log: Log


@frozen
class Hung(Exception):
    """A life did not come to an end."""


async def new_log(bench: Bench) -> Files:
    """The files of an empty log that was closed cleanly."""
    bench.lay_out({})
    async with open_kernel(bench.path, discover=False):
        pass
    return bench.photograph()


async def live(path: str, workload: Workload, world: World, *, seed: int, number: int) -> None:
    """Let a kernel on `path` work through `workload`."""
    reseed(seed)
    world.workspace, world.life = workspace_of(path), number
    with world.watching(), trio.move_on_after(_HANGS_S) as patience:
        async with open_kernel(
            path,
            discover=False,
            plugins=workload.plugins(world),
            workspace=world.workspace,
            clock=clock_of(number),
            on_boundary=world.boundary,
        ) as kernel:
            await workload.run(kernel, world)
    if patience.cancelled_caught:
        raise Hung


def registry_of(workload: Workload, workspace: str = "") -> Registry:
    """The workload's plugins, for lives in which no tool runs and nothing is said."""
    return load_plugins(discover=False, plugins=workload.plugins(World(workspace=workspace)))


async def recovered(
    bench: Bench, workload: Workload, registry: Registry, names: Iterable[str], *, seed: int, number: int
) -> tuple[list[Row], Files]:
    """Open these sessions, which recovers them, and die; returns the rows, and the files left behind."""
    reseed(seed)
    store = Store.open(bench.path)
    # In a scope of its own: a kernel that closes takes back what is in its own.
    kernel = Kernel(store, Registry(outer=registry), "", clock_of(number), no_boundary)
    try:
        async with AsyncExitStack() as sessions:
            await sessions.enter_async_context(beside(kernel.deliver))
            for name in names:
                await sessions.enter_async_context(
                    kernel.session(name, model=workload.model, approver=True, on_crash=mode_of(workload))
                )
            rows, files = _rows(store), bench.photograph()
            store.stop(StoreError("killed"))
    finally:
        await kernel.close()
        store.close()
    return rows, files


def read_log(path: str, registry: Registry, *, verify: bool = True) -> Log:
    """All of a log at rest; every check that a reader knows is made."""
    records, messages = {}, {}
    with LogReader(Store.open_to_read(path), registry) as log:
        for name in log.names():
            reader = log.session(name)
            records[name] = list(reader.verifying() if verify else reader.records(deltas=True))
            messages[name] = reader.messages()
    return Log(records=records, messages=messages)


async def watched_life(
    bench: Bench, disk: Disk, files: Files, facts: Sequence[Fact], workload: Workload, *, seed: int, number: int
) -> Life:
    """Live on `files`, which stand on `disk`, and record all of it."""
    bench.lay_out(files)
    world = World(list(facts))
    recorder = Recorder(bench.path, lambda: len(world.ledger))
    world.keep = recorder.keep
    with recording(recorder, watched(workload)):
        await live(bench.path, workload, world, seed=seed, number=number)
        recorder.stopped = True
    return Life(
        disk=disk,
        ops=recorder.ops,
        facts=world.ledger,
        found=look(bench.path),
        log=read_log(bench.path, registry_of(workload, bench.workspace)),
    )
