"""SIGKILL at any point of a process: at a line of the store's Python, at a file operation of SQLite.

A write is also killed halfway.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import apsw

import flightlog.store
from support.files import Child

STORE = os.path.dirname(flightlog.store.__file__)
POINTS_MAX = {"quick": 40, "pr": 500}.get(os.environ.get("HYPOTHESIS_PROFILE", "quick"), sys.maxsize)


Life = Callable[[Path, Callable[[object], None]], None]


class Doom:
    """Kills its process at the point number `at`; counts the points."""

    def __init__(self, at: int | None) -> None:
        self.at, self.passed = at, 0

    def watch(self, *, lines: bool, functions: Collection[str] = ()) -> None:
        """From now on every file operation of SQLite is a point and, with `lines`, every line of the store.

        With `functions`, only the lines of those are.
        """
        self.functions = functions
        if functions:
            sys.settrace(self._call)
            return
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
        here = os.path.dirname(frame.f_code.co_filename) == STORE
        return self._line if here and (not self.functions or frame.f_code.co_name in self.functions) else None

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


def live(
    channel: Connection, life: Life, path: Path, at: int | None, lines: bool, functions: Collection[str] = ()
) -> None:
    """A doomed process: lives `life` and sends what is acknowledged; at its natural end, the number of points."""
    doom = Doom(at)
    doom.watch(lines=lines, functions=functions)
    life(path, channel.send)
    sys.settrace(None)
    channel.send(("points", doom.passed))


def points_of(life: Life, path: Path, *, lines: bool = True, functions: Collection[str] = ()) -> int:
    """How many points `life` has at `path`."""
    with Child(live, life, path, None, lines, functions) as child:
        name, number = child.rest()[-1]
        assert name == "points"
        return number


def sparse(points: int) -> Iterator[int]:
    """All of the points, or some, by profile; the remainder moves, so that no kind of point is left out."""
    step = -(-points // POINTS_MAX)
    for base in range(1, points + 1, step):
        yield min(points, base + (base // step * 7) % step)


def killed(life: Life, path: Path, at: int, *, lines: bool = True, functions: Collection[str] = ()) -> list[Any]:
    """Live until point `at`; what was acknowledged before."""
    with Child(live, life, path, at, lines, functions) as child:
        acknowledged = child.rest()
        child.wait()
    assert not acknowledged or acknowledged[-1] != "points"
    return acknowledged
