"""The adapter of every provider: what differs is how parts are encoded and how the stream is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from flightlog_hookspecs import BlockEvent, Head, Message, Request
from flightlog_plugins.wire.endpoint import Endpoint, Read, Service
from flightlog_plugins.wire.fragments import opened
from flightlog_plugins.wire.model_name import COMMON, ModelName, parsed


class WireAdapter:
    """Sends the encoded parts to `service`. `reading` makes the reader of one answer, given the head's tag."""

    def __init__(
        self,
        service: Service,
        encoded: Callable[[Head | Message], bytes],
        model_name: Callable[[Head], ModelName],
        body: Callable[[Sequence[bytes]], bytes],
        reading: Callable[[str, Request, ModelName], Read],
        *,
        window: int | None = None,
        bound_thinking: bool = False,
    ) -> None:
        self.name = service.adapter
        self._endpoint = Endpoint(service)
        self._encoded = encoded
        self._model_name = model_name
        self._body = body
        self._reading = reading
        self._window = window
        self.bound_thinking = bound_thinking

    def window(self, model: str) -> int | None:
        """The tokens that a request and its answer may have: as the name says, else what all models here can take."""
        named = parsed(model, COMMON).options.get("window")
        return int(named) if named else self._window

    def encode(self, part: Head | Message) -> bytes:
        """The head of the body, or one message."""
        return self._encoded(part)

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:  # noqa: ARG002
        """Send it."""
        model = self._model_name(request.head)
        tag, _ = opened(request.fragments[0])
        read = self._reading(tag, request, model)
        async with self._endpoint.events(model, self._body(request.fragments), read) as events:
            yield events

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()
