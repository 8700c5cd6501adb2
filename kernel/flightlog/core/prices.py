"""What a stated price means: which models it is for, and what one token costs. Exact, or refused."""

from __future__ import annotations

import re
from typing import Final

from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import TokenPrice
from flightlog_hookspecs.prices import Price

_AMOUNT: Final = re.compile(r"(\d{1,9})(?:\.(\d{1,6}))?", re.ASCII)
_CURRENCY: Final = re.compile(r"[A-Z]{3}")


def fits(pattern: str, model: str) -> bool:
    """Whether a price for `pattern` is one for `model` ("adapter:model?options"); "*" stands for any characters.

    Not a shell's pattern, because there "?" means something and in the name of a model it begins the options.
    """
    wanted = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    return bool(wanted.fullmatch(model) or wanted.fullmatch(model.partition("?")[0]))


def token_price(price: Price) -> TokenPrice:
    """What `price` says of one token. Raises `UsageError` for what is no price."""
    if not isinstance(price.model, str) or ":" not in price.model:
        raise UsageError(f"a price is for 'adapter:model', '*' standing for any characters, not {price.model!r}")
    if not isinstance(price.currency, str) or not _CURRENCY.fullmatch(price.currency):
        raise UsageError(
            f"the price of {price.model!r}: its currency is three capital letters, as in ISO 4217, "
            f"not {price.currency!r}"
        )
    return TokenPrice(
        currency=price.currency,
        input_pico=_pico(price, "input", price.input),
        output_pico=_pico(price, "output", price.output),
        cached_pico=None if price.cached is None else _pico(price, "cached", price.cached),
        cache_write_pico=None if price.cache_write is None else _pico(price, "cache_write", price.cache_write),
    )


def _pico(price: Price, kind: str, amount: str) -> int:
    found = _AMOUNT.fullmatch(amount) if isinstance(amount, str) else None
    if found is None:
        raise UsageError(
            f"the price of {price.model!r}: {kind} is the price of a million tokens as a string with at most six "
            f"decimals, for example '0.075', not {amount!r}"
        )
    whole, decimals = found.groups(default="")
    return int(whole) * 10**6 + int(decimals.ljust(6, "0"))
