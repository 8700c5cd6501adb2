"""Waiting for what a commit needs, without keeping the loop from anything else: the file's write lock, a slow disk."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import trio

from flightlog.core.limits import BUSY_POLL_S, BUSY_WAIT_MAX_S
from flightlog.store.connection import Busy
from flightlog.store.store import Store
from flightlog_hookspecs.errors import StoreError

T = TypeVar("T")


async def when_free(store: Store, work: Callable[[], T]) -> T:
    """What `work` returns once it is not `Busy`. Stops `store` when another process never lets go."""
    give_up = trio.current_time() + BUSY_WAIT_MAX_S
    while True:
        try:
            return work()
        except Busy:
            if trio.current_time() >= give_up:
                held = f"{store.path}: another process has held the write lock for {BUSY_WAIT_MAX_S:.0f} s"
                raise store.stop(StoreError(held)) from None
        await trio.sleep(BUSY_POLL_S)


async def durably(store: Store, work: Callable[[], T]) -> T:
    """What `work` returns once it is not `Busy`, and what it committed is durable."""
    done = await when_free(store, work)
    await durable(store)
    await relieved(store)
    return done


async def durable(store: Store) -> None:
    """Return once what was committed as a barrier is so. Cancelling does not interrupt it."""
    if store.owes_sync:
        await off_loop(store.sync)
        store.check_alive()  # what was synced must still be the file


async def relieved(store: Store) -> None:
    """Return once there is room in the -wal. Cancelling does not interrupt it."""
    if store.is_full:
        await off_loop(store.begin_wal_anew)


async def off_loop(work: Callable[[], None]) -> None:
    """Run `work` in a thread, come what may; no other thread has to end for it."""
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(work, limiter=trio.CapacityLimiter(1))


def leave_syncs(store: Store) -> None:
    """Let commits leave it to `durable` to wait for a slow disk: from now on whoever commits a barrier awaits that.

    Not where the loop's clock is a simulated one: it would jump while a thread is at work.
    """
    store.syncs_later = not is_simulated()


def is_simulated() -> bool:
    """Whether the loop's clock is a simulated one."""
    testing = sys.modules.get("trio.testing")
    return testing is not None and isinstance(trio.lowlevel.current_clock(), testing.MockClock)
