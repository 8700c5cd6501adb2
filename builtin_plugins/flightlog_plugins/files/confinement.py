"""What keeps paths inside the workspace and away from the log.

A path is walked from the workspace's descriptor, one folder at a time, following no link. So it is the
descriptors that are inside, whatever the names become meanwhile.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Self

from attrs import frozen

from flightlog_hookspecs import ToolContext
from flightlog_hookspecs.errors import ToolError

UNFINISHED: Final = ".flightlog-write-"
"""How the names of files begin that a write makes on its way. They are nobody else's business."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@frozen
class Guarded:
    """The log and its companions: by identity, and by place where one is not there yet."""

    _files: frozenset[tuple[int, int]]
    _places: frozenset[tuple[int, int, str]]

    @classmethod
    def by(cls, context: ToolContext) -> Self:
        """What the call of `context` may not touch."""
        files, places = set(), set()
        for path in context.protected:
            folder, name = os.path.split(path)
            with suppress(OSError):
                place = os.stat(folder)
                places.add((place.st_dev, place.st_ino, name))
            with suppress(OSError):
                file = os.stat(path)
                files.add((file.st_dev, file.st_ino))
        return cls(frozenset(files), frozenset(places))

    def holds(self, folder: int, name: str, status: os.stat_result | None) -> bool:
        """Whether `name` in `folder`, which has `status` or is not there, may not be touched."""
        if status is not None and (status.st_dev, status.st_ino) in self._files:
            return True
        place = os.fstat(folder)
        return (place.st_dev, place.st_ino, name) in self._places


def parts_of(path: str, *, folder: bool = False) -> list[str]:
    """The names that `path` consists of; none, for the workspace itself, only when it may be a `folder`.

    Raises `ToolError` when it does not stay inside the workspace.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if (not parts and not folder) or path.startswith("/") or ".." in parts or "\0" in path:
        raise ToolError(f"{path!r} is not a path inside the workspace")
    if any(part.startswith(UNFINISHED) for part in parts):
        raise ToolError(f"{path}: this name is for writes that are under way")
    return parts


@contextmanager
def folder_at(context: ToolContext, parts: Sequence[str], path: str, *, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder that `parts` lead to; with `make`, what is missing of them is made."""
    if not context.workspace:
        raise ToolError("the host has given tools no workspace")
    with saying(path):
        folder = os.open(context.workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            with saying(path):
                try:
                    inner = os.open(part, _FOLDER, dir_fd=folder)
                except FileNotFoundError:
                    if not make:
                        raise
                    inner = _made(context, folder, part, path)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def status_of(context: ToolContext, folder: int, name: str, path: str) -> os.stat_result | None:
    """The status of the file `name`, None when it is not there.

    Raises `ToolError` when it is no regular file, or belongs to the log. By identity, not by name, and before
    it is opened: closing a descriptor of the log drops its locks.
    """
    status = None
    with saying(path), suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if status is not None and not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{path}: is not a regular file")
    if Guarded.by(context).holds(folder, name, status):
        raise ToolError(f"{path}: belongs to the flight log, which tools may not touch")
    return status


@contextmanager
def opened(context: ToolContext, path: str, flags: int) -> Iterator[int]:
    """A descriptor of the file at `path`, opened with `flags`."""
    *above, name = parts_of(path)
    with folder_at(context, above, path) as folder:
        status_of(context, folder, name, path)
        with opened_in(folder, name, path, flags) as fd:
            yield fd


@contextmanager
def opened_in(folder: int, name: str, path: str, flags: int) -> Iterator[int]:
    """A descriptor of the file `name` of `folder`, whose status was looked at before."""
    with saying(path):
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o644, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def saying(path: str) -> Iterator[None]:
    """What the system refuses is said about `path`."""
    try:
        yield
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror}") from error


def _made(context: ToolContext, folder: int, name: str, path: str) -> int:
    """A new folder, or one that somebody else has made just now. A companion of the log is not made as one."""
    if Guarded.by(context).holds(folder, name, None):
        raise ToolError(f"{path}: belongs to the flight log, which tools may not touch")
    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=folder)
    os.fsync(folder)
    return os.open(name, _FOLDER, dir_fd=folder)
