"""SIGKILL at every point of a purge and of a repair: the old log or the new one stands there, whole, and opens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import flightlog
from flightlog.store.witness import announce, read_witness
from flightlog_hookspecs.errors import HeadMismatch, LogCorrupt
from flightlog_hookspecs.events import SessionRepaired
from support.doom import killed, points_of, sparse
from support.files import Pen, content, copied, in_memory, opened, written
from support.logs_to_replace import damaged_row, lost_wal, lost_wal_and_row, three_sessions, without_news

SWITCH = ("replace", "announce", "part_of", "bring_to_disk", "record", "_write")
"""The functions in which one file takes the place of the other."""
BOTH = pytest.mark.parametrize("functions", [(), SWITCH], ids=["anywhere", "at each line of the switch"])


@pytest.fixture
def memory() -> Iterator[Path]:
    with in_memory() as folder:
        yield folder


def purging(path: Path, acknowledge: Callable[[object], None]) -> None:
    flightlog.purge(path, "b")
    acknowledge("purged")


def repairing(path: Path, acknowledge: Callable[[object], None]) -> None:
    flightlog.repair(path, dry_run=False)
    acknowledge("repaired")


def master(memory: Path, make: Callable[[Path], None]) -> Path:
    path = memory / "master.db"
    make(path)
    return path


@pytest.mark.kill
@BOTH
def test_a_purge_killed_anywhere_leaves_the_old_log_or_the_new_one(memory: Path, functions: tuple[str, ...]) -> None:
    source = master(memory, three_sessions)
    old = content(source)
    new = {name: records for name, records in old.items() if name != "b"}
    points = points_of(purging, copied(source, memory / "whole.db"), functions=functions)
    seen = set()
    for at in sparse(points):
        path = copied(source, memory / f"{at}.db")
        acknowledged = killed(purging, path, at, functions=functions)
        found = content(path)
        assert found in (old, new), f"point {at} of {points}"
        assert found == new or not acknowledged, f"point {at} of {points}"
        seen.add(len(found))
        with opened(path) as store:
            Pen(store, "a").say("goes on")
        flightlog.purge(path, *({"b"} & content(path).keys() or {"a"}))
    assert seen == {2, 3} or not functions, "both outcomes are reached"


@pytest.mark.kill
@pytest.mark.parametrize(
    ("make", "functions"),
    [
        pytest.param(lost_wal, (), id="lost wal, anywhere"),
        pytest.param(lost_wal, SWITCH, id="lost wal"),
        pytest.param(damaged_row, SWITCH, id="damaged row"),
        pytest.param(lost_wal_and_row, SWITCH, id="lost wal and row"),
    ],
)
def test_a_repair_killed_anywhere_leaves_the_damaged_log_or_the_repaired_one(
    memory: Path, make: Callable[[Path], None], functions: tuple[str, ...]
) -> None:
    source = master(memory, make)
    whole = copied(source, memory / "whole.db")
    points = points_of(repairing, whole, functions=functions)
    new = without_news(content(whole))
    seen = set()
    for at in sparse(points):
        path = copied(source, memory / f"{at}.db")
        acknowledged = killed(repairing, path, at, functions=functions)
        done = not refused(path)
        seen.add(done)
        assert done or not acknowledged, f"point {at} of {points}"
        if not done:
            flightlog.repair(path, dry_run=False)
        found = content(path)
        assert without_news(found) == new, f"point {at} of {points}"
        assert any(isinstance(records[-1].event, SessionRepaired) for records in found.values()) or make is damaged_row
        with opened(path) as store:
            Pen(store, "new").say("goes on")
        assert not flightlog.repair(path).damaged
    assert seen == {True, False} or not functions, "both outcomes are reached"


def refused(path: Path) -> bool:
    """Whether the log is still the damaged one: it must be refused, never be read as a shorter one."""
    try:
        content(path)
    except (LogCorrupt, HeadMismatch):
        return True
    return False


@pytest.mark.parametrize("renamed", [False, True])
def test_the_witness_goes_with_the_file_that_stands_under_the_name(tmp_path: Path, renamed: bool) -> None:
    path, part = tmp_path / "log.db", tmp_path / "new.db"
    written(path, "one", "two")
    written(part, "one")
    before, after = read_witness(str(path)), read_witness(str(part))
    assert before is not None
    assert after is not None
    announce(str(path), str(part), after)
    if renamed:
        part.rename(path)
    assert read_witness(str(path)) == (after if renamed else before)
    with opened(path) as store:
        Pen(store).say("more")
    expected = (after if renamed else before) + 2
    assert read_witness(str(path)) in (expected, expected - 1)
    assert Path(f"{path}-head").stat().st_size == 12


def test_an_announcement_that_is_torn_is_no_witness(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    written(path, "one")
    announce(str(path), str(path), 3)
    head = Path(f"{path}-head")
    whole = head.read_bytes()
    for size in range(len(whole)):
        head.write_bytes(whole[:size])
        assert read_witness(str(path)) is None
    head.write_bytes(whole)
    assert read_witness(str(path)) == 3


def test_a_witness_that_was_missing_stays_missing_until_the_rename(tmp_path: Path) -> None:
    path, part = tmp_path / "log.db", tmp_path / "new.db"
    written(path, "one")
    written(part, "one")
    Path(f"{path}-head").unlink()
    announce(str(path), str(part), 3)
    assert read_witness(str(path)) is None
    part.rename(path)
    assert read_witness(str(path)) == 3
