"""What comes in is redacted before anything of it is written: here, and nowhere behind."""

from __future__ import annotations

from hashlib import sha256

from attrs import evolve, frozen

from flightlog.core.canonical import paired, whole
from flightlog.runtime.registry import Registry
from flightlog_hookspecs.content import Block, FileBlock, TextBlock, ThinkingBlock, ToolCallBlock, text_of


@frozen
class Redacting:
    """The redactions that a scope has, as they are registered at that moment. None of its functions raises."""

    _registry: Registry

    def text(self, text: str) -> str:
        """`text` without what must not be written, and `paired`. All of it is withheld when a redaction fails."""
        text = paired(text)  # first: a secret is not seen in halves
        for registered in self._registry.redactions():
            redaction = registered.item
            try:
                redacted: object = redaction.body(text)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                # Its message may hold what was to be kept out.
                return f"[withheld: the redaction {redaction.name!r} failed with {type(error).__name__}]"
            if not isinstance(redacted, str):
                return f"[withheld: the redaction {redaction.name!r} returned {type(redacted).__name__}, not a string]"
            text = paired(redacted)
        return text

    def raw(self, raw: bytes) -> bytes:
        """`raw`, in which bytes that are no text stand for themselves."""
        if not self._registry.redactions():
            return raw
        text = raw.decode(errors="surrogateescape")
        redacted = self.text(text)
        return raw if redacted == text else _encoded(redacted)

    def blocks(self, content: tuple[Block, ...]) -> tuple[Block, ...]:
        """`content`, `whole`, in which a secret may be spread over several blocks of text: they are joined then."""
        content = tuple(map(whole, content))
        if not self._registry.redactions():
            return content
        each = tuple(map(self._block, content))
        joined = self.text(text_of(content))
        if joined == text_of(each):
            return each
        return (TextBlock(text=joined), *(block for block in each if not isinstance(block, TextBlock)))

    def _block(self, block: Block) -> Block:
        match block:
            case TextBlock(text=text) | ThinkingBlock(text=text):
                return evolve(block, text=self.text(text))
            case ToolCallBlock(arguments=arguments):
                return evolve(block, arguments=self.text(arguments))
            case FileBlock(data=data):
                named, kept = evolve(block, name=self.text(block.name)), self.raw(data)
                if kept == data:
                    return named  # also one whose hash is not that of its bytes, which is refused for it
                return evolve(named, data=kept, sha256=sha256(kept).hexdigest(), size_bytes=len(kept))


def _encoded(text: str) -> bytes:
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # the redaction has added halves of characters of its own
        return text.encode(errors="replace")
