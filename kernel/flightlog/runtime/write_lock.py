"""Waiting for the file's write lock, without keeping the loop from anything else."""

from __future__ import annotations

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
