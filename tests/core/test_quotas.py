"""What may be given as a budget and as quotas, and what a rate lets through."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from flightlog import Budget, Pool, Quotas, Rate
from flightlog.core.usage import LONG_TAKEN_US, SETTLES_US, Demand, Usage


@pytest.mark.parametrize(
    "make",
    [
        lambda: Budget(tokens=0),
        lambda: Budget(tokens=-1),
        lambda: Budget(calls=1.5),  # type: ignore[arg-type]
        lambda: Budget(calls=True),
        lambda: Budget(calls_of={"": 1}),
        lambda: Budget(calls_of={"look": 0}),
        lambda: Rate(0),
        lambda: Rate(1, per_s=0),
        lambda: Rate(1, per_s=math.inf),
        lambda: Rate(1, per_s=math.nan),
        lambda: Rate(1, per_s="a minute"),  # type: ignore[arg-type]
        lambda: Pool(tasks_at_once=0),
        lambda: Pool(tokens=5),  # type: ignore[arg-type]
        lambda: Quotas(rates={"look": Rate(1)}),
        lambda: Quotas(rates={"tool:": Rate(1)}),
        lambda: Quotas(rates={"tool:look": 3}),  # type: ignore[dict-item]
        lambda: Quotas(pools={"urgent": Pool()}),  # type: ignore[dict-item]
        lambda: Quotas(pools={"core": Rate(1)}),  # type: ignore[dict-item]
        lambda: Quotas(tasks_at_once=0),
    ],
)
def test_what_bounds_nothing_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        make()


def test_a_budget_names_its_cards() -> None:
    given = Budget(tokens=5, calls_of={"look": 2}, requests_of={"a": 3}, active_s=60)
    assert given.cards == {"tokens": 5, "requests:a": 3, "calls:look": 2, "active_s": 60}
    assert Budget().cards == {}


def test_quotas_name_each_rate_after_what_it_bounds() -> None:
    pools = {"core": Pool(tokens=Rate(5), tasks_at_once=2), "batch": Pool(calls=Rate(6)), "normal": Pool()}
    given = Quotas(rates={"tool:look": Rate(1), "adapter:a": Rate(2)}, pools=pools)  # type: ignore[arg-type]
    assert given.bounds == {
        "rate:tool:look": Rate(1),
        "rate:adapter:a": Rate(2),
        "pool:core:tokens": Rate(5),
        "pool:batch:calls": Rate(6),
    }
    assert Quotas(tasks_at_once=3).bounds == {}


AMOUNTS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=40)


@given(AMOUNTS, st.integers(1, 9), st.integers(1, 60))
def test_no_window_ever_has_more_than_its_rate(wishes: list[tuple[int, int]], most: int, per_s: int) -> None:
    """Whoever waits as long as it is told gets in; and then no window of that length holds more than the rate."""
    usage, now_us = Usage({"n": Rate(most, per_s=per_s)}), 1_000_000_000
    used: list[tuple[int, int]] = []
    for gap_s, amount in wishes:
        now_us += gap_s * 1_000_000
        demand = Demand(name="n", amount=amount)
        wait_us = usage.wait_us(demand, now_us)
        if amount > most:
            assert wait_us == math.inf
            continue
        before = now_us + int(wait_us) - 1
        assert wait_us == 0 or usage.wait_us(demand, before) > 0, "it waits no longer than it must"
        now_us += int(wait_us)
        assert usage.wait_us(demand, now_us) == 0
        usage.add("n", now_us, amount)
        used.append((now_us, amount))
    for end_us, _ in used:
        assert sum(n for at_us, n in used if end_us - per_s * 1_000_000 < at_us <= end_us) <= most


def test_what_is_taken_counts_until_it_is_settled() -> None:
    usage, demand = Usage({"n": Rate(10)}), Demand(name="n", amount=4)
    usage.take("n", 1, 0, 7)
    assert usage.wait_us(demand, 0) == SETTLES_US, "nobody knows when it is settled, but it is looked again"
    assert usage.wait_us(evolve(demand, amount=11), 0) == math.inf
    assert usage.used("n", 0) == 7
    usage.settle("n", 1)
    usage.add("n", 0, 3)
    assert usage.wait_us(demand, 0) == 0


def test_what_was_taken_long_ago_is_waited_for_no_longer_than_its_rate_looks_back() -> None:
    usage, demand = Usage({"n": Rate(10, per_s=600)}), Demand(name="n", amount=4)
    usage.take("n", 1, 0, 7)  # by one that has died since
    assert usage.wait_us(demand, 100_000_000) == LONG_TAKEN_US
    assert usage.wait_us(demand, 590_000_000) == 10_000_000
    assert usage.wait_us(demand, 600_000_000) == 0


@pytest.mark.parametrize("taken", [False, True])
def test_a_clock_that_is_put_back_keeps_nobody_waiting_longer_than_a_rate_looks_back(taken: bool) -> None:
    usage, day_us = Usage({"n": Rate(10, per_s=60)}), 86_400_000_000
    if taken:
        usage.take("n", 1, 2 * day_us, 10)
    else:
        usage.add("n", 2 * day_us, 10)
    demand = Demand(name="n")
    assert 0 < usage.wait_us(demand, day_us) <= 60_000_000
    assert usage.wait_us(demand, day_us + 60_000_000) == 0


def test_what_comes_in_from_long_ago_does_not_count() -> None:
    usage, demand = Usage({"n": Rate(3, per_s=60)}), Demand(name="n")
    usage.add("n", 1_000_000_000, 2)
    usage.add("n", 5, 100)
    assert usage.wait_us(demand, 1_010_000_000) == 0
    assert usage.used("n", 1_010_000_000) == 2


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "settle"]), st.sampled_from("nox"), st.integers(0, 9))))
def test_of_what_no_rate_bounds_nothing_is_kept(said: list[tuple[str, str, int]]) -> None:
    usage = Usage({"n": Rate(3)})
    for what, name, number in said:
        match what:
            case "add":
                usage.add(name, number, 1)
            case "take":
                usage.take(name, number, number, 1)
            case _:
                usage.settle(name, number)
    assert usage._used.keys() | usage._taken.keys() <= {"n"}


@given(st.lists(st.tuples(st.booleans(), st.integers(-300, 100)), max_size=40))
def test_what_no_rate_looks_back_to_is_forgotten_though_nobody_asks_for_it(said: list[tuple[bool, int]]) -> None:
    """In whatever order it came: logs are brought in from elsewhere, and clocks are put back."""
    usage, asked = Usage({"n": Rate(3, per_s=60)}), Usage({"n": Rate(3, per_s=60)})
    for number, (taken, at_s) in enumerate(said):
        for each in (usage, asked):
            if taken:
                each.take("n", number, at_s * 1_000_000, 1)
            else:
                each.add("n", at_s * 1_000_000, 1)
    usage.forget(0)
    assert usage.used("n", 0) == asked.used("n", 0), "what still counts is kept"
    usage.forget(160_000_000)
    assert not any((*usage._used.values(), *usage._taken.values()))
