"""Which calls of a message may start now. Pure; the runner asks again whenever a call ends."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from flightlog_hookspecs.tools import Mode


def startable(
    modes: Sequence[Mode], running: AbstractSet[int], finished: AbstractSet[int], limit: int
) -> tuple[int, ...]:
    """Positions to start, in call order.

    A parallel call may start when every earlier exclusive call has finished and fewer than `limit`
    calls run; an exclusive call when every earlier call has finished and nothing runs. So an
    exclusive call is a barrier in both directions, and call order is never overtaken across it.
    """
    start: list[int] = []
    for position, mode in enumerate(modes):
        if position in finished:
            continue
        if mode == "exclusive":
            if position not in running and not running and not start:
                start.append(position)
            break
        if position in running:
            continue
        if len(running) + len(start) >= limit:
            break
        start.append(position)
    return tuple(start)
