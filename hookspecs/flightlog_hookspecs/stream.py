"""The block protocol: what an adapter yields while a model answers.

Order: each block is `BlockStart`, any number of deltas of its type, `BlockEnd` with the complete
block; blocks may interleave by `index`. `Usage` may come any number of times (the last one counts).
`Finish` comes once, last. A stream that ends without `Finish` is a failure, never a short success.
"""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from flightlog_hookspecs.content import Block, BlockType

FinishReason = Literal["stop", "stop_sequence", "tool_calls", "length", "refusal", "filter", "pause", "steered"]


@frozen(kw_only=True)
class BlockStart:
    """Opens block `index` (unique in the stream). `call_id` and `name` are set for tool calls."""

    index: int
    type: BlockType
    call_id: str = ""
    name: str = ""


@frozen(kw_only=True)
class TextDelta:
    """More words of text block `index`."""

    index: int
    text: str


@frozen(kw_only=True)
class ThinkingDelta:
    """More words of thinking block `index`."""

    index: int
    text: str


@frozen(kw_only=True)
class ToolCallDelta:
    """More raw argument text of tool call block `index`."""

    index: int
    text: str


@frozen(kw_only=True)
class BlockEnd:
    """Closes block `index` with the complete block, which is what enters the message."""

    index: int
    block: Block


@frozen(kw_only=True)
class Usage:
    """Tokens of this attempt. `cached_tokens` are part of `input_tokens`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


@frozen(kw_only=True)
class Finish:
    """The model stopped. `replay` is message-level provider state (JSON text), sent back verbatim."""

    reason: FinishReason
    replay: str = ""


BlockEvent = BlockStart | TextDelta | ThinkingDelta | ToolCallDelta | BlockEnd | Usage | Finish
