"""Power loss at every point of a purge and of a repair: the old log or the new one stands there, whole, and opens."""

from __future__ import annotations

import io
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest

import flightlog
from flightlog.store import new_file, repairing, witness
from flightlog.testing.faults.disk import CERTAIN, MODES, Disk, Files, Op, digest_of
from flightlog.testing.faults.recorder import Recorder, recording
from flightlog_hookspecs.errors import HeadMismatch, LogCorrupt
from flightlog_hookspecs.events import Record
from support.files import Pen, content, in_memory, opened
from support.logs_to_replace import (
    damaged_row,
    killed,
    lost_wal,
    lost_wal_and_row,
    older_copy,
    three_sessions,
    without_news,
)

SUCCESSION = struct.Struct("<QQQ")
NAMES = {"db": "", "wal": "-wal", "journal": "-journal", "head": "-head"}


@pytest.fixture
def memory() -> Iterator[Path]:
    with in_memory() as folder:
        yield folder


class Watched(io.FileIO):
    """A file that a module of the store writes through `open`."""

    def __init__(self, recorder: Recorder, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self._recorder, self._file = recorder, recorder.name_of(path)
        recorder.add("truncate", self._file)

    def write(self, data: Any) -> int:
        self._recorder.add("write", self._file, self.tell(), bytes(data))
        return super().write(data)


@contextmanager
def all_recorded(recorder: Recorder) -> Iterator[None]:
    """Record also what only a replacement does: files of drawn names, whole copies, a witness written anew."""

    def mkstemp(**options: Any) -> tuple[int, str]:
        fd, part = tempfile.mkstemp(**options)
        recorder.add("create", recorder.name_of(part))
        return fd, part

    def copyfile(source: str, target: str) -> None:
        shutil.copyfile(source, target)
        recorder.add("write", recorder.name_of(target), 0, Path(target).read_bytes())

    with recording(recorder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(new_file, "tempfile", type("", (), {"mkstemp": staticmethod(mkstemp)}))
        patch.setattr(repairing, "shutil", type("", (), {"copyfile": staticmethod(copyfile)}))
        patch.setattr(witness, "open", lambda path, mode: Watched(recorder, path, mode), raising=False)
        yield


class Replacement:
    """A recorded run of `action` on the log at `path`, and the files after a power loss anywhere in it."""

    def __init__(self, path: Path, action: Callable[[Path], None]) -> None:
        self.before = {
            name: Path(f"{path}{s}").read_bytes() for name, s in NAMES.items() if Path(f"{path}{s}").exists()
        }
        recorder = Recorder(str(path))
        with all_recorded(recorder):
            action(path)
        self.ops: list[Op] = recorder.ops
        self.new = path.read_bytes()
        self.inode = path.stat().st_ino

    def images(self) -> Iterator[tuple[int, Files]]:
        """Each that differs, with the number of operations before the power went.

        Once the log's own files are touched, all that the disk may hold then is drawn several times.
        """
        disk, seen = Disk.holding(self.before), set()
        touched = next(i for i, op in enumerate(self.ops) if op.file in NAMES and op.kind != "create")
        for at in range(len(self.ops) + 1):
            for mode in MODES:
                for draw in range(8 if mode not in CERTAIN and at > touched else 1):
                    files = disk.image(mode, Random(f"{at} {mode} {draw}"))
                    if (digest := digest_of(files)) not in seen or at == len(self.ops):
                        seen.add(digest)
                        yield at, files
            if at < len(self.ops):
                disk.feed(self.ops[at])

    def laid_out(self, files: Files, path: Path) -> None:
        """Put `files` at `path`. The witness names the new file by its inode, which is another one here."""
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
        path.write_bytes(files["db"])
        here = path.stat().st_ino
        inode = here if files["db"] == self.new else here + 1
        for name in files.keys() - {"db"}:
            Path(f"{path}{NAMES.get(name, name)}").write_bytes(self._naming(inode, files[name]))

    def _naming(self, inode: int, witness: bytes) -> bytes:
        """The same, but for the inode of the new file if it is an announcement of it."""
        raw = witness[:-4]
        if len(raw) != SUCCESSION.size or crc32(raw) != int.from_bytes(witness[-4:], "little"):
            return witness
        before, after, named = SUCCESSION.unpack(raw)
        assert named == self.inode
        raw = SUCCESSION.pack(before, after, inode)
        return raw + crc32(raw).to_bytes(4, "little")


def found(path: Path) -> dict[str, list[Record]] | None:
    """What a kernel finds; None for a log that is still the damaged one."""
    try:
        return content(path)
    except (LogCorrupt, HeadMismatch):
        return None


def saved(files: Files) -> dict[str, bytes]:
    """The copy of the damaged files, by suffix; an empty -wal, which opening them makes, is nothing."""
    copies = {
        re.sub(r"^\.damaged-[^-]*Z", "", name): data for name, data in files.items() if name.startswith(".damaged")
    }
    return {suffix: data for suffix, data in copies.items() if data and not suffix.endswith(".part")}


def goes_on(path: Path, name: str) -> None:
    with opened(path) as store:
        Pen(store, name).say("goes on")
    assert not flightlog.repair(path).damaged


@pytest.mark.parametrize("make", [three_sessions, killed], ids=lambda make: make.__name__)
def test_a_purge_that_lost_power_anywhere_leaves_the_old_log_or_the_new_one(
    memory: Path, make: Callable[[Path], None]
) -> None:
    path, case = memory / "log.db", memory / "case.db"
    make(path)
    old = content(path)
    new = {name: records for name, records in old.items() if name != "b"}
    run = Replacement(path, lambda path: flightlog.purge(path, "b") and None)
    seen = []
    for at, files in run.images():
        run.laid_out(files, case)
        left = found(case)
        assert left in (old, new), f"operation {at} of {len(run.ops)}"
        assert left == new or at < len(run.ops), "it had returned"
        if left not in seen:
            seen.append(left)
            goes_on(case, "a")
    assert len(seen) == 2, "both outcomes are reached"


@pytest.mark.parametrize("make", [lost_wal, damaged_row, lost_wal_and_row, older_copy], ids=lambda make: make.__name__)
def test_a_repair_that_lost_power_anywhere_leaves_the_damaged_log_or_the_repaired_one(
    memory: Path, make: Callable[[Path], None]
) -> None:
    path, case = memory / "log.db", memory / "case.db"
    make(path)
    run = Replacement(path, lambda path: flightlog.repair(path, dry_run=False) and None)
    new = without_news(content(path))
    seen = set()
    for at, files in run.images():
        run.laid_out(files, case)
        left = found(case)
        assert left is not None or at < len(run.ops), "it had returned"
        if left is not None:
            assert without_news(left) == new, f"operation {at} of {len(run.ops)}"
            assert left != without_news(left), "the loss is in the log"
            assert saved(files) == {NAMES[name]: data for name, data in run.before.items() if data}, "it was kept"
        if (left is None) not in seen:
            seen.add(left is None)
            if left is None:
                flightlog.repair(case, dry_run=False)
                assert without_news(content(case)) == new
            goes_on(case, "new")
    assert seen == {True, False}, "both outcomes are reached"
