"""The tokens that a server says it counted, in the shapes they come in."""

from __future__ import annotations

from math import inf
from typing import Any

from flightlog_hookspecs import Usage
from flightlog_plugins.wire.tokens import counted


def usage_in(reported: object) -> Usage | None:
    """What `reported` counts; None for nothing, also where it holds something else in place of a number.

    An answer is worth more than its count, and a count that is not known is better than a wrong one.
    """
    totals = _fields(reported)
    if not totals:
        return None
    details = _fields(totals.get("prompt_tokens_details"))
    cached = details.get("cached_tokens") or totals.get("prompt_cache_hit_tokens")
    numbers = (totals.get("prompt_tokens"), totals.get("completion_tokens"), cached, details.get("cache_write_tokens"))
    try:
        return counted(*map(_whole, numbers))
    except ValueError:
        return None


def _fields(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(number: object) -> int:
    """`number` without its fraction, which servers that estimate send; 0 for one that is missing."""
    if number is None:
        return 0
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < inf:
        raise ValueError(f"{number!r} is no number of tokens")
    return int(number)
