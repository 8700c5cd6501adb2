"""What is in a folder of the workspace."""

from __future__ import annotations

import stat
from contextlib import closing
from typing import Final

from flightlog_hookspecs import ToolContext, tool
from flightlog_plugins.files.confinement import Guarded, folder_at, parts_of, saying
from flightlog_plugins.files.walking import Entry, Walk, pattern_of, shown

LISTED_MAX: Final = 500
"""Entries in one listing."""


@tool(mode="parallel", effect="read", timeout_s=30.0)
def list_files(context: ToolContext, path: str = ".", pattern: str = "*") -> str:
    """List what is in a folder of the workspace: folders end with "/", files show their size.

    Args:
        context: the call
        path: the folder, relative to the workspace
        pattern: what to list, relative to that folder: "*" its own entries, "**" all below, "**/*.py" files by
            name. Names with a leading dot need a pattern with one.

    """
    parts = parts_of(path, folder=True)
    walk = Walk(Guarded.by(context), pattern_of(pattern))
    lines: list[str] = []
    with folder_at(context, parts, path) as folder, saying(path), closing(walk.below(folder, _prefix(parts))) as found:
        for entry in found:
            if len(lines) == LISTED_MAX:
                lines.append(f"[only the first {LISTED_MAX} are listed: name a folder or a narrower pattern]")
                break
            lines.append(_line(entry))
    if not walk.complete:
        lines.append("[not everything was looked at: too many files, or folders that cannot be entered]")
    return "\n".join(lines) or "[nothing]"


def _prefix(parts: list[str]) -> str:
    return "".join(f"{part}/" for part in parts)


def _line(entry: Entry) -> str:
    mode, name = entry.status.st_mode, shown(entry.path)
    if stat.S_ISDIR(mode):
        return f"{name}/"
    if stat.S_ISREG(mode):
        return f"{name} ({entry.status.st_size} bytes)"
    return f"{name} (a link; not followed)" if stat.S_ISLNK(mode) else f"{name} (not a file)"
