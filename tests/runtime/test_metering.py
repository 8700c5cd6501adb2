"""Counting an answer as it arrives: as it is, and no sooner than somebody wants to know."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flightlog.core.tokens import estimate
from flightlog.runtime import metering
from flightlog.runtime.metering import Meter


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is estimated from now on."""
    estimated: list[str] = []

    def count(text: str) -> int:
        estimated.append(text)
        return estimate(text)

    monkeypatch.setattr(metering, "estimate", count)
    return estimated


def test_where_any_number_may_arrive_nothing_is_estimated_before_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    estimated, meter = counting(monkeypatch), Meter(None)
    for _ in range(2_000):
        meter.take("word ")
        assert not meter.full
    assert estimated == []
    assert meter.tokens == estimate("word " * 2_000)
    assert len(estimated) == 1


def test_where_there_is_room_for_so_many_no_delta_is_estimated_twice_until_it_is_nearly_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    estimated, meter = counting(monkeypatch), Meter(10_000)
    for _ in range(1_000):
        meter.take("word ")
        assert not meter.full
    assert sum(map(len, estimated)) <= 5_000


@pytest.mark.parametrize("room", [None, 10, 5_000])
def test_an_answer_that_was_cut_off_is_charged_with_its_request_once_any_of_it_has_arrived(room: int | None) -> None:
    meter = Meter(room)
    assert meter.charge(70) == 0
    meter.take("word " * 600)
    meter.take("and more")
    assert meter.charge(70) == 70 + meter.tokens > 70 + 600


ANYTHING = st.text(max_size=400) | st.text("😀A1 ", max_size=400)


@given(st.lists(ANYTHING, max_size=20), st.integers(0, 2_000))
@example(["😀"], 1)
@example(["😀" * 600], 1_000)
def test_it_is_full_as_soon_as_more_has_arrived_than_may(deltas: list[str], room: int) -> None:
    meter = Meter(room)
    for delta in deltas:
        meter.take(delta)
        assert meter.full == (meter.tokens > room)
