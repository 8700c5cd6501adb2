"""Files inside the workspace: read, list, search, write, edit, append.

Paths are opened folder by folder without following links, so no path leads out of the workspace,
also not while somebody changes it; the log itself is out of reach. Writing and editing may be
repeated after a crash: what is done already stays as it is, and the result says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flightlog_hookspecs import Tool, hookimpl
from flightlog_plugins.files.listing import list_files
from flightlog_plugins.files.reading import READ_MAX_BYTES, read_file
from flightlog_plugins.files.searching import search_files
from flightlog_plugins.files.writing import WRITE_MAX_BYTES, append_line, edit_file, write_file

__all__ = [
    "READ_MAX_BYTES",
    "TOOLS",
    "WRITE_MAX_BYTES",
    "append_line",
    "edit_file",
    "list_files",
    "read_file",
    "register_tools",
    "search_files",
    "write_file",
]

TOOLS: Final = (read_file, list_files, search_files, write_file, edit_file, append_line)


@hookimpl
def register_tools(register: Callable[[Tool], None]) -> None:
    """Offer `TOOLS`. Without a workspace each refuses every call."""
    for each in TOOLS:
        register(each)
