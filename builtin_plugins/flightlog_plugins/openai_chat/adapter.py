"""The adapter of every server that speaks Chat Completions, in its dialect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flightlog_hookspecs import BlockEvent, Head, Message, Request
from flightlog_plugins.openai_chat.decoding import Reading
from flightlog_plugins.openai_chat.encoding import Dialect
from flightlog_plugins.wire.endpoint import Endpoint, Service
from flightlog_plugins.wire.fragments import opened


class ChatAdapter:
    """Speaks Chat Completions."""

    def __init__(self, service: Service, dialect: Dialect) -> None:
        self.name = dialect.adapter
        self._dialect = dialect
        self._endpoint = Endpoint(service)

    def encode(self, part: Head | Message) -> bytes:
        """The head of the body, or one message."""
        return self._dialect.encoded(part)

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:  # noqa: ARG002
        """Send it."""
        model = self._dialect.model_name(request.head)
        tag, _ = opened(request.fragments[0])
        reading = Reading(tag, request.messages, int(model.options.get("max_tokens", 0)))
        async with self._endpoint.events(model, self._dialect.body(request.fragments), reading.read) as events:
            yield events

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()
