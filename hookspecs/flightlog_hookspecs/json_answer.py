"""JSON as a model answers it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from math import isfinite
from typing import Any, Final, NoReturn

_FENCE: Final = "```"


def json_of(text: str | Sequence[str]) -> Any:
    """The JSON value that `text` is. One code fence around all of it, which many models draw, is left out.

    Of several blocks it is all of them together, or else the last one: some models remark on their work before they
    answer. Raises `ValueError` that says what is wrong and where; so do a name that comes twice in an object and
    numbers that JSON does not have.
    """
    if isinstance(text, str):
        return _value(text)
    try:
        return _value("".join(text))
    except ValueError:
        if len(text) < 2:
            raise
        return _value(text[-1])


def _value(text: str) -> Any:
    try:
        return json.loads(
            _unfenced(text.strip()), object_pairs_hook=_unique, parse_constant=_no_number, parse_float=_finite
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unfenced(words: str) -> str:
    """What stands between the lines of a fence, which may name its language; else `words`."""
    first, _, rest = words.partition("\n")
    fenced = first.strip().lower() in (_FENCE, f"{_FENCE}json") and rest.endswith(_FENCE)
    return rest.removesuffix(_FENCE) if fenced else words


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the name {name!r:.100} comes twice in one object")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name:.40} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if isfinite(number) else _no_number(digits)
