"""Calling a function of a plugin in the loop: on its own, with a time limit, its faults kept to it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import trio

from flightlog.core.saying import described
from flightlog.runtime.error_groups import interrupt, leaves, single_error

T = TypeVar("T")


class Failed(Exception):
    """It raised, or did not return in time. Says so in one line."""


async def call(
    body: Callable[..., T | Awaitable[T]], *arguments: object, limit_s: float, threads: trio.CapacityLimiter
) -> T:
    """What `body(*arguments)` returns, awaited if need be; a plain function runs in a thread.

    Raises `Failed` when it raises or takes more than `limit_s` seconds; a thread is then left behind.
    """
    with trio.move_on_after(limit_s), contained():
        return await _called(body, arguments, threads)
    raise Failed(f"did not answer within {limit_s:g} s")


@contextmanager
def contained() -> Iterator[None]:
    """Whatever a plugin's code raises in here is `Failed`. Its answers are its code, too: to look at one may run it."""
    try:
        yield
    except Failed:
        raise
    except BaseException as raised:
        if (stop := interrupt(raised)) is not None:
            raise stop from None
        raise Failed(described(raised)) from raised


def boxed(body: Callable[[], T]) -> tuple[T]:
    """What the body of a thread returns, boxed: trio refuses a coroutine as a thread's result, and it may be one."""
    try:
        return (body(),)
    except BaseException as error:
        if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves(error)):
            # Its own: a real Ctrl-C comes to the main thread only.
            raise RuntimeError("it raised KeyboardInterrupt") from error
        raise


async def _called(
    body: Callable[..., T | Awaitable[T]], arguments: tuple[object, ...], threads: trio.CapacityLimiter
) -> T:
    if inspect.iscoroutinefunction(body):
        return await in_own_task(partial(body, *arguments))
    value = await in_thread(partial(body, *arguments), threads)
    return await in_own_task(lambda: value) if inspect.isawaitable(value) else value


async def in_thread(body: Callable[[], T], threads: trio.CapacityLimiter) -> T:
    """What `body()` returns. Cancelling leaves the thread behind, which holds its place in `threads` until it ends."""
    (value,) = await trio.to_thread.run_sync(boxed, body, abandon_on_cancel=True, limiter=threads)
    return value


async def in_own_task(function: Callable[[], Awaitable[T]]) -> T:
    """What awaiting `function()` yields. A task or scope that it leaves open is its own error, not its caller's.

    What it raises does not leave the task by itself: trio asks for the repr of what does, and has come to its end when
    that raises.
    """
    values, errors = list[T](), list[BaseException]()

    async def run() -> None:
        try:
            values.append(await function())
        except BaseException as error:
            errors.append(error)

    with single_error():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
        if errors:
            raise interrupt(errors[0]) or errors.pop()
    return values[0]
