"""Reading a file, or lines of it, byte for byte. Whole images and PDF documents are shown as such."""

from __future__ import annotations

import os
from functools import partial
from mimetypes import guess_type
from typing import IO, Final

from flightlog_hookspecs import FileBlock, ToolContext, ToolOutput, tool
from flightlog_hookspecs.errors import ToolError
from flightlog_plugins.files.confinement import opened, saying

READ_MAX_BYTES: Final = 10 * 1024 * 1024
SCAN_MAX_BYTES: Final = 1024 * 1024 * 1024
"""Lines are looked for in files up to this size."""


_SHOWN: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"})


@tool(mode="parallel", effect="read", timeout_s=10.0)
def read_file(context: ToolContext, path: str, first_line: int = 1, last_line: int = 0) -> bytes | ToolOutput:
    """Read a file of the workspace, or some of its lines.

    Args:
        context: the call
        path: where it stands, relative to the workspace
        first_line: number of the first line wanted, from 1
        last_line: number of the last line wanted; 0 for the end of the file

    """
    if first_line < 1 or last_line < 0 or 0 < last_line < first_line:
        raise ToolError(f"there are no lines from {first_line} to {last_line}: lines count from 1")
    with opened(context, path, os.O_RDONLY) as fd, saying(path), open(fd, "rb", closefd=False) as file:
        if (first_line, last_line) == (1, 0):
            return _shown(whole(file, path), os.path.basename(path))
        return _lines(file, path, first_line, last_line)


def _shown(raw: bytes, name: str) -> bytes | ToolOutput:
    """The file as the model is to see it."""
    kind, packed = guess_type(name, strict=False)
    if not raw or packed or kind not in _SHOWN:
        return raw
    return ToolOutput(content=(FileBlock.of(raw, name=name, media_type=kind),))


def whole(file: IO[bytes], path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
    """All of `file`. Raises `ToolError` when that is too much, without reading the rest."""
    if os.fstat(file.fileno()).st_size <= max_bytes and len(raw := file.read(max_bytes + 1)) <= max_bytes:
        return raw
    raise ToolError(f"{path} is larger than {max_bytes} bytes")


def _lines(file: IO[bytes], path: str, first: int, last: int) -> bytes:
    if os.fstat(file.fileno()).st_size > SCAN_MAX_BYTES:
        raise ToolError(f"{path} is larger than {SCAN_MAX_BYTES} bytes")
    number, wanted = 0, bytearray()
    for number, line in enumerate(iter(partial(file.readline, READ_MAX_BYTES + 1), b""), 1):
        if number >= first:
            wanted += line
        if len(wanted) > READ_MAX_BYTES or len(line) > READ_MAX_BYTES:
            raise ToolError(f"line {number} of {path} is where more than {READ_MAX_BYTES} bytes are reached")
        if number == last:
            break
    if number < first and (number or first > 1):
        raise ToolError(f"{path} has {number} lines")
    return bytes(wanted)
