"""Is the log whole: finds at opening what SQLite would silently take for a shorter log.

The chain finds what was changed in a session. It cannot find a tail that is gone, be it with the
-wal, with an older copy or behind a damaged index: the witness, the open mark and a look at the
index do.
"""

from __future__ import annotations

import os
from itertools import pairwise

from flightlog.store.connection import Database
from flightlog.store.witness import read_witness
from flightlog_hookspecs.errors import HeadMismatch, LogCorrupt


def check_whole(database: Database, path: str, witnessed: int | None) -> int:
    """The last id of the log, unless it once was longer. `witnessed` was read before it was opened.

    Raises `HeadMismatch` when rows are gone and `LogCorrupt` when they cannot all be found.
    """
    last_id: int = database.read("last_id")[0][0]
    if witnessed is not None and last_id < witnessed:
        raise HeadMismatch(
            f"{path}: ends at row {last_id}, but row {witnessed} was durable: its -wal is damaged or missing, "
            "or an older copy was put in its place. Restore the -wal or a backup; "
            "`flightlog repair` accepts the loss and notes it in the log."
        )
    _check_open_mark(database, path)
    _check_index(database, path)
    problems = [text for (text,) in database.read("integrity_of_session_keys") if text != "ok"]
    if problems:
        raise LogCorrupt("*", None, "sqlite-intact", f"SQLite finds the sessions in {path} damaged ({problems[0]})")
    return last_id


def _check_open_mark(database: Database, path: str) -> None:
    if not (mark := database.read("is_open")):
        raise LogCorrupt("*", None, "open-mark", f"the row of open_mark is missing in {path}")
    # Looked at after the mark: a kernel that has just set it has written its -wal and its witness by now.
    if mark[0][0] and not _size(f"{path}-wal") and read_witness(path) is None:
        raise HeadMismatch(
            f"{path}: was in use, but its -wal and its witness are missing: "
            "it is a copy of a live file, or events were lost. "
            "Copy the -wal with it, or use `flightlog backup`."
        )


def _check_index(database: Database, path: str) -> None:
    """Each session is known and one run of the index, and together they reach the last row of the table.

    One entry that a flipped bit gives to another session ends the session before it, for SQLite.
    A tenth of a microsecond an event.
    """
    runs = database.read("sessions_in_index")
    # A flipped bit can also change what type SQLite reads a number as.
    whole = all(type(value) is int for run in runs for value in run)
    whole = whole and all(run[0] < after[0] for run, after in pairwise(runs))
    if not whole or (runs and sum(run[1] for run in runs) != runs[0][2]):
        raise LogCorrupt("*", None, "index-whole", f"the index of events in {path} does not lead to all of its rows")
    if not all(known for *_, known in runs):
        raise LogCorrupt("*", None, "session-known", f"{path} holds events of a session that is not in session_keys")


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0
