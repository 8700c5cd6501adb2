"""Adapters like the one of the examples, each with one fault: what stands in its class is all that is wrong with it."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import count
from pathlib import Path

import trio

from flightlog.testing.conformance import AdapterCase, Frame, Recording
from flightlog_hookspecs import (
    Adapter,
    BlockEvent,
    Finish,
    Head,
    Message,
    Request,
    TextBlock,
    Usage,
)
from flightlog_hookspecs.errors import ProviderError

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples" / "adapter" / "src"))
from flightlog_lines import Lines

RECORDING = Recording(
    name="two-words",
    frames=[Frame(b"w:Good\n", "Good"), b"\n", Frame(b"w: day\n", " day"), b"end\n"],
    content=(TextBlock(text="Good day"),),
    usage=Usage(output_tokens=2),
)


def case(adapter: Callable[[str], Adapter], patience_s: float = 30.0) -> AdapterCase:
    return AdapterCase(
        name="lines",
        adapter=adapter,
        model="m",
        recordings=[RECORDING],
        garbage=[b"rubbish\n"],
        patience_s=patience_s,
    )


class YieldsAllAtTheEnd(Lines):
    async def events(self, lines: AsyncGenerator[str, None]) -> AsyncGenerator[BlockEvent, None]:
        for event in [event async for event in super().events(lines)]:
            yield event


class TakesACutForTheEnd(Lines):
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


class EncodesByACount(Lines):
    encoded = count()

    def encode(self, part: Head | Message) -> bytes:
        return super().encode(part) + b"%d\n" % next(self.encoded)


class EncodesWhatItSawFirst(Lines):
    first: Head | Message | None = None

    def encode(self, part: Head | Message) -> bytes:
        self.first = self.first or part
        return super().encode(part) + ascii(self.first).encode()


class RaisesItsOwnErrors(Lines):
    def misread(self, line: str) -> Exception:
        return ValueError(f"this is no line: {line!r}")


class NeverHangsUp(Lines):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.kept: list[trio.SocketStream] = []

    async def hang_up(self, connection: trio.SocketStream) -> None:
        self.kept.append(connection)

    async def aclose(self) -> None:
        for connection in self.kept:
            await connection.aclose()


class FinishesBeforeTheLastBlock(Lines):
    def end(self, said: Sequence[str]) -> list[BlockEvent]:
        *before, finish = super().end(said)
        return [finish, *before]


class ForgetsWords(Lines):
    def end(self, said: Sequence[str]) -> list[BlockEvent]:
        return super().end(said[:1])


class CountsBelowZero(Lines):
    def end(self, said: Sequence[str]) -> list[BlockEvent]:
        end, _, finish = super().end(said)
        return [end, Usage(input_tokens=-1), finish]


class CountsTwice(Lines):
    def end(self, said: Sequence[str]) -> list[BlockEvent]:
        end, _, finish = super().end(said)
        return [end, Usage(output_tokens=2, cached_tokens=2), finish]


class SendsMoreThanItsFragments(Lines):
    def body(self, request: Request) -> bytes:
        return super().body(request) + request.head.system.encode()


class RewritesWhatItSent(Lines):
    def body(self, request: Request) -> bytes:
        return b"%d\n" % len(request.fragments) + super().body(request)


class GivesUpWhenTheConnectionBreaks(Lines):
    async def events(self, lines: AsyncGenerator[str, None]) -> AsyncGenerator[BlockEvent, None]:
        try:
            async with aclosing(super().events(lines)) as events:
                async for event in events:
                    yield event
        except ProviderError as error:
            raise ProviderError("protocol", error.message) from None


class HasOneKindForAll(Lines):
    def refusal(self, status: int, headers: dict[str, str]) -> ProviderError:
        return ProviderError("server", "refused")


class NeverWaits(Lines):
    def refusal(self, status: int, headers: dict[str, str]) -> ProviderError:
        return super().refusal(status, {})


class RetriesByItself(Lines):
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


class LeavesATask(Lines):
    async def hang_up(self, connection: trio.SocketStream) -> None:
        await super().hang_up(connection)
        trio.lowlevel.spawn_system_task(trio.sleep, 0.5)


class HasAnotherName(Lines):
    name = "other"
