"""The estimate of tokens: cheap, additive enough to be kept as a running sum, and never fooled into nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core.tokens import PER_CHARACTER_MAX, estimate

# Letters, signs and scripts as they come; long runs of one sign apart, which every tokenizer cuts where it likes.
texts = st.text(max_size=300) | st.sampled_from(["", " ", "\n\n", "\ud800", "\0", "{}", "你好", "🎉", "a" * 5000])


@given(texts)
def test_only_nothing_costs_nothing(text: str) -> None:
    assert (estimate(text) == 0) == (not text)


@given(texts | st.text("😀🎉A1-\n", max_size=300))
def test_no_text_costs_more_than_its_characters_may(text: str) -> None:
    assert estimate(text) <= PER_CHARACTER_MAX * len(text)


@given(texts, texts)
def test_the_parts_of_a_text_cost_about_what_it_costs(one: str, other: str) -> None:
    apart = estimate(one) + estimate(other)
    assert abs(estimate(one + other) - apart) <= 4 + apart / 4


@given(st.text(min_size=1, max_size=50), st.integers(2, 100))
def test_a_long_text_cannot_hide(text: str, times: int) -> None:
    assert estimate((text + " and\n") * times) >= times
    assert estimate(text * 1000) >= len(text.strip()) * 100 or not text.strip() or set(text) <= set(" \t\r\n")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The quick brown fox jumps over the lazy dog.", 10),
        ("def fold(state, event, seq):\n    return state\n", 12),
        ('{"id":12345,"name":"Ada","tags":["a","b"]}', 19),
        ("今天天气很好。我们一起去公园散步。", 10),
        ("1234567890", 4),
        ("🎉👍🙂", 6),
    ],
)
def test_short_texts_cost_what_tokenizers_say(text: str, tokens: int) -> None:
    assert estimate(text) == pytest.approx(tokens, abs=2)
