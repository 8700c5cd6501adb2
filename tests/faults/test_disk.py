"""The model of a disk: what was synced stays, what was not may be there in part, and a kill loses nothing."""

from __future__ import annotations

from random import Random

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from flightlog.testing.faults import SCRIPTS, Script
from flightlog.testing.faults.determinism import deterministic
from flightlog.testing.faults.disk import MODES, SECTOR_BYTES, Disk, Mode, Op
from flightlog.testing.faults.life import Bench, bench, live
from flightlog.testing.faults.recorder import Recorder, checkpoints_every, recording
from flightlog.testing.faults.world import World

FILES = ("db", "wal", "head")

writes = st.builds(
    Op, st.just("write"), st.sampled_from(FILES), st.integers(0, 2000), st.binary(min_size=1, max_size=1500)
)
resizes = st.builds(Op, st.just("truncate"), st.sampled_from(FILES), st.integers(0, 2000))
syncs = st.builds(Op, st.just("sync"), st.sampled_from(FILES))
changes = st.lists(writes | writes | resizes | syncs, max_size=12)


def fed(*ops: Op, files: tuple[str, ...] = FILES) -> Disk:
    disk = Disk.holding({name: bytes(1000) for name in files})
    for op in ops:
        disk.feed(op)
    return disk


def images(disk: Disk) -> list[dict[str, bytes]]:
    return [disk.image(mode, Random(number)) for mode in MODES for number in range(8)]


@given(changes)
def test_what_was_synced_is_in_every_image(ops: list[Op]) -> None:
    disk = fed(*ops, *(Op("sync", name) for name in FILES))
    killed = disk.image("all", Random(0))
    assert all(image == killed for image in images(disk))


@given(changes)
def test_a_kill_loses_nothing_and_a_sudden_end_all_that_was_not_synced(ops: list[Op]) -> None:
    plain = {name: bytearray(1000) for name in FILES}
    synced = {name: bytes(1000) for name in FILES}
    for op in ops:
        content = plain[op.file]
        if op.kind == "sync":
            synced[op.file] = bytes(content)
            continue
        size = op.offset if op.kind == "truncate" else max(len(content), op.offset + len(op.data))
        content.extend(bytes(max(0, size - len(content))))
        if op.kind == "truncate":
            del content[size:]
        else:
            content[op.offset : op.offset + len(op.data)] = op.data
    disk = fed(*ops)
    assert disk.image("all", Random(0)) == plain
    assert disk.image("lost", Random(0)) == synced


@given(st.integers(0, 3 * SECTOR_BYTES), st.binary(min_size=1, max_size=3 * SECTOR_BYTES), st.integers())
def test_an_unsynced_write_may_be_there_in_any_part_and_touches_nothing_else(at: int, data: bytes, seed: int) -> None:
    disk = fed(Op("write", "db", at, data), files=("db",))
    whole = disk.image("all", Random(0))["db"]
    for mode in ("prefix", "file", "subset"):
        found = disk.image(mode, Random(seed))["db"]
        assert found[:at] == whole[: len(found)][:at]
        assert found[at + len(data) :] == whole[at + len(data) :] or len(found) < at + len(data)


def test_each_mode_leaves_the_sectors_it_says() -> None:
    disk = fed(Op("write", "db", 0, b"\1" * 2 * SECTOR_BYTES), Op("write", "wal", 0, b"\2" * SECTOR_BYTES))
    seen: dict[Mode, set[tuple[bytes, bytes]]] = {
        mode: {
            (image["db"][:1000], image["wal"][:500])
            for image in (disk.image(mode, Random(number)) for number in range(300))
        }
        for mode in MODES
    }
    assert len(seen["lost"]) == len(seen["all"]) == 1
    assert len(seen["file"]) == 2
    assert all(not any(wal) or db == b"\1" * 1000 for db, wal in seen["prefix"]), "one after the other"
    assert any(any(wal) and not any(db) for db, wal in seen["subset"]), "in any order"
    assert any({*db} - {0, 1} for db, _ in seen["subset"]), "garbage"


def test_a_name_is_on_the_disk_once_its_folder_is_synced() -> None:
    disk = Disk()
    for op in (Op("create", "db"), Op("write", "db", 0, b"x"), Op("sync", "db")):
        disk.feed(op)
    assert disk.image("lost", Random(0)) == {}
    disk.feed(Op("sync-folder", "folder"))
    assert disk.image("lost", Random(0)) == {"db": b"x"}
    disk.feed(Op("delete", "db"))
    assert disk.image("lost", Random(0)) == {"db": b"x"}
    assert disk.image("all", Random(0)) == {}


def test_a_file_made_anew_under_an_old_name_is_another_file() -> None:
    disk = Disk.holding({"journal": b"old and long"})
    for op in (Op("delete", "journal"), Op("create", "journal"), Op("write", "journal", 0, b"new")):
        disk.feed(op)
    assert disk.image("lost", Random(0)) == {"journal": b"old and long"}
    assert disk.image("all", Random(0)) == {"journal": b"new"}


def recorded(place: Bench, script: Script) -> Recorder:
    world = World()
    recorder = Recorder(place.path, lambda: len(world.ledger))

    async def run() -> None:
        place.lay_out({})
        with recording(recorder):
            await live(place.path, script, world, seed=3, number=0)

    with deterministic(), checkpoints_every(20):
        trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    return recorder


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_recorded_operations_make_the_very_files_that_are_on_the_disk(script: Script) -> None:
    """So nothing that changes a file escapes the recorder: SQLite's own work, the witness, creating it all."""
    with bench() as place:
        recorder = recorded(place, script)
        disk = Disk()
        for op in recorder.ops:
            disk.feed(op)
        assert disk.image("all", Random(0)) == place.photograph()
        assert {op.file for op in recorder.ops} == {"db", "wal", "journal", "head", "folder"}
        assert sum(op.kind == "sync" for op in recorder.ops) > 10


def test_the_same_seed_records_the_same_operations() -> None:
    script = next(script for script in SCRIPTS if script.name == "interleaved")
    with bench() as one, bench() as other:
        assert recorded(one, script).ops == recorded(other, script).ops
