"""Log files for tests: write one event by event, photograph a folder, do it all in processes that may be killed."""

from __future__ import annotations

import atexit
import ctypes
import os
import pickle
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import trio

from flightlog import Limits
from flightlog.store.codec import encode
from flightlog.store.connection import Busy
from flightlog.store.replay import Replay, replaying
from flightlog.store.rows import Encoded, KeptSnapshot
from flightlog.store.snapshot_codec import linked
from flightlog.store.snapshots import Snapshots
from flightlog.store.statements import statements
from flightlog.store.store import NewSession, Store
from flightlog.testing import FakeModel, calls, words
from flightlog.testing.memory import memory_folder
from flightlog_hookspecs import tool
from flightlog_hookspecs.content import FileBlock, TextBlock
from flightlog_hookspecs.events import Event, InboxSplice, Record, SessionCreated, SessionOpened
from support import kernels

_one_request = threading.Lock()
in_memory = memory_folder
"""A kill or a fault takes no more from a disk than from there."""
COMPANIONS = ("", "-wal", "-shm", "-journal", "-head")


class Pen:
    """Appends to one session of an open store: a session that only ever accepts messages, so always legal.

    Takes up where the log stands. `acked` counts the events known to be in it.
    """

    def __init__(self, store: Store, name: str = "s") -> None:
        self.store, self.name, self.uid = store, name, f"uid of {name}"
        self.acked, self.epoch, self.said, self._digest = 0, 0, 0, b""
        found = store.key_of(name)
        if found is None:
            first = self._encoded(SessionCreated(uid=self.uid), key=0)
            _patiently(lambda: store.create_session(NewSession(name, self.uid), first))
            found = store.key_of(name)
            assert found is not None
        self.key, self.uid = found
        for row in store.rows(self.key):
            self._took(row)

    def take_over(self, *, pid: int = 1, host: str = "elsewhere", at_us: int = 0) -> None:
        """Open the session as its next owner."""
        self.epoch += 1
        self._commit(self._encoded(SessionOpened(pid=pid, host=host, kernel_version="0"), at_us=at_us), barrier=True)

    def say(self, text: str = "hello", *, barrier: bool = True) -> None:
        """Append one message and commit it."""
        if self.epoch == 0:
            self.take_over()
        self._commit(self.message(text), barrier=barrier)

    def message(self, text: str) -> Encoded:
        """The message that would follow, encoded."""
        return self._encoded(
            InboxSplice(
                slot="next_turn",
                start=self.said,
                message_id=f"m{self.said}",
                cause="accepted",
                content=(TextBlock(text=text),),
            )
        )

    def _encoded(self, event: Event, *, key: int | None = None, at_us: int | None = None) -> Encoded:
        record = Record(
            session=self.name,
            seq=self.acked + 1,
            at_us=1000 * self.acked if at_us is None else at_us,
            turn=None,
            step=None,
            epoch=self.epoch,
            event=event,
        )
        return encode(record, self.key if key is None else key, self.uid, self._digest)

    def _commit(self, encoded: Encoded, *, barrier: bool) -> None:
        _patiently(lambda: self.store.commit([encoded], barrier=barrier))
        self._took(encoded.row)

    def _took(self, row: Any) -> None:
        self.acked, self._digest, self.epoch = row.seq, row.digest, row.epoch
        self.said += row.kind == "inbox/splice"


def _patiently(commit: Callable[[], None]) -> None:
    """Commit, however often another process is just at it."""
    while True:
        try:
            return commit()
        except Busy:
            os.sched_yield()


def keep_snapshot(store: Store, name: str, *seqs: int) -> Snapshots:
    """Keep snapshots of session `name` as it was at these rows, each in the place of the one before, or as it is."""
    key = store.key_of(name)
    assert key is not None
    read, snapshots = Replay(session=name, uid=key.uid), Snapshots(*key)
    rows = replaying(store, read, key.key)
    for seq in seqs or [10**9]:
        while read.seq < seq and next(rows, None):
            pass
        kept, items = snapshots.taken(read.state, read.history, read.seq, read.digest)
        put_snapshot(store, kept)
        snapshots.found(kept.row, items, linked(snapshots.link, kept.items))
    return snapshots


def put_snapshot(store: Store, kept: KeptSnapshot) -> None:
    """Write it, whatever it says."""
    store.database.begin(barrier=True)
    store._keep(kept)
    store.database.commit()


def written(path: Path, *texts: str, name: str = "s") -> None:
    """A log at `path` whose session `name` holds `texts`, closed cleanly."""
    with opened(path) as store:
        pen = Pen(store, name)
        for text in texts:
            pen.say(text)


@tool
def shout(text: str) -> str:
    """Say it loudly."""
    return text.upper()


PICTURE = FileBlock.of(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4, name="cat.png")
LETTERED = FileBlock.of(b"%PDF-1.7 in a letter", name="letter.pdf")


def rich(path: Path, large: int = 70_000) -> None:
    """A log with something in every table: streams, tools, a large payload, files, two sessions, an open inbox."""
    model = FakeModel(
        [
            [*words("I will shout.", chunk=3), *calls(("shout", {"text": "x" * large}), ("whisper", {}))],
            words("Dönè, and nothing else is to be said about it.", chunk=5),
        ]
    )

    async def write() -> None:
        async with kernels.opened(path, model, shout) as kernel:
            for name in ("s", "t"):
                async with kernel.session(name, model="fake:m", limits=Limits(delta_flush_ms=1)) as session:
                    await session.followup("shout, please")
                    await session.run()
                    await session.followup((TextBlock(text="and wait"), PICTURE))
            await kernel.mailbox("s").cancel("nobody reads this")
            await kernel.mailbox("later").followup((TextBlock(text="hello"), LETTERED), key="k")

    trio.run(write)


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    """A store on `path`, closed at the end."""
    store = Store.open(str(path))
    try:
        yield store
    finally:
        store.close()


def replayed(store: Store) -> dict[str, list[Record]]:
    """Every session of an open store, each row and each delta checked."""
    sessions = {}
    for (name,) in store.read("session_names"):
        found = store.key_of(name)
        assert found is not None, f"{name!r} is listed but cannot be found"
        sessions[name] = list(replaying(store, Replay(session=name, uid=found.uid), found.key, deltas=True))
    return sessions


def content(path: Path) -> dict[str, list[Record]]:
    """Every session of the log at `path`, read from outside."""
    store = Store.open_to_read(str(path))
    try:
        return replayed(store)
    finally:
        store.close()


def texts(path: Path, name: str = "s") -> list[str]:
    """What session `name` of the log at `path` was told, read from outside."""
    return [
        record.event.content[0].text
        for record in content(path).get(name, [])
        if isinstance(record.event, InboxSplice) and record.event.content
    ]


def photograph(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Everything in `folder`: kind and mode, bytes. Of a -shm, which is no data, only that it is there."""
    taken = {}
    for entry in sorted(folder.rglob("*")):
        data = b""
        if entry.is_symlink():
            data = os.readlink(entry).encode()
        elif entry.is_file() and not entry.name.endswith("-shm"):
            data = entry.read_bytes()
        taken[str(entry.relative_to(folder))] = (f"{entry.lstat().st_mode:o}", data)
    return taken


def copied(path: Path, to: Path, *suffixes: str) -> Path:
    """The file and those companions (all of them by default) under a new name."""
    for suffix in suffixes or COMPANIONS:
        with suppress(FileNotFoundError):
            shutil.copy2(f"{path}{suffix}", f"{to}{suffix}")
    return to


@contextmanager
def plain(path: Path) -> Iterator[sqlite3.Connection]:
    """The file as any other program sees it: through the standard library, without our settings."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def look(path: Path) -> list[Any]:
    """Open, select, close: what a person with the sqlite3 shell does. The last to close deletes the -wal."""
    with plain(path) as connection:
        return connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()


class Child:
    """A process that runs one function. Killed at the latest when its context ends."""

    def __init__(self, function: Callable[..., object], *arguments: object, as_nobody: bool = False) -> None:
        here, there = socket.socketpair()
        with here, there:
            server = _server()
            request = pickle.dumps((function, arguments, as_nobody))
            with _one_request:
                socket.send_fds(server, [request], [there.fileno()])
                self.pid: int = pickle.loads(server.recv(64))
            self.channel: Connection[Any, Any] = Connection(here.detach())
        self._ended = False

    def receive(self) -> Any:
        """What the child sends next. Raises what it raised, `EOFError` when it is dead."""
        answer = self.channel.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def send(self, message: object) -> None:
        """Give the child something to receive."""
        self.channel.send(message)

    def rest(self) -> list[Any]:
        """All it has sent and still sends until it dies."""
        received = []
        with suppress(EOFError, ConnectionResetError):
            while True:
                received.append(self.receive())
        return received

    def kill(self) -> None:
        """SIGKILL; returns once the process is gone and its locks with it."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        """Return once the process is gone."""
        if not self._ended:
            self._ended = True
            server = _server()
            with _one_request:
                server.send(pickle.dumps(self.pid))
                server.recv(64)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended:
            self.kill()
        self.channel.close()


def outcome(function: Callable[..., object], *arguments: object, as_nobody: bool = False) -> Any:
    """What `function` returns or raises in a process of its own, which ends then."""
    with Child(_answer, function, arguments, as_nobody=as_nobody) as child:
        answer = child.receive()
        child.wait()
        return answer


def _answer(channel: Connection[Any, Any], function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    channel.send(function(*arguments))


@cache
def _server() -> socket.socket:
    # Forking pytest itself would copy its threads and open databases into every child.
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = f"import sys; sys.path[:] = {sys.path!r}; from support.files import serve; serve({there.fileno()})"
    process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[there.fileno()])
    there.close()

    def stop() -> None:
        here.close()
        process.wait()

    atexit.register(stop)
    return here


def serve(fd: int) -> None:
    """The process that all children are forked from: one thread, no database, everything imported."""
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401

    statements()  # an unprivileged child may not be able to read the package
    control = socket.socket(fileno=fd)
    while True:
        request, fds, _, _ = socket.recv_fds(control, 1 << 20, 1)
        if not request:
            return
        if not fds:
            os.waitpid(pickle.loads(request), 0)
            control.send(pickle.dumps(None))
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            _run(Connection(fds[0]), request)
        os.close(fds[0])
        control.send(pickle.dumps(pid))


def _run(channel: Connection[Any, Any], request: bytes) -> None:
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # nobody survives the server, whose death ends the tests
        function, arguments, as_nobody = pickle.loads(request)
        if as_nobody and os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        function(channel, *arguments)
    except BaseException as error:
        with suppress(OSError):
            channel.send(_portable(error))
    finally:
        os._exit(0)


def _portable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
