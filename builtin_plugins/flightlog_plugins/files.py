"""Files inside the workspace: read one, append a line to one.

Paths are opened folder by folder without following links, so no path leads out of the workspace,
also not while somebody changes it; the log itself is out of reach.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from flightlog_hookspecs import Tool, ToolContext, hookimpl, tool
from flightlog_hookspecs.errors import ToolError

READ_MAX_BYTES: Final = 10 * 1024 * 1024


@tool(mode="parallel", effect="read", timeout_s=10.0)
def read_file(context: ToolContext, path: str) -> bytes:
    """Read a file of the workspace.

    Args:
        context: the call
        path: where it stands, relative to the workspace

    """
    with _opened(context, path, os.O_RDONLY) as fd:
        if os.fstat(fd).st_size > READ_MAX_BYTES:
            raise ToolError(f"{path} is larger than {READ_MAX_BYTES} bytes")
        return os.read(fd, READ_MAX_BYTES)


@tool(effect="write", timeout_s=10.0)
def append_line(context: ToolContext, path: str, line: str) -> str:
    """Append one line to a file of the workspace, creating the file when missing.

    An open last line is ended first.

    Args:
        context: the call
        path: where it stands, relative to the workspace
        line: the line, without its line break

    """
    if "\n" in line or "\r" in line:
        raise ToolError("line must not contain a line break")
    raw = f"{line}\n".encode()
    with _opened(context, path, os.O_RDWR | os.O_APPEND | os.O_CREAT) as fd:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            raw = b"\n" + raw
        _write(fd, raw, path)
    return f"appended to {path}"


def _write(fd: int, raw: bytes, path: str) -> None:
    written = 0
    try:
        while written < len(raw):  # a disk that is nearly full takes a part
            written += os.write(fd, raw[written:])
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror}; {written} of {len(raw)} bytes were written") from error


@contextmanager
def _opened(context: ToolContext, path: str, flags: int) -> Iterator[int]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not context.workspace:
        raise ToolError("the host has given tools no workspace")
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ToolError(f"{path!r} is not a path inside the workspace")
    folder = os.open(context.workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            for part in parts[:-1]:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                os.close(folder)
                folder = inner
            _refuse_protected(context, folder, parts[-1], path)
            fd = os.open(parts[-1], flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o644, dir_fd=folder)
        except OSError as error:
            raise ToolError(f"{path}: {error.strerror}") from error
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        os.close(folder)


def _refuse_protected(context: ToolContext, folder: int, name: str, path: str) -> None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        _refuse_protected_name(context, folder, name, path)
        return
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{path}: is not a regular file")
    # By identity, not by name, and before opening it: closing a descriptor of the log drops its locks.
    for protected in context.protected:
        with suppress(OSError):
            if os.path.samestat(status, os.stat(protected)):
                raise ToolError(f"{path}: belongs to the flight log, which tools may not touch")


def _refuse_protected_name(context: ToolContext, folder: int, name: str, path: str) -> None:
    """A companion of the log that is not there may not be made either."""
    status = os.fstat(folder)
    for protected in context.protected:
        place, own_name = os.path.split(protected)
        with suppress(OSError):
            if name == own_name and os.path.samestat(status, os.stat(place)):
                raise ToolError(f"{path}: belongs to the flight log, which tools may not touch")


@hookimpl
def register_tools(register: Callable[[Tool], None]) -> None:
    """Offer `read_file` and `append_line`."""
    register(read_file)
    register(append_line)
