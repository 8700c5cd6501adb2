"""Changing a file of the workspace: write all of it, edit a place in it, append a line."""

from __future__ import annotations

import os
from typing import Final

from flightlog_hookspecs import ToolContext, tool
from flightlog_hookspecs.errors import ToolError
from flightlog_plugins.files.confinement import (
    Guarded,
    folder_at,
    opened_in,
    parts_of,
    saying,
    status_of,
)
from flightlog_plugins.files.editing import edited
from flightlog_plugins.files.reading import whole
from flightlog_plugins.files.replacing import keep, replace, sweep

WRITE_MAX_BYTES: Final = 10 * 1024 * 1024

_ANY_WRITE: Final = 0o222


@tool(effect="idempotent", timeout_s=30.0)
def write_file(context: ToolContext, path: str, text: str) -> str:
    """Write a file of the workspace as a whole: a new one with the folders it needs, or in place of what it held.

    Args:
        context: the call
        path: where it stands, relative to the workspace
        text: all that it is to hold, exactly

    """
    *above, name = parts_of(path)
    raw = _encoded(text, "text")
    with folder_at(context, above, path, make=True) as folder:
        before = _writable(context, folder, name, path)
        if before and before.st_size == len(raw) and _content(folder, name, path) == raw:
            return f"{path} holds exactly this already; nothing was changed"
        replace(folder, name, path, raw, before)
    return f"{'wrote' if before else 'created'} {path}, {len(raw)} bytes"


@tool(effect="idempotent", timeout_s=30.0)
def edit_file(context: ToolContext, path: str, old: str, new: str) -> str:
    """Replace a text that stands in a file of the workspace exactly once.

    Args:
        context: the call
        path: where it stands, relative to the workspace
        old: the text to replace, exactly as it is, with as much around it as makes it one place
        new: what stands there instead; "" removes it

    """
    *above, name = parts_of(path)
    old_raw, new_raw = _encoded(old, "old"), _encoded(new, "new")
    with folder_at(context, above, path) as folder:
        before = _writable(context, folder, name, path)
        if before is None:
            raise ToolError(f"{path}: No such file or directory")
        try:
            result = edited(_content(folder, name, path), old_raw, new_raw)
        except ToolError as error:
            raise ToolError(f"{path}: {error}") from None
        if result is None:
            found = "new stands in it, and old does not" if new else "old does not stand in it"
            return f"{path} is as this edit would leave it: {found}. Nothing was changed"
        if len(result) > WRITE_MAX_BYTES:
            raise ToolError(f"{path} would be larger than {WRITE_MAX_BYTES} bytes")
        replace(folder, name, path, result, before)
    return f"edited {path}"


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
    raw = _encoded(f"{line}\n", "line")
    *above, name = parts_of(path)
    with folder_at(context, above, path) as folder:
        status_of(context, folder, name, path)
        with opened_in(folder, name, path, os.O_RDWR | os.O_APPEND | os.O_CREAT) as fd:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                raw = b"\n" + raw
            written = 0
            try:
                while written < len(raw):  # a disk that is nearly full takes a part
                    written += os.write(fd, raw[written:])
            except OSError as error:
                raise ToolError(f"{path}: {error.strerror}; {written} of {len(raw)} bytes were written") from error
            keep(fd, path)
        keep(folder, path)
    return f"appended to {path}"


def _encoded(text: str, what: str) -> bytes:
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise ToolError(f"{what} is no Unicode text at character {error.start}") from None
    if len(raw) > WRITE_MAX_BYTES:
        raise ToolError(f"{what} is larger than {WRITE_MAX_BYTES} bytes")
    return raw


def _writable(context: ToolContext, folder: int, name: str, path: str) -> os.stat_result | None:
    """The status of a file that may be replaced, None when there is none. Clears up after killed writes."""
    status = status_of(context, folder, name, path)
    # Taking its name needs no right to write to it, so that is asked for.
    if status is not None and not status.st_mode & _ANY_WRITE:
        raise ToolError(f"{path}: is write-protected")
    with saying(path):
        sweep(folder, Guarded.by(context))
    return status


def _content(folder: int, name: str, path: str) -> bytes:
    """All of the file, which will outlive a power loss as it is: a write that died may have left it half safe."""
    with opened_in(folder, name, path, os.O_RDONLY) as fd, open(fd, "rb", closefd=False) as file:
        with saying(path):
            raw = whole(file, path, WRITE_MAX_BYTES)
        keep(fd, path)
    keep(folder, path)
    return raw
