from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import product

import pytest

from flightlog.core.schedule import startable
from flightlog_hookspecs.tools import Mode

LETTERS: dict[str, Mode] = {"p": "parallel", "x": "exclusive"}


def modes_of(letters: str) -> list[Mode]:
    return [LETTERS[letter] for letter in letters]


@pytest.mark.parametrize(
    ("letters", "running", "finished", "limit", "start"),
    [
        ("", "", "", 8, ()),
        ("ppp", "", "", 8, (0, 1, 2)),
        ("ppp", "", "", 2, (0, 1)),
        ("ppp", "01", "", 2, ()),
        ("ppp", "1", "0", 2, (2,)),
        ("ppp", "0", "1", 2, (2,)),
        ("ppp", "", "012", 8, ()),
        # read, write, read: the write waits for the first read, the second read for the write
        ("pxp", "", "", 8, (0,)),
        ("pxp", "0", "", 8, ()),
        ("pxp", "", "0", 8, (1,)),
        ("pxp", "1", "0", 8, ()),
        ("pxp", "", "01", 8, (2,)),
        ("xpp", "", "", 8, (0,)),
        ("xpp", "0", "", 8, ()),
        ("xpp", "", "0", 8, (1, 2)),
        ("ppx", "0", "1", 8, ()),
        ("ppx", "", "01", 8, (2,)),
        ("xx", "", "", 8, (0,)),
        ("xx", "", "0", 8, (1,)),
        ("ppxpp", "", "", 1, (0,)),
        ("ppxpp", "", "0", 1, (1,)),
    ],
)
def test_what_may_start(letters: str, running: str, finished: str, limit: int, start: tuple[int, ...]) -> None:
    assert startable(modes_of(letters), set(map(int, running)), set(map(int, finished)), limit) == start


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("size", range(6))
def test_any_batch_runs_to_its_end_in_bounds_and_without_overtaking(size: int, limit: int) -> None:
    for modes in product(LETTERS.values(), repeat=size):
        waiting, seen = [(frozenset[int](), frozenset[int]())], set()
        while waiting:
            running, finished = waiting.pop()
            start = startable(modes, running, finished, limit)
            check_start(modes, running, finished, start)
            running |= set(start)
            assert running or len(finished) == size, "something always runs until all have"
            assert len(running) <= limit
            assert startable(modes, running, finished, limit) == (), "what may start was started"
            for done in running:  # whichever ends first
                after = (running - {done}, finished | {done})
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)


def check_start(
    modes: Sequence[Mode], running: AbstractSet[int], finished: AbstractSet[int], start: tuple[int, ...]
) -> None:
    assert list(start) == sorted(set(start) - running - finished), "in call order, each call once"
    under_way = finished | running | set(start)
    for position in start:
        earlier = range(position)
        assert under_way.issuperset(earlier), "nobody is overtaken"
        assert finished.issuperset(other for other in earlier if modes[other] == "exclusive"), "a barrier holds"
        if modes[position] == "exclusive":
            assert finished.issuperset(earlier), "an exclusive call waits for every earlier one"
            assert not running, "and runs alone"
            assert start == (position,)
