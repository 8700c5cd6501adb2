"""A set of which a larger one costs little."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flightlog.core.growing_set import GrowingSet


@given(st.lists(st.integers(0, 40)), st.integers(0, 40))
def test_it_holds_what_was_put_in_and_nothing_else(items: list[int], asked: int) -> None:
    grown = GrowingSet[int]()
    for item in items:
        grown = grown.with_item(item)
    assert (asked in grown) == (asked in items)


def test_the_set_before_stays_as_it_was() -> None:
    before = GrowingSet[int]().with_item(1)
    after = before.with_item(2)
    assert (2 in before, 2 in after) == (False, True)


def test_many_items_stand_in_few_parts_and_are_seldom_copied() -> None:
    grown, copied = GrowingSet[int](), 0
    for item in range(4096):
        grown = grown.with_item(item)
        copied += len(grown.parts[-1])
    assert len(grown.parts) <= 13
    assert copied <= 4096 * 13
