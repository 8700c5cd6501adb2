"""What is done to a log file that nobody has open: purge and repair. Blocking: both need the file for themselves."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from flightlog.runtime.clock import Clock
from flightlog.runtime.reader import log_path_of
from flightlog.store.purging import PurgeReport, purged
from flightlog.store.repairing import RepairReport, repaired


def purge(path: str | os.PathLike[str], *sessions: str, dry_run: bool = False) -> PurgeReport:
    """Remove `sessions`, and the letters to them, from the log at `path` for good; returns what was removed.

    A new file without them takes the place of the old one: no byte of them remains in it or its
    companions. The other sessions keep everything but the numbers of their rows in the file. A fork holds
    what its origin said, and stays. With `dry_run` nothing is changed. Killed anywhere, the old file or
    the new one stands there whole.

    Raises `UsageError` for a session that is not there, `FileInUse` while anybody has the file open,
    `LogCorrupt` or `SchemaTooNew` when another session is not sound: `repair` first. Nothing was changed then.
    """
    return purged(log_path_of("path", path), sessions, dry_run=dry_run)


def repair(path: str | os.PathLike[str], *, dry_run: bool = True, clock: Clock | None = None) -> RepairReport:
    """Make a damaged log one that opens again, without what is not sound; returns what that is.

    Unless told otherwise it is a dry run and changes nothing. Else the damaged file is copied, byte for
    byte, to `<path>.damaged-<time>`; then a new file takes its place that holds of each session the longest
    sound beginning and, where something is lost, a `session/repaired`. A log that is sound is left alone.
    Killed anywhere, the old file or the new one stands there whole.

    Raises `FileInUse` while anybody has the file open, `NotAFlightlog` and `SchemaTooNew` for what is not
    damaged but foreign, `LogCorrupt` when nothing of it can be kept.
    """
    clock = clock or Clock()
    now_us = clock.now_us()
    stamp = f"{datetime.fromtimestamp(now_us / 1e6, UTC):%Y%m%dT%H%M%S.%fZ}"
    return repaired(log_path_of("path", path), dry_run=dry_run, at_us=now_us, stamp=stamp, repair_id=clock.new_id())
