"""The store: commits appends, reads rows back, and stops for good at the first storage fault.

Synchronous and inline: a commit costs less than a hop to a thread. Callers retry `Busy`. Only what waits for a slow
disk may be done elsewhere: a commit that survives power loss is one that does not, and a sync of the -wal.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Final, NamedTuple

from attrs import frozen

from flightlog.core.limits import READ_PAGE_ROWS, SLOW_SYNC_S
from flightlog.store.connection import Busy, Database, Row
from flightlog.store.letter_codec import LetterRow
from flightlog.store.log_file import LogFile, open_log_file, open_log_file_to_read
from flightlog.store.rows import Encoded, EventRow, KeptSnapshot, SnapshotRow
from flightlog_hookspecs.errors import Fenced, ForkedProcess, StoreError, StoreStopped, UsageError


class SessionKey(NamedTuple):
    """A session's file-local key and its uid."""

    key: int
    uid: str


class NewSession(NamedTuple):
    """A session about to be entered."""

    name: str
    uid: str


Blob = tuple[bytes, bytes]
"""A payload: its sha256 and its bytes."""


@frozen
class _Barriers:
    """So many commits were barriers; the id of the last row in them."""

    count: int = 0
    last_id: int = 0


_WEIGHT: Final = 1 / 4
"""Of the newest sync in the mean of how long they take."""


class Store:
    """One open log file, for one process and one thread, but for what is said to be for any."""

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._pid = os.getpid()
        self._stopped: StoreError | None = None
        self._closed = False
        self._last_id = 0
        self._committed = self._durable = _Barriers()
        self._syncing = Lock()
        self._sync_s = 0.0
        self._defers = False
        self.syncs_later = False
        """To be set by who awaits `sync` behind each barrier: on a slow disk commits leave it to that."""
        self.database: Database = file.database
        self.locks = file.locks
        self.path = file.path

    @classmethod
    def open(cls, path: str, *, create: bool = True, allow_network: bool = False) -> Store:
        """Open to write. See `open_log_file` for the errors."""
        return cls(open_log_file(path, create=create, allow_network=allow_network))

    @classmethod
    def open_to_read(cls, path: str) -> Store:
        """Open to read; nothing is changed, nothing is owned."""
        return cls(open_log_file_to_read(path))

    def check_alive(self, *, in_place: bool = True) -> None:
        """Raise unless effects are still allowed. Stands before every side effect, not only writes.

        Raises `ForkedProcess`, `StoreStopped` after a storage fault and, unless `in_place` is off (for
        what nobody is told is safe), `FileReplaced`.
        """
        self.check_process()
        if self._stopped:
            raise self.stopped_by()
        if not in_place:
            return
        try:
            self._file.check_in_place()
        except StoreError as error:
            self.stop(error)
            raise

    @property
    def stopped(self) -> bool:
        """Whether a storage fault has ended all writing."""
        return self._stopped is not None

    def stopped_by(self) -> StoreStopped:
        """The error that nothing is written any more."""
        return StoreStopped(
            f"{self.path}: the kernel stopped at an earlier storage fault; reopen it to resume. "
            f"The fault was: {self._stopped}"
        )

    def stop(self, fault: StoreError) -> StoreError:
        """Refuse everything from now on: what had to be saved could not be. Returns `fault`, to be raised."""
        self._stopped = fault
        return fault

    def check_process(self) -> None:
        """Raise `ForkedProcess` in a child of the process that opened the store, `UsageError` once it is closed."""
        if os.getpid() != self._pid:
            raise ForkedProcess(
                f"{self.path}: was opened by process {self._pid}, this is its child {os.getpid()}. "
                "Open a kernel of your own in the child."
            )
        if self._closed:
            raise UsageError(f"{self.path}: is closed; open it again with open_kernel() or open_log()")

    def commit(self, append: Sequence[Encoded], blobs: Sequence[Blob] = (), *, barrier: bool) -> None:
        """Commit `append` and the payloads it refers to in one transaction.

        With `barrier` it survives power loss, otherwise the death of the process. Raises `Busy` when
        nothing was done and it may be tried again, `Fenced` when another owner has written (only
        that session is affected); any other error stops the store.
        """
        for error in self.commit_group([(append, blobs)], barrier=barrier).values():
            raise error

    def commit_group(
        self, appends: Sequence[tuple[Sequence[Encoded], Sequence[Blob]]], *, barrier: bool
    ) -> dict[int, Fenced]:
        """Commit appends of several sessions in one transaction, but for those that are refused.

        Returns the refusals by index: another owner has written to that session. Else as `commit`.
        """
        everything = [encoded for append, _ in appends for encoded in append]
        payloads = [blob for _, blobs in appends for blob in blobs]

        def enter() -> bool:
            self._insert(everything, payloads)
            return True

        try:
            self._transact(enter, barrier=barrier)
        except Fenced as error:
            return {0: error} if len(appends) == 1 else self._commit_apart(appends, barrier=barrier)
        return {}

    def _commit_apart(
        self, appends: Sequence[tuple[Sequence[Encoded], Sequence[Blob]]], *, barrier: bool
    ) -> dict[int, Fenced]:
        """As `commit_group`, each append by itself: some are refused, and SQLite does not say which."""
        return {
            index: error
            for index, append in enumerate(appends)
            for error in self.commit_group([append], barrier=barrier).values()
        }

    def create_session(self, session: NewSession, *rows: Encoded, blobs: Sequence[Blob] = ()) -> bool:
        """Enter `session` with its first rows; False, and nothing done, when its name or uid is there already."""
        is_new = False

        def enter() -> bool:
            nonlocal is_new
            is_new = self.key_of(session.name) is None and self.name_of(session.uid) is None
            if is_new:
                key = self.database.write("insert_session", [session])
                self._insert([encoded._replace(row=encoded.row._replace(session=key)) for encoded in rows], blobs)
            return is_new

        self._transact(enter, barrier=True)
        return is_new

    def post(self, letter: LetterRow, blobs: Sequence[Blob] = ()) -> LetterRow:
        """Enter `letter` and its files, durably, unless one to the same session has its key; returns the one there."""
        found: list[Row] = []

        def enter() -> bool:
            if letter.key is not None:
                found.extend(self.database.read("letter_of_key", letter.session, letter.key))
            if not found:
                self.database.write("insert_blob", blobs)
                self.database.write("insert_letter", [letter[1:]])
            return not found

        self._transact(enter, barrier=True)
        return LetterRow._make(found[0]) if found else letter

    def letters(self, key: int, session: str, after: int) -> list[LetterRow]:
        """The letters to a session behind letter `after` that were not taken yet, in order."""
        return [LetterRow._make(row) for row in self.read("letters_waiting", key, session, after)]

    def _transact(self, work: Callable[[], bool], *, barrier: bool) -> None:
        """Commit what `work` writes; it says whether that was anything.

        If not, what it found instead may be another process's and not durable yet, so a barrier owes a sync.
        """
        self.check_alive(in_place=barrier)
        self._last_id = 0  # what is found to exist already is another's to witness
        self._choose()
        try:
            self.database.begin(barrier=barrier and not self._defers)
            wrote, began = work(), time.monotonic()
            self.database.commit()
            if barrier:
                self._committed = _Barriers(self._committed.count + 1, max(self._committed.last_id, self._last_id))
                if wrote and not self._defers:
                    self._reached(self._committed, time.monotonic() - began)
        except (Busy, Fenced):
            self.database.rollback()
            raise
        except BaseException as error:
            self.database.rollback()
            self.stop(error if isinstance(error, StoreError) else StoreError(repr(error)))
            raise
        if not self.syncs_later:
            self.sync()

    def _choose(self) -> None:
        """Let commits wait for the disk, or leave that to `sync`: whichever is to be from now on."""
        defers = self.syncs_later and self._sync_s > SLOW_SYNC_S
        if defers is not self._defers:
            self._file.leave_full(defers)
            self._defers = defers

    def _reached(self, barriers: _Barriers, took_s: float) -> None:
        """Take note that these are durable, and how long their sync took."""
        self._durable = barriers
        self._file.record_durable(barriers.last_id)
        self._sync_s += (took_s - self._sync_s) * _WEIGHT

    @property
    def owes_sync(self) -> bool:
        """Whether a barrier was committed that is not durable yet."""
        return self._durable.count < self._committed.count

    @property
    def is_full(self) -> bool:
        """Whether the -wal is to be copied back by `begin_wal_anew`."""
        return self._file.is_full

    def sync(self) -> None:
        """Make all barriers durable that were committed so far. From any thread. Raises `StoreError`, and has stopped.

        One at a time: the system tells only one of two of a write that failed.
        """
        with self._syncing:
            if self.owes_sync:
                barriers, began = self._committed, time.monotonic()
                self._or_stop(self._file.sync)
                self._reached(barriers, time.monotonic() - began)

    def begin_wal_anew(self) -> None:
        """Copy the -wal back into the file. From any thread. Raises `StoreError`, and has stopped."""
        with self._syncing:
            if self.is_full:
                self._or_stop(self._file.begin_wal_anew)

    def _or_stop(self, work: Callable[[], None]) -> None:
        self.check_alive(in_place=False)  # whether it is in place is looked up on the loop's thread only
        try:
            work()
        except StoreError as error:
            raise self.stop(error) from error.__cause__

    def _insert(self, append: Sequence[Encoded], blobs: Sequence[Blob]) -> None:
        if blobs := [*blobs, *(blob for encoded in append for blob in encoded.blobs)]:
            self.database.write("insert_blob", blobs)
        self._last_id = self.database.write("insert_event", [encoded.row for encoded in append])
        for row, _, pieces, snapshot in append:
            if pieces:
                texts = [(row.session, row.seq, i, at_ms, text) for i, (at_ms, text) in enumerate(pieces)]
                self.database.write("insert_delta", texts)
            if snapshot:
                self._keep(snapshot)

    def _keep(self, snapshot: KeptSnapshot) -> None:
        row = snapshot.row
        if snapshot.begins:
            self.database.write("delete_snapshot_items", [(row.session,)])
        self.database.write("insert_snapshot_items", [(row.session, row.seq, snapshot.items)])
        self.database.write("insert_snapshot", [row])

    def key_of(self, session: str) -> SessionKey | None:
        """The key of session `session`, or None when there is no such session."""
        rows = self.read("session_key", session)
        return SessionKey(*rows[0]) if rows else None

    def name_of(self, uid: str) -> str | None:
        """The name of the session with that uid, or None when there is none."""
        rows = self.read("session_of_uid", uid)
        return str(rows[0][0]) if rows else None

    def rows(self, key: int, after: int = 0) -> Iterator[EventRow]:
        """The rows of a session behind `after`, in order, read page by page."""
        while True:
            page = self.read("events_page", key, after, READ_PAGE_ROWS)
            yield from map(EventRow._make, page)
            if len(page) < READ_PAGE_ROWS:
                return
            after = page[-1][1]

    def row(self, key: int, seq: int) -> EventRow | None:
        """The row of a session at `seq`; None when there is none."""
        rows = self.read("event_at", key, seq)
        return EventRow._make(rows[0]) if rows else None

    def rows_at(self, key: int, seqs: Sequence[int]) -> list[tuple[EventRow, bytes]]:
        """The rows of a session at `seqs`, each with the digest of the row before it; those that are there."""
        rows = self.read("events_at", key, json.dumps(seqs))
        return [(EventRow._make(columns), before or b"") for *columns, before in rows]

    def snapshot(self, key: int) -> SnapshotRow | None:
        """The newest snapshot of a session; None when there is none."""
        rows = self.read("snapshot_of", key)
        return SnapshotRow._make(rows[0]) if rows else None

    def snapshot_items(self, key: int) -> list[str]:
        """What came into the sets of its state, in the order in which it was kept."""
        return [text for (text,) in self.read("snapshot_items_of", key)]

    def blob(self, digest: bytes) -> bytes:
        """The payload with sha256 `digest`, b"" when it is missing (its hash will not match)."""
        rows = self.read("blob", digest)
        return bytes(rows[0][0]) if rows else b""

    def pieces(self, key: int, seq: int) -> list[tuple[int, str]]:
        """The delta texts of the row at `seq`: (at_ms, text) as they arrived."""
        return [(at_ms, text) for at_ms, text in self.read("deltas_of_event", key, seq)]

    def read(self, name: str, *arguments: int | str | bytes | None) -> list[Row]:
        """All rows of a named query. In a forked child it is refused at once."""
        self.check_process()
        return self.database.read(name, *arguments)

    def close(self) -> None:
        """Close the file. A forked child leaks its connection on purpose: closing would harm the parent."""
        if os.getpid() == self._pid and not self._closed:
            with self._syncing:
                self._closed = True
                self._file.close(clean=self._stopped is None)
