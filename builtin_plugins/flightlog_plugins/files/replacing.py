"""Giving a file other content as a whole: it has the old one or the new one, whenever a reader or a crash comes.

The content is written to a new file beside it, which then takes its name. That new file is locked while its
writer lives; one that is not is what a killed write has left, and the next write in the folder removes it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import trio

from flightlog_hookspecs.errors import ToolError
from flightlog_plugins.files.confinement import UNFINISHED, Guarded

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_MODE: Final = 0o644


def replace(folder: int, name: str, path: str, raw: bytes, before: os.stat_result | None) -> None:
    """Let the file `name` of `folder` hold `raw`. `before` is its status as it was looked at, None for a new file.

    Raises `ToolError`, and nothing is changed, when it was changed since or cannot be written. Nothing is changed
    either when the call that this thread works for was answered meanwhile.
    """
    try:
        with _unfinished(folder, 0o600 if before else _NEW_MODE) as (fd, unfinished):
            written = 0
            while written < len(raw):  # a disk that is nearly full takes a part
                written += os.write(fd, raw[written:])
            if before is not None:
                os.fchmod(fd, stat.S_IMODE(before.st_mode) & 0o777)
            os.fsync(fd)
            if _is_changed(folder, name, before):
                raise ToolError(f"{path}: was changed by somebody else just now; nothing was written. Read it again")
            _check_wanted()
            os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror}; it was not changed") from error
    keep(folder, path)


def _check_wanted() -> None:
    """End a thread whose call was cut off: what it would do now was told not to have happened."""
    with suppress(RuntimeError):  # called by somebody else than a kernel, who waits for it
        trio.from_thread.check_cancelled()


def keep(fd: int, path: str) -> None:
    """Make what was done to the folder or file `fd` survive a power loss."""
    try:
        os.fsync(fd)
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror}; it was written, but may be lost in a power failure") from error


def sweep(folder: int, guarded: Guarded) -> None:
    """Remove from `folder` what killed writes have left, and nothing that a living one still needs."""
    with os.scandir(folder) as entries:
        left = [entry.name for entry in entries if entry.name.startswith(UNFINISHED)]
    for name in left:
        with suppress(OSError):  # it is gone already, or somebody else's
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and not guarded.holds(folder, name, status):
                _remove(folder, name)


def _remove(folder: int, name: str) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=folder)
    finally:
        os.close(fd)


@contextmanager
def _unfinished(folder: int, mode: int) -> Iterator[tuple[int, str]]:
    """A new file under a name of its own, and that name. Unless it is renamed, it is gone in the end."""
    while True:
        name = f"{UNFINISHED}{secrets.token_hex(8)}"
        fd = os.open(name, _NEW, mode, dir_fd=folder)
        try:
            if not _is_ours(fd):
                continue  # swept before it was locked
            try:
                yield fd, name
            finally:
                with suppress(OSError):  # it has been renamed, or is swept later
                    os.unlink(name, dir_fd=folder)
            return
        finally:
            os.close(fd)


def _is_ours(fd: int) -> bool:
    """Lock a new file. False when somebody who took it for a leftover has it, or has removed it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(fd).st_nlink > 0


def _is_changed(folder: int, name: str, before: os.stat_result | None) -> bool:
    try:
        now = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return before is not None
    return before is None or _version(now) != _version(before)


def _version(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
