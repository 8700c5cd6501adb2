"""Where a text stands in the files of the workspace.

Plain text only: a pattern that a model makes up may take a regular expression longer than the world lasts,
and nothing can stop one that runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from attrs import define, field

from flightlog_hookspecs import ToolContext, tool
from flightlog_hookspecs.errors import ToolError
from flightlog_plugins.files.confinement import Guarded, folder_at, opened_in, parts_of, saying
from flightlog_plugins.files.reading import READ_MAX_BYTES, whole
from flightlog_plugins.files.walking import Entry, Walk, pattern_of, shown

MATCHES_MAX: Final = 200
SEARCHED_MAX_BYTES: Final = 256 * 1024 * 1024
"""Bytes that are read in one search."""
LINE_MAX_CHARS: Final = 200
"""As much of a line is shown, around the text."""

_BEFORE_CHARS: Final = 60


@tool(mode="parallel", effect="read", timeout_s=60.0)
def search_files(
    context: ToolContext, text: str, path: str = ".", pattern: str = "**", ignore_case: bool = False
) -> str:
    """Find the lines that contain a text, as "path:line number:line".

    Args:
        context: the call
        text: plain text within one line, no regular expression
        path: the folder to search, relative to the workspace
        pattern: which files, relative to that folder, such as "**/*.py". Names with a leading dot need a pattern
            with one.
        ignore_case: whether upper and lower case are the same

    """
    if not text or "\n" in text or "\r" in text:
        raise ToolError("text must be a part of one line, and not empty")
    parts = parts_of(path, folder=True)
    search = _Search(text=text, ignore_case=ignore_case)
    walk = Walk(Guarded.by(context), pattern_of(pattern))
    prefix = "".join(f"{part}/" for part in parts)
    with folder_at(context, parts, path) as folder, saying(path), closing(walk.below(folder, prefix)) as found:
        lines = list(search.through(found))
    if not walk.complete:
        lines.append("[not everything was looked at: too many files, or folders that cannot be entered]")
    return "\n".join([*lines, *search.remarks()]) or "[nothing]"


@define(kw_only=True)
class _Search:
    """One search: what it looks for, and what it could not look into."""

    text: str
    ignore_case: bool
    _needle: str = field(init=False)
    _bytes_left: int = field(default=SEARCHED_MAX_BYTES, init=False)
    _found: int = field(default=0, init=False)
    _binary: int = field(default=0, init=False)
    _unread: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._needle = self._folded(self.text)

    def through(self, entries: Iterator[Entry]) -> Iterator[str]:
        """The lines of `entries` that hold the text, until there are enough."""
        for entry in entries:
            if entry.is_file and (raw := self._content(entry)) is not None:
                for line in self._matching(entry, raw):
                    if self._found == MATCHES_MAX:
                        yield f"[only the first {MATCHES_MAX} are shown: look for more text or in fewer files]"
                        return
                    self._found += 1
                    yield line
            if self._bytes_left <= 0:
                yield f"[stopped after {SEARCHED_MAX_BYTES} bytes: search in fewer files]"
                return

    def remarks(self) -> Iterator[str]:
        """What was passed over."""
        if self._binary:
            yield f"[{self._binary} binary files were not searched]"
        if self._unread:
            yield f"[{self._unread} files that are too large or cannot be read were not searched]"

    def _content(self, entry: Entry) -> bytes | None:
        try:
            with opened_in(entry.folder, entry.name, entry.path, os.O_RDONLY) as fd:
                if not os.path.samestat(os.fstat(fd), entry.status):
                    return None  # replaced since it was met
                with open(fd, "rb", closefd=False) as file:
                    raw = whole(file, entry.path, READ_MAX_BYTES)
        except (ToolError, OSError):
            self._unread += 1
            return None
        self._bytes_left -= len(raw)
        if b"\0" in raw:
            self._binary += 1
            return None
        return raw

    def _matching(self, entry: Entry, raw: bytes) -> Iterator[str]:
        # Bytes that are no text stand for themselves on both sides, so that they hide no line.
        text = raw.decode(errors="surrogateescape")
        if self._needle not in self._folded(text):
            return
        for number, line in enumerate(text.split("\n"), 1):
            at = self._folded(line).find(self._needle)
            if at >= 0:
                yield f"{shown(entry.path)}:{number}:{_around(line, at)}"

    def _folded(self, text: str) -> str:
        return text.lower() if self.ignore_case else text


def _around(line: str, at: int) -> str:
    line = line.removesuffix("\r")
    start = max(0, at - _BEFORE_CHARS) if len(line) > LINE_MAX_CHARS else 0
    part = line[start : start + LINE_MAX_CHARS]
    text = part.encode(errors="surrogateescape").decode(errors="replace")
    return f"{'…' if start else ''}{text}{'…' if start + LINE_MAX_CHARS < len(line) else ''}"
