"""Going through the folders of the workspace by a pattern: bounded, in order, following no link.

A pattern works as in a shell: `*`, `?` and `[...]` stand for parts of one name, `**` for any folders, and
a name with a leading dot is only met by a pattern with one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Final

from attrs import define, field, frozen

from flightlog_hookspecs.errors import ToolError
from flightlog_plugins.files.confinement import UNFINISHED, Guarded

VISITED_MAX: Final = 50_000
"""Entries that are looked at in one walk."""
DEPTH_MAX: Final = 64
"""Levels of folders that are looked into, unless a walk wants fewer; each holds a descriptor."""
PATTERN_MAX_CHARS: Final = 500

ANY_FOLDERS: Final = "**"

Rest = tuple[str, ...]


@frozen(kw_only=True)
class Entry:
    """Something that a walk has met: `name` in the folder whose descriptor is `folder`, valid until the next one."""

    path: str
    folder: int
    name: str
    status: os.stat_result

    @property
    def is_file(self) -> bool:
        """Whether it can be opened and read."""
        return stat.S_ISREG(self.status.st_mode)


@define
class Walk:
    """All entries below a folder that match a pattern, in order. `complete` says in the end whether it saw all."""

    _guarded: Guarded
    _pattern: Rest
    _depth: int = DEPTH_MAX
    complete: bool = field(default=True, init=False)
    _left: int = field(default=VISITED_MAX, init=False)

    def below(self, folder: int, prefix: str) -> Generator[Entry, None, None]:
        """The entries below the descriptor `folder`, whose path is `prefix`. Close it when left early."""
        return self._entries(folder, prefix, frozenset([self._pattern]), self._depth)

    def _entries(self, folder: int, prefix: str, rests: frozenset[Rest], depth: int) -> Generator[Entry, None, None]:
        for name in self._names(folder):
            following = _behind(rests, name)
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                continue  # since it was listed
            if not following or self._guarded.holds(folder, name, status):
                continue
            path = f"{prefix}{name}"
            if any(set(rest) <= {ANY_FOLDERS} for rest in following):
                yield Entry(path=path, folder=folder, name=name, status=status)
            if stat.S_ISDIR(status.st_mode) and any(following):
                yield from self._inside(folder, name, f"{path}/", following, depth - 1)

    def _inside(
        self, folder: int, name: str, prefix: str, rests: frozenset[Rest], depth: int
    ) -> Generator[Entry, None, None]:
        if not depth:
            self.complete = False
            return
        inner = -1
        with suppress(OSError):  # gone, replaced by a link, or closed to us
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        if inner < 0:
            self.complete = False
            return
        try:
            yield from self._entries(inner, prefix, rests, depth)
        finally:
            os.close(inner)

    def _names(self, folder: int) -> list[str]:
        names = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if not self._left:
                    self.complete = False
                    break
                self._left -= 1
                if not entry.name.startswith(UNFINISHED):
                    names.append(entry.name)
        return sorted(names)


def pattern_of(text: str) -> Rest:
    """The parts of a pattern. Raises `ToolError` when it cannot be one."""
    parts = tuple(part for part in text.split("/") if part not in ("", "."))
    if not parts or ".." in parts or text.startswith("/") or "\0" in text or len(text) > PATTERN_MAX_CHARS:
        raise ToolError(f"{text[:PATTERN_MAX_CHARS]!r} is not a pattern inside the workspace, as **/*.py is")
    # A run of ** is one: it meets the same folders, and each more would be one more way to meet them.
    return tuple(part for part, before in zip(parts, ("", *parts), strict=False) if not part == before == ANY_FOLDERS)


def shown(path: str) -> str:
    """`path` on one line, whatever cannot be seen or is no text being escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in path)


def _behind(rests: frozenset[Rest], name: str) -> frozenset[Rest]:
    """What is left of the patterns once `name` has been met; nothing when it meets none of them."""
    return frozenset(following for rest in rests for following in _each_behind(rest, name))


def _each_behind(rest: Rest, name: str) -> Iterator[Rest]:
    if not rest:
        return
    first, *others = rest
    if first == ANY_FOLDERS:
        if not name.startswith("."):
            yield rest
        yield from _each_behind(tuple(others), name)
    elif (first.startswith(".") or not name.startswith(".")) and fnmatchcase(name, first):
        yield tuple(others)
