"""SIGKILL at every point of a file's life: created, written, closed, reopened. It is never refused, nothing is lost.

A point is a line of the store's Python code or an operation on a file inside SQLite; a write is also
killed halfway.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
import pytest

import flightlog.store
from support.files import Child, Pen, content, in_memory, look, opened, texts

STORE = os.path.dirname(flightlog.store.__file__)
POINTS_MAX = {"quick": 40, "pr": 500}.get(os.environ.get("HYPOTHESIS_PROFILE", "quick"), sys.maxsize)


@pytest.fixture
def memory() -> Iterator[Path]:
    with in_memory() as folder:
        yield folder


Life = Callable[[Path, Callable[[object], None]], None]


class Doom:
    """Kills its process at the point number `at`; counts the points."""

    def __init__(self, at: int | None) -> None:
        self.at, self.passed = at, 0

    def watch(self, *, lines: bool) -> None:
        """From now on every file operation of SQLite is a point and, with `lines`, every line of the store."""
        apsw.VFS.__init__(vfs := DoomedVFS.__new__(DoomedVFS, "doomed", "unix"), "doomed", "unix")
        vfs.doom = self
        apsw.set_default_vfs("doomed")
        self.vfs = vfs
        if lines:
            sys.settrace(self._call)

    def point(self, halfway: Callable[[], object] = lambda: None) -> None:
        self.passed += 1
        if self.passed == self.at:
            if self.passed % 2:
                halfway()
            os.kill(os.getpid(), signal.SIGKILL)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if os.path.dirname(frame.f_code.co_filename) == STORE else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.point()
        return self._line


class DoomedVFS(apsw.VFS):
    """SQLite's own, with a point before each change."""

    doom: Doom

    def xOpen(self, name: Any, flags: list[int]) -> Any:  # noqa: N802  SQLite's name
        self.doom.point()
        return DoomedFile(self.doom, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:  # noqa: N802  SQLite's name
        self.doom.point()
        super().xDelete(name, sync)


class DoomedFile(apsw.VFSFile):
    """A file with a point before each change."""

    def __init__(self, doom: Doom, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self.doom = doom

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  SQLite's name
        self.doom.point(lambda: super(DoomedFile, self).xWrite(data[: len(data) // 2], offset))
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:  # noqa: N802  SQLite's name
        self.doom.point()
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802  SQLite's name
        self.doom.point()
        super().xSync(flags)


def live(channel: Connection, life: Life, path: Path, at: int | None, lines: bool) -> None:
    """A doomed process: lives `life` and sends what is acknowledged; at its natural end, the number of points."""
    doom = Doom(at)
    doom.watch(lines=lines)
    life(path, channel.send)
    sys.settrace(None)
    channel.send(("points", doom.passed))


def opening(path: Path, acknowledge: Callable[[object], None]) -> None:
    with opened(path):
        pass


def speaking(path: Path, acknowledge: Callable[[object], None]) -> None:
    """Two openings, barrier and ordinary commits mixed, checkpoints in between, a clean close."""
    for start in (0, 6):
        with opened(path) as store:
            store.database._connection.execute("PRAGMA wal_autocheckpoint = 5")  # type: ignore[attr-defined]
            pen = Pen(store)
            for number in range(start, start + 6):
                barrier = number % 3 != 1
                pen.say(str(number), barrier=barrier)
                acknowledge(number)


SPOKEN = [str(number) for number in range(12)]


def points_of(life: Life, path: Path, *, lines: bool = True) -> int:
    """How many points `life` has at `path`."""
    with Child(live, life, path, None, lines) as child:
        name, number = child.rest()[-1]
        assert name == "points"
        return number


def sparse(points: int) -> Iterator[int]:
    """All of the points, or some, by profile; the remainder moves, so that no kind of point is left out."""
    step = -(-points // POINTS_MAX)
    for base in range(1, points + 1, step):
        yield min(points, base + (base // step * 7) % step)


def killed(life: Life, path: Path, at: int, *, lines: bool = True) -> list[Any]:
    """Live until point `at`; what was acknowledged before."""
    with Child(live, life, path, at, lines) as child:
        acknowledged = child.rest()
        child.wait()
    assert not acknowledged or acknowledged[-1] != "points"
    return acknowledged


@pytest.mark.kill
@pytest.mark.parametrize("looked", [False, True], ids=["reopened", "looked at, then reopened"])
def test_a_file_killed_anywhere_in_its_creation_opens(memory: Path, looked: bool) -> None:
    points = points_of(opening, memory / "whole.db")
    for at in sparse(points):
        path = memory / f"{at}.db"
        killed(opening, path, at)
        if looked and path.exists():
            look(path)
        with opened(path) as store:
            Pen(store).say("first")
        assert texts(path) == ["first"], f"point {at} of {points}"


@pytest.mark.kill
def test_a_file_killed_at_each_disk_operation_of_its_creation_opens(memory: Path) -> None:
    for at in range(1, points_of(opening, memory / "whole.db", lines=False) + 1):
        path = memory / f"{at}.db"
        killed(opening, path, at, lines=False)
        with opened(path) as store:
            Pen(store).say("first")
        assert texts(path) == ["first"], f"operation {at}"


@pytest.mark.kill
@pytest.mark.parametrize("looked", [False, True], ids=["reopened", "looked at, then reopened"])
def test_a_file_killed_anywhere_in_its_life_is_never_refused_and_keeps_what_was_acknowledged(
    memory: Path, looked: bool
) -> None:
    points = points_of(speaking, memory / "whole.db")
    assert texts(memory / "whole.db") == SPOKEN
    for at in sparse(points):
        path = memory / f"{at}.db"
        acknowledged = killed(speaking, path, at)
        if looked and path.exists():
            look(path)
        with opened(path) as store:
            pen = Pen(store)
            pen.say("after")
        *kept, after = texts(path)
        assert after == "after"
        assert kept == SPOKEN[: len(kept)], f"point {at} of {points}"
        assert len(kept) >= len(acknowledged), f"point {at} of {points}: acknowledged {acknowledged}, kept {kept}"


@pytest.mark.kill
def test_a_file_killed_again_while_it_is_being_recovered_is_not_refused_either(memory: Path) -> None:
    first = points_of(speaking, memory / "whole.db")
    second = points_of(opening, memory / "whole.db")
    for number, again in enumerate(sparse(second)):
        at = first // 3 + number * 211 % (first * 2 // 3)
        path = memory / f"{at}-{again}.db"
        acknowledged = killed(speaking, path, at)
        killed(opening, path, again)
        look(path)
        with opened(path):
            pass
        kept = texts(path)
        assert kept == SPOKEN[: len(kept)]
        assert len(kept) >= len(acknowledged), f"points {at} and {again}"


@pytest.mark.kill
def test_the_points_cover_the_code_and_the_disk(memory: Path) -> None:
    """The doom itself: its points are many, and the last one really is the last."""
    path = memory / "log.db"
    points = points_of(opening, path)
    assert points > 100
    path.unlink()
    for suffix in ("-wal", "-shm", "-head"):
        Path(f"{path}{suffix}").unlink()
    assert points_of(opening, path) == points
    assert content(path) == {}
