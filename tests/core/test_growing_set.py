"""A set of which a larger one costs little."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flightlog.core.growing_set import GrowingSet
from support.values import growing_set_of


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


@given(st.lists(st.integers(0, 40)), st.lists(st.integers(0, 40)))
def test_two_are_equal_that_hold_the_same(some: list[int], others: list[int]) -> None:
    one, other = growing_set_of(some), growing_set_of(others)
    assert (one == other) == (set(some) == set(others))
    assert one == GrowingSet.of(frozenset(some))
    assert hash(one) == hash(GrowingSet.of(frozenset(some)))
    assert one != frozenset(some)


@given(st.lists(st.integers(0, 40)), st.lists(st.integers(0, 40)))
def test_what_came_into_it_is_found(before: list[int], more: list[int]) -> None:
    old = growing_set_of(before)
    grown = old
    for item in more:
        grown = grown.with_item(item)
    assert grown.beyond(old) == set(more) - set(before)
    assert grown.beyond(GrowingSet()) == {*before, *more}
