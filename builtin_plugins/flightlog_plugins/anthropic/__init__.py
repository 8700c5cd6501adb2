"""Claude models by Anthropic's Messages API: `anthropic:MODEL`, with the extra `anthropic`.

    anthropic:MODEL?max_tokens=32000      tokens of an answer, thinking included
        &thinking=adaptive                or disabled, between_tools, or a budget in tokens
        &display=summarized               or omitted: how thinking is shown
        &effort=high                      low, medium, high, xhigh or max
        &cache=5m                         how long the provider keeps what was sent: 5m, 1h or off
        &base_url=https://...             another address; else ANTHROPIC_BASE_URL, else Anthropic's
        &key_env=NAME                     the variable that holds the key; else ANTHROPIC_API_KEY

Thinking goes back as it came, as long as the head stays what it was: the provider binds it to all that
stood before it. Behind another head, and with another model, it is left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from flightlog_hookspecs import Adapter, BlockEvent, Head, Message, Request, hookimpl
from flightlog_plugins.anthropic.decoding import Reading
from flightlog_plugins.anthropic.encoding import ADAPTER, body, encoded, model_name
from flightlog_plugins.wire.endpoint import Endpoint, Service
from flightlog_plugins.wire.fragments import opened

SERVICE: Final = Service(
    adapter=ADAPTER,
    sdk="anthropic",
    client="AsyncAnthropic",
    path="/v1/messages",
    key_env="ANTHROPIC_API_KEY",
    base_url_env="ANTHROPIC_BASE_URL",
)


class AnthropicAdapter:
    """Speaks the Messages API."""

    name = ADAPTER

    def __init__(self) -> None:
        self._endpoint = Endpoint(SERVICE)

    def encode(self, part: Head | Message) -> bytes:
        """The head of the body, or the content blocks of a message."""
        return encoded(part)

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:  # noqa: ARG002
        """Send it."""
        tag, _ = opened(request.fragments[0])
        reading = Reading(tag)
        async with self._endpoint.events(model_name(request.head), body(request.fragments), reading.read) as events:
            yield events

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()


@hookimpl
def register_adapters(register: Callable[[Adapter], None]) -> None:
    """Offer Anthropic's models."""
    register(AnthropicAdapter())
