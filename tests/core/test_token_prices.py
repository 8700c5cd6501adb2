"""What a stated price means: which models it fits, and an exact cost or none."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core.prices import fits, token_price
from flightlog.errors import UsageError
from flightlog_hookspecs import AssistantMessage, Price, TextBlock
from flightlog_hookspecs.events import TokenPrice

PRICE = Price(model="a:m", currency="USD", input="3", output="15", cached="0.3", cache_write="3.75")
ANSWER = AssistantMessage(attempt=1, content=(TextBlock(text="said"),), finish="stop")
AMOUNTS = st.from_regex(r"[0-9]{1,9}(\.[0-9]{1,6})?", fullmatch=True)
TOKENS = st.integers(0, 10**7)


@pytest.mark.parametrize(
    ("pattern", "model", "expected"),
    [
        ("a:m", "a:m", True),
        ("a:m", "a:m?cache=1h", True),
        ("a:m?cache=1h", "a:m?cache=1h", True),
        ("a:m?cache=1h", "a:m", False),
        ("a:m*", "a:m-2025", True),
        ("a:*", "b:m", False),
        ("*:m", "b:m", True),
        ("a:m", "a:m2", False),
        ("a:m", "xa:m", False),
        ("a:m.1", "a:mx1", False),
        ("a:m?", "a:mx", False),
        ("a:[m]", "a:m", False),
        ("a:m*", "a:m\nx", True),
    ],
)
def test_only_a_star_stands_for_other_characters(pattern: str, model: str, expected: bool) -> None:
    assert fits(pattern, model) is expected


@pytest.mark.parametrize(
    "changes",
    [
        {"input": amount}
        for amount in (
            "",
            "-1",
            "1,5",
            "1.",
            ".5",
            "1e3",
            "0.0000001",
            "1234567890",
            " 1",
            "1\n",
            "٣",
            "NaN",
            3,
            0.5,
            None,
        )
    ]
    + [{"currency": currency} for currency in ("", "usd", "US", "USDT", "$", None)]
    + [{"model": model} for model in ("", "m", None)],
    ids=str,
)
def test_what_is_no_price_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        token_price(evolve(PRICE, **changes))


@given(amounts=st.tuples(*[AMOUNTS] * 4), tokens=st.tuples(*[TOKENS] * 4))
def test_a_cost_is_exactly_the_tokens_times_their_prices_or_not_known(
    amounts: tuple[str, str, str, str], tokens: tuple[int, int, int, int]
) -> None:
    price = Price(
        model="a:m", currency="EUR", **dict(zip(("input", "output", "cached", "cache_write"), amounts, strict=True))
    )
    names = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens")
    answer = evolve(ANSWER, price=token_price(price), **dict(zip(names, tokens, strict=True)))
    exact = sum(Fraction(amount) / 10**6 * count * 10**12 for amount, count in zip(amounts, tokens, strict=True))
    assert exact.denominator == 1
    assert answer.cost_pico == (exact if any(tokens) and exact < 2**63 else None)


def test_without_a_price_or_a_count_or_an_end_a_cost_is_not_known() -> None:
    counted = evolve(ANSWER, input_tokens=10, price=token_price(PRICE))
    assert counted.cost_pico == 30_000_000
    assert evolve(counted, price=None).cost_pico is None
    assert evolve(counted, input_tokens=0).cost_pico is None
    assert evolve(counted, finish="interrupted").cost_pico is None
    assert evolve(counted, output_tokens=-1).cost_pico is None


@pytest.mark.parametrize("kind", ["cached", "cache_write"])
def test_tokens_of_a_kind_without_a_price_are_not_taken_for_free(kind: str) -> None:
    price = token_price(evolve(PRICE, **{kind: None}))
    answer = evolve(ANSWER, input_tokens=10, price=price)
    assert answer.cost_pico == 30_000_000
    assert evolve(answer, **{f"{kind}_tokens": 1}).cost_pico is None
    free: TokenPrice = evolve(price, **{f"{kind}_pico": 0})
    assert evolve(answer, price=free, **{f"{kind}_tokens": 1}).cost_pico == 30_000_000
