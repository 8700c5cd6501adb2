"""Removing sessions for good: a new file without them takes the place of the old one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from flightlog.core.limits import READ_PAGE_ROWS
from flightlog.store.connection import Busy
from flightlog.store.letter_codec import LetterRow
from flightlog.store.log_file import in_use, open_log_file_alone, open_log_file_to_read
from flightlog.store.replacing import Kept, replace, written_anew
from flightlog.store.replay import check_ending, replay
from flightlog.store.rows import EventRow
from flightlog.store.store import Store
from flightlog.store.wholeness import check_whole
from flightlog.store.witness import read_witness
from flightlog_hookspecs.errors import UsageError


@frozen(kw_only=True)
class PurgeReport:
    """What a purge removed, or would: the sessions, their events and the letters to them."""

    sessions: tuple[str, ...]
    events: int
    letters: int


def purged(path: str, names: Sequence[str], *, dry_run: bool) -> PurgeReport:
    """Remove the sessions `names` and the letters to them from the log at `path`. See `flightlog.purge`."""
    if not names:
        raise UsageError("name at least one session to purge")
    file = open_log_file_to_read(path) if dry_run else open_log_file_alone(path)
    try:
        store = Store(file)
        if not dry_run:
            check_whole(file.database, path, read_witness(path))
            _hold(store)
        gone, kept = _divided(store, names)
        lengths: dict[int, int] = dict(store.read("last_seqs"))
        letters = sum(letter.session in names for letter in _letters(store))
        events = sum(lengths[session.key] for session in gone)
        if not dry_run:
            for session in kept:
                check_ending(replay(store, session.name, session.key, session.uid, deltas=True))
            rows = _rows(store, {session.key for session in kept})
            others = (letter for letter in _letters(store) if letter.session not in names)
            with written_anew(path, kept, rows, others, store) as (part, last_id):
                file.database.write("set_open", [(0,)])
                file.database.commit()
                replace(file, part, last_id)
        return PurgeReport(sessions=tuple(dict.fromkeys(names)), events=events, letters=letters)
    finally:
        file.close(clean=False)


def _hold(store: Store) -> None:
    """Let no other program add a row that would be lost."""
    try:
        store.database.begin(barrier=True)
    except Busy:
        raise in_use(store.path) from None


def _divided(store: Store, names: Sequence[str]) -> tuple[list[Kept], list[Kept]]:
    """The sessions that go and those that stay. A name may also be one that only letters were sent to."""
    sessions = [Kept(key, name, uid) for name, uid, key in store.read("sessions_by_id", 1, -1)]
    known = {session.name for session in sessions} | {letter.session for letter in _letters(store)}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no session {name!r} in {store.path}. Nothing was purged.")
    return [s for s in sessions if s.name in names], [s for s in sessions if s.name not in names]


def _rows(store: Store, keys: set[int]) -> Iterator[EventRow]:
    """The rows of the sessions `keys`, in the order in which they were written."""
    after = 0
    while page := store.read("events_by_id", after + 1, READ_PAGE_ROWS):
        yield from (EventRow._make(columns) for *columns, _ in page if columns[0] in keys)
        after = page[-1][-1]


def _letters(store: Store) -> Iterator[LetterRow]:
    after = 0
    while page := store.read("letters_by_id", after + 1, READ_PAGE_ROWS):
        yield from (LetterRow(id_, *columns) for *columns, id_ in page)
        after = page[-1][-1]
