"""A lone error leaves a nursery as itself, so that callers catch what was raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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


@contextmanager
def single_error() -> Iterator[None]:
    """Raise the single member of a group in place of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = unwrapped(group)
        if error is group:
            raise
        raise error from error.__cause__
