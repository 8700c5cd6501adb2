"""A small HTTP server on the loopback that plays what it is told, at the pace it is told, and breaks off anywhere.

It knows no provider. `answer` is given each request and says what is sent back, and how that ends.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import trio
from attrs import define, field, frozen

Ending = Literal["whole", "eof", "cut", "reset", "stall"]
"""After the last chunk: the stream's proper end, also where it is too early ("eof" is meant to be), a closed
connection, a reset one, or nothing at all until the client hangs up."""

BODY_MAX_BYTES = 1 << 24


async def at_once(chunk: int) -> None:
    """The pace of an answer that nobody holds up."""


@frozen(kw_only=True)
class Asked:
    """One request as it came in."""

    path: str
    """What stands behind the host."""
    headers: Mapping[str, str]
    """By name in small letters."""
    raw: bytes
    """The body."""

    @property
    def body(self) -> dict[str, Any]:
        """Its JSON."""
        value: dict[str, Any] = json.loads(self.raw)
        return value


@frozen(kw_only=True)
class Answer:
    """What is sent back: chunks, one TCP write each."""

    chunks: Sequence[bytes]
    """In order; an empty one is not sent."""
    status: int = 200
    """Of HTTP."""
    headers: Mapping[str, str] = {}
    """Beside, or in place of, those of an event stream."""
    ending: Ending = "whole"
    """What comes behind the last chunk."""
    pace: Callable[[int], Awaitable[object]] = at_once
    """Awaited before each chunk with its number, and before the ending with the number of chunks."""


def refusal(status: int, body: object, **headers: str) -> Answer:
    """An error answer; underscores in the names of headers stand for hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(
        chunks=[json.dumps(body).encode()], status=status, headers={"content-type": "application/json", **named}
    )


@define
class WireServer:
    """What has come in, and where the server listens."""

    port: int
    asked: list[Asked] = field(factory=list, init=False)
    """The requests, in order."""
    connections: int = field(default=0, init=False)
    """How many there have been."""
    hung_up: trio.Event = field(factory=trio.Event, init=False)
    """Set when a client leaves an answer before its end."""
    _open: int = field(default=0, init=False)
    _idle: trio.Event = field(factory=trio.Event, init=False)

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.port}"

    async def all_closed(self) -> None:
        """Wait until no connection is open."""
        while self._open:
            await self._idle.wait()

    def _opened(self) -> None:
        self.connections += 1
        self._open += 1
        self._idle = trio.Event()

    def _closed(self) -> None:
        self._open -= 1
        if not self._open:
            self._idle.set()


@asynccontextmanager
async def served(answer: Callable[[Asked], Answer]) -> AsyncIterator[WireServer]:
    """Serve on a free port while the context lasts. A client that is still connected then is dropped."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server = WireServer(port=listeners[0].socket.getsockname()[1])

    async def connected(stream: trio.SocketStream) -> None:
        server._opened()  # noqa: SLF001
        try:
            while asked := await _received(stream):
                server.asked.append(asked)
                if not await _sent(stream, answer(asked), server):
                    return
        except (trio.BrokenResourceError, ConnectionError):
            server.hung_up.set()
        finally:
            server._closed()  # noqa: SLF001

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, connected, listeners)
        yield server
        nursery.cancel_scope.cancel()


async def _received(stream: trio.SocketStream) -> Asked | None:
    head = b""
    while b"\r\n\r\n" not in head:
        data = await stream.receive_some(65536)
        if not data:
            return None
        head += data
    head, _, raw = head.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", "0"))
    assert length <= BODY_MAX_BYTES
    while len(raw) < length:
        data = await stream.receive_some(65536)
        if not data:
            return None
        raw += data
    return Asked(path=first.split()[1], headers=headers, raw=raw)


async def _sent(stream: trio.SocketStream, answer: Answer, server: WireServer) -> bool:
    """Whether the connection may be used again."""
    headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **answer.headers}
    lines = [f"HTTP/1.1 {answer.status} OK", *(f"{name}: {value}" for name, value in headers.items())]
    await stream.send_all(("\r\n".join(lines) + "\r\n\r\n").encode())
    for number, chunk in enumerate(answer.chunks):
        await answer.pace(number)
        if chunk:
            await stream.send_all(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
    await answer.pace(len(answer.chunks))
    match answer.ending:
        case "whole" | "eof":
            await stream.send_all(b"0\r\n\r\n")
            return True
        case "reset":
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        case "stall":
            await stream.receive_some(1)
            server.hung_up.set()
        case "cut":
            pass
    await stream.aclose()
    return False
