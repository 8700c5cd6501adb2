"""Whether a value of the vocabulary holds what its fields promise.

attrs does not check types, and a row that decodes to something else, or not at all, would cost the
whole session. So what comes from outside is checked before it is used, and every event before it is
written.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from attrs import fields, has

_Accepted = dict[type, Callable[[Any], bool] | None]
"""The exact types a field allows, each with the test its values must pass; most need none, and calling one costs."""

_fields_of: dict[type, tuple[tuple[str, _Accepted], ...]] = {}


def misfit(value: object) -> str | None:
    """The name of the first field of `value` (of an attrs class) that holds another type than it says.

    Exact types count: a subclass of `str`, or a list in place of a tuple, would not come back.
    """
    cls: Any = type(value)
    known = _fields_of.get(cls)
    if known is None:
        hints = get_type_hints(cls)
        known = _fields_of[cls] = tuple((field.name, _accepted(hints[field.name])) for field in fields(cls))
    for name, accepted in known:
        item = getattr(value, name)
        fits = accepted.get(type(item), _never)  # not `_is_accepted`: this runs for every field of every event
        if fits is not None and not fits(item):
            return name
    return None


def _is_accepted(accepted: _Accepted, value: object) -> bool:
    fits = accepted.get(type(value), _never)
    return fits is None or fits(value)


def _never(_: object) -> bool:
    return False


def _accepted(hint: Any) -> _Accepted:
    if get_origin(hint) is Literal:
        return {str: frozenset(get_args(hint)).__contains__}
    if get_origin(hint) is tuple:
        item = _accepted(get_args(hint)[0])
        return {tuple: lambda values: all(_is_accepted(item, value) for value in values)}
    if has(hint):
        return {hint: lambda value: misfit(value) is None}
    if hint is float:
        return {float: None, int: None}
    if hint in (str, bytes, int, bool, NoneType):
        return {hint: None}
    return {kind: fits for choice in get_args(hint) for kind, fits in _accepted(choice).items()}
