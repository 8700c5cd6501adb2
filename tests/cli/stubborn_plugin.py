"""A plugin for the command line's tests: a model that stalls where it is told to, a tool that heeds nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from flightlog_hookspecs import (
    Adapter,
    AssistantMessage,
    BlockEnd,
    BlockEvent,
    BlockStart,
    Finish,
    Head,
    Message,
    PromptSection,
    Request,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    Tool,
    ToolCallBlock,
    hookimpl,
    tool,
)
from flightlog_hookspecs.errors import ProviderError


@tool(effect="external")
async def stubborn() -> str:
    """Never end, whatever anybody says."""
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()
    return "unreachable"


@tool(effect="external", isolation="process")
def read_pipe() -> str:
    """Return what somebody writes to the named pipe `pipe`, however long that takes."""
    return Path("pipe").read_text()


class StallingAdapter:
    """Model "stream" stalls after two words, one named like a tool calls it, any other answers."""

    name = "stall"

    def encode(self, part: Head | Message) -> bytes:
        """Anything that is stable will do."""
        return json.dumps(repr(part)).encode()

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        """Play the model's part."""
        yield _played(request, attempt)


async def _played(request: Request, attempt: int) -> AsyncIterator[BlockEvent]:
    answered = any(isinstance(message, AssistantMessage) for message in request.messages)
    text = "said"
    match request.head.model:
        case "stream":
            yield BlockStart(index=0, type="text")
            yield TextDelta(index=0, text="one ")
            yield TextDelta(index=0, text="two ")
            await trio.sleep_forever()
        case "stubborn" | "read_pipe" as name if not answered:
            yield BlockStart(index=0, type="tool_call", call_id="c", name=name)
            yield BlockEnd(index=0, block=ToolCallBlock(call_id="c", name=name, arguments="{}"))
            yield Finish(reason="tool_calls")
            return
        case "whole":
            text = "said in one piece"
        case "flaky" if attempt == 1:
            raise ProviderError("transport", "the line went dead", retry_after_s=0.0)
        case "think":
            yield BlockStart(index=1, type="thinking")
            yield ThinkingDelta(index=1, text="pondering")
            yield BlockEnd(index=1, block=ThinkingBlock(text="pondering"))
        case "fickle" if request.messages[-1].text == "bad":
            raise ProviderError("bad_request", "not that")
        case "capped":
            yield BlockStart(index=0, type="text")
            yield BlockEnd(index=0, block=TextBlock(text="cut sho"))
            yield Finish(reason="length")
            return
    yield BlockStart(index=0, type="text")
    yield BlockEnd(index=0, block=TextBlock(text=text))
    yield Finish(reason="stop")


@hookimpl
def register_tools(register: Callable[[Tool], None]) -> None:
    """Offer the tools."""
    register(stubborn)
    register(read_pipe)


@hookimpl
def register_adapters(register: Callable[[Adapter], None]) -> None:
    """Offer the model."""
    register(StallingAdapter())


@hookimpl
def register_prompt_sections(register: Callable[[PromptSection], None]) -> None:
    """Offer a piece of the system text."""
    register(PromptSection(name="house", rank=1, render=lambda: "House rules."))
