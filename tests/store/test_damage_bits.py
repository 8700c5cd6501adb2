"""A flipped bit, anywhere in the file or its -wal: the log is refused or says exactly the same, never less."""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from flightlog.store.store import Store
from support.damage import PAGE_BYTES, STRUCTURES, Image, flipped
from support.files import plain

MANY = settings(max_examples=2 * settings.default.max_examples)


@pytest.mark.parametrize("structure", STRUCTURES)
@given(data=st.data(), to_write=st.booleans())
def test_a_bit_flipped_in_a_table_or_its_index_never_changes_or_shortens_the_log(
    closed: Image, pages: dict[str, list[int]], structure: str, data: st.DataObject, to_write: bool
) -> None:
    whole = closed.files[""]
    start = (data.draw(st.sampled_from(pages[structure]), label="page") - 1) * PAGE_BYTES
    used = [byte for byte in range(start, start + PAGE_BYTES) if whole[byte]]
    byte = data.draw(st.sampled_from(used), label="byte")
    bit = data.draw(st.integers(0, 7), label="bit")
    event(closed.check({"": flipped(whole, (byte, bit))}, to_write=to_write))


@MANY
@given(data=st.data(), to_write=st.booleans())
def test_a_bit_flipped_anywhere_in_the_main_file_never_changes_or_shortens_the_log(
    closed: Image, data: st.DataObject, to_write: bool
) -> None:
    whole = closed.files[""]
    byte = data.draw(st.integers(0, len(whole) - 1), label="byte")
    bit = data.draw(st.integers(0, 7), label="bit")
    event(closed.check({"": flipped(whole, (byte, bit))}, to_write=to_write))


@MANY
@given(data=st.data(), to_write=st.booleans())
def test_a_bit_flipped_in_the_wal_never_changes_the_log_nor_loses_what_was_acknowledged(
    killed: Image, data: st.DataObject, to_write: bool
) -> None:
    wal = killed.files["-wal"]
    byte = data.draw(st.integers(0, len(wal) - 1), label="byte")
    bit = data.draw(st.integers(0, 7), label="bit")
    event(killed.check({"-wal": flipped(wal, (byte, bit))}, to_write=to_write))


@given(data=st.data())
def test_a_bit_flipped_in_the_witness_does_not_lose_anything(killed: Image, data: st.DataObject) -> None:
    witness = killed.files["-head"]
    byte = data.draw(st.integers(0, len(witness) - 1), label="byte")
    event(killed.check({"-head": flipped(witness, (byte, data.draw(st.integers(0, 7), label="bit")))}))


@given(data=st.data())
def test_a_sector_lost_in_the_main_file_never_changes_or_shortens_the_log(closed: Image, data: st.DataObject) -> None:
    whole = closed.files[""]
    sector = data.draw(st.integers(0, len(whole) // 512 - 1), label="sector") * 512
    filling = data.draw(st.sampled_from([b"\0", b"\xff", b"\xa5"]), label="filling")
    event(closed.check({"": whole[:sector] + filling * 512 + whole[sector + 512 :]}))


@given(data=st.data())
def test_two_pages_swapped_never_change_or_shorten_the_log(closed: Image, data: st.DataObject) -> None:
    whole = closed.files[""]
    one, two = (data.draw(st.integers(0, len(whole) // PAGE_BYTES - 1)) for _ in range(2))
    pages = [whole[start : start + PAGE_BYTES] for start in range(0, len(whole), PAGE_BYTES)]
    pages[one], pages[two] = pages[two], pages[one]
    event(closed.check({"": b"".join(pages)}))


@given(data=st.data(), to_write=st.booleans())
def test_a_wal_cut_anywhere_never_loses_what_was_acknowledged(
    killed: Image, data: st.DataObject, to_write: bool
) -> None:
    wal = killed.files["-wal"]
    size = data.draw(st.integers(0, len(wal) - 1), label="size")
    event(killed.check({"-wal": wal[:size]}, to_write=to_write))


@given(data=st.data())
def test_a_main_file_cut_anywhere_never_changes_or_shortens_the_log(closed: Image, data: st.DataObject) -> None:
    whole = closed.files[""]
    event(closed.check({"": whole[: data.draw(st.integers(0, len(whole) - 1), label="size")]}))


def test_a_bit_flipped_in_an_index_of_the_views_is_found_by_checking_the_file(closed: Image) -> None:
    """The views are for people; a damaged index behind them does not change what is replayed."""
    path = closed.put_down({})
    with plain(path) as database:
        roots = dict(database.execute("SELECT name, rootpage FROM sqlite_schema WHERE name GLOB 'events_*'").fetchall())
    assert roots.keys() >= {"events_visible", "events_bracket", "events_inbox"}
    for name in ("events_visible", "events_bracket", "events_inbox"):
        end = roots[name] * PAGE_BYTES
        last_key = closed.files[""].rindex(b"\0\0\0", end - PAGE_BYTES, end) + 6
        closed.put_down({"": flipped(closed.files[""], (last_key + 4, 0))})
        store = Store.open_to_read(str(path))
        try:
            problems = [text for (text,) in store.read("integrity_check") if text != "ok"]
        finally:
            store.close()
        assert problems, name
