"""A plugin for the tests of workers: a model that works through a list of calls, and tools that leave their mark.

The goal of a task is the list: names of tools, one a step.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from flightlog_hookspecs import (
    Adapter,
    Ask,
    AssistantMessage,
    BlockEnd,
    BlockEvent,
    BlockStart,
    Finish,
    Head,
    Hook,
    Message,
    Request,
    TextBlock,
    TextDelta,
    Tool,
    ToolCallBlock,
    ToolContext,
    hookimpl,
    tool,
)


def mark(context: ToolContext) -> None:
    """Say in the file `effects` who ran what; whole lines, from any process."""
    line = f"{os.getpid()} {context.session} {context.invocation_id}\n"
    descriptor = os.open("effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


@tool(effect="write")
async def note(context: ToolContext) -> str:
    """Leave a mark. What it says is new each time, so that a task may go on with it."""
    mark(context)
    await trio.sleep(0.005)
    return f"noted {context.step}"


@tool(effect="write")
async def ask(context: ToolContext) -> str:
    """Leave a mark, once a person has allowed it."""
    mark(context)
    return "noted"


@tool(effect="idempotent")
async def crawl(context: ToolContext) -> str:
    """Leave a mark and never end, but for the second time."""
    mark(context)
    if first_time("crawled"):
        await trio.sleep_forever()
    return "crawled"


@tool(effect="idempotent", isolation="inline")
async def sleep(context: ToolContext) -> str:
    """Sleep in C and keep the loop from everything else, but for the second time."""
    mark(context)
    if first_time("slept"):
        time.sleep(3600)  # noqa: ASYNC251  that is the point
    return "slept"


@tool(effect="idempotent", isolation="inline")
async def spin(context: ToolContext) -> str:
    """Compute in C and keep even Python's lock, but for the second time."""
    mark(context)
    if first_time("spun"):
        sum(range(10**12))
    return "spun"


@tool(effect="idempotent")
async def die(context: ToolContext) -> str:
    """End the process, each time."""
    mark(context)
    os.kill(os.getpid(), 9)
    return "unreachable"


def first_time(what: str) -> bool:
    """Whether nobody has done it before, in any process."""
    try:
        Path(what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class ListAdapter:
    """Model "list" makes the calls that the goal names, one a step; "stall" stalls after two words."""

    name = "work"

    def encode(self, part: Head | Message) -> bytes:
        """Anything that is stable will do."""
        return json.dumps(repr(part)).encode()

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        """Play the model's part."""
        yield _played(request)


async def _played(request: Request) -> AsyncIterator[BlockEvent]:
    done = sum(isinstance(message, AssistantMessage) for message in request.messages)
    names = request.messages[0].text.split()
    await trio.lowlevel.checkpoint()
    if request.head.model == "stall" and first_time("stalled"):
        yield BlockStart(index=0, type="text")
        yield TextDelta(index=0, text="one two")
        await trio.sleep_forever()
    if done < len(names) and request.head.model == "list":
        yield BlockStart(index=0, type="tool_call", call_id=f"c{done}", name=names[done])
        yield BlockEnd(index=0, block=ToolCallBlock(call_id=f"c{done}", name=names[done], arguments="{}"))
        yield Finish(reason="tool_calls")
        return
    yield BlockStart(index=0, type="text")
    yield BlockEnd(index=0, block=TextBlock(text="All is done."))
    yield Finish(reason="stop")


@hookimpl
def register_tools(register: Callable[[Tool], None]) -> None:
    """Offer the tools."""
    for each in (note, ask, crawl, sleep, spin, die):
        register(each)


@hookimpl
def register_adapters(register: Callable[[Adapter], None]) -> None:
    """Offer the model."""
    register(ListAdapter())


@hookimpl
def register_hooks(register: Callable[[Hook], None]) -> None:
    """Ask before the tool that is named so."""
    register(Hook(point="before_tool", name="asks", body=lambda call: Ask("may it?") if call.name == "ask" else None))
