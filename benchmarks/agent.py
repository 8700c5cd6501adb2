"""The agent that most benchmarks run: an answer with one call (300 characters), its result (2 KB), another answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import trio

from flightlog import Session
from flightlog.testing import Bundle, Cue, FakeModel, calls, words
from flightlog_hookspecs import BlockEvent, Finish, Request, ToolResult, tool

ANSWER = "I will look it up and tell you what I find. " * 3


@tool(mode="parallel", effect="read")
async def look_up(query: str) -> str:
    """Look something up.

    Args:
        query: what to look for

    """
    return "found " * 340


class Model:
    """Calls the tool once, then answers. Looks at the last message only, so that it costs the same for ever."""

    name = "bench"
    encode = staticmethod(FakeModel([]).encode)
    look: ClassVar[list[Cue]] = [
        *words(ANSWER, chunk=20),
        *calls(("look_up", {"query": "q" * 300})),
        Finish(reason="tool_calls"),
    ]
    tell: ClassVar[list[Cue]] = [*words(ANSWER, chunk=20), Finish(reason="stop")]

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:  # noqa: ARG002
        """Play the reply."""
        yield self._play(self.tell if isinstance(request.messages[-1], ToolResult) else self.look)

    async def _play(self, cues: list[Cue]) -> AsyncIterator[BlockEvent]:
        await trio.lowlevel.checkpoint()
        for cue in cues:
            yield cue


def agent() -> Bundle:
    """The plugin with both."""
    return Bundle(adapters=[Model()], tools=[look_up])


async def work(session: Session, number: int) -> None:
    """Run that many turns."""
    for turn in range(number):
        await session.followup(f"question {turn}")
        ended = await session.run()
        assert ended is not None
        assert ended.reason == "completed"
