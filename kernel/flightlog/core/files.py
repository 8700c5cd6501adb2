"""Files in messages: which ones are taken in, and messages without the bytes of theirs."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final, TypeVar

from attrs import evolve

from flightlog.core.limits import FILE_MAX_BYTES, FILE_NAME_MAX_CHARS
from flightlog.core.shape import misfit
from flightlog_hookspecs.content import FileBlock
from flightlog_hookspecs.events import Event

_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}", re.ASCII)
_CONTROL: Final = re.compile("[\0-\x1f\x7f]")

T = TypeVar("T")


def refusal(block: FileBlock) -> str:
    """Why a message cannot hold `block`; "" when it can."""
    if wrong := misfit(block):
        return f"the {wrong} of a file is not what it must be; make one with FileBlock.of"
    shown = block.label[:FILE_NAME_MAX_CHARS]
    if len(block.name) > FILE_NAME_MAX_CHARS or _CONTROL.search(block.name):
        return f"a file's name has at most {FILE_NAME_MAX_CHARS} characters, none of them for control: {shown!r}"
    if not _MEDIA_TYPE.fullmatch(block.media_type):
        return f"{block.media_type[:80]!r} is not a media type such as image/png"
    if not block.data:
        return f"the {shown} has no bytes" + ("; one from a log has to be read first" if block.size_bytes else "")
    if len(block.data) > FILE_MAX_BYTES:
        return f"the file {block.name!r} is larger than the {FILE_MAX_BYTES} bytes that one in a message can have"
    if (len(block.data), sha256(block.data).hexdigest()) != (block.size_bytes, block.sha256):
        return f"the {shown} does not hold the bytes that its size and hash are of; make it with FileBlock.of"
    return ""


def files_in(value: object) -> tuple[FileBlock, ...]:
    """The files in the content of an event, a message or a letter; () for what has no content."""
    content = getattr(value, "content", None)
    return tuple([block for block in content if isinstance(block, FileBlock)]) if content else ()


def bare(event: Event) -> Event:
    """`event` without the bytes of its files: what is kept in memory."""
    return filled(event, dict.fromkeys((file.sha256 for file in files_in(event)), b""))


def filled(value: T, data: dict[str, bytes]) -> T:
    """`value`, an event or a message, its files with the bytes that `data` has for their hashes."""
    if not data:
        return value
    content = (
        evolve(block, data=data[block.sha256]) if isinstance(block, FileBlock) else block
        for block in value.content  # type: ignore[attr-defined]
    )
    return evolve(value, content=tuple(content))  # type: ignore[misc]
