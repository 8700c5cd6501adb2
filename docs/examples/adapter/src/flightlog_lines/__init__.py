"""The smallest adapter with a wire of its own: lines over HTTP. A line is `w:` and words, or `end`.

Models are named `lines:MODEL`; the server is at FLIGHTLOG_LINES_URL.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

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
    Request,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    Usage,
    hookimpl,
)
from flightlog_hookspecs.errors import FailureKind, ProviderError

flightlog_contract = 1

KINDS: Final[Mapping[int, FailureKind]] = {
    401: "auth",
    403: "auth",
    408: "timeout",
    413: "context_overflow",
    429: "rate_limit",
    503: "overloaded",
}
"""What a status means; of the others, those from 500 are the server's fault and those below it the request's."""


class Lines:
    """The provider."""

    name = "lines"

    def __init__(self, url: str) -> None:
        self.host, self.port = urlsplit(url).hostname or "", urlsplit(url).port or 80

    def encode(self, part: Head | Message) -> bytes:
        """A line of JSON for each part of the request."""
        value: dict[str, object] = {"kind": "head"}
        if isinstance(part, Head):
            tools = [[tool.name, tool.description, tool.parameters] for tool in part.tools]
            value |= {"model": part.model, "system": part.system, "tools": tools}
        else:
            value = {"kind": part.kind, "text": part.text}
        if isinstance(part, AssistantMessage):
            value["calls"] = [
                [block.name, block.arguments] for block in part.content if isinstance(block, ToolCallBlock)
            ]
        return json.dumps(value).encode() + b"\n"

    def body(self, request: Request) -> bytes:
        """The fragments and nothing else: their hash is in the log."""
        return b"".join(request.fragments)

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        """One request, whatever comes of it; leaving the context hangs up."""
        try:
            connection = await trio.open_tcp_stream(self.host, self.port)
        except OSError as error:
            raise ProviderError("transport", str(error)) from None
        try:
            body = self.body(request)
            await connection.send_all(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            received = Received(connection)
            head = (await received.until(b"\r\n\r\n")).decode().split("\r\n")
            if (status := int(head[0].split()[1])) >= 400:
                raise self.refusal(status, dict(line.lower().split(": ", 1) for line in head[1:] if line))
            async with aclosing(received.lines()) as lines:
                yield self.events(lines)
        finally:
            await self.hang_up(connection)

    def refusal(self, status: int, headers: Mapping[str, str]) -> ProviderError:
        """What an error status comes to, and the server's wish to wait."""
        wish = headers.get("retry-after", "")
        kind = KINDS.get(status, "server" if status >= 500 else "bad_request")
        return ProviderError(kind, "refused", retry_after_s=float(wish) if wish.isdigit() else None)

    async def hang_up(self, connection: trio.SocketStream) -> None:
        """Nothing is kept open."""
        await connection.aclose()

    async def events(self, lines: AsyncGenerator[str, None]) -> AsyncGenerator[BlockEvent, None]:
        """Each word as it arrives. Lines that end without `end` are a failure, which `lines` has raised."""
        said: list[str] = []
        async for line in lines:
            for event in self.event(line, said):
                yield event

    def event(self, line: str, said: list[str]) -> list[BlockEvent]:
        """What a line says, after what was said before it."""
        opening: list[BlockEvent] = [] if said else [BlockStart(index=0, type="text")]
        if line.startswith("w:"):
            said.append(line[2:])
            return [*opening, TextDelta(index=0, text=line[2:])]
        if line == "end" and said:
            return self.end(said)
        if line:
            raise self.misread(line)
        return []

    def misread(self, line: str) -> Exception:
        """Every failure is a `ProviderError`, also one that nobody thought of."""
        return ProviderError("protocol", f"this is no line: {line!r}")

    def end(self, said: Sequence[str]) -> list[BlockEvent]:
        """The whole block, the tokens, and why it stopped."""
        block = TextBlock(text="".join(said))
        return [BlockEnd(index=0, block=block), Usage(output_tokens=len(said)), Finish(reason="stop")]


class Received:
    """A response, read as its bytes arrive."""

    def __init__(self, connection: trio.SocketStream) -> None:
        self.connection, self.rest = connection, b""

    async def until(self, end: bytes) -> bytes:
        """What comes before `end`."""
        while end not in self.rest:
            await self.more()
        found, _, self.rest = self.rest.partition(end)
        return found

    async def more(self) -> None:
        """Whatever comes next, at least one byte."""
        try:
            data = await self.connection.receive_some()
        except trio.BrokenResourceError as error:
            raise ProviderError("transport", str(error)) from None
        if not data:
            raise ProviderError("transport", "the connection was closed")
        self.rest += data

    async def lines(self) -> AsyncGenerator[str, None]:
        """The lines of a chunked body."""
        text = b""
        while size := int(await self.until(b"\r\n"), 16):
            while len(self.rest) < size + 2:
                await self.more()
            text, self.rest = text + self.rest[:size], self.rest[size + 2 :]
            *whole, text = text.split(b"\n")
            for line in whole:
                yield line.decode()


@hookimpl
def register_adapters(register: Callable[[Adapter], None]) -> None:
    """Offer the adapter."""
    register(Lines(os.environ.get("FLIGHTLOG_LINES_URL", "http://127.0.0.1:8080")))
