"""The witness beside the file: it may lag behind what is durable, it never leads."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightlog.store.store import NewSession, Store
from flightlog.store.witness import Witness, read_witness, witness_path
from flightlog_hookspecs.errors import DiskFull, StoreError
from support.faulty_database import faulty_store
from support.files import Pen, copied, look, opened, texts, written


def witnessed(path: Path) -> int:
    found = read_witness(str(path))
    assert found is not None
    return found


def last_id(store: Store) -> int:
    return store.read("last_id")[0][0]


def test_a_barrier_moves_it_an_ordinary_commit_does_not(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        assert witnessed(path) == 0
        pen = Pen(store)
        pen.say()
        durable = last_id(store)
        assert witnessed(path) == durable
        pen.say(barrier=False)
        pen.say(barrier=False)
        assert witnessed(path) == durable
        pen.say()
        assert witnessed(path) == last_id(store) == durable + 3


def test_closing_cleanly_brings_it_up_to_the_last_row(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        pen.say(barrier=False)
        end = last_id(store)
        assert witnessed(path) < end
    assert witnessed(path) == end


def test_a_row_that_another_process_adds_right_behind_a_barrier_is_not_witnessed_with_it(tmp_path: Path) -> None:
    """Its ordinary commit would not survive a power loss, so the witness would lead."""
    path = tmp_path / "log.db"
    with faulty_store(path, StoreError) as (store, faulty), opened(path) as other:
        pen, neighbour = Pen(store, "a"), Pen(other, "b")
        neighbour.say()
        pen.say()
        commit = faulty.inner.commit

        def then_the_other(*_: object) -> None:
            commit()
            neighbour.say(barrier=False)

        faulty.inner.commit = then_the_other  # type: ignore[method-assign]
        pen.say()
        faulty.inner.commit = commit  # type: ignore[method-assign]
        assert witnessed(path) == last_id(store) - 1


def test_a_session_that_was_found_to_exist_already_moves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        pen.say()
        durable = witnessed(path)
        pen.say(barrier=False)
        store.create_session(NewSession("s", "another uid"), pen.message("not used"))
        assert witnessed(path) == durable


def test_a_refused_append_moves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with faulty_store(path, StoreError) as (store, faulty):
        pen = Pen(store)
        pen.say()
        durable = witnessed(path)
        faulty.arm("commit")
        with pytest.raises(StoreError):
            pen.say()
        assert witnessed(path) == durable


def test_what_a_dead_process_left_is_brought_to_the_disk_before_it_is_witnessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in the page cache only would be lost with the power, and the next opening refused."""
    path = tmp_path / "log.db"
    with opened(tmp_path / "live.db") as store:
        pen = Pen(store)
        pen.say()
        pen.say(barrier=False)
        copied(tmp_path / "live.db", path, "", "-wal", "-head")
        end = last_id(store)
    assert witnessed(path) == end - 1
    done: list[str] = []

    def spied(name: str) -> Any:
        real = getattr(os, name)

        def spy(fd: int, *arguments: Any) -> Any:
            done.append(f"{name} {os.path.basename(os.readlink(f'/proc/self/fd/{fd}'))}")
            return real(fd, *arguments)

        return spy

    for name in ("fsync", "pwrite"):
        monkeypatch.setattr(os, name, spied(name))
    with opened(path):
        assert witnessed(path) == end
        written_at = done.index("pwrite log.db-head")
        assert {"fsync log.db", "fsync log.db-wal"} <= set(done[:written_at])
        assert {"fsync log.db-head", f"fsync {tmp_path.name}"} <= set(done[written_at:])


def test_opening_a_file_that_was_closed_cleanly_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.db"
    written(path, "one")
    monkeypatch.setattr(os, "fsync", lambda fd: pytest.fail("synced"))
    with opened(path):
        pass


@pytest.mark.parametrize("garbage", [b"", b"short", b"x" * 12, b"x" * 13, b"x" * 5000])
def test_a_torn_witness_is_no_witness_and_is_made_anew(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "log.db"
    written(path, "one")
    end = witnessed(path)
    Path(witness_path(str(path))).write_bytes(garbage)
    assert read_witness(str(path)) is None
    with opened(path):
        assert witnessed(path) == end
    assert texts(path) == ["one"]


def test_a_witness_that_cannot_be_written_lags_and_the_commit_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        pen.say()
        durable = witnessed(path)

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as crowded:
            crowded.setattr(os, "pwrite", full)
            pen.say()
        assert witnessed(path) == durable
        pen.say()
        assert witnessed(path) == last_id(store)


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_witness_that_cannot_even_be_begun_refuses_the_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "log.db"

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    descriptors = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as crowded:
        crowded.setattr(os, call, full)
        with pytest.raises(DiskFull, match=r"log\.db"):
            Store.open(str(path))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    written(path, "one")
    look(path)
    assert texts(path) == ["one"]


@given(ids=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5))
def test_what_was_recorded_last_is_read_back(tmp_path: Path, ids: list[int]) -> None:
    witness = Witness(str(tmp_path / "log.db"), ids[0], None)
    for number in ids[1:]:
        witness.record(number)
    witness.close()
    witness.close()
    assert read_witness(str(tmp_path / "log.db")) == ids[-1]
