"""What others' values say of themselves, also those that cannot: their `str` and `repr` are code that may fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_SHOWN_MAX_CHARS: Final = 200


def described(error: BaseException) -> str:
    """Type and words of `error`, also of one that cannot say what it is."""
    return f"{type(error).__name__}: {said(error)}"


def said(error: BaseException) -> str:
    """The words of `error`, also of one that cannot say them."""
    return _words(str, error, "(its message cannot be shown)")


def shown(value: object) -> str:
    """The start of the `repr` of `value`, also of one that has none."""
    return _words(repr, value, "something whose repr fails")[:_SHOWN_MAX_CHARS]


def _words(form: Callable[[object], str], value: object, otherwise: str) -> str:
    try:
        return str.__str__(form(value))  # which may be of a class of theirs, too
    except KeyboardInterrupt:
        raise
    except BaseException:
        return otherwise
