"""What a body returned, as what the model is shown and the log keeps."""

from __future__ import annotations

from hashlib import sha256

from attrs import frozen

from flightlog.core import canonical
from flightlog.core.facts import NO_FACTS, unfit
from flightlog.core.files import refusal
from flightlog.core.limits import Limits
from flightlog.core.saying import described
from flightlog.core.shape import misfit
from flightlog.core.spill import decode, excerpt
from flightlog.runtime.redacting import Redacting
from flightlog_hookspecs.content import Block, FileBlock, TextBlock, text_blocks, text_of
from flightlog_hookspecs.errors import BadPayload, ToolError
from flightlog_hookspecs.events import Spill
from flightlog_hookspecs.tools import Fact, Outcome, ToolOutput


@frozen(kw_only=True)
class Rendered:
    """A call's end: its outcome, what is shown, the whole of it when that is more, and what it notes."""

    outcome: Outcome
    content: tuple[Block, ...]
    spill: Spill | None = None
    facts: tuple[Fact, ...] = ()
    blob: tuple[bytes, bytes] | None = None


def failed(message: str, outcome: Outcome = "error") -> Rendered:
    """An end without output: `message` tells the model what happened."""
    return Rendered(outcome=outcome, content=_blocks(message))


def told(message: str, limits: Limits, redacting: Redacting) -> Rendered:
    """An error in words that came from outside, and may be of any length."""
    return rendered(ToolOutput(content=message, is_error=True), limits, redacting)


class Unusable(ToolError):
    """What a body returned cannot be its result. Says why in what may follow "The call ran, but"."""


def rendered(value: object, limits: Limits, redacting: Redacting) -> Rendered:
    """The same as `checked`, but an error that says so instead of what cannot be a result. Never raises."""
    try:
        return checked(value, limits, redacting)
    except Unusable as error:
        return failed(f"The call ran, but {error} Its effects stand.")


def checked(value: object, limits: Limits, redacting: Redacting) -> Rendered:
    """The body's return value: text, JSON value, bytes or `ToolOutput`, redacted.

    What is too long to show is kept whole in a blob and shown as an excerpt. Bytes that are not text are
    shown as a preview. Raises `Unusable`, also when a plugin's own code, which looking at a value may run, fails.
    """
    try:
        return _checked(value, limits, redacting)
    except (Unusable, KeyboardInterrupt):
        raise
    except BaseException as error:
        why = redacting.text(described(error))
        raise Unusable(f"returned a {type(value).__name__} that cannot be looked at ({why}).") from error


def _checked(value: object, limits: Limits, redacting: Redacting) -> Rendered:
    outcome: Outcome = "ok"
    exact, content = True, None
    files: tuple[FileBlock, ...] = ()
    facts: tuple[Fact, ...] = ()
    match value:
        case ToolOutput() if wrong := misfit(value):
            raise Unusable(f"its output's {wrong} is not what it must be.")
        case ToolOutput():
            # Providers refuse empty text blocks.
            content = tuple(block for block in redacting.blocks(value.content) if block != TextBlock(text=""))
            outcome = "error" if value.is_error else "ok"
            facts = tuple(Fact(*map(redacting.text, (f.name, f.text))) for f in value.facts)
            if why := unfit(NO_FACTS, facts):
                raise Unusable(f"its facts cannot be noted: {why}")
            files = tuple(block for block in content if isinstance(block, FileBlock))
            if why := next(filter(None, map(refusal, files)), ""):
                raise Unusable(f"{redacting.text(why)}.")
            text = text_of(content)
            whole = _bytes_of(text)
        case bytes() | bytearray() | memoryview():
            whole = redacting.raw(bytes(value))
            text, exact = decode(whole[: limits.tool_output_max_bytes])
        case _:
            try:
                text = redacting.text(_text_of(value))
            except BadPayload as error:
                said = redacting.text(str(error))
                raise Unusable(f"returned something that is not JSON ({said}).") from None
            whole = _bytes_of(text)
    size = len(whole) + sum(file.size_bytes for file in files)
    if size > limits.tool_output_max_bytes:
        raise Unusable(
            f"its result of {size} bytes is larger than the {limits.tool_output_max_bytes} that can be kept; "
            "ask for less."
        )
    if exact and len(text) <= limits.tool_output_max_chars:
        return Rendered(outcome=outcome, content=_blocks(content or text or "(no output)"), facts=facts)
    digest = sha256(whole)
    note = f"blob {digest.hexdigest()}" + ("" if exact else f", {len(whole)} bytes of binary data, shown approximately")
    shown = excerpt(text, limits.tool_output_max_chars, note)
    if not exact and shown is text:
        shown = f"{text}\n[{note}]"
    return Rendered(
        outcome=outcome,
        content=(*_blocks(shown), *_blocks(files)),
        spill=Spill(sha256=digest.hexdigest(), bytes=len(whole), binary=not exact),
        facts=facts,
        blob=(digest.digest(), whole),
    )


def _blocks(content: str | tuple[Block, ...]) -> tuple[Block, ...]:
    return tuple(map(canonical.whole, text_blocks(content)))


def _text_of(value: object) -> str:
    if value is None:
        return ""
    # An enum member that is a string is meant as that string.
    return str.__str__(value) if isinstance(value, str) else canonical.dumps(canonical.plain(value))


def _bytes_of(text: str) -> bytes:
    # A lone surrogate has no UTF-8 form; its bytes are kept in the form Python writes and reads back.
    return text.encode("utf-8", "surrogatepass")
