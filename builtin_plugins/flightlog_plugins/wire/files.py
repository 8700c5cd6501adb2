"""Files as providers take them: in base64 where one can show it to its model, else in words.

What is encoded here was sent before, and is encoded again in a proof: none of it may ever change.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from typing import Final

from flightlog_hookspecs import Block, FileBlock, TextBlock
from flightlog_plugins.wire.json_text import dumps

PDF: Final = "application/pdf"
_BEGINNINGS: Final = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
    PDF: re.compile(rb"%PDF-"),
}
_TEXTS: Final = frozenset({"application/json", "application/xml", "application/yaml", "application/toml"})


def is_image(file: FileBlock) -> bool:
    """Whether it is an image of a kind that models are shown. One that begins as another would be refused."""
    return file.media_type.startswith("image/") and _is_known(file)


def is_pdf(file: FileBlock) -> bool:
    """Whether it is a PDF document."""
    return file.media_type == PDF and _is_known(file)


def base64_json(file: FileBlock) -> str:
    """Its bytes in base64, as JSON text."""
    return f'"{base64.b64encode(file.data).decode("ascii")}"'


def data_url(file: FileBlock) -> str:
    """Its bytes, of a type that is known here, as a URL and JSON text."""
    return f'"data:{file.media_type};base64,{base64_json(file)[1:]}'


def filename(file: FileBlock) -> str:
    """What a document is called, as JSON text: providers refuse one without a name."""
    return dumps(file.name.strip() or "document.pdf")


def words(block: Block) -> str:
    """What the block says in words: a text its own, a file what it is, and its text where it has one."""
    match block:
        case TextBlock():
            return block.text
        case FileBlock():
            text = _text(block)
            return f"[{block.label}: not shown to this model]" if text is None else f"[{block.label}]\n{text}"
        case _:
            return ""


def spoken(content: tuple[Block, ...]) -> str:
    """All of `content` in words. A file stands on lines of its own."""
    return "".join(_apart(content))


def has_files(content: tuple[Block, ...]) -> bool:
    """Whether there are any."""
    return any(isinstance(block, FileBlock) for block in content)


def parts(content: tuple[Block, ...], file: Callable[[FileBlock], str], text: Callable[[str], str]) -> list[str]:
    """The blocks one by one: files as `file` says, "" for those it cannot show, and all else as `text` says it."""
    found = ((file(block) if isinstance(block, FileBlock) else "") or _said(block, text) for block in content)
    return list(filter(None, found))


def _said(block: Block, text: Callable[[str], str]) -> str:
    said = words(block)
    return text(said) if said.strip() else ""


def _apart(content: tuple[Block, ...]) -> Iterator[str]:
    before: Block | None = None
    for block in content:
        if before is not None and (isinstance(block, FileBlock) or isinstance(before, FileBlock)):
            yield "\n"
        yield words(block)
        before = block


def _is_known(file: FileBlock) -> bool:
    beginning = _BEGINNINGS.get(file.media_type)
    return beginning is not None and beginning.match(file.data) is not None


def _text(file: FileBlock) -> str | None:
    """The words in a file that is text, None for one that is not, or not in UTF-8."""
    if not file.media_type.startswith("text/") and file.media_type not in _TEXTS:
        return None
    try:
        return file.data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
