"""What a message is made of: blocks, in the order the model produced or is shown them."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

BlockType = Literal["text", "thinking", "tool_call"]


@frozen(kw_only=True)
class TextBlock:
    """Words: shown to people and sent to the model. May be empty; never altered."""

    text: str


@frozen(kw_only=True)
class ThinkingBlock:
    """A model's reasoning.

    `replay` is the provider's own state for this block (a signature, encrypted reasoning),
    JSON text kept verbatim and sent back to the same provider; empty when there is none.
    """

    text: str
    replay: str = ""


@frozen(kw_only=True)
class ToolCallBlock:
    """A call the model asks for.

    `call_id` is the provider's id and is unique only within its message; `arguments` is the raw
    text received, not yet validated and possibly not JSON.
    """

    call_id: str
    name: str
    arguments: str


Block = TextBlock | ThinkingBlock | ToolCallBlock


def text_of(blocks: tuple[Block, ...]) -> str:
    """The words of `blocks`, concatenated; thinking and calls contribute nothing."""
    return "".join(block.text for block in blocks if isinstance(block, TextBlock))


def text_blocks(content: str | tuple[Block, ...]) -> tuple[Block, ...]:
    """`content` as blocks: a plain string becomes one text block."""
    return (TextBlock(text=content),) if isinstance(content, str) else content
