"""Repairing a damaged log: a new file with what is sound takes its place, and every loss is in the log.

The damaged file is copied first, byte for byte. Of each session the longest prefix is kept that passes
what a load checks, down to the texts of deltas, and that does not end inside an append. Behind it follows
`session/repaired`. When rows are gone and nobody can tell whose they were, it follows in every session.

Where SQLite finds its own pages damaged, the rows are taken from whatever pages there are, without it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Final, NamedTuple

from attrs import evolve, frozen

from flightlog.core.invariants import check
from flightlog.core.state import EMPTY, State
from flightlog.store.backup import check_unused
from flightlog.store.codec import chained, encode
from flightlog.store.connection import Busy, Database
from flightlog.store.letter_codec import LetterRow
from flightlog.store.log_file import LogFile, in_use, no_database, open_log_file_alone, open_log_file_to_read
from flightlog.store.new_file import new_file
from flightlog.store.regaining import regained
from flightlog.store.replacing import Kept, replace, written_anew
from flightlog.store.replay import Replay, check_ending, checking
from flightlog.store.rows import EventRow
from flightlog.store.salvage import salvaged
from flightlog.store.wholeness import check_whole
from flightlog.store.witness import read_witness
from flightlog_hookspecs.errors import HeadMismatch, LogCorrupt, NotAFlightlog, SchemaTooNew, StoreError
from flightlog_hookspecs.events import Record, SessionRepaired

_ROWS_GONE: Final = "rows-gone"
_NO_REPAIR: Final = "no repair can keep anything of it: restore a backup."
_DETAIL_MAX_CHARS: Final = 500
_PROBLEMS_MAX: Final = 20


@frozen(kw_only=True)
class SessionLoss:
    """What a session loses in a repair: everything behind its first `kept` rows; all of it when that is 0.

    `dropped` rows can still be read. The first row that is lost, `seq`, broke `rule`; `digest` (hex) is its
    own, empty when it cannot be read. With rule "rows-gone" rows of the file are gone, maybe none of this
    session.
    """

    session: str
    kept: int
    dropped: int
    seq: int
    rule: str
    detail: str
    digest: str = ""


@frozen(kw_only=True)
class RepairReport:
    """What a repair found, and did unless it was a dry run.

    `problems` are those of the file as a whole; `letters` so many are lost; `backup` is the path of the
    copy of the damaged file, None when nothing was done.
    """

    problems: tuple[str, ...] = ()
    sessions: tuple[SessionLoss, ...] = ()
    letters: int = 0
    backup: str | None = None

    @property
    def damaged(self) -> bool:
        """Whether there was anything to repair."""
        return bool(self.problems or self.sessions or self.letters)


class _Sound(NamedTuple):
    """A session's sound beginning: how long it is, the digest of its last row, what it comes to; and what is lost."""

    session: Kept
    rows: int = 0
    digest: bytes = b""
    state: State = EMPTY
    loss: SessionLoss | None = None


def repaired(path: str, *, dry_run: bool, at_us: int, stamp: str, repair_id: str) -> RepairReport:
    """Repair the log at `path`. See `flightlog.repair`; the copy of the damaged file is named by `stamp`."""
    try:
        return _repaired(path, dry_run=dry_run, at_us=at_us, stamp=stamp, repair_id=repair_id)
    except LogCorrupt as error:
        raise LogCorrupt(error.session, error.seq, error.rule, error.detail, advice=_NO_REPAIR) from error


def _repaired(path: str, *, dry_run: bool, at_us: int, stamp: str, repair_id: str) -> RepairReport:
    file = open_log_file_to_read(path, damaged=True)
    try:
        with _damage(file) as damage:
            report = damage.report
    finally:
        file.close(clean=False)
    if dry_run or not report.damaged:
        return report
    backup = f"{path}.damaged-{stamp}"
    check_unused(backup)
    file = open_log_file_alone(path, damaged=True)
    try:
        _hold(file)
        with _damage(file) as damage:
            # Only the locks keep others out by now, and they do: SQLite's own would hinder the copying.
            _copy(path, backup)
            news = damage.news(repair_id, os.path.basename(backup), at_us)
            with written_anew(path, damage.kept, chain(damage.rows(), news), damage.letters(), damage.salvage) as new:
                file.database.rollback()
                replace(file, *new)
            return evolve(damage.report, backup=backup)
    finally:
        file.close(clean=False)


def _hold(file: LogFile) -> None:
    """Let no other program add a row that would be lost."""
    try:
        file.database.begin(barrier=True)
    except Busy:
        raise in_use(file.path) from None
    except (LogCorrupt, NotAFlightlog):
        pass  # nor does another program add any then


def _copy(path: str, backup: str) -> None:
    """Copy the damaged file and its companions. The main one comes last: with it, the copy is complete."""
    for suffix in ("-wal", "-head", ""):
        if os.path.exists(f"{path}{suffix}"):
            with new_file(f"{backup}{suffix}") as part:
                shutil.copyfile(f"{path}{suffix}", part)


@contextmanager
def _damage(file: LogFile) -> Iterator[_Damage]:
    """Look through `file`, past SQLite where it finds its own pages damaged."""
    witnessed = read_witness(file.path)
    problems, torn = list(_problems(file, witnessed)), list(_torn(file))
    if not torn:
        yield _Damage(file, file.database, problems, witnessed)
        return
    file.database.tolerate_damage()
    with regained(file.path) as tables:
        damage = _Damage(file, tables, problems + torn, witnessed)
        if not damage.kept and any(isinstance(problem, NotAFlightlog) for problem in torn):
            raise no_database(file.path)  # no row has shown that it is one of ours
        if not damage.found_anything:
            raise LogCorrupt("*", None, "sqlite-intact", f"nothing in {file.path} can be read any more")
        yield damage


class _Damage:
    """What is wrong with an open file, and what of it is sound. Its rows stand in `tables`."""

    def __init__(
        self, file: LogFile, tables: Database, problems: Iterable[StoreError | str], witnessed: int | None
    ) -> None:
        size = sum(os.path.getsize(file.path + s) for s in ("", "-wal") if os.path.exists(file.path + s))
        self.salvage = salvaged(tables, file.database, size, witnessed or 0)
        found = list(problems)
        sessions = [self._sound_part(session) for session in self.salvage.sessions()]
        # How many rows there were says the witness, the index or, where SQLite can read it through, the table.
        unknown = tables is not file.database and witnessed is None and not self.salvage.indexed
        unknown = unknown or any(isinstance(problem, HeadMismatch) for problem in found)
        sessions = self._marked(sessions, nobody_knows=unknown)
        found += [
            f"session_keys does not name session {session.name!r} as its log does"
            for session, rows, *_ in sessions
            if rows and self.salvage.names.get(session.key) != session[1:]
        ]
        if self.salvage.missing:
            found.append(f"{self.salvage.missing} rows are gone, or have lost their place")
        if self.salvage.misplaced:
            found.append("payloads do not stand under their digests")
        self._sessions = [sound for sound in sessions if sound.rows]
        self.report = RepairReport(
            problems=tuple(dict.fromkeys(map(_said, found)))[:_PROBLEMS_MAX],
            sessions=tuple(sound.loss for sound in sessions if sound.loss),
            letters=sum(letter is None for letter in self.salvage.letters()),
        )

    @property
    def found_anything(self) -> bool:
        """Whether there is a trace of a session or a letter."""
        return bool(self.salvage.sessions() or any(True for _ in self.salvage.letters()))

    @property
    def kept(self) -> list[Kept]:
        """The sessions that go on."""
        return [sound.session for sound in self._sessions]

    def rows(self) -> Iterator[EventRow]:
        """Their sound rows in the order in which they were written."""
        return self.salvage.in_order({sound.session.key: sound.rows for sound in self._sessions})

    def letters(self) -> Iterator[LetterRow]:
        """The letters that are as they were posted."""
        return (letter for letter in self.salvage.letters() if letter is not None)

    def news(self, repair_id: str, backup: str, at_us: int) -> Iterator[EventRow]:
        """What is written behind the sound rows: in each session that lost some, that it did."""
        for session, rows, digest, state, loss in self._sessions:
            if loss is None:
                continue
            event = SessionRepaired(
                repair=repair_id,
                rule=loss.rule,
                detail=loss.detail,
                dropped=loss.dropped,
                digest=loss.digest,
                backup=backup,
            )
            turn, step = state.place
            check(state, event, state.epoch, state.place)
            record = Record(
                session=session.name, seq=rows + 1, at_us=at_us, turn=turn, step=step, epoch=state.epoch, event=event
            )
            yield encode(record, session.key, session.uid, digest).row

    def _sound_part(self, session: Kept) -> _Sound:
        replay = Replay(session=session.name, uid=session.uid)
        sound = _Sound(session)
        try:
            for row, _ in checking(self.salvage, replay, session.key, deltas=True):
                if not replay.state.claimed:
                    sound = _Sound(session, row.seq, row.digest, replay.state)
            check_ending(replay)
        except SchemaTooNew:
            raise
        except StoreError as error:
            rule, seq = (error.rule, error.seq) if isinstance(error, LogCorrupt) else ("sqlite-intact", None)
            # A claim is kept with the message that it brings, or not at all.
            where = f"seq {seq}: " if seq not in (None, sound.rows + 1) else ""
            return sound._replace(loss=self._loss(sound, rule, where + _said(error)))
        return sound

    def _marked(self, sessions: list[_Sound], *, nobody_knows: bool) -> list[_Sound]:
        """`sessions`, those whole so far marked if rows behind their last one are gone, or may be."""
        places, last = self.salvage.places, self.salvage.last_seqs
        gone = {key: seq - sum(map(bool, places.get(key, ()))) for key, seq in last.items()}
        # A row that stands in the wrong session leaves a gap there and no other trace here.
        if nobody_knows or self.salvage.missing != sum(gone.values()):
            why = "rows of the file are gone, and nobody can tell whose they were; maybe none of this session"
            keys = {session.key for session, *_ in sessions}
        else:
            why = "the index knows of rows that are gone"
            keys = {key for key, number in gone.items() if number}
            keys |= {
                sound.session.key for sound in sessions if any(_continues(sound, row) for row in self._strays(sessions))
            }
        return [
            sound._replace(loss=self._loss(sound, _ROWS_GONE, why))
            if sound.loss is None and sound.session.key in keys
            else sound
            for sound in sessions
        ]

    def _strays(self, sessions: list[_Sound]) -> list[EventRow]:
        """The first lost row of each session, which may be another one's."""
        lost = [
            next(_readable(self.salvage.rows(sound.session.key, sound.rows)), None) for sound in sessions if sound.loss
        ]
        return [row for row in lost if row is not None]

    def _loss(self, sound: _Sound, rule: str, detail: str) -> SessionLoss:
        key, rows = sound.session.key, sound.rows
        lost = next(_readable(self.salvage.rows(key, rows)), None)
        there = lost is not None and lost.seq == rows + 1 and isinstance(lost.digest, bytes)
        return SessionLoss(
            session=sound.session.name,
            kept=rows,
            dropped=sum(map(bool, self.salvage.places.get(key, ())[rows:])),
            seq=rows + 1,
            rule=rule,
            detail=detail[:_DETAIL_MAX_CHARS],
            digest=lost.digest.hex() if lost and there else "",
        )


def _continues(sound: _Sound, row: EventRow) -> bool:
    """Whether `row`, wherever it stands, is the one that was written behind a session's sound beginning."""
    try:
        return row.seq == sound.rows + 1 and chained(sound.digest, sound.session.uid, row) == row.digest
    except (AttributeError, TypeError):
        return False


def _readable(rows: Iterator[EventRow]) -> Iterator[EventRow]:
    with suppress(StoreError):
        yield from rows


def _problems(file: LogFile, witnessed: int | None) -> Iterator[StoreError | str]:
    """What is wrong with the log as a whole, as those say who open it."""
    try:
        check_whole(file.database, file.path, witnessed)
    except StoreError as error:
        yield error


def _torn(file: LogFile) -> Iterator[StoreError | str]:
    """What SQLite finds wrong with its own pages."""
    try:
        yield from (text for (text,) in file.database.read("integrity_check") if text != "ok")
    except StoreError as error:
        yield error


def _said(problem: StoreError | str) -> str:
    if isinstance(problem, NotAFlightlog):
        return "the beginning of the file is damaged: SQLite does not know it any more"
    return problem.detail if isinstance(problem, LogCorrupt) else str(problem)
