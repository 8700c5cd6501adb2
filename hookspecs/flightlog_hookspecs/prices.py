"""Prices: what the tokens of a model cost, as a host or plugin states it."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Price:
    """What a million tokens cost, as decimal strings with at most six decimals: "3", "0.075".

    A kind of tokens without a price is not free: what an answer with such tokens cost is not known. The price
    that holds as a request is sent is written with its answer, so another one changes nothing spent before.
    """

    model: str
    """"adapter:model", "*" standing for any characters. Without options it holds whatever the options."""
    currency: str
    """Three capital letters, as in ISO 4217."""
    input: str
    """Of a million tokens that were only read."""
    output: str
    """Of a million tokens that were answered, thinking included."""
    cached: str | None = None
    """Of a million tokens that came from a cache."""
    cache_write: str | None = None
    """Of a million tokens that went into a cache."""
