"""Snapshots: with one, a session is what it is without; and damaged, old or foreign ones are as good as none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_origin

import pytest
from attrs import evolve, fields, frozen, has
from hypothesis import assume, event, given
from hypothesis import strategies as st

from flightlog.core import canonical, snapshot
from flightlog.core.account import Account
from flightlog.core.changed import changed
from flightlog.core.growing_set import GrowingSet
from flightlog.core.history import History, Outline
from flightlog.core.limits import SNAPSHOT_CHARS_PER_ROW, SNAPSHOT_MIN_ROWS
from flightlog.core.snapshot import NOTHING_KEPT, SETS, Items, Snapshot, classes_in, filled, is_due, taken
from flightlog.core.state import EMPTY, Call, State, Step
from flightlog.core.task import Task
from flightlog.core.timer import Timer
from flightlog.store import snapshot_codec
from flightlog.store.replay import Replay, replaying
from flightlog.store.rows import KeptSnapshot, SnapshotRow
from flightlog.store.snapshots import Snapshots, restoring
from flightlog.store.store import SessionKey, Store
from flightlog_hookspecs.content import FileBlock, TextBlock
from flightlog_hookspecs.errors import LogCorrupt
from flightlog_hookspecs.events import AssistantMessage
from support import sample_log
from support.damage import flipped
from support.files import in_memory, keep_snapshot, put_snapshot
from support.legal_logs import LegalLog, folded, legal_logs, write
from support.values import files, plainest, values_of


class Log:
    """A session in an open store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        key = store.key_of("s")
        assert key is not None
        self.key: SessionKey = key

    def until(self, seq: int) -> Replay:
        """What its first rows come to, all of them read."""
        loaded = self.nothing()
        for record in replaying(self.store, loaded, self.key.key):
            if record.seq == seq:
                break
        return loaded

    def nothing(self) -> Replay:
        """As far as a reader is who has begun with nothing."""
        return Replay(session="s", uid=self.key.uid)

    def keep(self, *seqs: int) -> KeptSnapshot:
        """Take snapshots of its first rows, one after the other; the last one stays."""
        link = keep_snapshot(self.store, "s", *seqs).link
        row = self.store.snapshot(self.key.key)
        assert row is not None
        assert row.checksum == snapshot_codec.checksum(row, self.key.uid, link)
        return KeptSnapshot(row, "".join(self.store.snapshot_items(self.key.key)), begins=True)

    def restored(self) -> Replay:
        """As far as a snapshot brings a reader."""
        loaded = self.nothing()
        for _ in restoring(self.store, loaded, Snapshots(*self.key)):
            pass
        return loaded

    def finished(self, loaded: Replay) -> Replay:
        """`loaded` once it has read the rest."""
        for _ in replaying(self.store, loaded, self.key.key):
            pass
        return loaded


@contextmanager
def log_of(legal: LegalLog) -> Iterator[Log]:
    """`legal` in a file, and that opened."""
    with in_memory() as folder:
        path = str(folder / "log.db")
        write(path, legal.appends())
        store = Store.open(path)
        try:
            yield Log(store)
        finally:
            store.close()


def told(loaded: Replay) -> tuple[int, bytes, State, History]:
    """All that a session goes on from."""
    return loaded.seq, loaded.digest, loaded.state, loaded.history


@given(log=legal_logs(), data=st.data())
def test_a_snapshot_at_any_cut_and_the_rest_come_to_what_all_rows_come_to(log: LegalLog, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.sampled_from(log.cuts), min_size=1, max_size=4)))
    cut = cuts[-1]
    with log_of(log) as opened:
        opened.keep(*cuts)
        restored = opened.restored()
        assert told(restored) == told(opened.until(cut))
        event(f"{len(restored.history) // 5 * 5} messages or more")
        whole = opened.finished(opened.nothing())
        assert told(opened.finished(restored)) == told(whole)
        # One that is taken of what a snapshot has brought is the same as well: they do not drift.
        assert taken(restored.state, restored.history, NOTHING_KEPT) == taken(whole.state, whole.history, NOTHING_KEPT)


CLASSES = classes_in(tuple[Snapshot, Items])
FIELDS = [
    (cls, field.name)
    for cls in CLASSES
    if cls is not GrowingSet
    for field in fields(cls)
    if (cls, field.name) != (FileBlock, "data")  # the bytes of a file are not in the log
]


def bare(value: Any) -> Any:
    """`value` as it is in the log: files without their bytes."""
    if isinstance(value, tuple):
        return tuple(map(bare, value))
    if isinstance(value, Mapping):
        return MappingProxyType({key: bare(item) for key, item in value.items()})
    if isinstance(value, GrowingSet) or not has(type(value)):
        return value
    changes = {field.name: bare(getattr(value, field.name)) for field in fields(type(value))}
    return evolve(value, **{**changes, "data": b""} if isinstance(value, FileBlock) else changes)


def assert_comes_back(value: Any) -> None:
    found = snapshot_codec.value_of(snapshot_codec.text_of(value), type(value))
    assert found == value
    # Equal is not enough: 1 is True, and a mapping may have changed its order.
    assert snapshot_codec.text_of(found) == snapshot_codec.text_of(value)


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls not in (GrowingSet, FileBlock)])
def test_each_class_that_can_be_in_a_state_can_be_kept(cls: type) -> None:
    """Who adds a field of a type that cannot be kept learns of it here."""
    assert_comes_back(bare(plainest(cls)))


@given(st.data())
def test_whatever_a_field_of_a_state_holds_comes_back_as_it_was(data: st.DataObject) -> None:
    cls, name = data.draw(st.sampled_from(FIELDS))
    whole = plainest(cls) if cls is not FileBlock else data.draw(files())
    if name != "sha256":
        whole = evolve(whole, **{name: data.draw(values_of(CLASSES[cls][name]))})
    assert_comes_back(bare(whole))


def test_all_sets_that_only_grow_are_kept_piece_by_piece() -> None:
    """Else a snapshot of a long session is a large one, and there is one the more seldom."""
    growing = {
        field.name for cls in CLASSES for field in fields(cls) if get_origin(CLASSES[cls][field.name]) is GrowingSet
    }
    assert growing == set(SETS)


@given(log=legal_logs(), data=st.data())
def test_what_came_into_them_piece_by_piece_is_what_is_in_them(log: LegalLog, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.sampled_from(log.cuts), min_size=1, max_size=6)))
    kept, pieces = NOTHING_KEPT, list[Items]()
    for cut in cuts:
        state, history = folded(log.records[:cut]), History()
        for record in log.records[:cut]:
            history.add(record.event, record.seq)
        last, items, kept = taken(state, history, kept)
        pieces.append(items)
        assert filled(last, pieces) == (state, history.outline(), kept)
    for name in SETS:
        items_of = [item for piece in pieces for item in getattr(piece, name)]
        assert len(items_of) == len(set(items_of)), "each is kept once"
    rows = [row for piece in pieces if piece.messages.rewritten_at == kept.rewritten_at for row in piece.messages.rows]
    assert len(rows) == len(set(rows)) == kept.messages
    event(f"{len(rows) // 5 * 5} messages or more kept so")


def test_a_snapshot_of_a_long_conversation_is_no_larger_than_one_of_a_short_one() -> None:
    """The messages that stay where they are, all but those since the last answer, are not written again."""
    sizes, pieces, kept, history = list[int](), list[int](), NOTHING_KEPT, History()
    for number in range(1, 5_001):
        history.add(AssistantMessage(attempt=1, content=(TextBlock(text="so"),), finish="stop"), number)
        if number % 1_000 == 0:
            last, items, kept = taken(EMPTY, history, kept)
            sizes.append(len(last.history.rows))
            pieces.append(len(items.messages.rows))
    assert sizes == [1, 1, 1, 1, 1]
    assert pieces == [999, 1_000, 1_000, 1_000, 1_000]


def test_the_classes_are_those_of_the_state_and_of_what_is_in_it() -> None:
    assert {State, Step, Call, Task, Account, Timer, Outline, AssistantMessage, TextBlock, GrowingSet} <= set(CLASSES)


def test_words_that_are_no_json_once_they_stand_together_leave_a_session_without_a_snapshot() -> None:
    state, snapshots = changed(EMPTY, words=("\ud83d" + "\udc00",)), Snapshots(1, "uid")
    assert snapshots.due(state, History(), 5000, b"") is None
    assert snapshots.due(EMPTY, History(), 5001, b"") is None, "not tried again at each append"
    assert snapshots.due(EMPTY, History(), 6000, b"") is not None


# ---------------------------------------------------------------- when


@given(st.lists(st.integers(1, 2_000_000), min_size=1, max_size=30))
def test_snapshots_never_take_more_than_a_small_part_of_what_the_rows_take(sizes: list[int]) -> None:
    """However large each is, the next one waits until the rows written since make up for it."""
    chars = 0
    for size in sizes:
        rows = 0
        while not is_due(rows, chars):
            rows += 1 + rows // 8
        assert rows >= SNAPSHOT_MIN_ROWS
        assert chars <= (rows + 1) * SNAPSHOT_CHARS_PER_ROW
        chars = size


# ---------------------------------------------------------------- when it is not what it should be


@pytest.fixture(scope="module")
def sample() -> Iterator[Log]:
    """A log of nearly everything."""
    with log_of(LegalLog(sample_log.RECORDS, tuple(record.seq for record in sample_log.RECORDS))) as log:
        yield log


def changed_value(value: object, place: int, by: str) -> object:
    """A value of the same type that differs in one place."""
    match value:
        case str():
            at = place % len(value)
            return value[:at] + by + value[at + 1 :]
        case bytes():
            return flipped(value, (place // 8 % len(value), place % 8))
        case int():
            return value ^ (1 << place % 40)
    raise AssertionError(value)


@given(place=st.integers(0, 10**6), by=st.characters(), column=st.sampled_from([*SnapshotRow._fields[1:], "items"]))
def test_a_damaged_snapshot_is_as_good_as_none(sample: Log, place: int, by: str, column: str) -> None:
    kept = sample.keep(30)
    value = getattr(kept if column == "items" else kept.row, column)
    other = changed_value(value, place, by)
    assume(other != value and canonical.is_faithful(str(other)))
    damaged = (
        kept._replace(items=other) if column == "items" else kept._replace(row=kept.row._replace(**{column: other}))
    )
    put_snapshot(sample.store, damaged)
    assert told(sample.restored()) == told(sample.nothing())


def test_an_intact_one_is_used(sample: Log) -> None:
    put_snapshot(sample.store, sample.keep(30))
    assert told(sample.restored()) == told(sample.until(30))


def test_one_that_lacks_some_of_its_items_is_as_good_as_none(sample: Log) -> None:
    sample.keep(4, 20, 30)
    assert sample.restored().seq == 30
    database = sample.store.database._connection  # type: ignore[attr-defined]
    for seq in (4, 20, 30):
        database.execute("BEGIN")
        database.execute("DELETE FROM snapshot_items WHERE seq = ?", (seq,))
        assert sample.restored().seq == 0
        database.execute("ROLLBACK")
    assert sample.restored().seq == 30


def test_one_of_other_code_another_session_or_another_log_is_as_good_as_none(sample: Log) -> None:
    kept, uid = sample.keep(30), sample.key.uid

    def sealed(uid: str = uid, **changes: Any) -> KeptSnapshot:
        """It with these changes, and with the checksum that it should have."""
        link = snapshot_codec.linked(b"", kept.items)
        row = kept.row._replace(**changes)
        return kept._replace(row=row._replace(checksum=snapshot_codec.checksum(row, uid, link)))

    def with_data(old: str, new: str) -> KeptSnapshot:
        assert old in kept.row.data
        return sealed(data=kept.row.data.replace(old, new, 1))

    def with_items(old: str, new: str) -> KeptSnapshot:
        assert old in kept.items
        items = kept.items.replace(old, new, 1)
        checksum = snapshot_codec.checksum(kept.row, uid, snapshot_codec.linked(b"", items))
        return kept._replace(row=kept.row._replace(checksum=checksum), items=items)

    others = {
        "other code": sealed(version=f"{kept.row.version[:-1]}x"),
        "another session": sealed("another"),
        "a row of another log": sealed(digest=b"x" * 32),
        "a row that is not there yet": sealed(seq=99),
        "another form": with_data('"state":{', '"state":{"more":1,'),
        "no JSON": with_data("}}", "}"),
        "a row of no message": with_data('"rows":[30', '"rows":[29'),
        "a row that is in no file": with_data('"rows":[30', '"rows":[30,900'),
        "a message too many": with_data('"numbers":[', '"numbers":[1,'),
        "rows of no messages": with_items('"rows":[8,', '"rows":[7,'),
        "rows that are not there": with_items('"rows":[8,', '"rows":[8,900,'),
        "messages too many": with_items('"numbers":[', '"numbers":[1,'),
    }
    for why, other in others.items():
        put_snapshot(sample.store, other)
        assert told(sample.restored()) == told(sample.nothing()), why
    put_snapshot(sample.store, sealed())
    assert sample.restored().seq == 30, "the attack itself: sealed like this, the true one is used"


@pytest.fixture
def fresh_version() -> Iterator[None]:
    """The version is found anew, and again afterwards."""
    snapshot_codec.version.cache_clear()
    yield
    snapshot_codec.version.cache_clear()


@pytest.mark.parametrize("with_sources", [True, False])
def test_other_code_gives_its_snapshots_another_version(
    monkeypatch: pytest.MonkeyPatch,
    fresh_version: None,
    tmp_path: Path,
    with_sources: bool,
) -> None:
    (tmp_path / "fold.py").write_text("def fold(): ..." * with_sources)
    monkeypatch.setattr(snapshot_codec, "files", lambda _: tmp_path)

    def version() -> str:
        snapshot_codec.version.cache_clear()
        return snapshot_codec.version()

    before = version()
    assert version() == before
    if with_sources:
        (tmp_path / "fold.py").write_text("def fold(): return 1")
    else:
        monkeypatch.setattr(snapshot, "classes_in", lambda hint: {**classes_in(hint), Another: {"tokens": int}})
    assert version() != before
    monkeypatch.undo()
    assert version() not in (before, "")
    here = version()
    monkeypatch.setattr(snapshot_codec, "FORMAT", 99)
    assert version() != here


@frozen
class Another:
    """A class that another version may keep."""

    tokens: int = 0


# ---------------------------------------------------------------- when the rows are not


def refusal(read: Callable[[], object]) -> tuple[int | None, str] | None:
    """Where and by which rule a log is refused, None when it is not."""
    try:
        read()
    except LogCorrupt as error:
        return error.seq, error.rule
    return None


HARM = {
    "its words": "text = coalesce(text, '') || 'x'",
    "its data": "data = data || ' '",
    "its time": "at = at + 1",
    "its place": "place = coalesce(place, 0) + 1",
    "what the views show": "name = coalesce(name, '') || 'x'",
    "its digest": "digest = zeroblob(32)",
    "all of it": None,
}


@given(log=legal_logs(), data=st.data(), harm=st.sampled_from(sorted(HARM)))
def test_a_message_that_was_tampered_with_is_refused_and_so_is_every_row_behind(
    log: LegalLog, data: st.DataObject, harm: str
) -> None:
    """By the same row and rule as without a snapshot. What stands in hidden rows before it is left to `verify`."""
    cut = data.draw(st.sampled_from(log.cuts))
    seq = data.draw(st.integers(1, len(log.records)))
    with log_of(log) as opened:
        opened.keep(cut)
        shown = seq in opened.until(cut).history.outline().rows
        connection = opened.store.database._connection  # type: ignore[attr-defined]
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        change = f"UPDATE events SET {HARM[harm]}" if HARM[harm] else "DELETE FROM events"
        connection.execute(f"{change} WHERE session = {opened.key.key} AND seq = {seq}")
        by_all = refusal(lambda: opened.finished(opened.nothing()))
        by_snapshot = refusal(lambda: opened.finished(opened.restored()))
    if by_all is None:  # the tail, of which nothing is left to miss it: the witness's business
        assert (seq, harm) == (len(log.records), "all of it")
    elif shown or seq > cut:
        event("shown" if shown else "behind")
        assert by_snapshot == by_all
    else:
        event("hidden")
        assert by_snapshot in (None, by_all)
