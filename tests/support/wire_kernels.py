"""Kernels that talk to loopback servers, and what they say went wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

import flightlog
from flightlog import Kernel, Limits, Session, Turn
from flightlog.testing import Bundle
from flightlog_hookspecs import tool
from flightlog_hookspecs.events import AssistantMessage, Message
from support.kernels import Path

ONCE = Limits(attempts_per_step=1)
"""No second attempt, so that a test sees the first failure."""


@tool(mode="parallel", effect="read")
async def look(where: str = "here") -> str:
    """Look somewhere."""
    await trio.lowlevel.checkpoint()
    return f"I see {where}."


@asynccontextmanager
async def wired(path: Path, *plugins: Any) -> AsyncIterator[Kernel]:
    """A kernel with these adapters' plugins and one tool."""
    async with flightlog.open_kernel(path, discover=False, plugins=[*plugins, Bundle(tools=[look])]) as kernel:
        yield kernel


async def said(session: Session, words: str) -> Turn:
    """The turn that `words` bring about."""
    await session.followup(words)
    turn = await session.run()
    assert turn is not None
    return turn


async def asked(kernel: Kernel, model: str, name: str = "s", **options: Any) -> Turn:
    """One turn of session `name`."""
    async with kernel.session(name, model=model, **options) as session:
        return await said(session, "hello")


def messages_of(path: Path, name: str = "s") -> list[Message]:
    """What the model has been sent so far."""
    with flightlog.open_log(path, discover=False) as log:
        return list(log.session(name).messages())


def answers_of(path: Path, name: str = "s") -> list[AssistantMessage]:
    """All answers."""
    return [message for message in messages_of(path, name) if isinstance(message, AssistantMessage)]
