"""What a message is made of: blocks, in the order the model produced or is shown them."""

from __future__ import annotations

from hashlib import sha256
from mimetypes import guess_type
from typing import Literal, Self

from attrs import field, frozen

from flightlog_hookspecs.errors import UsageError

BlockType = Literal["text", "thinking", "tool_call"]
"""What a model streams. Files are only ever given to it."""


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


@frozen(kw_only=True)
class FileBlock:
    """A file given to the model by a user or a tool; an image when its media type is `image/...`. See `of`.

    The log keeps its bytes once, under their hash; the block names them.
    """

    media_type: str
    """Lower case, without parameters: `image/png`."""
    sha256: str
    """Of its bytes, in hex."""
    size_bytes: int
    """How many there are, at least one."""
    name: str = ""
    """What people call it, or "" for nothing."""
    data: bytes = field(default=b"", eq=False, repr=False)
    """The bytes, where a message is put in and where an adapter encodes one; b"" wherever else it is read."""

    @classmethod
    def of(cls, data: bytes, *, name: str = "", media_type: str = "") -> Self:
        """The block of a file that holds `data`. Its media type, unless given, is what the name's ending says.

        Raises `UsageError` when that says nothing.
        """
        if not isinstance(data, bytes) or not isinstance(name, str) or not isinstance(media_type, str):
            raise UsageError("a file is made of bytes, a name and a media type, the last two strings")
        known, packed = (media_type, None) if media_type else guess_type(f"./{name}", strict=False)
        if not known or packed:
            raise UsageError(f"the name {name!r} does not say what is in the file: give its media_type")
        plain = known.partition(";")[0].strip().lower()
        return cls(media_type=plain, sha256=sha256(data).hexdigest(), size_bytes=len(data), name=name, data=data)

    @property
    def label(self) -> str:
        """What it is, in words: `image cat.png, image/png, 12345 bytes`. Models are told, so it never changes."""
        kind = "image" if self.media_type.startswith("image/") else "file"
        return f"{f'{kind} {self.name}'.strip()}, {self.media_type}, {self.size_bytes} bytes"


Block = TextBlock | ThinkingBlock | ToolCallBlock | FileBlock


def text_of(blocks: tuple[Block, ...]) -> str:
    """The words of `blocks`, concatenated; all others contribute nothing."""
    return "".join([block.text for block in blocks if isinstance(block, TextBlock)])


def text_blocks(content: str | tuple[Block, ...]) -> tuple[Block, ...]:
    """`content` as blocks: a plain string becomes one text block."""
    return (TextBlock(text=content),) if isinstance(content, str) else content
