"""Counting an answer as it arrives: as it is, and no sooner than somebody wants to know."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flightlog.core.fitting import cost
from flightlog.core.tokens import estimate
from flightlog.runtime import metering
from flightlog.runtime.metering import Meter
from flightlog_hookspecs import (
    Alive,
    AssistantMessage,
    BlockEnd,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ToolCallBlock,
    Usage,
)
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import CHARGED_MAX


def said(meter: Meter, text: str, index: int = 0) -> None:
    """One delta that counts, or an empty one, which does not."""
    meter.take(TextDelta(index=index, text=text), (index, "text", text) if text else None)


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
        said(meter, "word ")
        assert not meter.full
    assert estimated == []
    assert meter.tokens == estimate("word " * 2_000)
    assert len(estimated) == 1


def test_where_there_is_room_for_so_many_no_delta_is_estimated_twice_until_it_is_nearly_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    estimated, meter = counting(monkeypatch), Meter(10_000)
    for _ in range(1_000):
        said(meter, "word ")
        assert not meter.full
    assert sum(map(len, estimated)) <= 5_000


@pytest.mark.parametrize("room", [None, 10, 5_000])
def test_an_answer_that_was_cut_off_is_charged_with_its_request_once_any_of_it_has_arrived(room: int | None) -> None:
    meter = Meter(room)
    assert meter.charge(70) == 0
    said(meter, "word " * 600)
    said(meter, "and more")
    assert meter.charge(70) == 70 + meter.tokens > 70 + 600


def test_a_sign_of_life_costs_nothing_but_an_answer_of_nothing_else_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "ANSWER_EVENTS_MAX", 50)
    meter = Meter(10)
    for _ in range(50):
        meter.take(Alive(), None)
        assert not meter.full
    assert (meter.tokens, meter.charge(70)) == (0, 0)
    with pytest.raises(ProviderError, match="more than 50 events"):
        meter.take(Alive(), None)


TOKENS = st.integers(0, 5_000)


@given(TOKENS, TOKENS, TOKENS, st.integers(1, 300))
@example(0, 0, 70, 1)
@example(1, 1, 70, 1)
def test_an_attempt_that_failed_counts_what_its_provider_says_and_never_less_than_half_of_the_estimate(
    input_tokens: int, output_tokens: int, asked: int, deltas: int
) -> None:
    meter = Meter(None)
    for _ in range(deltas):
        said(meter, "word ")
    estimated = asked + meter.tokens
    assert meter.charge(asked) == estimated, "nobody has counted"
    meter.said = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
    assert meter.charge(asked) >= max(input_tokens + output_tokens, estimated // 2)
    assert meter.charge(asked) <= max(input_tokens, asked) + max(output_tokens, meter.tokens)


def test_what_a_failed_attempt_counts_can_be_added_up_whatever_its_provider_says() -> None:
    meter = Meter(None)
    meter.take(Usage(), None)
    meter.said = Usage(input_tokens=2**40 - 1, output_tokens=2**40 - 1, cached_tokens=2**40 - 1)
    assert meter.charge(70) == CHARGED_MAX


ANYTHING = st.text(max_size=400) | st.text("😀A1 ", max_size=400)


@given(st.lists(ANYTHING | st.none(), max_size=20), st.integers(0, 2_000))
@example(["😀"], 1)
@example(["😀" * 600], 1_000)
@example([None, None], 1)
def test_it_is_full_as_soon_as_more_has_arrived_than_may(deltas: list[str | None], room: int) -> None:
    meter = Meter(room)
    for delta in deltas:
        if delta is None:
            meter.take(Usage(), None)
        else:
            said(meter, delta)
        assert meter.full == (meter.tokens > room)


BLOCKS: list[TextBlock | ThinkingBlock | ToolCallBlock] = [
    TextBlock(text="words and more of them " * 20),
    ThinkingBlock(text="thoughts and more of them " * 20, replay='{"state":"' + "QkFzZTY0" * 200 + '"}'),
    ToolCallBlock(call_id="c", name="look", arguments='{"at": "the sky, and what is below it"}'),
]


@given(st.lists(st.tuples(st.sampled_from(BLOCKS), st.integers(0, 600)), min_size=1, max_size=9))
def test_a_block_counts_once_however_much_of_it_came_in_deltas(
    blocks: list[tuple[TextBlock | ThinkingBlock | ToolCallBlock, int]],
) -> None:
    whole, streamed = Meter(None), Meter(None)
    for index, (block, chars) in enumerate(blocks):
        text = block.arguments if isinstance(block, ToolCallBlock) else block.text
        whole.take(BlockEnd(index=index, block=block), None)
        if deltas := text[:chars]:
            said(streamed, deltas, index)
        streamed.take(BlockEnd(index=index, block=block), None)
    least = sum(cost(AssistantMessage(attempt=1, content=(block,), finish="stop")) for block, _ in blocks)
    assert whole.tokens == pytest.approx(least, abs=10 * len(blocks))
    assert streamed.tokens == pytest.approx(least, abs=10 * len(blocks))


@given(st.integers(1, 500), st.integers(1, 500))
def test_events_that_are_no_deltas_count_in_place_of_words_and_not_beside_them(others: int, deltas: int) -> None:
    meter, words = Meter(None), Meter(None)
    for _ in range(deltas):
        said(meter, "word ")
        said(words, "word ")
    for _ in range(others):
        meter.take(Usage(), None)
    assert meter.tokens == max(others, words.tokens)


def test_of_events_that_are_no_deltas_there_may_be_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "ANSWER_EVENTS_MAX", 10)
    meter = Meter(None)
    for _ in range(10):
        meter.take(Usage(), None)
        said(meter, "word ")
    with pytest.raises(ProviderError) as caught:
        meter.take(Usage(), None)
    assert caught.value.kind == "protocol"
