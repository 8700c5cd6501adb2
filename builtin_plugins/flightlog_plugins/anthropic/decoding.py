"""From the events of a Messages stream to the block protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import define, field

from flightlog_hookspecs import (
    Block,
    BlockEnd,
    BlockEvent,
    BlockStart,
    BlockType,
    Finish,
    FinishReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolCallBlock,
    ToolCallDelta,
    Usage,
)
from flightlog_hookspecs.errors import ProviderError
from flightlog_plugins.wire.fragments import kept
from flightlog_plugins.wire.json_text import MALFORMED, dumps, inner, malformed, object_or_none, received
from flightlog_plugins.wire.reported import refuse_errors
from flightlog_plugins.wire.sse import Frame
from flightlog_plugins.wire.tokens import count

_FINISH: Final[Mapping[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "pause",
}
_COUNTS: Final = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


@define
class _Open:
    """A block that is being streamed: what it began as, and the pieces that came for it."""

    block: dict[str, Any]
    pieces: list[str] = field(factory=list)
    lost: bool = False
    """Whether more came for it that nobody here can put together."""

    def more(self, piece: str) -> str:
        """Add `piece`."""
        self.pieces.append(piece)
        return piece


@define
class Reading:
    """Reads one stream, frame by frame. Thinking is kept for heads with `tag`."""

    tag: str
    _open: dict[int, _Open] = field(factory=dict, init=False)
    _usage: dict[str, int] = field(factory=dict, init=False)
    _stopped: str = field(default="", init=False)
    _spoken: bool = field(default=False, init=False)

    def read(self, frame: Frame | None) -> list[BlockEvent]:
        """What `frame` means. Nothing follows from the end of the stream: a whole one has said that it stops.

        Raises `ProviderError` for a failure that it reports, and for what is not of the protocol.
        """
        if frame is None:
            return []
        event = received(frame.data)
        refuse_errors(event)
        try:
            return self._read(event)
        except MALFORMED as error:
            raise malformed(f"{event.get('type')!r}", error) from None

    def _read(self, event: dict[str, Any]) -> list[BlockEvent]:
        match event["type"]:
            case "message_start":
                return [self._counted(inner(event, "message"))]
            case "content_block_start":
                return self._start(event["index"], event["content_block"])
            case "content_block_delta":
                return self._delta(event["index"], event["delta"])
            case "content_block_stop":
                return self._end(event["index"])
            case "message_delta":
                self._stopped = inner(event, "delta").get("stop_reason") or self._stopped
                return [self._counted(event)]
            case "message_stop":
                return [Finish(reason=self._reason())]
            case _:
                return []  # a ping, or something newer than this adapter

    def _start(self, index: int, block: dict[str, Any]) -> list[BlockEvent]:
        self._open[index] = _Open(block)
        kind = _kind(block)
        if kind == "tool_call":
            return [BlockStart(index=index, type=kind, call_id=block["id"], name=block["name"])]
        start = BlockStart(index=index, type=kind)
        # Some servers send the first words with the beginning, or all of them.
        if words := block.get(block["type"]) if block["type"] in ("text", "thinking") else "":
            delta = TextDelta if kind == "text" else ThinkingDelta
            return [start, delta(index=index, text=words)]
        return [start]

    def _delta(self, index: int, delta: dict[str, Any]) -> list[BlockEvent]:
        opened = self._open[index]
        match delta["type"], opened.block["type"]:
            case "text_delta", "text":
                return [TextDelta(index=index, text=opened.more(delta["text"]))]
            case "thinking_delta", "thinking":
                return [ThinkingDelta(index=index, text=opened.more(delta["thinking"]))]
            case "input_json_delta", "tool_use":
                return [ToolCallDelta(index=index, text=opened.more(delta["partial_json"]))]
            case "text_delta" | "thinking_delta" | "input_json_delta" as kind, "text" | "thinking" | "tool_use" as of:
                raise ProviderError("protocol", f"the provider sent a {kind!r} for a block of {of!r}")
            case "signature_delta", _:
                opened.block["signature"] = delta["signature"]
            case "input_json_delta", _:
                opened.more(delta["partial_json"])
            case _, kind if kind not in ("text", "thinking", "tool_use"):
                opened.lost = True
        return []

    def _end(self, index: int) -> list[BlockEvent]:
        opened = self._open[index]
        complete = _complete(opened, self.tag)
        self._spoken = self._spoken or (isinstance(complete, TextBlock) and bool(complete.text.strip()))
        end = BlockEnd(index=index, block=complete)
        if isinstance(complete, ToolCallBlock) and not any(opened.pieces) and opened.block.get("input"):
            return [ToolCallDelta(index=index, text=complete.arguments), end]  # it came whole, with the beginning
        return [end]

    def _counted(self, holder: dict[str, Any]) -> Usage:
        """The counts with those in `holder`: totals so far. What is absent, or no count, is as before."""
        given = inner(holder, "usage")
        self._usage.update({name: found for name in _COUNTS if (found := count(given.get(name))) is not None})
        sent, generated, cached, written = (self._usage.get(name, 0) for name in _COUNTS)
        return Usage(input_tokens=sent, output_tokens=generated, cached_tokens=cached, cache_write_tokens=written)

    def _reason(self) -> FinishReason:
        if not self._stopped:
            raise ProviderError("cut", "the provider ended the stream without a reason to stop")
        if self._stopped not in _FINISH:
            raise ProviderError("protocol", f"the provider stopped for an unknown reason: {self._stopped!r}")
        if self._stopped == "model_context_window_exceeded" and not self._spoken:
            raise ProviderError("context_overflow", "the context window was full before the answer began")
        return _FINISH[self._stopped]


def _complete(opened: _Open, tag: str) -> Block:
    """The block as it is in the end."""
    block, streamed = opened.block, "".join(opened.pieces)
    match block["type"]:
        case "text":
            return TextBlock(text=(block.get("text") or "") + streamed)
        case "tool_use":
            given = block.get("input")
            raw = streamed or (dumps(given) if given else "{}")
            return ToolCallBlock(call_id=block["id"], name=block["name"], arguments=raw)
        case "thinking":
            text = (block.get("thinking") or "") + streamed
            # What nothing proves cannot go back.
            replay = kept(tag, block={**block, "thinking": text}) if block.get("signature") else ""
            return ThinkingBlock(text=text, replay=replay)
        case _:
            # Redacted thinking and kinds that this adapter does not know go back as they came, or not at all.
            given = object_or_none(streamed) if streamed else {}
            if opened.lost or given is None:
                return ThinkingBlock(text="")
            return ThinkingBlock(text="", replay=kept(tag, block={**block, "input": given} if streamed else block))


def _kind(block: dict[str, Any]) -> BlockType:
    match block["type"]:
        case "text":
            return "text"
        case "tool_use":
            return "tool_call"
        case _:
            return "thinking"
