"""One adapter before a server that plays what it is told: every attempt is watched for the rules that always hold."""

from __future__ import annotations

import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import get_args

import trio
from attrs import define, evolve, field, frozen

from flightlog.core.assembler import Assembler
from flightlog.runtime.error_groups import leaves, unwrapped
from flightlog.runtime.model_call import hung_up
from flightlog.testing.conformance.blocks import fault_of
from flightlog.testing.conformance.case import AdapterCase, Recording
from flightlog.testing.conformance.check import Broken
from flightlog.testing.conformance.server import Answer, Asked, Ending, WireServer, at_once, served
from flightlog_hookspecs import (
    Adapter,
    AssistantMessage,
    BlockEvent,
    Finish,
    Head,
    Message,
    Request,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolSpec,
    Usage,
    UserMessage,
)
from flightlog_hookspecs.errors import FailureKind, ProviderError

HELLO = UserMessage(message_id="m", content=(TextBlock(text="hello"),))
LOOK = ToolSpec(name="look", description="Look.", parameters='{"type":"object","properties":{}}')

EVERY_FAILURE = "every failure is a ProviderError of a known kind"
ONE_REQUEST = "an attempt is one request: retrying is the kernel's"
NO_HANGING = "nothing hangs"
BLOCK_PROTOCOL = "events follow the block protocol"
RIGHT_ANSWER = "the answer is what was recorded"
LEAVES_NOTHING = "nothing is left behind"


@frozen(kw_only=True)
class Outcome:
    """What an attempt came to: an answer, a failure, or neither where it was left or cancelled."""

    events: tuple[BlockEvent, ...]
    message: AssistantMessage | None = None
    failure: ProviderError | None = None


@define
class Bench:
    """One adapter, and the server that it talks to."""

    case: AdapterCase
    adapter: Adapter
    server: WireServer
    _answer: list[Answer]
    """The one that the server gives next."""
    recording: str = field(default="", init=False)

    @property
    def head(self) -> Head:
        """A head for the server's address."""
        model = self.case.model.replace("{url}", self.server.url)
        return Head(adapter=self.case.name, model=model, system="Be brief.", tools=(LOOK,))

    def request(self, *messages: Message, head: Head | None = None) -> Request:
        """A request with these messages, encoded; with none it says hello."""
        head, messages = head or self.head, messages or (HELLO,)
        fragments = tuple(self.adapter.encode(part) for part in (head, *messages))
        return Request(head=head, messages=messages, fragments=fragments)

    def broken(self, rule: str, what: str, frame: int | None = None) -> Broken:
        """The error that says so."""
        return Broken(rule, what, recording=self.recording, frame=frame)

    async def attempt(
        self,
        answer: Answer,
        *,
        frame: int | None = None,
        request: Request | None = None,
        scope: trio.CancelScope | None = None,
        watch: Callable[[Sequence[BlockEvent]], bool] | None = None,
        to_the_end: bool = False,
    ) -> Outcome:
        """One attempt as the kernel makes it, with `answer` from the server.

        `frame` is what errors name. `watch` is shown the events after each; the stream is left when it says
        True. Stops at `Finish` as the kernel does, unless `to_the_end`. Raises `Broken` for what no attempt
        may do; may be cancelled through `scope`, and is given `patience_s` without one.
        """
        self._answer[0], self.server.hung_up = answer, trio.Event()
        asked, own = len(self.server.asked), scope or trio.CancelScope(deadline=self.patience())
        events: list[BlockEvent] = []
        failure: ProviderError | None = None
        fault: str | None = None
        left = False
        with own:
            try:
                made = request or self.request()
                async with self.adapter.stream(made, 1) as stream, hung_up(stream):
                    async for event in stream:
                        events.append(event)
                        # Told only when the adapter has been left: it may make something else of an error.
                        fault = fault_of(events)
                        left = watch is not None and watch(events)
                        if fault or left or (isinstance(event, Finish) and not to_the_end):
                            break
            except BaseException as error:
                failure = self._failure(error, own, frame)
        if fault:
            raise self.broken(BLOCK_PROTOCOL, fault, frame)
        if own.cancel_called and own.deadline <= trio.current_time():
            raise self.broken(NO_HANGING, f"nothing came of it in {self.case.patience_s:g} s", frame)
        if (made_requests := len(self.server.asked) - asked) > 1:
            raise self.broken(ONE_REQUEST, f"it sent {made_requests}", frame)
        if left or own.cancel_called or failure:
            return Outcome(events=tuple(events), failure=failure)
        return _assembled(events)

    async def within_patience(
        self, of: Callable[[], Awaitable[object]], rule: str, what: str, frame: int | None = None
    ) -> None:
        """Await `of()`; raise `Broken` if it takes too long."""
        with trio.move_on_at(self.patience()) as scope:
            await of()
        if scope.cancelled_caught:
            raise self.broken(rule, what, frame)

    def patience(self) -> float:
        """When something that begins now counts as hanging."""
        return trio.current_time() + self.case.patience_s

    def _failure(self, error: BaseException, scope: trio.CancelScope, frame: int | None) -> ProviderError | None:
        """The failure that `error` is. Raises `Broken` for what is none, and lets a cancel through."""
        if any(isinstance(leaf, (trio.Cancelled, KeyboardInterrupt)) for leaf in leaves(error)):
            raise error
        if scope.cancel_called:
            return None  # many libraries answer a cancel with an error of their own
        error = unwrapped(error)
        if not isinstance(error, ProviderError):
            raise self.broken(EVERY_FAILURE, f"{type(error).__name__} came out: {error}", frame) from error
        if error.kind not in get_args(FailureKind):
            raise self.broken(EVERY_FAILURE, f"there is no kind {error.kind!r}", frame) from error
        return error


def _assembled(events: Sequence[BlockEvent]) -> Outcome:
    assembler = Assembler()
    for event in events:
        assembler.push(event)
    try:
        return Outcome(events=tuple(events), message=assembler.message(1))
    except ProviderError as error:
        return Outcome(events=tuple(events), failure=error)


def told(recording: Recording, ending: Ending = "whole", frames: int | None = None, extra: bytes = b"",
         pace: Callable[[int], Awaitable[object]] = at_once) -> Answer:  # fmt: skip
    """The first `frames` frames of a recording (None: all), then `extra`, then `ending`."""
    chunks = [frame.raw for frame in recording.frames[:frames]]
    return Answer(chunks=[*chunks, *([extra] if extra else [])], ending=ending, pace=pace)


def difference(message: AssistantMessage, recording: Recording, *, usage: bool = False) -> str | None:
    """How `message` differs from the recorded answer; its tokens count with `usage`."""
    if message.finish != recording.finish:
        return f"it finished by {message.finish!r}, not {recording.finish!r}"
    expected = recording.content
    if len(expected) != len(message.content):
        return f"it has {len(message.content)} blocks, not {len(expected)}: {message.content}"
    for index, (block, wanted) in enumerate(zip(message.content, expected, strict=True)):
        given = block
        if isinstance(given, ThinkingBlock) and isinstance(wanted, ThinkingBlock) and not wanted.replay:
            given = evolve(given, replay="")
        if isinstance(given, ToolCallBlock) and isinstance(wanted, ToolCallBlock) and not wanted.call_id:
            given = evolve(given, call_id="")
        if given != wanted:
            return f"block {index} is {given}, not {wanted}"
    tokens = Usage(
        input_tokens=message.input_tokens,
        output_tokens=message.output_tokens,
        cached_tokens=message.cached_tokens,
        cache_write_tokens=message.cache_write_tokens,
    )
    if usage and recording.usage not in (None, tokens):
        return f"its tokens are {tokens}, not {recording.usage}: each is counted once"
    return None


@asynccontextmanager
async def bench(case: AdapterCase) -> AsyncIterator[Bench]:
    """A bench while the context lasts. Raises `Broken` if the adapter leaves a task or a connection behind."""
    tasks = trio.lowlevel.current_statistics().tasks_living
    next_answer = [Answer(chunks=[])]

    def answer(asked: Asked) -> Answer:
        return next_answer[0]

    async with served(answer) as server:
        made = Bench(case, case.adapter(server.url), server, next_answer)
        try:
            yield made
        except BaseException:
            if close := getattr(made.adapter, "aclose", None):
                await close()
            raise
        made.recording = ""
        if close := getattr(made.adapter, "aclose", None):
            await made.within_patience(close, NO_HANGING, "aclose does not return")
        await made.within_patience(
            server.all_closed, LEAVES_NOTHING, "a connection is open after aclose; an adapter that keeps some needs one"
        )
    if left := trio.lowlevel.current_statistics().tasks_living - tasks:
        raise Broken(LEAVES_NOTHING, f"{left} tasks are still running")


@asynccontextmanager
async def no_warnings() -> AsyncIterator[None]:
    """Raise `Broken` if what happens in the context leaves something unclosed to the garbage collector."""
    gc.collect()  # what others have left is not counted
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    for warning in caught:
        if issubclass(warning.category, ResourceWarning):
            raise Broken(LEAVES_NOTHING, f"ResourceWarning: {warning.message}")
