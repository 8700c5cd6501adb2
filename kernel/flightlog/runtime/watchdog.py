"""The watchdog of a worker's process: it ends the process when its loop stands still, so that others take its tasks up.

A process that is stuck is worse than a dead one: it holds its locks and does nothing. The clock that ends it runs in a
thread of C code, which needs neither the loop nor Python's lock.
"""

from __future__ import annotations

import faulthandler
from typing import Final

import trio

_STDERR: Final = 2
_BEATS: Final = (0.2, 5.0)
"""The heart beats this often within the limit, and at least once in so many seconds."""


async def watch(stall_limit_s: float) -> None:
    """End the process once the loop has not come round for `stall_limit_s` seconds, until cancelled.

    What all threads were doing is written to standard error first; the exit code is 1. One for each process.
    """
    share, longest_s = _BEATS
    try:
        while True:
            faulthandler.dump_traceback_later(stall_limit_s, exit=True, file=_STDERR)
            await trio.sleep(min(stall_limit_s * share, longest_s))
    finally:
        faulthandler.cancel_dump_traceback_later()
