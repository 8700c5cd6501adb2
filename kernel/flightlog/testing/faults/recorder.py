"""Records what one kernel does to its files, and lets chosen operations fail.

SQLite is watched through a VFS that passes everything on to "unix"; the kernel's own calls (the witness,
creating the file, syncing a folder) through the `os` of the modules that make them. Only files of one
database are recorded.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from types import ModuleType
from typing import Any, Final, Literal

import apsw
from attrs import define, field, frozen

from flightlog.store import locks, log_file, new_file, replacing, witness
from flightlog.store.connection import ApswDatabase, Busy
from flightlog.store.statements import statements
from flightlog.testing.faults.determinism import frequent_snapshots, slow_disk
from flightlog.testing.faults.disk import WORKSPACE, Kind, Op

_NAMES: Final = {"": "db", "-wal": "wal", "-journal": "journal", "-head": "head"}
_RANDOM: Final = re.compile("[0-9a-f]{16,}")
"""What makes the name of a file that is on its way its own."""
_DRAWN: Final = re.compile(r"\.[a-z0-9_]{8}\.part")
_OWN_CALLS: Final = (log_file, witness, locks, new_file, replacing)
_DEFAULT_VFS: Final = "unix"
_CHECKPOINT_PAGES: Final = range(12, 31, 6)

Fault = Literal["io", "full", "nomem", "short", "busy"]
FAULTS: Final[tuple[Fault, ...]] = ("io", "full", "nomem", "short", "busy")
"""The disk fails; it is full; memory is; a read brings half of what was asked for; another writes just now."""

_RAISED: Final[dict[Fault, Callable[[str], Exception]]] = {
    "io": apsw.IOError,
    "full": apsw.FullError,
    "nomem": apsw.NoMemError,
}
_ONLY: Final[dict[Fault, Kind]] = {"short": "read", "busy": "begin"}
"""What can fail so; all else can fail at any operation on a file."""


def _meets(fault: Fault, kind: Kind) -> bool:
    return kind == _ONLY.get(fault, kind) and (kind != "begin" or fault == "busy")


@frozen(kw_only=True)
class Plan:
    """Let operation number `at` (from 0) fail with `fault`; with `for_good` all after it, too."""

    at: int
    fault: Fault
    for_good: bool = False


@define
class Recorder:
    """The operations on the files of the database `path`, in order.

    `known` is asked before each how much the world knows. Reads and the begins of transactions count only while
    faults are planned. `counts` are the operations
    that were seen, `hits` the faults that happened; a plan for none of them only counts.
    """

    path: str
    known: Callable[[], int] = lambda: 0
    plan: Plan | None = None
    ops: list[Op] = field(factory=list, init=False)
    counts: Counter[Kind] = field(factory=Counter, init=False)
    hits: int = field(default=0, init=False)
    stopped: bool = field(default=False, init=False)

    def name_of(self, path: object) -> str:
        """How `path` is called here, "" when it is none of the files; those that only pass by what follows its name."""
        text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        above = os.path.join(os.path.dirname(self.path), WORKSPACE)
        if text.startswith(above):
            return WORKSPACE + _RANDOM.sub("0", text.removeprefix(above))
        if not text.startswith(self.path) or text.endswith("-shm"):
            return ""
        rest = text.removeprefix(self.path)
        return _NAMES.get(rest) or _DRAWN.sub(".part", rest)

    def add(self, kind: Kind, file: str, offset: int = 0, data: bytes = b"", to: str = "") -> bool:
        """Note an operation that is about to happen. True when it is to fail."""
        if self.stopped or not file:
            return False
        failing = not file.startswith(WORKSPACE) and self._fails(kind)
        if not failing and kind not in ("read", "begin"):
            self.ops.append(Op(kind, file, offset, data, self.known(), to))
        return failing

    def keep(self, path: str) -> None:
        """Note that the file at `path` was given its present content, all or nothing: a crash may take that back."""
        file = self.name_of(path)
        with open(path, "rb") as content:
            raw = content.read()
        part = f"{file}.part"
        self.add("create", part)
        self.add("write", part, 0, raw)
        self.add("sync", part)
        self.add("rename", part, to=file)

    def _fails(self, kind: Kind) -> bool:
        plan = self.plan
        if plan is None:
            return False
        number = self.chances(plan.fault)
        self.counts[kind] += 1
        if not _meets(plan.fault, kind):
            return False
        failing = number == plan.at or (plan.for_good and number > plan.at)
        self.hits += failing
        return failing

    def chances(self, fault: Fault) -> int:
        """How many operations so far might have failed so."""
        return sum(times for kind, times in self.counts.items() if _meets(fault, kind))

    def check(self, kind: Kind, file: str, offset: int = 0, data: bytes = b"") -> None:
        """Note an operation of SQLite; raises when it is to fail."""
        if self.add(kind, file, offset, data):
            assert self.plan is not None, "only a plan makes it fail"
            raise _RAISED[self.plan.fault](f"planted: {kind} of {file}")


class _File(apsw.VFSFile):
    """A file of SQLite's."""

    def __init__(self, recorder: Recorder | None, name: Any, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._recorder = recorder
        self._file = recorder.name_of(path) if recorder else ""
        self._syncs_folder = self._file.endswith(("wal", "journal"))  # with its first sync, as the unix VFS does
        is_new = bool(self._file) and not os.path.exists(path)
        if is_new and flags[0] & apsw.SQLITE_OPEN_CREATE:
            self._check("create")
        super().__init__(_DEFAULT_VFS, name, flags)

    def _check(self, kind: Kind, offset: int = 0, data: bytes = b"") -> None:
        if self._recorder and self._file:
            self._recorder.check(kind, self._file, offset, data)

    def xRead(self, amount: int, offset: int) -> bytes:
        recorder = self._recorder
        if recorder and recorder.plan:
            if recorder.plan.fault != "short":
                self._check("read")
            elif recorder.add("read", self._file):
                return super().xRead(amount, offset)[: amount // 2]
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._check("write", offset, bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._check("truncate", newsize)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._check("sync")
        super().xSync(flags)
        if self._syncs_folder:
            self._syncs_folder = False
            self._check("sync-folder")


class _Vfs(apsw.VFS):
    """The VFS that all recording goes through; `recorder` is whose turn it is."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.name = "flightlog-faults"
        super().__init__(self.name, _DEFAULT_VFS)

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(self.recorder, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        recorder = self.recorder
        file = recorder.name_of(filename) if recorder else ""
        if recorder and file and os.path.exists(filename):
            recorder.check("delete", file)
        super().xDelete(filename, syncdir)
        if recorder and file and syncdir:
            recorder.check("sync-folder", file)

    def xRandomness(self, numbytes: int) -> bytes:
        """The same salts in every run."""
        return b"\x5a" * numbytes


@cache
def _vfs() -> _Vfs:
    # One for ever: a VFS must outlive every connection that used it, also one kept by a traceback.
    return _Vfs()


class _WatchedOs:
    """The `os` of a module of the store: what it does to the files is recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._opened: dict[int, str] = {}
        self._folders: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _check(self, kind: Kind, fd: int, offset: int = 0, data: bytes = b"") -> None:
        file = self._opened.get(fd, "")
        if self._recorder.add(kind, file, offset, data):
            plan = self._recorder.plan
            full = plan is not None and plan.fault == "full"
            raise OSError(_ENOSPC if full else _EIO, f"planted: {kind} of {file}")

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        path = self._path(path, dir_fd)
        file = self._recorder.name_of(path)
        is_new = bool(file) and bool(flags & os.O_CREAT) and not os.path.exists(path)
        if is_new and self._recorder.add("create", file):
            raise OSError(_ENOSPC, f"planted: create {file}")
        fd = os.open(path, flags, mode)
        if os.path.isdir(path):
            self._opened[fd], self._folders[fd] = "folder", path
        elif file:
            self._opened[fd] = file
        return fd

    def _path(self, path: str, dir_fd: int | None) -> str:
        return path if dir_fd is None else os.path.join(self._folders[dir_fd], path)

    def close(self, fd: int) -> None:
        self._opened.pop(fd, None)
        self._folders.pop(fd, None)
        os.close(fd)

    def write(self, fd: int, data: bytes) -> int:
        is_appended = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND
        offset = os.fstat(fd).st_size if is_appended else os.lseek(fd, 0, os.SEEK_CUR)
        self._check("write", fd, offset, data)
        return os.write(fd, data)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._check("write", fd, offset, data)
        return os.pwrite(fd, data, offset)

    def ftruncate(self, fd: int, length: int) -> None:
        self._check("truncate", fd, length)
        os.ftruncate(fd, length)

    def fsync(self, fd: int) -> None:
        self._check("sync-folder" if self._opened.get(fd) == "folder" else "sync", fd)
        os.fsync(fd)

    def link(self, path: str, to: str) -> None:
        self._check_name("link", path, to)
        os.link(path, to)

    def rename(self, path: str, to: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        path, to = self._path(path, src_dir_fd), self._path(to, dst_dir_fd)
        self._check_name("rename", path, to)
        os.rename(path, to)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        path = self._path(path, dir_fd)
        if os.path.lexists(path):
            self._check_name("delete", path)
        os.unlink(path)

    def _check_name(self, kind: Kind, path: str, to: str = "") -> None:
        file = self._recorder.name_of(path)
        if self._recorder.add(kind, file, to=self._recorder.name_of(to)):
            raise OSError(_EIO, f"planted: {kind} {file}")


_EIO: Final = 5
_ENOSPC: Final = 28


def _begin(recorder: Recorder) -> Callable[..., None]:
    begin = ApswDatabase.begin

    def watched(database: ApswDatabase, *, barrier: bool) -> None:
        if recorder.add("begin", "db"):
            raise Busy
        begin(database, barrier=barrier)

    return watched


@contextmanager
def recording(recorder: Recorder, watched: Sequence[ModuleType] = ()) -> Iterator[None]:
    """Record whatever happens to the recorder's database in this process meanwhile, and `watched` do beside it."""
    vfs = _vfs()
    with ExitStack() as undo:
        vfs.recorder = recorder
        undo.callback(setattr, vfs, "recorder", None)
        apsw.set_default_vfs(vfs.name)
        undo.callback(apsw.set_default_vfs, _DEFAULT_VFS)
        apsw.randomness(0)  # SQLite asks the default VFS for a new seed
        shadow = _WatchedOs(recorder)
        undo.callback(setattr, ApswDatabase, "begin", ApswDatabase.begin)
        setattr(ApswDatabase, "begin", _begin(recorder))  # noqa: B010
        for module in (*_OWN_CALLS, *watched):
            undo.callback(setattr, module, "os", os)
            setattr(module, "os", shadow)  # noqa: B010
        yield


@contextmanager
def checkpoints_every(pages: int) -> Iterator[None]:
    """Let connections opened meanwhile copy the -wal back once it holds `pages` pages: more often than in earnest."""
    texts = statements()
    before = texts["connection_settings"]
    texts["connection_settings"], changed = re.subn(r"(wal_autocheckpoint = )\d+", rf"\g<1>{pages}", before)
    assert changed == 1, "the setting has another name now"
    try:
        yield
    finally:
        texts["connection_settings"] = before


@contextmanager
def disk_of(seed: int) -> Iterator[None]:
    """Checkpoints in the middle of a short run, at other places for other seeds: each one hides what is not synced.

    For every second seed the disk is a slow one, which commits do not wait for. For every third there are snapshots:
    not for all, as then they are half of what is written, and so half of where it is interrupted.
    """
    with (
        checkpoints_every(_CHECKPOINT_PAGES[seed % len(_CHECKPOINT_PAGES)]),
        slow_disk() if seed % 2 else nullcontext(),
        nullcontext() if seed % 3 else frequent_snapshots(),
    ):
        yield
