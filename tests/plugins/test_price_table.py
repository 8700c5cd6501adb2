"""The price table of a host: by model, from a dict or a file; what is not one is refused before anything opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flightlog.errors import PluginError, UsageError
from flightlog.runtime.plugins import load_plugins
from flightlog_hookspecs.events import TokenPrice
from flightlog_plugins.prices import Prices

STATED = {"currency": "USD", "input": "3", "output": "15"}


def test_each_table_is_the_price_of_a_model_and_the_first_that_fits_counts() -> None:
    prices = Prices({"a:m": {**STATED, "cached": "0.30"}, "a:*": STATED})
    registry = load_plugins(discover=False, plugins=[prices])
    named = TokenPrice(currency="USD", input_pico=3_000_000, output_pico=15_000_000, cached_pico=300_000)
    assert registry.price_of("a:m?x=1") == named
    assert registry.price_of("a:other") == TokenPrice(currency="USD", input_pico=3_000_000, output_pico=15_000_000)
    assert registry.price_of("b:m") is None


def test_a_file_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('["a:m"]\ncurrency = "USD"\ninput = "3"\noutput = "15"\n')
    assert Prices.from_file(path) == Prices({"a:m": STATED})


@pytest.mark.parametrize(
    "table",
    [{"a:m": {}}, {"a:m": "3"}, {"a:m": STATED | {"inptu": "3"}}, {"a:m": {"input": "1", "output": "2"}}],
    ids=str,
)
def test_a_table_that_says_too_little_or_too_much_is_refused(table: Any) -> None:
    with pytest.raises(UsageError, match="'a:m' must say currency, input, output, and may say cache_write, cached"):
        Prices(table)


def test_a_number_that_is_no_decimal_string_is_refused_as_it_is_registered() -> None:
    prices = Prices({"a:m": STATED | {"input": 0.1}})  # type: ignore[dict-item]
    with pytest.raises(PluginError, match=r"'a:m': input is the price of a million tokens as a string.*not 0\.1"):
        load_plugins(discover=False, plugins=[prices])


@pytest.mark.parametrize("text", [None, "[", '["a:m"]\n', "x = 1\n", '["a:m"]\n["a:m"]\n'])
def test_a_file_that_is_no_price_table_is_named(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=r"prices in .*prices\.toml: "):
        Prices.from_file(path)
