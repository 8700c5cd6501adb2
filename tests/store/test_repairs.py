"""Repairing: whatever the damage, what opens again is a sound beginning of each session, and every loss is said."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
from attrs import evolve
from hypothesis import event, given, settings
from hypothesis import strategies as st

import flightlog
from flightlog.store.log_file import open_log_file
from flightlog.testing import FakeModel, calls
from flightlog_hookspecs import tool
from flightlog_hookspecs.errors import HeadMismatch, LogCorrupt, NotAFlightlog, SchemaTooNew, StoreError
from flightlog_hookspecs.events import Record, SessionRepaired, ToolResult
from support import kernels
from support.damage import (
    PAGE_BYTES,
    PLACES,
    STRUCTURES,
    SURGERY,
    TABLES,
    VALUES,
    Image,
    cut_or_flipped,
    flipped,
    operate,
    unguarded,
)
from support.files import Pen, content, look, opened, photograph, plain, rich
from support.repairs import check_repair, check_sound, uid_of

FEW = settings(max_examples=settings.default.max_examples // 2)
"""Each example opens a file a dozen times."""


@FEW
@given(data=st.data())
def test_a_bit_flipped_in_a_table_or_its_index_is_repaired(
    closed: Image, pages: dict[str, list[int]], data: st.DataObject
) -> None:
    structure = data.draw(st.sampled_from(STRUCTURES), label="structure")
    whole = closed.files[""]
    start = (data.draw(st.sampled_from(pages[structure]), label="page") - 1) * PAGE_BYTES
    used = [byte for byte in range(start, start + PAGE_BYTES) if whole[byte]]
    byte = data.draw(st.sampled_from(used), label="byte")
    bit = data.draw(st.integers(0, 7), label="bit")
    path = closed.put_down({"": flipped(whole, (byte, bit))})
    event(check_repair(path, closed.whole, closed.durable))


@FEW
@given(data=st.data())
def test_a_page_lost_in_the_main_file_is_repaired(closed: Image, data: st.DataObject) -> None:
    whole = closed.files[""]
    start = data.draw(st.integers(1, len(whole) // PAGE_BYTES - 1), label="page") * PAGE_BYTES
    filling = data.draw(st.sampled_from([b"\0", b"\xff", b"\xa5"]), label="filling")
    path = closed.put_down({"": whole[:start] + filling * PAGE_BYTES + whole[start + PAGE_BYTES :]})
    event(check_repair(path, closed.whole, closed.durable))


@FEW
@given(data=st.data())
def test_a_main_file_cut_anywhere_is_repaired(closed: Image, data: st.DataObject) -> None:
    whole = closed.files[""]
    path = closed.put_down({"": whole[: data.draw(st.integers(1, len(whole) - 1), label="size")]})
    event(check_repair(path, closed.whole, closed.durable))


@FEW
@given(data=st.data())
def test_a_wal_cut_or_changed_anywhere_is_repaired(killed: Image, data: st.DataObject) -> None:
    changed = cut_or_flipped(data, killed.files["-wal"])
    event(check_repair(killed.put_down({"-wal": changed}), killed.whole, killed.durable))


@FEW
@given(
    surgery=SURGERY, table=st.sampled_from([*TABLES, "letters"]), places=st.tuples(PLACES, PLACES, PLACES), value=VALUES
)
def test_rows_that_were_operated_on_are_repaired(
    closed: Image, surgery: str, table: str, places: tuple[int, int, int], value: object
) -> None:
    path = closed.put_down({})
    with plain(path) as database:
        unguarded(database).execute("PRAGMA ignore_check_constraints = ON")
        with suppress(sqlite3.IntegrityError, sqlite3.DataError):
            operate(database, table, surgery, places, value)
    look(path)
    event(check_repair(path, closed.whole, closed.durable))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with sessions "s" and "t"."""
    path = tmp_path / "log.db"
    rich(path)
    return path


def harm(path: Path, *statements: str) -> None:
    with plain(path) as database:
        unguarded(database)
        for statement in statements:
            database.execute(statement)
    look(path)


def test_a_sound_log_is_left_alone(path: Path) -> None:
    before = photograph(path.parent)
    report = flightlog.repair(path, dry_run=False)
    assert not report.damaged
    assert photograph(path.parent) == before


def test_a_shortened_session_says_what_it_lost_and_its_neighbour_is_untouched(path: Path) -> None:
    before = content(path)
    harm(path, "UPDATE events SET at = at + 1 WHERE session = 1 AND seq = 12")
    (loss,) = flightlog.repair(path, dry_run=False).sessions
    assert (loss.session, loss.kept, loss.dropped, loss.seq, loss.rule) == ("s", 11, 14, 12, "hash-chain")
    after = content(path)
    assert after["t"] == before["t"]
    assert after["s"][:-1] == before["s"][:11]
    repaired = after["s"][-1]
    assert isinstance(repaired.event, SessionRepaired)
    assert (repaired.seq, repaired.epoch, repaired.turn) == (12, 1, 1)
    with flightlog.open_log(path, discover=False) as log:
        assert log.session("s").timeline()[-1][4:6] == ("session/repaired", "hash-chain")


@pytest.mark.parametrize(
    "cell", ["session = 0", "session = 77", "session = 2", "session = -5", "seq = 99", "seq = 0", "seq = 5"]
)
@pytest.mark.parametrize("row", ["1 AND seq = 25", "2 AND seq = (SELECT max(seq) FROM events WHERE session = 2)"])
def test_a_last_row_that_was_given_to_another_place_is_said_to_be_gone(path: Path, cell: str, row: str) -> None:
    before, name = content(path), "s" if row.startswith("1") else "t"
    if cell == "session = 2" and name == "t":
        cell = "session = 1"
    with suppress(sqlite3.IntegrityError):  # the place is taken
        harm(path, f"UPDATE events SET {cell} WHERE session = {row}")
    report = flightlog.repair(path, dry_run=False)
    after = content(path)[name]
    if report.damaged:
        assert isinstance(after[-1].event, SessionRepaired)
        assert after[:-1] == before[name][:-1]
    else:
        assert after == before[name]


def test_a_claim_is_kept_with_its_message_or_not_at_all(path: Path) -> None:
    before = content(path)["s"]
    entered = next(record.seq for record in before if record.event.kind == "user/message")
    harm(path, f"UPDATE events SET at = at + 1 WHERE session = 1 AND seq = {entered}")
    (loss,) = flightlog.repair(path, dry_run=False).sessions
    assert before[loss.kept - 1].event.kind == "turn/start"
    assert loss.detail.startswith(f"seq {entered}: ")


def test_a_session_whose_first_row_is_damaged_is_lost_whole_and_its_name_is_free(path: Path) -> None:
    harm(path, "UPDATE events SET at = at + 1 WHERE session = 1 AND seq = 1")
    (loss,) = flightlog.repair(path, dry_run=False).sessions
    assert (loss.session, loss.kept, loss.dropped) == ("s", 0, 25)
    assert content(path).keys() == {"t"}


def test_a_session_that_lost_its_key_is_found_again_by_the_uid_in_its_log(path: Path) -> None:
    before = content(path)["s"]
    harm(path, "DELETE FROM session_keys WHERE session = 1")
    assert flightlog.repair(path, dry_run=False).damaged
    found = content(path)[f"lost-{uid_of(before)}"]
    assert [evolve(record, session="s") for record in found] == before


def test_rows_that_are_gone_with_the_wal_are_said_in_every_session(killed: Image) -> None:
    path = killed.put_down({"-wal": b""})
    with pytest.raises(HeadMismatch):
        open_log_file(str(path), create=False)
    report = flightlog.repair(path, dry_run=False)
    assert {loss.rule for loss in report.sessions} == {"rows-gone"}
    assert {loss.session for loss in report.sessions} == content(path).keys()
    assert all(isinstance(records[-1].event, SessionRepaired) for records in content(path).values())
    for name in [name for name in photograph(path.parent) if ".damaged-" in name]:
        (path.parent / name).unlink()


def test_a_changed_letter_is_left_out_and_the_others_keep_their_order(path: Path) -> None:
    harm(path, "UPDATE letters SET data = '{}' WHERE id = 1")
    report = flightlog.repair(path, dry_run=False)
    assert (report.letters, report.sessions) == (1, ())
    with plain(path) as database:
        assert database.execute("SELECT id, session FROM letters").fetchall() == [(1, "later")]


def test_a_table_or_index_that_is_damaged_alone_costs_no_row(path: Path) -> None:
    before = content(path)
    with plain(path) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'events_visible'").fetchone()
    data = bytearray(path.read_bytes())
    data[(root - 1) * PAGE_BYTES : root * PAGE_BYTES] = bytes(PAGE_BYTES)
    path.write_bytes(data)
    report = flightlog.repair(path, dry_run=False)
    assert report.problems
    assert report.sessions == ()
    assert content(path) == before


FOREIGN: dict[str, tuple[Callable[[Path], object], type[StoreError]]] = {
    "no database": (lambda path: path.write_bytes(b"dear diary, " * 100), NotAFlightlog),
    "of another application": (lambda path: harm(path, "PRAGMA application_id = 1"), NotAFlightlog),
    "newer": (lambda path: harm(path, "PRAGMA user_version = 99"), SchemaTooNew),
    "missing": (lambda path: path.unlink(), StoreError),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("dry_run", [True, False])
def test_what_is_foreign_or_newer_is_refused_not_repaired(path: Path, kind: str, dry_run: bool) -> None:
    make, error = FOREIGN[kind]
    make(path)
    before = photograph(path.parent)
    with pytest.raises(error):
        flightlog.repair(path, dry_run=dry_run)
    assert photograph(path.parent) == before


def test_a_kind_that_a_newer_version_wrote_is_never_dropped(tmp_path: Path) -> None:
    from flightlog.store.codec import encode
    from flightlog_hookspecs.events import UnknownEvent

    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        pen.say("one")
        record = Record(
            session="s",
            seq=4,
            at_us=0,
            turn=None,
            step=None,
            epoch=1,
            event=UnknownEvent(kind="newer/thing", data="{}"),
            ignorable=True,
        )
        row = encode(record, pen.key, pen.uid, pen._digest).row._replace(ignorable=0)
        from flightlog.store.codec import chained

        row = row._replace(digest=chained(pen._digest, pen.uid, row))
        store.commit([encode(record, pen.key, pen.uid, pen._digest)._replace(row=row)], barrier=True)
    before = photograph(tmp_path)
    with pytest.raises(SchemaTooNew):
        flightlog.repair(path, dry_run=False)
    after = photograph(tmp_path)
    assert {name: after[name] for name in ("log.db", "log.db-head")} == {
        name: before[name] for name in ("log.db", "log.db-head")
    }


async def test_a_token_for_a_row_that_was_dropped_is_still_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with kernels.opened(path, FakeModel([])) as kernel, kernel.session("s", model="fake:m") as session:
        kept = (await session.followup("one")).token
        lost = (await session.followup("two")).token
    harm(path, f"UPDATE events SET at = at + 1 WHERE seq = {lost.seq}")
    flightlog.repair(path, dry_run=False)
    assert len(content(path)["s"]) == lost.seq, "another row stands in that place"
    async with kernels.opened(path, FakeModel([])) as kernel:
        with pytest.raises(HeadMismatch):
            async with kernel.session("s", model="fake:m", expect=lost):
                pass
        async with kernel.session("s", model="fake:m", expect=kept) as session:
            assert session.pending == 1


@pytest.mark.parametrize("on_crash", ["close", "continue"])
async def test_a_call_whose_start_may_be_lost_is_unknown_when_the_session_goes_on(
    tmp_path: Path, on_crash: Literal["close", "continue"]
) -> None:
    path, ran = tmp_path / "log.db", []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    model = FakeModel([calls(("pay", {"amount": 1}))] * 2)
    async with kernels.opened(path, model, pay) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup("pay")
        await session.run()
    started = next(record.seq for record in content(path)["s"] if record.event.kind == "tool/call")
    harm(path, f"UPDATE events SET at = at + 1 WHERE seq = {started}")
    flightlog.repair(path, dry_run=False)
    async with (
        kernels.opened(path, FakeModel([]), pay) as kernel,
        kernel.session("s", model="fake:m", on_crash=on_crash) as session,
    ):
        assert await session.run() is None, "the turn is closed"
    outcomes = [record.event.outcome for record in content(path)["s"] if isinstance(record.event, ToolResult)]
    assert outcomes == ["unknown"]
    assert len(ran) > 0


def test_a_repaired_session_can_be_exported_imported_and_damaged_again(path: Path, tmp_path: Path) -> None:
    import trio

    harm(path, "UPDATE events SET at = at + 1 WHERE session = 1 AND seq = 12")
    flightlog.repair(path, dry_run=False)
    with flightlog.open_log(path, discover=False) as log:
        log.session("s").export(tmp_path / "s.jsonl")

    async def take_in() -> None:
        async with flightlog.open_kernel(tmp_path / "other.db", discover=False) as kernel:
            await kernel.import_session(tmp_path / "s.jsonl")

    trio.run(take_in)
    assert content(tmp_path / "other.db")["s"] == content(path)["s"]
    harm(path, "UPDATE events SET at = at + 1 WHERE session = 1 AND seq = 12")
    for name in [name for name in photograph(tmp_path) if ".damaged-" in name]:
        (tmp_path / name).unlink()
    (loss,) = flightlog.repair(path, dry_run=False).sessions
    assert (loss.kept, loss.dropped) == (11, 1)


def test_a_missing_witness_beside_a_log_in_use_is_repaired_too(killed: Image) -> None:
    path = killed.put_down({"-wal": b""})
    Path(f"{path}-head").unlink()
    with pytest.raises(HeadMismatch):
        open_log_file(str(path), create=False)
    assert flightlog.repair(path, dry_run=False).damaged
    check_sound(path)
    for name in [name for name in photograph(path.parent) if ".damaged-" in name]:
        (path.parent / name).unlink()


def test_what_sqlite_can_make_nothing_of_is_refused_with_what_to_do(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"\xff" * (len(data) - 100))
    before = photograph(path.parent)
    with pytest.raises(LogCorrupt, match="no repair can keep anything of it: restore a backup"):
        flightlog.repair(path, dry_run=False)
    after = photograph(path.parent)
    assert {name: after[name] for name in before} == before
