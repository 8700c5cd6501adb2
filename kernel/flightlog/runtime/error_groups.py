"""A lone error leaves a nursery as itself, so that callers catch what was raised."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

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


@asynccontextmanager
async def beside(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run `work` until the body ends. The body's error leaves as it was raised, and one of `work` as itself."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # Of this nursery only: groups that the body raised stay what they are.
        causes = [error for error in group.exceptions if not isinstance(error, trio.Cancelled)]
        if len(causes) > 1:
            raise
        error = causes[0] if causes else group.exceptions[0]
        context = error.__context__
        try:
            raise error
        finally:
            error.__context__ = context
            del error, causes
