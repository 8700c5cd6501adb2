from __future__ import annotations

from typing import Any, get_args

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core.assembler import Assembler
from flightlog_hookspecs.content import Block, BlockType, FileBlock, TextBlock, ThinkingBlock, ToolCallBlock, text_of
from flightlog_hookspecs.errors import FailureKind, ProviderError
from flightlog_hookspecs.events import AssistantMessage
from flightlog_hookspecs.stream import (
    BlockEnd,
    BlockEvent,
    BlockStart,
    Finish,
    FinishReason,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    Usage,
)
from support import values

STOP = Finish(reason="stop")
HELLO = TextBlock(text="hello")
LOOK = ToolCallBlock(call_id="c1", name="look", arguments="{}")


def block(index: int, content: Block, *deltas: BlockEvent) -> list[BlockEvent]:
    types: dict[type, BlockType] = {TextBlock: "text", ThinkingBlock: "thinking", ToolCallBlock: "tool_call"}
    return [BlockStart(index=index, type=types[type(content)]), *deltas, BlockEnd(index=index, block=content)]


def assembled(*events: Any) -> AssistantMessage:
    assembler = Assembler()
    for event in events:
        assembler.push(event)
    return assembler.message(attempt=3)


def failure(*events: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        assembled(*events)
    return caught.value


def test_a_full_answer_becomes_one_message() -> None:
    thinking = ThinkingBlock(text="hm", replay='{"signature":"s"}')
    usage = Usage(input_tokens=5, output_tokens=2, cached_tokens=1, cache_write_tokens=3)
    message = assembled(
        *block(0, thinking), *block(1, HELLO), *block(2, LOOK), usage, Finish(reason="tool_calls", replay="r")
    )
    assert message == AssistantMessage(
        attempt=3,
        content=(thinking, HELLO, LOOK),
        finish="tool_calls",
        input_tokens=5,
        output_tokens=2,
        cached_tokens=1,
        cache_write_tokens=3,
        replay="r",
    )


def test_interleaved_blocks_stand_in_the_order_of_their_index() -> None:
    events = [
        BlockStart(index=7, type="tool_call"),
        BlockStart(index=2, type="text"),
        ToolCallDelta(index=7, text="{"),
        TextDelta(index=2, text="he"),
        BlockEnd(index=7, block=LOOK),
        BlockEnd(index=2, block=HELLO),
    ]
    assert assembled(*events, STOP).content == (HELLO, LOOK)


def test_a_delta_is_handed_on_with_its_block() -> None:
    assembler = Assembler()
    assert assembler.push(BlockStart(index=4, type="thinking")) is None
    assert assembler.push(ThinkingDelta(index=4, text="hm")) == (4, "thinking", "hm")
    assert assembler.push(ThinkingDelta(index=4, text="")) is None
    assert assembler.push(BlockEnd(index=4, block=ThinkingBlock(text="hm"))) is None
    assert not assembler.finished
    assert assembler.push(STOP) is None
    assert assembler.finished


@pytest.mark.parametrize(
    "delta",
    [
        pytest.param(TextDelta(index=0, text="late"), id="of a closed block"),
        pytest.param(TextDelta(index=9, text="lost"), id="of a block that never opened"),
        pytest.param(ThinkingDelta(index=1, text="odd"), id="of another type than its block"),
        pytest.param(ToolCallDelta(index=1, text="odd"), id="of a call in a text block"),
    ],
)
def test_a_delta_out_of_place_counts_for_nothing(delta: BlockEvent) -> None:
    assembler = Assembler()
    for event in (*block(0, HELLO), BlockStart(index=1, type="text")):
        assembler.push(event)
    assert assembler.push(delta) is None
    for event in (BlockEnd(index=1, block=TextBlock(text="!")), STOP):
        assembler.push(event)
    assert assembler.message(1).content == (HELLO, TextBlock(text="!"))


def test_of_several_usages_the_last_counts() -> None:
    message = assembled(Usage(input_tokens=1), *block(0, HELLO), Usage(input_tokens=9, output_tokens=4), STOP)
    assert (message.input_tokens, message.output_tokens) == (9, 4)


@pytest.mark.parametrize("number", [-1, 2**30, 2**39, 2**63 - 1, 2**70])
def test_a_usage_that_cannot_be_is_dropped(number: int) -> None:
    message = assembled(Usage(input_tokens=1), *block(0, HELLO), Usage(cached_tokens=number), STOP)
    assert (message.input_tokens, message.cached_tokens) == (1, 0)


@pytest.mark.parametrize(
    "late", [TextDelta(index=0, text="x"), *block(1, LOOK), Usage(input_tokens=99), Finish(reason="length"), "junk"]
)
def test_whatever_comes_after_the_finish_is_dropped(late: Any) -> None:
    before = [*block(0, HELLO), Usage(input_tokens=1), STOP]
    assembler = Assembler()
    for event in before:
        assembler.push(event)
    assert assembler.push(late) is None
    assert assembler.message(3) == assembled(*before)


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        pytest.param([], "cut", id="nothing at all"),
        pytest.param(block(0, HELLO), "cut", id="no finish"),
        pytest.param([BlockStart(index=0, type="text"), STOP], "cut", id="finish inside a block"),
        pytest.param([*block(0, HELLO), BlockStart(index=1, type="tool_call"), STOP], "cut", id="an open call"),
        pytest.param([STOP], "empty", id="finish alone"),
        pytest.param([*block(0, TextBlock(text=" \n\u3000")), STOP], "empty", id="only white space"),
        pytest.param([*block(0, ThinkingBlock(text="hm")), STOP], "empty", id="only thinking"),
        pytest.param([Finish(reason="tool_calls")], "empty", id="calls announced and none made"),
        pytest.param([Finish(reason="pause")], "empty", id="a pause without words"),
        pytest.param([Finish(reason="length")], "length", id="capped before the first word"),
        pytest.param([*block(0, LOOK), Finish(reason="length")], "length", id="capped in its calls"),
        pytest.param([*block(0, ThinkingBlock(text="hm")), Finish(reason="length")], "length", id="capped in thinking"),
        pytest.param([Finish(reason="refusal")], "refusal", id="refused"),
        pytest.param([*block(0, LOOK), Finish(reason="filter")], "filter", id="filtered"),
    ],
)
def test_an_attempt_that_is_no_full_answer_fails(events: list[BlockEvent], kind: FailureKind) -> None:
    assert failure(*events).kind == kind


@pytest.mark.parametrize("reason", ["length", "refusal", "filter", "pause", "steered", "stop_sequence"])
def test_calls_in_an_answer_that_did_not_finish_them_are_left_out(reason: Any) -> None:
    message = assembled(*block(0, HELLO), *block(1, LOOK), Finish(reason=reason))
    assert message.content == (HELLO,)
    assert message.finish == reason


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([BlockStart(index=0, type="text"), BlockStart(index=0, type="text")], id="opened twice"),
        pytest.param([*block(0, HELLO), BlockStart(index=0, type="text")], id="opened again after its end"),
        pytest.param([BlockEnd(index=0, block=HELLO)], id="ended without being open"),
        pytest.param([*block(0, HELLO), BlockEnd(index=0, block=HELLO)], id="ended twice"),
        pytest.param([BlockStart(index=0, type="text"), BlockEnd(index=0, block=LOOK)], id="ended as another type"),
        pytest.param(["text"], id="a string"),
        pytest.param([None], id="nothing"),
        pytest.param([HELLO], id="a block by itself"),
        pytest.param([Usage(input_tokens=None)], id="tokens that are none"),  # type: ignore[arg-type]
        pytest.param([Usage(input_tokens=1.0)], id="tokens that are a float"),  # type: ignore[arg-type]
        pytest.param([Usage(cached_tokens=True)], id="tokens that are a bool"),
        pytest.param([Finish(reason="end_turn")], id="a reason nobody knows"),  # type: ignore[arg-type]
        pytest.param([BlockStart(index="0", type="text")], id="an index that is a string"),  # type: ignore[arg-type]
        pytest.param([BlockStart(index=0, type="image")], id="a type nobody knows"),  # type: ignore[arg-type]
        pytest.param([BlockStart(index=0, type="text"), TextDelta(index=0, text=None)], id="no text"),  # type: ignore[arg-type]
        pytest.param(block(0, evolve(LOOK, call_id=None)), id="a call without an id"),
        pytest.param(block(0, evolve(LOOK, arguments={})), id="arguments that were parsed"),
        pytest.param(block(0, TextBlock(text=b"x")), id="words that are bytes"),  # type: ignore[arg-type]
    ],
)
def test_what_breaks_the_block_protocol_fails_the_attempt(events: list[Any]) -> None:
    error = failure(*events, STOP)
    assert error.kind == "protocol"
    assert not error.retryable


@pytest.mark.parametrize(
    ("content", "joined"),
    [
        (TextBlock(text="\ud83d\ude00"), TextBlock(text="😀")),
        (evolve(LOOK, arguments='"\ud83d\ude00"'), evolve(LOOK, arguments='"😀"')),
    ],
)
def test_a_character_cut_in_two_by_the_stream_is_whole_in_the_message(content: Block, joined: Block) -> None:
    assert assembled(*block(0, content), STOP).content == (joined,)


STREAMED = st.one_of(*map(values.values_of, (TextBlock, ThinkingBlock, ToolCallBlock)))


def test_a_model_cannot_send_a_file() -> None:
    file = FileBlock.of(b"x", name="cat.png")
    for started in get_args(BlockType):
        assert failure(BlockStart(index=0, type=started), BlockEnd(index=0, block=file), STOP).kind == "protocol"
    assert failure(BlockStart(index=0, type="file"), STOP).kind == "protocol"  # type: ignore[arg-type]


@given(st.lists(STREAMED, max_size=3), st.sampled_from(get_args(FinishReason)))
def test_no_stream_whatsoever_yields_an_empty_message(blocks: list[Block], reason: FinishReason) -> None:
    events = [event for index, content in enumerate(blocks) for event in block(index, content)]
    kept = [content for content in blocks if reason in {"stop", "tool_calls"} or not isinstance(content, ToolCallBlock)]
    if any(isinstance(content, ToolCallBlock) for content in kept) or text_of(tuple(kept)).strip():
        assert list(assembled(*events, Finish(reason=reason)).content) == kept
    else:
        kind = reason if reason in {"length", "refusal", "filter"} else "empty"
        assert failure(*events, Finish(reason=reason)).kind == kind
