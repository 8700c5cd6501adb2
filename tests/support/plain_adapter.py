"""The smallest adapter with a wire of its own: lines over HTTP. And ones like it, each with one fault.

A line is `w:` and words, or `end`. What stands in a class below its docstring is all that is wrong with it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import count
from urllib.parse import urlsplit

import trio

from flightlog.testing.conformance import AdapterCase, Frame, Recording
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
    Usage,
)
from flightlog_hookspecs.errors import FailureKind, ProviderError

KINDS: dict[int, FailureKind] = {
    401: "auth",
    403: "auth",
    408: "timeout",
    413: "context_overflow",
    429: "rate_limit",
    503: "overloaded",
}
RECORDING = Recording(
    name="two-words",
    frames=[Frame(b"w:Good\n", "Good"), b"\n", Frame(b"w: day\n", " day"), b"end\n"],
    content=(TextBlock(text="Good day"),),
    usage=Usage(output_tokens=2),
)


def case(adapter: Callable[[str], Adapter], patience_s: float = 30.0) -> AdapterCase:
    return AdapterCase(
        name="plain",
        adapter=adapter,
        model="m",
        recordings=[RECORDING],
        garbage=[b"rubbish\n"],
        patience_s=patience_s,
    )


class Plain:
    """Keeps all rules."""

    name = "plain"

    def __init__(self, url: str) -> None:
        self.host, self.port = urlsplit(url).hostname or "", urlsplit(url).port or 0

    def encode(self, part: Head | Message) -> bytes:
        return ascii(part).encode() + b"\n"

    def body(self, request: Request) -> bytes:
        return b"".join(request.fragments)

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
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
                raise self.refusal(status, dict(line.split(": ", 1) for line in head[1:] if line))
            async with aclosing(received.lines()) as lines:
                yield self.events(lines)
        finally:
            await self.hang_up(connection)

    def refusal(self, status: int, headers: dict[str, str]) -> ProviderError:
        wish = headers.get("retry-after", "")
        kind = KINDS.get(status, "server" if status >= 500 else "bad_request")
        return ProviderError(kind, "refused", retry_after_s=float(wish) if wish.isdigit() else None)

    async def hang_up(self, connection: trio.SocketStream) -> None:
        await connection.aclose()

    async def events(self, lines: AsyncGenerator[str, None]) -> AsyncGenerator[BlockEvent, None]:
        said: list[str] = []
        async for line in lines:
            for event in self.event(line, said):
                yield event

    def event(self, line: str, said: list[str]) -> list[BlockEvent]:
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
        return ProviderError("protocol", f"this is no line: {line!r}")

    def end(self, said: Sequence[str]) -> list[BlockEvent]:
        block = TextBlock(text="".join(said))
        return [BlockEnd(index=0, block=block), Usage(output_tokens=len(said)), Finish(reason="stop")]


class Received:
    """A response, read as its bytes arrive."""

    def __init__(self, connection: trio.SocketStream) -> None:
        self.connection, self.rest = connection, b""

    async def until(self, end: bytes) -> bytes:
        while end not in self.rest:
            await self.more()
        found, _, self.rest = self.rest.partition(end)
        return found

    async def more(self) -> None:
        try:
            data = await self.connection.receive_some()
        except trio.BrokenResourceError as error:
            raise ProviderError("transport", str(error)) from None
        if not data:
            raise ProviderError("transport", "the connection was closed")
        self.rest += data

    async def lines(self) -> AsyncGenerator[str, None]:
        text = b""
        while size := int(await self.until(b"\r\n"), 16):
            while len(self.rest) < size + 2:
                await self.more()
            text, self.rest = text + self.rest[:size], self.rest[size + 2 :]
            *whole, text = text.split(b"\n")
            for line in whole:
                yield line.decode()


class YieldsAllAtTheEnd(Plain):
    async def events(self, lines: AsyncGenerator[str, None]) -> AsyncGenerator[BlockEvent, None]:
        for event in [event async for event in super().events(lines)]:
            yield event


class TakesACutForTheEnd(Plain):
    async def events(self, lines: AsyncGenerator[str, None]) -> AsyncGenerator[BlockEvent, None]:
        said: list[str] = []
        try:
            async for line in lines:
                for event in self.event(line, said):
                    yield event
                    if isinstance(event, Finish):
                        return
        except ProviderError as error:
            if error.kind != "transport":
                raise
        for event in self.end(said) if said else []:
            yield event


class EncodesByACount(Plain):
    encoded = count()

    def encode(self, part: Head | Message) -> bytes:
        return super().encode(part) + b"%d\n" % next(self.encoded)


class EncodesWhatItSawFirst(Plain):
    first: Head | Message | None = None

    def encode(self, part: Head | Message) -> bytes:
        self.first = self.first or part
        return super().encode(part) + ascii(self.first).encode()


class RaisesItsOwnErrors(Plain):
    def misread(self, line: str) -> Exception:
        return ValueError(f"this is no line: {line!r}")


class NeverHangsUp(Plain):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.kept: list[trio.SocketStream] = []

    async def hang_up(self, connection: trio.SocketStream) -> None:
        self.kept.append(connection)

    async def aclose(self) -> None:
        for connection in self.kept:
            await connection.aclose()


class FinishesBeforeTheLastBlock(Plain):
    def end(self, said: Sequence[str]) -> list[BlockEvent]:
        *before, finish = super().end(said)
        return [finish, *before]


class ForgetsWords(Plain):
    def end(self, said: Sequence[str]) -> list[BlockEvent]:
        return super().end(said[:1])


class CountsBelowZero(Plain):
    def end(self, said: Sequence[str]) -> list[BlockEvent]:
        end, _, finish = super().end(said)
        return [end, Usage(input_tokens=-1), finish]


class CountsTwice(Plain):
    def end(self, said: Sequence[str]) -> list[BlockEvent]:
        end, _, finish = super().end(said)
        return [end, Usage(output_tokens=2, cached_tokens=2), finish]


class SendsMoreThanItsFragments(Plain):
    def body(self, request: Request) -> bytes:
        return super().body(request) + request.head.system.encode()


class RewritesWhatItSent(Plain):
    def body(self, request: Request) -> bytes:
        return b"%d\n" % len(request.fragments) + super().body(request)


class GivesUpWhenTheConnectionBreaks(Plain):
    async def events(self, lines: AsyncGenerator[str, None]) -> AsyncGenerator[BlockEvent, None]:
        try:
            async with aclosing(super().events(lines)) as events:
                async for event in events:
                    yield event
        except ProviderError as error:
            raise ProviderError("protocol", error.message) from None


class HasOneKindForAll(Plain):
    def refusal(self, status: int, headers: dict[str, str]) -> ProviderError:
        return ProviderError("server", "refused")


class NeverWaits(Plain):
    def refusal(self, status: int, headers: dict[str, str]) -> ProviderError:
        return super().refusal(status, {})


class RetriesByItself(Plain):
    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        try:
            async with super().stream(request, attempt) as events:
                first = [event async for event in events]
        except ProviderError:
            async with super().stream(request, attempt) as events:
                first = [event async for event in events]
        yield replayed(first)


async def replayed(events: Sequence[BlockEvent]) -> AsyncIterator[BlockEvent]:
    for event in events:
        yield event


class LeavesATask(Plain):
    async def hang_up(self, connection: trio.SocketStream) -> None:
        await super().hang_up(connection)
        trio.lowlevel.spawn_system_task(trio.sleep, 0.5)


class HasAnotherName(Plain):
    name = "other"
