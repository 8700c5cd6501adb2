"""How often a server that cannot be reached is tried: with growing waits, and at once when a call wants it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from attrs import define, field

from flightlog_hookspecs.errors import ToolError
from flightlog_plugins.mcp_client import Stdio, connection
from flightlog_plugins.mcp_client.connection import Connection
from support.workspaces import call_in


@define
class Heard:
    """A scope that keeps what it was told."""

    problems: list[str] = field(factory=list)

    def offer(self, plugin: object | None) -> None:
        raise NotImplementedError

    def problem(self, error: str) -> None:
        self.problems.append(error)


async def test_waits_grow_and_a_call_brings_the_next_attempt_forward_once(
    monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    times: list[float] = []
    start = trio.current_time()

    @asynccontextmanager
    async def refusing(*_: object) -> AsyncIterator[None]:
        times.append(trio.current_time() - start)
        raise OSError("planted")
        yield

    monkeypatch.setitem(sys.modules, connection._LIVE, SimpleNamespace(opened=refusing))
    to, scope = Connection("t", Stdio(["x"]), str, wait_s=1.0, wait_max_s=4.0), Heard()

    async def attempts(count: int) -> None:
        while len(times) < count:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()

    async with to.lifespan(scope):
        assert times == [0]
        for wait_s in (1, 2, 4, 4):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(wait_s)
            await attempts(len(times) + 1)
        assert times == [0, 1, 3, 7, 11]
        with pytest.raises(
            ToolError, match=r"The MCP server 't' cannot be used: OSError: planted. The call was not made"
        ):
            await to.call("any", call_in(Path()))
        await attempts(6)
        assert times == [0, 1, 3, 7, 11, 11]
    assert len(scope.problems) == 6
