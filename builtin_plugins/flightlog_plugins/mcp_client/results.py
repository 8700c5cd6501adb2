"""A server's answer to a call as the output of a tool, by fixed rules.

| in the answer | becomes |
|---|---|
| text | text; texts behind one another are one, with line ends between them |
| image, audio | a file |
| embedded resource | its text under its address, or a file |
| link to a resource | a line that names it |
| structured content | JSON text, unless a text of the answer says the same |
| what is no base64, is empty or has no media type | a line that says so |

Nothing that an answer links to is fetched.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final
from urllib.parse import urlsplit

from flightlog_hookspecs import Block, FileBlock, TextBlock, ToolOutput

FILE_MAX_BYTES: Final = 20 * 1024 * 1024
NAME_MAX_CHARS: Final = 100

_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9][\w!#$&^.+-]{0,126}/[A-Za-z0-9][\w!#$&^.+-]{0,126}(;.*)?", re.ASCII)


def output_of(content: Iterable[Any], structured: object, *, is_error: bool) -> ToolOutput:
    """The output that `content`, the SDK's blocks, and `structured` content make."""
    blocks = [block for part in content for block in _blocks(part)]
    if structured is not None and not any(_says(block, structured) for block in blocks):
        blocks.append(TextBlock(text=json.dumps(structured, ensure_ascii=False)))
    return ToolOutput(content=tuple(_joined(blocks)), is_error=is_error)


def _joined(blocks: Iterable[Block]) -> Iterator[Block]:
    for texts, run in groupby(blocks, lambda block: isinstance(block, TextBlock)):
        if texts:
            yield TextBlock(text="\n".join(block.text for block in run if isinstance(block, TextBlock)))
        else:
            yield from run


def _blocks(part: Any) -> Iterator[Block]:
    match part.type:
        case "text":
            yield TextBlock(text=part.text)
        case "image" | "audio":
            yield _file(part.type, part.data, part.mime_type, "")
        case "resource":
            resource, address = part.resource, str(part.resource.uri)
            if hasattr(resource, "text"):
                yield TextBlock(text=f"[resource {address}]\n{resource.text}")
            else:
                yield _file("resource", resource.blob, resource.mime_type or "", address)
        case "resource_link":
            about = ", ".join(filter(None, (part.name, part.mime_type, part.description)))
            yield TextBlock(text=f"[resource {part.uri}: {about}]")
        case other:
            yield TextBlock(text=f"[{other}, which cannot be shown]")


def _file(kind: str, encoded: str, media_type: str, address: str) -> Block:
    what = f"{kind} {address}".strip()
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return TextBlock(text=f"[{what}: its data is no base64]")
    if not data:
        return TextBlock(text=f"[{what}: it is empty]")
    if len(data) > FILE_MAX_BYTES:
        return TextBlock(text=f"[{what}: its {len(data)} bytes are more than the {FILE_MAX_BYTES} that can be kept]")
    if not _MEDIA_TYPE.fullmatch(media_type):
        media_type = "application/octet-stream"
    return FileBlock.of(data, name=_name(address), media_type=media_type)


def _name(address: str) -> str:
    """The last part of an address, as far as it can name a file."""
    last = urlsplit(address).path.rstrip("/").rpartition("/")[2]
    return "".join(char for char in last if char.isprintable())[-NAME_MAX_CHARS:]


def _says(block: Block, structured: object) -> bool:
    """Whether `block` is the text of `structured`, or of the one result that the SDK's servers wrap in an object."""
    if not isinstance(block, TextBlock):
        return False
    result = structured.get("result") if isinstance(structured, dict) and len(structured) == 1 else None
    if block.text == result:
        return True
    try:
        said = json.loads(block.text)
    except (ValueError, RecursionError):
        return False
    return bool(said in (structured, result)) and said is not None
