"""A process killed at any boundary while timers fire: each fires once, each message reaches the model once."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import trio

from flightlog import Clock
from flightlog.events import TimerFired, UserMessage
from flightlog.runtime.clock import no_boundary
from flightlog.testing import FakeModel
from support.files import Child
from support.kernels import events_of, new_id, session_of, verified

START_US = 1_700_000_000_000_000
LATER_US = START_US + 95_000_000


async def _live(path: Path, die_at: int) -> int:
    """Set two timers, go away, come back later, and let them fire; dies at a boundary, or says how many it passed."""
    passed = 0

    def boundary(name: str, session: str, seq: int) -> None:
        nonlocal passed
        if passed == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        passed += 1

    on_boundary = no_boundary if die_at < 0 else boundary
    for now_us in (START_US, LATER_US):
        clock = Clock(now_us=lambda now_us=now_us: now_us, monotonic_us=lambda: 0, new_id=new_id)  # type: ignore[misc]
        async with session_of(path, FakeModel([]), clock=clock, on_boundary=on_boundary) as session:
            if now_us == START_US:
                await session.wake_every(10, "every", key="every")
                await session.wake_after(20, "once", key="once")
            await session.run()
    return passed


def _work(channel: Connection[Any, Any], path: Path, die_at: int) -> None:
    channel.send(trio.run(_live, path, die_at))


@pytest.mark.kill
def test_killed_at_every_boundary_each_timer_fires_once(tmp_path: Path) -> None:
    for die_at in range(1000):
        path = tmp_path / f"{die_at}.db"
        child = Child(_work, path, die_at)
        survived = bool(child.rest())
        child.wait()
        trio.run(_live, path, -1)
        verified(path, FakeModel([]))
        fired = [(event.due_us - START_US, event.missed) for event in events_of(path, TimerFired)]
        assert sorted(fired) == [(10_000_000, 8), (20_000_000, 0)], f"killed at boundary {die_at}"
        told = sorted(message.text for message in events_of(path, UserMessage))
        assert told == ["every", "once"], f"killed at boundary {die_at}"
        if survived:
            assert die_at > 10
            return
    raise AssertionError("it never came to its end")
