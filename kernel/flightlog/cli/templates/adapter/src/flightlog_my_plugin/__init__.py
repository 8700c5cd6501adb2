"""An adapter: it encodes what the model is to see, and yields what the model says as it arrives.

This one reaches nothing: its model says what it was told last. Models are named `my-plugin:MODEL`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from flightlog_hookspecs import (
    Adapter,
    BlockEnd,
    BlockEvent,
    BlockStart,
    Finish,
    Head,
    Message,
    Request,
    TextBlock,
    TextDelta,
    UserMessage,
    hookimpl,
)

flightlog_contract = 1


class MyPlugin:
    """The provider. What it raises is a `ProviderError`, whatever went wrong."""

    name = "my-plugin"

    def encode(self, part: Head | Message) -> bytes:
        """One part of a request, the same bytes every time: what is sent is made of them and of nothing else."""
        if isinstance(part, Head):
            tools = [[tool.name, tool.description, tool.parameters] for tool in part.tools]
            return json.dumps({"model": part.model, "system": part.system, "tools": tools}).encode()
        return json.dumps({"role": part.kind, "text": part.text}).encode()

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        """Hang up when the context is left. Nothing is tried again here: that is the kernel's."""
        told = [message.text for message in request.messages if isinstance(message, UserMessage)]
        yield _said(told[-1] if told else "nothing")


async def _said(text: str) -> AsyncIterator[BlockEvent]:
    yield BlockStart(index=0, type="text")
    for word in text.split(" "):
        yield TextDelta(index=0, text=f"{word} ")
    yield BlockEnd(index=0, block=TextBlock(text=f"{text} "))
    yield Finish(reason="stop")


@hookimpl
def register_adapters(register: Callable[[Adapter], None]) -> None:
    """Offer the adapter."""
    register(MyPlugin())
