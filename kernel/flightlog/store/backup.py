"""A copy of the whole file, consistent while others write: it opens as one that was closed cleanly."""

from __future__ import annotations

import os

from flightlog.store.connection import ApswDatabase
from flightlog.store.log_file import open_log_file_to_read, protected_paths
from flightlog.store.new_file import new_file
from flightlog.store.witness import Witness
from flightlog_hookspecs.errors import UsageError


def back_up(path: str, target: str) -> int:
    """Copy the log at `path` into the new file `target` (mode 0600); returns the last row's id.

    It stands under its name complete and on the disk, or not at all. Raises `UsageError` when
    something is there already, else a `StoreError`.
    """
    check_unused(target)
    source = open_log_file_to_read(path)
    try:
        with new_file(target) as part:
            source.database.copy_into(part)
            last_id = settled(part)
    finally:
        source.close(clean=False)
    Witness(target, last_id, None).close()
    return last_id


def check_unused(path: str) -> None:
    """Raise `UsageError` when `path`, or what would be taken for a companion of it, exists."""
    for found in protected_paths(path):
        if os.path.lexists(found):
            raise UsageError(f"{found}: exists already, and nothing is ever overwritten. Name another file.")


def settled(part: str) -> int:
    """Make the new log at `part` a file that nobody has open, and look at it as an opener would; its last id."""
    database = ApswDatabase(part)
    try:
        database.begin(barrier=True)
        database.write("set_open", [(0,)])
        database.commit()
        database.read("journal_mode_wal")
    finally:
        database.rollback()
        database.close()
    copy = open_log_file_to_read(part)
    try:
        last_id: int = copy.database.read("last_id")[0][0]
    finally:
        copy.close(clean=False)
    return last_id
