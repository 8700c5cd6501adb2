"""Rows deleted, changed, inserted or moved by somebody who dropped the guards first: refused, or nothing differs."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import event, given
from hypothesis import strategies as st

import flightlog
from flightlog.store.store import Store
from flightlog.testing import Bundle, FakeModel
from flightlog_hookspecs.errors import HeadMismatch, LogCorrupt, SchemaTooNew, StoreError
from flightlog_hookspecs.events import AssistantMessage, Record, ToolResult, UserMessage
from support import kernels
from support.damage import PLACES, SURGERY, TABLES, VALUES, operate, unguarded
from support.files import COMPANIONS, content, copied, look, photograph, plain, replayed, rich, texts, written


class Content(dict[str, list[Record]]):
    """What a log says, by session."""

    def __repr__(self) -> str:
        return f"{ {name: len(records) for name, records in self.items()} }"


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log with something in every table."""
    path = tmp_path_factory.mktemp("rows") / "master.db"
    rich(path)
    return path


@pytest.fixture(scope="module")
def whole(master: Path) -> Content:
    """What it says."""
    return Content(content(master))


def fresh(master: Path) -> Path:
    """A copy of it to operate on."""
    path = master.with_name("log.db")
    for suffix in COMPANIONS:
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    return copied(master, path)


def nameless(found: dict[str, list[Record]]) -> list[list[Record]]:
    """The sessions without their names, which no digest covers: one may be renamed, as an import may do."""
    return [[evolve(record, session="") for record in records] for records in found.values()]


@given(surgery=SURGERY, table=st.sampled_from(TABLES), places=st.tuples(PLACES, PLACES, PLACES), value=VALUES)
def test_no_surgery_on_rows_changes_or_shortens_what_a_log_says(
    master: Path, whole: Content, surgery: str, table: str, places: tuple[int, int, int], value: object
) -> None:
    path = fresh(master)
    with plain(path) as database:
        unguarded(database).execute("PRAGMA ignore_check_constraints = ON")
        with suppress(sqlite3.IntegrityError, sqlite3.DataError):  # the types refuse it
            operate(database, table, surgery, places, value)
    try:
        found = content(path)
    except (LogCorrupt, HeadMismatch, SchemaTooNew) as error:
        event(type(error).__name__)
        return
    event("the same")
    assert nameless(found) == nameless(whole)


NAMED = {
    "a gap": ("DELETE FROM events WHERE session = 1 AND seq = 7", LogCorrupt, 8, "seq-dense"),
    "a changed word": ("UPDATE events SET text = 'forged' WHERE session = 1 AND seq = 3", LogCorrupt, 3, "hash-chain"),
    "a changed time": ("UPDATE events SET at = at + 1 WHERE session = 1 AND seq = 5", LogCorrupt, 5, "hash-chain"),
    "a changed digest": (
        "UPDATE events SET digest = zeroblob(32) WHERE session = 1 AND seq = 4",
        LogCorrupt,
        4,
        "hash-chain",
    ),
    "two rows that changed places": (
        # By way of -9 and -8, since no two rows may have the same place.
        """UPDATE events SET seq = seq - 17 WHERE session = 1 AND seq IN (8, 9);
           UPDATE events SET seq = -seq WHERE session = 1 AND seq < 0""",
        LogCorrupt,
        8,
        "hash-chain",
    ),
    "a row of another session": (
        "UPDATE events SET data = (SELECT data FROM events WHERE id = 40) WHERE session = 1 AND seq = 3",
        LogCorrupt,
        3,
        "hash-chain",
    ),
    "a kind nobody knows": (
        "UPDATE events SET kind = 'unheard/of' WHERE session = 1 AND seq = 6",
        LogCorrupt,
        6,
        "hash-chain",
    ),
    "another identity": ("UPDATE session_keys SET uid = 'forged' WHERE session = 1", LogCorrupt, 1, "hash-chain"),
}


@pytest.mark.parametrize("surgery", NAMED)
async def test_a_damaged_session_is_refused_naming_row_and_rule_and_its_neighbour_still_opens(
    master: Path, whole: Content, surgery: str
) -> None:
    statements, kind, seq, rule = NAMED[surgery]
    path = fresh(master)
    with plain(path) as database:
        unguarded(database).executescript(statements)
    look(path)
    model = FakeModel([])
    async with kernels.opened(path, model) as kernel:
        before = photograph(path.parent)
        with pytest.raises(kind) as caught:
            async with kernel.session("s", model="fake:m"):
                pass
        assert (caught.value.session, caught.value.seq, caught.value.rule) == ("s", seq, rule)
        assert "'s'" in str(caught.value)
        assert photograph(path.parent) == before, "the refusal changed the file"
        assert list(kernel.read("t").records(deltas=True)) == whole["t"]
        async with kernel.session("t", model="fake:m") as session:
            await session.followup("still here")


def test_rows_cut_off_at_the_end_are_refused_by_the_witness(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    written(path, "one", "two")
    with plain(path) as database:
        unguarded(database).execute("DELETE FROM events WHERE id = (SELECT max(id) FROM events)")
    with pytest.raises(HeadMismatch):
        Store.open(str(path))


def test_rows_cut_off_at_the_end_of_one_session_are_refused_though_another_one_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    written(path, "one", "two", name="a")
    written(path, "one", "two", name="b")
    with plain(path) as database:
        unguarded(database).execute("DELETE FROM events WHERE session = 1 AND seq = 4")
    with pytest.raises(LogCorrupt) as caught:
        Store.open(str(path))
    assert caught.value.rule == "index-whole"


async def test_rows_cut_off_everywhere_are_refused_by_who_kept_a_head_token(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    bundle = Bundle(adapters=[FakeModel([])])
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[bundle]) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await session.followup("one")
        copied(path, tmp_path / "old.db")
        token = (await session.followup("two")).token
    async with kernels.opened(tmp_path / "old.db", FakeModel([])) as kernel:
        with pytest.raises(HeadMismatch, match="rolled back"):
            async with kernel.session("s", model="fake:m", expect=token):
                pass
    async with (
        kernels.opened(path, FakeModel([])) as kernel,
        kernel.session("s", model="fake:m", expect=token) as session,
    ):
        assert session.pending == 2


def test_a_log_whose_guards_were_dropped_is_still_read_as_it_stands(master: Path, whole: Content) -> None:
    path = fresh(master)
    with plain(path) as database:
        unguarded(database)
    assert content(path) == whole


def test_a_table_that_was_dropped_is_a_named_error(master: Path) -> None:
    for table in TABLES:
        path = fresh(master)
        with plain(path) as database:
            unguarded(database).execute(f"DROP TABLE {table}")
        with pytest.raises(StoreError) as caught:
            content(path)
        assert str(path) in str(caught.value) or isinstance(caught.value, LogCorrupt), table


def test_replaying_stops_at_the_first_fault_and_yields_what_is_before_it(master: Path, whole: Content) -> None:
    from flightlog.store.replay import Replay, replaying

    path = fresh(master)
    with plain(path) as database:
        unguarded(database).execute("UPDATE events SET at = 0 WHERE session = 1 AND seq = 6")
    store = Store.open_to_read(str(path))
    try:
        found = store.key_of("s")
        assert found is not None
        seen = []
        with pytest.raises(LogCorrupt):
            seen.extend(replaying(store, Replay(session="s", uid=found.uid), found.key))
        assert [record.seq for record in seen] in ([], [1, 2, 3, 4, 5])
        with pytest.raises(LogCorrupt):
            replayed(store)
    finally:
        store.close()
    assert texts(fresh(master)) == texts(master)


async def test_a_message_that_cannot_be_read_is_named_by_its_row(master: Path, whole: Content) -> None:
    messages = (UserMessage, AssistantMessage, ToolResult)
    seqs = [record.seq for record in whole["s"] if isinstance(record.event, messages)]
    for seq in seqs:
        path = fresh(master)
        with plain(path) as database:
            unguarded(database).execute("UPDATE events SET data = '{' WHERE session = 1 AND seq = ?", (seq,))
        with flightlog.open_log(path, discover=False) as log, pytest.raises(LogCorrupt) as caught:
            log.session("s").messages()
        assert (caught.value.session, caught.value.seq, caught.value.rule) == ("s", seq, "data-shape")
