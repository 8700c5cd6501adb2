"""Calling a function of a plugin in the loop: on its own, with a time limit, its faults kept to it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import trio

from flightlog.runtime.error_groups import described, leaves, single_error

T = TypeVar("T")


class Failed(Exception):
    """It raised, or did not return in time. Says so in one line."""


async def call(
    body: Callable[..., T | Awaitable[T]], *arguments: object, limit_s: float, threads: trio.CapacityLimiter
) -> T:
    """What `body(*arguments)` returns, awaited if need be; a plain function runs in a thread.

    Raises `Failed` when it raises or takes more than `limit_s` seconds; a thread is then left behind.
    """
    with trio.move_on_after(limit_s):
        try:
            return await _called(body, arguments, threads)
        except BaseException as raised:
            if any(isinstance(leaf, (trio.Cancelled, KeyboardInterrupt)) for leaf in leaves(raised)):
                raise
            raise Failed(described(raised)) from raised
    raise Failed(f"did not answer within {limit_s:g} s")


async def _called(
    body: Callable[..., T | Awaitable[T]], arguments: tuple[object, ...], threads: trio.CapacityLimiter
) -> T:
    if inspect.iscoroutinefunction(body):
        return await in_own_task(partial(body, *arguments))
    # Boxed, since trio refuses a coroutine as a thread's result.
    (value,) = await trio.to_thread.run_sync(lambda: (body(*arguments),), abandon_on_cancel=True, limiter=threads)
    return await in_own_task(lambda: value) if inspect.isawaitable(value) else value


async def in_own_task(function: Callable[[], Awaitable[T]]) -> T:
    """What awaiting `function()` yields. A task or scope that it leaves open is its own error, not its caller's."""
    outcome: list[T] = []

    async def run() -> None:
        outcome.append(await function())

    with single_error():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
    return outcome[0]
