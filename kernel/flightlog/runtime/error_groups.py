"""A lone error leaves a nursery as itself, so that callers catch what was raised."""

from __future__ import annotations

import math
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
    """All errors inside nested groups, however deep, or `error` itself."""
    found, waiting = list[BaseException](), [error]
    while waiting:
        each = waiting.pop()
        if isinstance(each, BaseExceptionGroup):
            waiting += reversed(each.exceptions)
        else:
            found.append(each)
    return found


def interrupt(error: BaseException) -> BaseException | None:
    """What in the `error` of a plugin is not its own, and has to go on: a Ctrl-C, a cancel. None if all is its own.

    Alone: an error that came with it would be left when its scope has taken the cancel out, and be everybody's.
    A cancel that nobody has asked for is one of the plugin's errors.
    """
    found = leaves(error)
    if (stop := next((leaf for leaf in found if isinstance(leaf, KeyboardInterrupt)), None)) is not None:
        return KeyboardInterrupt().with_traceback(stop.__traceback__)
    cancel = next((leaf for leaf in found if isinstance(leaf, trio.Cancelled)), None)
    return cancel if cancel is not None and trio.current_effective_deadline() == -math.inf else None


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
    """Run `work` until the body has ended. The body's error leaves as it was raised, else one of `work` as itself.

    When it is cancelled from outside, the body winds down first: what it waits for may be done by `work`.
    """
    failure: BaseException | None = None
    working = trio.CancelScope(shield=True)

    async def work_on() -> None:
        with working:
            await work()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work_on)
            try:
                yield
            except BaseException as error:
                if any(isinstance(leaf, trio.Cancelled) for leaf in leaves(error)):
                    raise
                failure = error  # kept from the nursery, which would wrap it and take a group apart
            finally:
                working.cancel()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if failure is None:
            causes = [cause for cause in group.exceptions if not isinstance(cause, trio.Cancelled)]
            if len(causes) > 1:
                raise
            only = causes[0] if causes else group.exceptions[0]
            raise only from only.__cause__
    if failure is not None:
        raise failure
