"""JSON as the strictest server reads it."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, NoReturn

LEVELS = 128


def read(raw: bytes | str) -> Any:
    """The value in `raw`. Raises `ValueError` for what some server takes for no JSON at all."""
    text = raw if isinstance(raw, str) else raw.decode()
    value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refused, parse_float=_finite, parse_int=_whole)
    _check(value, LEVELS)
    return value


def _check(value: object, levels: int) -> None:
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, (dict, list)):
        if not levels:
            _refused("recursion limit exceeded")
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            _check(item, levels - 1)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    return value if len(value) == len(pairs) else _refused("duplicate key")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if isfinite(number) else _refused(f"number out of range: {digits}")


def _whole(digits: str) -> int:
    _finite(digits)
    return int(digits)


def _refused(why: str) -> NoReturn:
    raise ValueError(why)
