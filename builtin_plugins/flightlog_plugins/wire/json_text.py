"""JSON as it is sent and as it arrives. What was received as JSON goes back as the very text received."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, Final, NoReturn

from flightlog_hookspecs.errors import ProviderError

NESTED_MAX: Final = 100
"""Levels that any server reads. Many stop at 128, which they count from the top of the body."""

MALFORMED: Final = (AttributeError, IndexError, KeyError, RecursionError, TypeError)
"""What comes of reading an object that is not as the protocol has it."""


def dumps(value: object) -> str:
    """`value` in compact JSON, in insertion order, `paired`."""
    return paired(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def paired(text: str) -> str:
    """`text` with the halves of surrogate pairs put together. A half alone, which no server takes, becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def joined(**fields: str) -> str:
    """An object whose values are JSON text already."""
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"


def listed(items: list[str]) -> str:
    """An array of JSON texts."""
    return "[" + ",".join(items) + "]"


def is_object(text: str) -> bool:
    """Whether `text` is a JSON object that any server can read, however strict it is."""
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refused, parse_float=_finite, parse_int=_finite
        )
        json.dumps(value, ensure_ascii=False).encode()  # an escape, too, may be half of a surrogate pair
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and _is_within(value, NESTED_MAX)


def object_or_none(text: str) -> dict[str, Any] | None:
    """The object in `text`, None when it holds something else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def sendable_arguments(raw: str) -> str:
    """The arguments of a call as an object: `raw` itself if it is one, else an object that shows it."""
    if is_object(raw):
        return raw
    return dumps({"unreadable_arguments": raw}) if raw.strip() else "{}"


def received(data: str) -> dict[str, Any]:
    """The object in a frame. Raises `ProviderError(protocol)`."""
    value = object_or_none(data)
    if value is None:
        raise ProviderError("protocol", f"the provider sent an event that is not a JSON object: {data[:80]!r}")
    return value


def malformed(what: str, error: Exception) -> ProviderError:
    """The failure that `what` was sent, which could not be read because of one of `MALFORMED`."""
    return ProviderError("protocol", f"the provider sent a malformed {what}: {type(error).__name__}: {error}")


def inner(value: object, name: str) -> dict[str, Any]:
    """The object that `value` has by that name, an empty one if it has none."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _is_within(value: object, levels: int) -> bool:
    """Whether `value` has no more than `levels` levels."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return items is None or (levels > 0 and all(_is_within(item, levels - 1) for item in items))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    return value if len(value) == len(pairs) else _refused("a name that comes twice")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if isfinite(number) else _refused(digits)


def _refused(what: str) -> NoReturn:
    raise ValueError(what)
