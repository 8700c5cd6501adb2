"""What a message is made of: blocks, in the order the model produced or is shown them."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

BlockType = Literal["text", "thinking", "tool_call"]


@frozen(kw_only=True)
class TextBlock:
    """Words: shown to people and sent to the model. May be empty; never altered."""

    text: str
    """May be empty; never altered."""


@frozen(kw_only=True)
class ThinkingBlock:
    """A model's reasoning, sent back to the provider that it came from."""

    text: str
    """The reasoning, as far as the provider shows it."""
    replay: str = ""
    """The provider's own state (a signature, encrypted reasoning), JSON text kept verbatim; "" for none."""


@frozen(kw_only=True)
class ToolCallBlock:
    """A call the model asks for."""

    call_id: str
    """The provider's id of the call; unique only within its message."""
    name: str
    """The tool's name."""
    arguments: str
    """The raw text received: not yet validated, possibly not JSON."""


Block = TextBlock | ThinkingBlock | ToolCallBlock


def text_of(blocks: tuple[Block, ...]) -> str:
    """The words of `blocks`, concatenated; thinking and calls contribute nothing."""
    return "".join(block.text for block in blocks if isinstance(block, TextBlock))


def text_blocks(content: str | tuple[Block, ...]) -> tuple[Block, ...]:
    """`content` as blocks: a plain string becomes one text block."""
    return (TextBlock(text=content),) if isinstance(content, str) else content
