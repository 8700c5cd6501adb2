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
from flightlog_plugins.wire.failures import failure
from flightlog_plugins.wire.fragments import kept
from flightlog_plugins.wire.json_text import dumps, received
from flightlog_plugins.wire.sse import Frame

_FINISH: Final[Mapping[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "pause",
}
_TEXT_OF_DELTA: Final = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


@define
class Reading:
    """Reads one stream, frame by frame. Thinking is kept for heads with `tag`."""

    tag: str
    _blocks: dict[int, dict[str, Any]] = field(factory=dict, init=False)
    _pieces: dict[int, list[str]] = field(factory=dict, init=False)
    _usage: dict[str, Any] = field(factory=dict, init=False)
    _stopped: str = field(default="", init=False)

    def read(self, frame: Frame | None) -> list[BlockEvent]:
        """What `frame` means. Nothing follows from the end of the stream: a whole one has said that it stops.

        Raises `ProviderError` for a failure that it reports, and for what is not of the protocol.
        """
        if frame is None:
            return []
        event = received(frame.data)
        try:
            return self._read(event)
        except (KeyError, TypeError, AttributeError) as error:
            raise ProviderError(
                "protocol", f"the provider sent a malformed {event.get('type')!r}: {type(error).__name__}: {error}"
            ) from None

    def _read(self, event: dict[str, Any]) -> list[BlockEvent]:
        match event["type"]:
            case "message_start":
                self._usage.update(_counted(event["message"]["usage"]))
                return [_usage(self._usage)]
            case "content_block_start":
                return self._start(event["index"], event["content_block"])
            case "content_block_delta":
                return self._delta(event["index"], event["delta"])
            case "content_block_stop":
                return self._end(event["index"])
            case "message_delta":
                # What is counted is the total so far, and what is absent is as before.
                self._usage.update(_counted(event.get("usage") or {}))
                self._stopped = event["delta"].get("stop_reason") or self._stopped
                return [_usage(self._usage)]
            case "message_stop":
                return [Finish(reason=self._reason())]
            case "error":
                error = event["error"]
                raise failure(error["message"], types=(error["type"],))
            case _:
                return []  # a ping, or something newer than this adapter

    def _start(self, index: int, block: dict[str, Any]) -> list[BlockEvent]:
        self._blocks[index], self._pieces[index] = block, []
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
        block = self._blocks[index]
        kind = delta["type"]
        if kind == "signature_delta":
            block["signature"] = delta["signature"]
        if kind not in _TEXT_OF_DELTA:
            return []
        text = delta[_TEXT_OF_DELTA[kind]]
        self._pieces[index].append(text)
        match kind, block["type"]:
            case "text_delta", "text":
                return [TextDelta(index=index, text=text)]
            case "thinking_delta", "thinking":
                return [ThinkingDelta(index=index, text=text)]
            case "input_json_delta", "tool_use":
                return [ToolCallDelta(index=index, text=text)]
            case _, "text" | "thinking" | "tool_use":
                raise ProviderError("protocol", f"the provider sent a {kind!r} for a block of {block['type']!r}")
            case _:
                return []

    def _end(self, index: int) -> list[BlockEvent]:
        block, streamed = self._blocks[index], "".join(self._pieces[index])
        complete = _complete(block, streamed, self.tag)
        end = BlockEnd(index=index, block=complete)
        if isinstance(complete, ToolCallBlock) and not streamed and block.get("input"):
            return [ToolCallDelta(index=index, text=complete.arguments), end]  # it came whole, with the beginning
        return [end]

    def _reason(self) -> FinishReason:
        if self._stopped not in _FINISH:
            raise ProviderError("protocol", f"the provider stopped for an unknown reason: {self._stopped!r}")
        return _FINISH[self._stopped]


def _complete(block: dict[str, Any], streamed: str, tag: str) -> Block:
    """The block that began as `block` and went on with `streamed`."""
    match block["type"]:
        case "text":
            return TextBlock(text=block["text"] + streamed)
        case "tool_use":
            given = block.get("input")
            raw = streamed or (dumps(given) if given else "{}")
            return ToolCallBlock(call_id=block["id"], name=block["name"], arguments=raw)
        case "thinking":
            block["thinking"] += streamed
            if not block.get("signature"):
                return ThinkingBlock(text=block["thinking"])  # nothing proves it, so it cannot go back
        case _ if streamed:
            block["input"] = received(streamed)
    # Thinking, redacted thinking and kinds that this adapter does not know go back as they came.
    return ThinkingBlock(text=block.get("thinking", ""), replay=kept(tag, block=block))


def _kind(block: dict[str, Any]) -> BlockType:
    match block["type"]:
        case "text":
            return "text"
        case "tool_use":
            return "tool_call"
        case _:
            return "thinking"


def _counted(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {name: count for name, count in usage.items() if count is not None}


def _usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(
        input_tokens=usage.get("input_tokens", 0),
        output_tokens=usage.get("output_tokens", 0),
        cached_tokens=usage.get("cache_read_input_tokens", 0),
        cache_write_tokens=usage.get("cache_creation_input_tokens", 0),
    )
