"""The block protocol: what an adapter yields while a model answers.

Order: each block is `BlockStart`, any number of deltas of its type, `BlockEnd` with the complete
block; blocks may interleave by `index`. `Usage` may come any number of times (the last one counts),
`Alive` as well. `Finish` comes once, last. A stream that ends without `Finish` is a failure, never a
short success; so is one with a million events that are no deltas, and one from which nothing comes for
`Limits.model_idle_s`.
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
    """Unique in the stream."""
    type: BlockType
    """What the block is."""
    call_id: str = ""
    """Set for tool calls."""
    name: str = ""
    """The tool's, set for tool calls."""


@frozen(kw_only=True)
class TextDelta:
    """More words of text block `index`."""

    index: int
    """The block's number in the stream."""
    text: str
    """More words."""


@frozen(kw_only=True)
class ThinkingDelta:
    """More words of thinking block `index`."""

    index: int
    """The block's number in the stream."""
    text: str
    """More words."""


@frozen(kw_only=True)
class ToolCallDelta:
    """More raw argument text of tool call block `index`."""

    index: int
    """The block's number in the stream."""
    text: str
    """More raw argument text."""


@frozen(kw_only=True)
class BlockEnd:
    """Closes block `index` with the complete block, which is what enters the message."""

    index: int
    """The block's number in the stream."""
    block: Block
    """The whole block, which is what enters the message."""


@frozen(kw_only=True)
class Usage:
    """Tokens of this attempt, each counted once: what was sent is the sum of the three kinds of input."""

    input_tokens: int = 0
    """What was sent and only read."""
    output_tokens: int = 0
    """What was answered, thinking included."""
    cached_tokens: int = 0
    """What was sent and came from a cache."""
    cache_write_tokens: int = 0
    """What was sent and went into a cache."""


@frozen(kw_only=True)
class Finish:
    """The model stopped. `replay` is message-level provider state (JSON text), sent back verbatim."""

    reason: FinishReason
    """Why it stopped."""
    replay: str = ""
    """Message-level provider state (JSON text), sent back verbatim; "" for none."""


@frozen(kw_only=True)
class Alive:
    """Something arrived that brings nothing for the message, such as a ping: the model is still at work.

    Not for what a proxy sends by itself to keep a connection open: that says nothing of the model.
    """


BlockEvent = BlockStart | TextDelta | ThinkingDelta | ToolCallDelta | BlockEnd | Usage | Finish | Alive
