"""SIGKILL at every point of a file's life: created, written, closed, reopened. It is never refused, nothing is lost.

A point is a line of the store's Python code or an operation on a file inside SQLite; a write is also
killed halfway.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flightlog.store.store import Store
from support.doom import killed, points_of, sparse
from support.files import Pen, content, copied, in_memory, look, opened, replayed, texts


@pytest.fixture
def memory() -> Iterator[Path]:
    with in_memory() as folder:
        yield folder


def opening(path: Path, acknowledge: Callable[[object], None]) -> None:
    with opened(path):
        pass


def speaking(path: Path, acknowledge: Callable[[object], None]) -> None:
    """Two openings, barrier and ordinary commits mixed, checkpoints in between, a clean close."""
    for start in (0, 6):
        with opened(path) as store:
            store.database._connection.execute("PRAGMA wal_autocheckpoint = 5")  # type: ignore[attr-defined]
            pen = Pen(store)
            for number in range(start, start + 6):
                barrier = number % 3 != 1
                pen.say(str(number), barrier=barrier)
                acknowledge(number)


SPOKEN = [str(number) for number in range(12)]


@pytest.mark.kill
@pytest.mark.parametrize("looked", [False, True], ids=["reopened", "looked at, then reopened"])
def test_a_file_killed_anywhere_in_its_creation_opens(memory: Path, looked: bool) -> None:
    points = points_of(opening, memory / "whole.db")
    for at in sparse(points):
        path = memory / f"{at}.db"
        killed(opening, path, at)
        if looked and path.exists():
            look(path)
        with opened(path) as store:
            Pen(store).say("first")
        assert texts(path) == ["first"], f"point {at} of {points}"


@pytest.mark.kill
def test_a_file_killed_at_each_disk_operation_of_its_creation_opens(memory: Path) -> None:
    for at in range(1, points_of(opening, memory / "whole.db", lines=False) + 1):
        path = memory / f"{at}.db"
        killed(opening, path, at, lines=False)
        with opened(path) as store:
            Pen(store).say("first")
        assert texts(path) == ["first"], f"operation {at}"


@pytest.mark.kill
@pytest.mark.parametrize("looked", [False, True], ids=["reopened", "looked at, then reopened"])
def test_a_file_killed_anywhere_in_its_life_is_never_refused_and_keeps_what_was_acknowledged(
    memory: Path, looked: bool
) -> None:
    points = points_of(speaking, memory / "whole.db")
    assert texts(memory / "whole.db") == SPOKEN
    for at in sparse(points):
        path = memory / f"{at}.db"
        acknowledged = killed(speaking, path, at)
        if looked and path.exists():
            look(path)
        with opened(path) as store:
            pen = Pen(store)
            pen.say("after")
        *kept, after = texts(path)
        assert after == "after"
        assert kept == SPOKEN[: len(kept)], f"point {at} of {points}"
        assert len(kept) >= len(acknowledged), f"point {at} of {points}: acknowledged {acknowledged}, kept {kept}"


@pytest.mark.kill
def test_a_file_killed_again_while_it_is_being_recovered_is_not_refused_either(memory: Path) -> None:
    first = points_of(speaking, memory / "whole.db")
    second = points_of(opening, memory / "whole.db")
    for number, again in enumerate(sparse(second)):
        at = first // 3 + number * 211 % (first * 2 // 3)
        path = memory / f"{at}-{again}.db"
        acknowledged = killed(speaking, path, at)
        killed(opening, path, again)
        look(path)
        with opened(path):
            pass
        kept = texts(path)
        assert kept == SPOKEN[: len(kept)]
        assert len(kept) >= len(acknowledged), f"points {at} and {again}"


@pytest.mark.kill
def test_the_points_cover_the_code_and_the_disk(memory: Path) -> None:
    """The doom itself: its points are many, and the last one really is the last."""
    path = memory / "log.db"
    points = points_of(opening, path)
    assert points > 100
    path.unlink()
    for suffix in ("-wal", "-shm", "-head"):
        Path(f"{path}{suffix}").unlink()
    assert points_of(opening, path) == points
    assert content(path) == {}


@pytest.mark.parametrize("to_read", [False, True], ids=["to write", "to read"])
def test_power_that_fails_while_the_first_page_is_copied_back_leaves_a_log_that_opens(
    memory: Path, to_read: bool
) -> None:
    """The sector that was being written may hold anything; the page stands in the -wal all the same."""
    path = memory / "log.db"
    with opened(memory / "live.db") as store:
        Pen(store).say("x" * 20_000)  # the file grows, which changes its first page
        copied(memory / "live.db", path)
    with path.open("r+b") as file:
        file.write(os.urandom(512))
    store = Store.open_to_read(str(path)) if to_read else Store.open(str(path))
    found = replayed(store)
    store.close()
    assert len(found["s"]) == 3
