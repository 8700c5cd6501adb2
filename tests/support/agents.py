"""Agents in processes of their own: they run turn after turn on one log and tell what was acknowledged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import trio

import flightlog
from flightlog import HeadToken, Session
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import BlockEvent, Request, ToolResult, tool
from support.files import Child
from support.kernels import verified

WAIT_MAX_S = 60.0
ROWS = "SELECT seq, lower(hex(digest)) FROM events WHERE session = (SELECT session FROM session_keys WHERE name = ?)"


@tool(mode="parallel", effect="read")
async def look(where: str) -> str:
    """Look somewhere."""
    await trio.lowlevel.checkpoint()
    return f"Nothing to see {where}."


class Looker(FakeModel):
    """Looks once for every message, then answers."""

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        answered = isinstance(request.messages[-1], ToolResult)
        yield self._play(
            words("I see nothing at all.")
            if answered
            else [*words("I will look.", chunk=3), *calls(("look", {"where": "there"}))]
        )


@asynccontextmanager
async def driven(path: Path, name: str = "s", *, expect: HeadToken | None = None) -> AsyncIterator[Session]:
    """Session `name` on a kernel of its own."""
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[Bundle(adapters=[Looker([])], tools=[look])]) as kernel,
        kernel.session(name, model="fake:m", expect=expect) as session,
    ):
        yield session


async def turn_of(session: Session) -> HeadToken:
    """Run one turn; the row it was acknowledged with."""
    await session.followup("What do you see?")
    turn = await session.run()
    assert turn is not None
    assert turn.reason == "completed"
    return session.token


class Agent(Child):
    """A process that runs turns of session `name` from its start on, until it is told to leave or killed.

    `tokens` are the rows it has acknowledged, as far as it has been listened to.
    """

    def __init__(self, path: Path, name: str = "s") -> None:
        super().__init__(_work, path, name)
        self.name = name
        self.tokens: list[HeadToken] = []
        self.goes_on()

    def goes_on(self) -> None:
        """Return once it has done a whole turn from here on."""
        while self.channel.poll():
            self._listen()
        self._listen()  # this one may have begun before
        self._listen()

    def leave(self) -> None:
        """Let it close everything and end."""
        self.send("leave")
        self._end()

    def kill(self) -> None:
        """SIGKILL, in the middle of whatever it does."""
        super().kill()
        self._end()

    def _end(self) -> None:
        try:
            while True:
                self._listen()
        except (EOFError, ConnectionResetError):
            self.wait()

    def _listen(self) -> None:
        assert self.channel.poll(WAIT_MAX_S), "the agent has come to a stop"
        self.tokens.append(self.receive())


def _work(channel: Connection[Any, Any], path: Path, name: str) -> None:
    trio.run(_working, channel, path, name)


async def _working(channel: Connection[Any, Any], path: Path, name: str) -> None:
    async with driven(path, name) as session:
        while not channel.poll():
            channel.send(await turn_of(session))


def assert_whole(path: Path, *agents: Agent | tuple[str, list[HeadToken]]) -> None:
    """Nothing that was acknowledged is lost, all of it is legal, and each session opens and goes on.

    An agent is as good as the name of its session and the rows it has acknowledged.
    """
    for agent in agents:
        name, tokens = (agent.name, agent.tokens) if isinstance(agent, Agent) else agent
        with flightlog.open_log(path, discover=False) as log:
            found = log.query(ROWS, name, limit_rows=1_000_000, limit_s=WAIT_MAX_S)
        assert tokens
        assert {(token.seq, token.digest) for token in tokens} <= set(found.rows)
        trio.run(_goes_on, path, name, tokens[-1])
        verified(path, Looker([]), name=name)


async def _goes_on(path: Path, name: str, expect: HeadToken) -> None:
    async with driven(path, name, expect=expect) as session:
        await turn_of(session)
