"""The bytes of a database file, read beside SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import apsw

from flightlog.store.connection import translated

MAGIC: Final = b"SQLite format 3\0"
"""What each of them begins with."""


@contextmanager
def raw_file(path: str) -> Iterator[apsw.VFSFile]:
    """The file at `path`, open to read. Raises a `StoreError` for what cannot be read in here.

    It is SQLite's own file object: closing a plain descriptor would drop the locks that SQLite holds on the file in
    this process.
    """
    try:
        file = apsw.VFSFile("", path, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
        try:
            yield file
        finally:
            file.xClose()
    except apsw.Error as error:
        raise translated(error, path) from error
