"""Random legal logs, made by the real core: what sessions can look like after any life they may have led.

    @given(legal_logs())
    def test_...(log: LegalLog) -> None: ...

A log is a walk: at each point one of the moves that the law allows is drawn and its events are
checked and folded as the journal does it. Walks hold several turns and steps, edits and withdrawals
in the inbox, retries, calls that finish in any order or never start, questions answered in time, late
or never, interrupted answers, owners that die and return in the middle of anything, changing heads,
faults of plugins, and kinds nobody knows. They stop wherever
the draw stops, so about half of them end in an open turn.

Requests carry the true number of messages and the hash that `flightlog.testing.FakeModel` proves, so
`verify` of a written log succeeds with that model at hand and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from attrs import evolve, frozen
from hypothesis import strategies as st

from flightlog.core.fold import fold, placed
from flightlog.core.invariants import Illegal, check
from flightlog.core.state import EMPTY, State
from flightlog.store.codec import encode
from flightlog.store.store import NewSession, Store
from flightlog_hookspecs.events import (
    Event,
    Record,
    SessionCreated,
    SessionOpened,
)
from support.walk import Walk

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]


@frozen(repr=False)
class LegalLog:
    """A session: its records, and the seqs after which an append may have ended (the last one included)."""

    records: tuple[Record, ...]
    cuts: tuple[int, ...]

    def _repr_pretty_(self, printer: Any, _: object) -> None:
        printer.text(repr(self))  # hypothesis would print every field of every event

    def __repr__(self) -> str:
        return "\n".join(["LegalLog:", *map(_line, self.records), f"cuts: {self.cuts}"])

    @property
    def session(self) -> str:
        """The session's name."""
        return self.records[0].session

    @property
    def state(self) -> State:
        """The state the log folds to."""
        return folded(self.records)

    def until(self, cut: int) -> LegalLog:
        """The log as a death after row `cut`, one of `cuts`, leaves it."""
        assert cut in self.cuts, f"no append ends at {cut}"
        return LegalLog(self.records[:cut], tuple(seq for seq in self.cuts if seq <= cut))

    def appends(self) -> list[tuple[Record, ...]]:
        """The records by append, each as short as it may be."""
        return [self.records[start:end] for start, end in pairwise((0, *self.cuts))]


@frozen(repr=False)
class LegalFile:
    """Several sessions in one file, as the appends that wrote it, in order."""

    appends: tuple[tuple[Record, ...], ...]

    def _repr_pretty_(self, printer: Any, _: object) -> None:
        printer.text(repr(self))

    def __repr__(self) -> str:
        return "\n\n".join(["LegalFile:", *("\n".join(map(_line, append)) for append in self.appends)])

    @property
    def records(self) -> tuple[Record, ...]:
        """All records in the order in which they were written."""
        return tuple(record for append in self.appends for record in append)


@st.composite
def legal_logs(draw: Draw[T], session: str = "s", moves_max: int = 50) -> LegalLog:
    """A legal log of one session, made of at most `moves_max` appends and its creation."""
    walk = Walk(draw, session, draw(st.integers(0, 2**32)))
    for _ in range(draw(st.sampled_from([0, 1, *range(2, moves_max, 6), moves_max]))):
        walk.move()
    return LegalLog(tuple(walk.records), tuple(walk.cuts))


@st.composite
def legal_files(draw: Draw[T], sessions_max: int = 3, moves_max: int = 25) -> LegalFile:
    """A file of one or several sessions whose appends alternate at random and are grouped at random."""
    names = draw(st.lists(st.sampled_from(["s", "t", "a b", "ß", "'"]), min_size=1, max_size=sessions_max, unique=True))
    waiting = {name: draw(groupings(draw(legal_logs(session=name, moves_max=moves_max)))) for name in names}
    appends: list[tuple[Record, ...]] = []
    while waiting:
        name = draw(st.sampled_from(sorted(waiting)))
        appends.append(waiting[name].pop(0))
        waiting = {other: rest for other, rest in waiting.items() if rest}
    return LegalFile(tuple(appends))


@st.composite
def groupings(draw: Draw[T], log: LegalLog) -> list[tuple[Record, ...]]:
    """The appends of `log`, neighbours merged at random; the creation always stands alone."""
    first, *others = log.appends()
    merged: list[tuple[Record, ...]] = []
    for append in others:
        if merged and draw(st.booleans()):
            merged[-1] += append
        else:
            merged.append(append)
    return [first, *merged]


def folded(records: Iterable[Record]) -> State:
    """Check and fold `records` as a load does. Raises `Illegal`."""
    state = EMPTY
    for expected, record in enumerate(records, 1):
        if record.seq != expected:
            raise Illegal("seq-dense", f"seq {record.seq} where {expected} belongs")
        check(state, record.event, record.epoch, (record.turn, record.step))
        state = fold(state, record.event, record.seq, record.epoch, record.at_us)
    return state


def broken_rule(records: Iterable[Record]) -> str | None:
    """The rule that `records` break first, None when they are legal."""
    try:
        folded(records)
    except Illegal as error:
        return error.rule
    return None


def extended(records: Sequence[Record], *events: Event) -> tuple[Record, ...]:
    """`records` and behind them `events`, each in the place the journal would give it. Checks nothing."""
    state, added = EMPTY, list(records)
    for record in records:
        state = fold(state, record.event, record.seq, record.epoch, record.at_us)
    for event in events:
        turn, step = placed(state, event)
        last = added[-1]
        epoch = last.epoch + isinstance(event, SessionOpened)
        record = evolve(last, seq=last.seq + 1, turn=turn, step=step, epoch=epoch, event=event, ignorable=False)
        state = fold(state, event, record.seq, epoch)
        added.append(record)
    return tuple(added)


def write(path: str, appends: Iterable[Sequence[Record]], *, barrier: bool = False) -> None:
    """Write `appends` into the log file at `path` through codec and store, then close it as after a clean exit."""
    store = Store.open(path)
    try:
        uids: dict[str, str] = {}
        digests: dict[str, bytes] = {}
        for append in appends:
            rows = []
            name = append[0].session
            if isinstance(created := append[0].event, SessionCreated):
                uids[name], digests[name] = created.uid, b""
            key = store.key_of(name)
            for record in append:
                rows.append(encode(record, key.key if key else 0, uids[name], digests[name]))
                digests[name] = rows[-1].row.digest
            if key is None:
                store.create_session(NewSession(name, uids[name]), *rows)
            else:
                store.commit(rows, barrier=barrier)
    finally:
        store.close()


def _line(record: Record) -> str:
    place = f"{record.session!r} {record.seq} turn {record.turn} step {record.step} epoch {record.epoch}"
    return f"  {place} at {record.at_us}: {record.event!r:.300}"
