"""What an index of memories has to be able to do: by words as the one in the box, by meaning, or otherwise.

It holds nothing that the log does not, so it may be lost at any time. Its methods are called in threads, several at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from flightlog_plugins.memory.remembered import Remembered


class Unusable(Exception):
    """The index is missing or damaged, or of another version. Whoever raises it is asked to `rebuild`."""


class IndexWriter(Protocol):
    """Adds to an index, from the beginning to the end of one change of it."""

    def add(self, found: Remembered, subject: str) -> None:
        """Add what a session of `subject` has remembered. The same may come again, and is kept once.

        What `concludes` a task takes the place of what concluded the same session before.
        """

    def follow(self, session: str, seq: int) -> None:
        """Note that `session` was read up to row `seq`."""


class MemoryIndex(Protocol):
    """An index. Each method raises `Unusable` where it finds that it has to be made anew, but for `rebuild`."""

    def search(self, words: str, *, subject: str, beside: str, limit: int) -> list[Remembered]:
        """At most `limit` memories of `subject` that fit `words`, the best first.

        What session `beside` was the first to remember is left out; "" leaves out nothing.
        """

    def followed(self) -> Mapping[str, int]:
        """The last row that was read of each session of which any was."""

    def writing(self) -> AbstractContextManager[IndexWriter]:
        """Add to the index: all that is added before it is left, or nothing where an error leaves it."""

    def rebuild(self, fill: Callable[[IndexWriter], None], *, unless_sound: bool = False) -> None:
        """Put an index that holds just what `fill` adds in the place of what there is.

        With `unless_sound` only if that is unusable: of several that ask for it, one does it. When `fill` raises, what
        there was stays.
        """
