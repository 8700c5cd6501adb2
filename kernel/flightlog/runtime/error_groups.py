"""A lone error leaves a nursery as itself, so that callers catch what was raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flightlog_hookspecs.errors import StoreStopped


def unwrapped(error: BaseException) -> BaseException:
    """The one error inside nested groups of one, or `error` itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def leaves(error: BaseException) -> list[BaseException]:
    """All errors inside nested groups, or `error` itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for member in error.exceptions for leaf in leaves(member)]


def described(error: BaseException) -> str:
    """Type and words of `error`, also of one that cannot say what it is."""
    try:
        words = str(error)
    except Exception:
        words = "(its message cannot be shown)"
    return f"{type(error).__name__}: {words}"


@contextmanager
def single_error() -> Iterator[None]:
    """Raise the single member of a group in place of the group.

    What a storage fault made of the siblings is no second error: they were refused because of it.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        errors = leaves(group)
        causes = [error for error in errors if not isinstance(error, StoreStopped)] or errors[:1]
        if len(causes) > 1:
            raise
        raise causes[0] from causes[0].__cause__
