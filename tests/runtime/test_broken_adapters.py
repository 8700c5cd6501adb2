"""Adapters that break the contract: one failed attempt or turn, never a broken session or log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from flightlog import Limits
from flightlog.runtime import metering
from flightlog.testing import Cue, FakeModel, words
from flightlog_hookspecs import (
    BlockEnd,
    BlockEvent,
    BlockStart,
    Finish,
    Head,
    Message,
    Request,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolCallBlock,
    ToolCallDelta,
    Usage,
    UserMessage,
)
from flightlog_hookspecs.errors import InvariantViolation, ProviderError, StoreError, UsageError
from flightlog_hookspecs.events import AssistantDelta, AssistantMessage, RequestFailed, RequestSent, TurnEnd
from support.kernels import events_of, records_of, session_of, trio_clock, verified

ONCE = Limits(attempts_per_step=1)
START = BlockStart(index=0, type="text")
END = BlockEnd(index=0, block=TextBlock(text="Fine."))


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Weird(BaseException):
    """Neither an error nor an exit: what foreign runtimes and test tools raise."""


async def fails_once_then_lives(path: Path, model: FakeModel) -> TurnEnd:
    """Run a turn on `model`, then one on a sound model; returns how the first ended."""
    async with session_of(path, model, limits=ONCE, clock=trio_clock()) as session:
        await session.followup("hi")
        first = await session.run()
        assert first is not None
        model.replies = [words("Fine.")] * 5
        await session.followup("again")
        second = await session.run()
        assert (second.number, second.reason, second.text) == (2, "completed", "Fine.")
    async with session_of(path, model) as session:
        assert await session.run() is None
    assert verified(path, model)
    return events_of(path, TurnEnd)[0]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("boom"),
        KeyError("k"),
        RecursionError("deep"),
        MemoryError(),
        StopAsyncIteration(),
        AssertionError("no"),
        OSError(5, "io"),
        TimeoutError(),
        SystemExit(3),
        GeneratorExit(),
        asyncio.CancelledError(),
        Weird("what"),
        Unprintable(),
        ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
        BaseExceptionGroup("several", [SystemExit(1), ValueError("b")]),
        StoreError("a plugin may not pretend that the log failed"),
        InvariantViolation("nor that the kernel is broken"),
        UsageError("nor that the host is"),
        trio.BrokenResourceError(),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("after", [[], words("Some words")[:-1]], ids=["at once", "in mid-stream"])
async def test_whatever_an_adapter_raises_costs_that_attempt_only(
    tmp_path: Path, error: BaseException, after: list[Cue]
) -> None:
    end = await fails_once_then_lives(tmp_path / "a.db", FakeModel([[*after, error]]))
    assert (end.reason, end.code) == ("error", "adapter")
    assert len(events_of(tmp_path / "a.db", RequestFailed)) == 1


async def test_a_provider_error_inside_a_group_is_still_that_error(tmp_path: Path) -> None:
    group = ExceptionGroup("nursery", [ExceptionGroup("inner", [ProviderError("auth", "no key")])])
    end = await fails_once_then_lives(tmp_path / "a.db", FakeModel([[group]]))
    assert (end.reason, end.code, end.message) == ("error", "auth", "no key")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProviderError("no such kind", "x"), "adapter"),
        (ProviderError(None, "x"), "adapter"),
        (ProviderError("auth", ValueError("not a string")), "auth"),
        (ProviderError("auth", None), "auth"),
        (ProviderError("auth", "x", retryable="yes"), "auth"),
        (ProviderError("auth", "nul\0 and lone \ud800"), "auth"),
    ],
    ids=["kind", "no kind", "message", "no message", "retryable", "odd text"],
)
async def test_a_provider_error_with_senseless_fields_leaves_a_readable_log(
    tmp_path: Path, error: ProviderError, code: str
) -> None:
    end = await fails_once_then_lives(tmp_path / "a.db", FakeModel([[error]]))
    assert (end.reason, end.code) == ("error", code)
    assert [failed.failure for failed in events_of(tmp_path / "a.db", RequestFailed)] == [code]


@pytest.mark.parametrize(
    "stream",
    [
        [START, TextDelta(index=0, text=5)],
        [START, TextDelta(index=0, text=b"bytes")],
        [START, TextDelta(index=[], text="x")],
        [BlockStart(index="a", type="text"), TextDelta(index="a", text="x"), BlockEnd(index="a", block=END.block)],
        [BlockStart(index=0, type="video"), TextDelta(index=0, text="x"), END],
        [START, BlockEnd(index=0, block=TextBlock(text=None))],
        [START, BlockEnd(index=0, block="Fine.")],
        [START, BlockEnd(index=0, block=None)],
        [BlockStart(index=0, type="thinking"), BlockEnd(index=0, block=ThinkingBlock(text="x", replay={"a": 1}))],
        [
            BlockStart(index=0, type="tool_call"),
            BlockEnd(index=0, block=ToolCallBlock(call_id=7, name="x", arguments={})),
        ],
        [START, END, Usage(input_tokens="7")],
        [START, END, Usage(input_tokens=1.5)],
        [START, END, Usage(output_tokens=None)],
        [START, END, Finish(reason="bored")],
        [START, END, Finish(reason="stop", replay={"a": 1})],
        [START, END, Finish(reason=None)],
        ["a string"],
        [None],
        [{"type": "text"}],
        [5],
    ],
)
async def test_events_of_the_wrong_type_are_a_failed_attempt_and_leave_a_readable_log(
    tmp_path: Path, stream: list[Cue]
) -> None:
    model = Yielding([])
    model.stream_events = stream
    end = await fails_once_then_lives(tmp_path / "a.db", model)
    assert (end.reason, end.code) == ("error", "protocol")


class Yielding(FakeModel):
    """Yields `stream_events` once, whatever they are, then plays its replies."""

    stream_events: list[object]

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        given, self.stream_events = self.stream_events, []
        if not given:
            async with super().stream(request, attempt) as events:
                yield events
            return

        async def play() -> AsyncIterator[object]:
            for event in given:
                await trio.lowlevel.checkpoint()
                yield event
            yield Finish(reason="stop")

        yield play()


async def test_numbers_that_no_log_can_hold_cost_one_turn(tmp_path: Path) -> None:
    model = Yielding([])
    model.stream_events = [BlockStart(index=2**70, type="text"), TextDelta(index=2**70, text="x")]
    end = await fails_once_then_lives(tmp_path / "a.db", model)
    assert end.reason == "error"


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        ([TextDelta(index=9, text="never opened"), START, TextDelta(index=0, text="Fine."), END], "Fine."),
        ([START, END, TextDelta(index=0, text=" late")], "Fine."),
        ([START, ThinkingDelta(index=0, text="wrong type"), ToolCallDelta(index=0, text="{}"), END], "Fine."),
        ([START, TextDelta(index=0, text=""), END], "Fine."),
        ([START, END, Finish(reason="stop"), *words(" more", index=1), Finish(reason="length")], "Fine."),
        ([START, END, Usage(input_tokens=1), Usage(input_tokens=9)], "Fine."),
        ([START, TextDelta(index=0, text="said something else"), END], "Fine."),
    ],
)
async def test_events_out_of_order_follow_one_fixed_rule_and_never_alter_the_message(
    tmp_path: Path, stream: list[Cue], text: str
) -> None:
    model = FakeModel([stream])
    async with session_of(tmp_path / "a.db", model) as session:
        await session.followup("hi")
        turn = await session.run()
    assert (turn.reason, turn.text) == ("completed", text)
    assert [m.text for m in events_of(tmp_path / "a.db", AssistantMessage)] == [text]
    assert verified(tmp_path / "a.db", model)


@pytest.mark.parametrize(
    "stream",
    [[START, START], [END], [START, END, END], [START, END, START], [BlockStart(index=0, type="thinking"), END]],
    ids=["opened twice", "never opened", "closed twice", "opened again", "another type"],
)
async def test_blocks_that_contradict_each_other_are_a_protocol_failure(tmp_path: Path, stream: list[Cue]) -> None:
    end = await fails_once_then_lives(tmp_path / "a.db", FakeModel([stream]))
    assert (end.reason, end.code) == ("error", "protocol")


async def test_an_answer_that_never_says_anything_ends_without_a_budget_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "ANSWER_EVENTS_MAX", 50)
    end = await fails_once_then_lives(tmp_path / "a.db", FakeModel([[Usage(output_tokens=1)] * 60]))
    assert (end.reason, end.code) == ("error", "protocol")


async def test_an_adapter_that_hangs_before_its_first_event_times_out(tmp_path: Path, autojump_clock: object) -> None:
    class Hanging(FakeModel):
        @asynccontextmanager
        async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
            if len(request.messages) == 1:
                await trio.sleep_forever()
            async with super().stream(request, attempt) as events:
                yield events

    end = await fails_once_then_lives(tmp_path / "a.db", Hanging([words("Fine.")]))
    assert (end.reason, end.code) == ("error", "timeout")


async def test_an_adapter_that_hangs_or_fails_while_hanging_up_keeps_its_complete_answer(
    tmp_path: Path, autojump_clock: object
) -> None:
    async def fail() -> None:
        raise ValueError("hanging up failed")

    for number, on_exit in enumerate((trio.sleep_forever, fail)):

        class Clumsy(FakeModel):
            on_exit: Callable[[], object]

            @asynccontextmanager
            async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
                async with super().stream(request, attempt) as events:
                    yield events
                await self.on_exit()

        model = Clumsy([words("Whole.")])
        model.on_exit = on_exit
        path = tmp_path / f"{number}.db"
        async with session_of(path, model, limits=Limits(attempts_per_step=1, model_idle_s=5)) as session:
            await session.followup("hi")
            turn = await session.run()
        assert (turn.reason, turn.text) == ("completed", "Whole.")


async def test_a_stream_that_is_no_stream_fails_the_attempt(tmp_path: Path) -> None:
    for number, answer in enumerate((None, 5, iter([]), object())):

        class Wrong(FakeModel):
            def stream(self, request: Request, attempt: int) -> object:
                if len(request.messages) == 1:
                    return answer  # noqa: B023
                return super().stream(request, attempt)

        end = await fails_once_then_lives(tmp_path / f"{number}.db", Wrong([words("Fine.")]))
        assert (end.reason, end.code) == ("error", "adapter")


async def test_a_stream_is_closed_when_it_is_left_before_its_end(tmp_path: Path) -> None:
    """A generator that is cut off after its finish must not linger until it is collected."""
    closed: list[str] = []

    class Watched(FakeModel):
        @asynccontextmanager
        async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
            async def play() -> AsyncIterator[BlockEvent]:
                try:
                    for event in [START, END, Finish(reason="stop"), Usage(), Usage()]:
                        yield event
                finally:
                    closed.append("generator")

            yield play()
            closed.append("context")

    async with session_of(tmp_path / "a.db", Watched([])) as session:
        await session.followup("hi")
        assert (await session.run()).text == "Fine."
        assert closed == ["generator", "context"]


@pytest.mark.parametrize("wrong", ["text", None, 5, bytearray(b"x")])
async def test_an_encoding_that_is_not_bytes_ends_the_turn_before_any_request(tmp_path: Path, wrong: object) -> None:
    class Wrong(FakeModel):
        broken = True

        def encode(self, part: Head | Message) -> bytes:
            return wrong if self.broken and isinstance(part, UserMessage) else super().encode(part)

    await refused_then_lives(tmp_path / "a.db", Wrong([]))


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(1), Weird("what"), Unprintable()], ids=lambda error: type(error).__name__
)
async def test_an_encoder_that_raises_ends_the_turn_before_any_request(tmp_path: Path, error: BaseException) -> None:
    class Raising(FakeModel):
        broken = True

        def encode(self, part: Head | Message) -> bytes:
            if self.broken and isinstance(part, UserMessage):
                raise error
            return super().encode(part)

    await refused_then_lives(tmp_path / "a.db", Raising([]))


async def refused_then_lives(path: Path, model: FakeModel) -> None:
    """A turn on the `broken` encoder, then one on the mended: which must send *everything*."""
    model.broken = False
    async with session_of(path, model) as session:
        await session.followup("zero")
        assert (await session.run()).reason == "completed"
        model.broken = True
        await session.followup("one")
        turn = await session.run()
        assert (turn.reason, turn.code) == ("error", "PluginError")
        assert "encode" in turn.message
        model.broken = False
        await session.followup("two")
        turn = await session.run()
        assert (turn.reason, turn.text) == ("completed", "done")
    assert [fragment for fragment in model.requests[-1] if b'"user"' in fragment] == [
        b'["user", "zero"]',
        b'["user", "one"]',
        b'["user", "two"]',
    ]
    assert len(events_of(path, RequestSent)) == 2
    assert verified(path, model)


async def test_a_cancel_that_the_adapter_turns_into_an_error_still_keeps_the_words(tmp_path: Path) -> None:
    """HTTP libraries answer a cancel with errors of their own."""
    begun = trio.Event()

    async def read() -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise OSError("socket closed") from None

    model = FakeModel([[*words("Some words"), read]])
    async with session_of(tmp_path / "a.db", model) as session, trio.open_nursery() as nursery:
        await session.followup("hi")
        nursery.start_soon(session.run)
        await begun.wait()
        session.cancel()
    (message,) = events_of(tmp_path / "a.db", AssistantMessage)
    assert (message.text, message.interrupted) == ("Some words", True)
    assert [(end.reason, end.cause) for end in events_of(tmp_path / "a.db", TurnEnd)] == [("aborted", "user")]


async def test_an_adapter_may_use_tasks_of_its_own(tmp_path: Path) -> None:
    class Tasked(FakeModel):
        @asynccontextmanager
        async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
            send, receive = trio.open_memory_channel[BlockEvent](0)

            async def produce() -> None:
                async with super(Tasked, self).stream(request, attempt) as events:
                    async for event in events:
                        await send.send(event)
                await send.aclose()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce)
                yield receive
                nursery.cancel_scope.cancel()

    model = Tasked([words("One."), words("Two.")])
    async with session_of(tmp_path / "a.db", model) as session:
        for _ in range(2):
            await session.followup("hi")
        assert (await session.run()).text == "Two."
    deltas = [r for r in records_of(tmp_path / "a.db") if isinstance(r.event, AssistantDelta)]
    assert deltas
