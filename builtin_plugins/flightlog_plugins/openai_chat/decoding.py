"""From the chunks of a Chat Completions stream to the block protocol, which has the borders they lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from attrs import define, field

from flightlog_hookspecs import (
    AssistantMessage,
    BlockEnd,
    BlockEvent,
    BlockStart,
    Finish,
    FinishReason,
    Message,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolCallBlock,
    ToolCallDelta,
)
from flightlog_hookspecs.errors import FailureKind, ProviderError
from flightlog_plugins.openai_chat.calls import Call, Calls, Piece, piece_of
from flightlog_plugins.openai_chat.encoding import REASONING_FIELDS
from flightlog_plugins.openai_chat.usage import usage_in
from flightlog_plugins.wire.fragments import kept
from flightlog_plugins.wire.json_text import MALFORMED, is_object, malformed, received
from flightlog_plugins.wire.reported import reported
from flightlog_plugins.wire.sse import Frame

_FINISH: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "filter",
}
_FAILED: Final[Mapping[str, tuple[FailureKind, str]]] = {
    "error": ("server", "the provider failed in the middle of the answer, and gave no reason"),
    "insufficient_system_resource": ("overloaded", "the provider ran out of resources in the middle of the answer"),
}


@define
class _Words:
    """A block of words or of reasoning that is being streamed; `source` is the field that it comes in."""

    index: int
    source: str
    pieces: list[str] = field(factory=list)


@define
class Reading:
    """Reads one stream, chunk by chunk.

    `tag` names who may be given the reasoning back; `messages` are those of the request, whose call ids
    are taken; `max_tokens` is the limit that was asked for, 0 for none.
    """

    tag: str
    messages: Sequence[Message]
    max_tokens: int = 0
    _count: int = field(default=0, init=False)
    _words: _Words | None = field(default=None, init=False)
    _thinks_in: str = field(default="", init=False)
    _calls: Calls = field(init=False)
    _reason: FinishReason | None = field(default=None, init=False)
    _refused: bool = field(default=False, init=False)
    _output_tokens: int = field(default=0, init=False)

    @_calls.default
    def _(self) -> Calls:
        answers = (message for message in self.messages if isinstance(message, AssistantMessage))
        blocks = (block for answer in answers for block in answer.content)
        return Calls({block.call_id for block in blocks if isinstance(block, ToolCallBlock)})

    def read(self, frame: Frame | None) -> list[BlockEvent]:
        """What `frame` means; None is the end of the stream, which some servers do not announce.

        Raises `ProviderError` for a failure that it reports, and for what is not of the protocol.
        """
        if frame is None or frame.data.strip() == "[DONE]":
            return [Finish(reason=self._judged(self._reason))] if self._reason else []
        chunk = received(frame.data)
        try:
            return self._read(chunk)
        except MALFORMED as error:
            raise malformed("chunk", error) from None

    def _read(self, chunk: dict[str, Any]) -> list[BlockEvent]:
        if error := chunk.get("error"):
            raise reported(error)
        events: list[BlockEvent] = []
        # Nothing counts behind the reason to stop, but for the tokens.
        if (choices := chunk.get("choices")) and self._reason is None:
            events += self._delta(choices[0].get("delta") or {})
            if reason := choices[0].get("finish_reason"):
                events += self._stop(reason)
        if usage := usage_in(chunk):
            self._output_tokens = usage.output_tokens
            events.append(usage)
        return events

    def _delta(self, delta: dict[str, Any]) -> list[BlockEvent]:
        events = self._think(delta)
        for source in ("content", "refusal"):
            if text := delta.get(source):
                events += self._say(source, text)
        self._refused = self._refused or bool(delta.get("refusal"))
        for position, fragment in enumerate(delta.get("tool_calls") or []):
            events += self._call(piece_of(position, fragment))
        return events

    def _think(self, delta: dict[str, Any]) -> list[BlockEvent]:
        """Reasoning. Some servers send each piece under all its names, for clients of every age: one of them counts."""
        names = [name for name in (self._thinks_in, *REASONING_FIELDS) if delta.get(name)]
        if not names:
            return []
        self._thinks_in = self._thinks_in or names[0]
        return self._say(self._thinks_in, delta[names[0]])

    def _say(self, source: str, text: str) -> list[BlockEvent]:
        events: list[BlockEvent] = []
        if self._words is None or self._words.source != source:
            events += self._close_words()
            self._words = _Words(self._next(), source)
            kind = _kind(source)
            events.append(BlockStart(index=self._words.index, type=kind))
        self._words.pieces.append(text)
        delta = ThinkingDelta if _kind(source) == "thinking" else TextDelta
        return [*events, delta(index=self._words.index, text=text)]

    def _call(self, piece: Piece) -> list[BlockEvent]:
        known = self._calls.continued(piece)
        call = known or self._calls.begin(self._next())
        self._calls.add(call, piece)
        events: list[BlockEvent] = []
        if known is None:
            start = BlockStart(index=call.index, type="tool_call", call_id=call.call_id, name=call.name)
            events += [*self._close_words(), start]
        if piece.text:
            events.append(ToolCallDelta(index=call.index, text=piece.text))
        return events

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def _close_words(self) -> list[BlockEvent]:
        words, self._words = self._words, None
        if words is None:
            return []
        text = "".join(words.pieces)
        thinking = _kind(words.source) == "thinking"
        block = (
            ThinkingBlock(text=text, replay=kept(self.tag, field=words.source)) if thinking else TextBlock(text=text)
        )
        return [BlockEnd(index=words.index, block=block)]

    def _stop(self, reason: str) -> list[BlockEvent]:
        if reason in _FAILED:
            raise ProviderError(*_FAILED[reason])
        if reason not in _FINISH:
            raise ProviderError("protocol", f"the provider stopped for an unknown reason: {reason!r}")
        self._reason = _FINISH[reason]
        self._calls.make_ids(f"call_{len(self.messages)}")
        return [*self._close_words(), *map(_ended, self._calls)]

    def _judged(self, reason: FinishReason) -> FinishReason:
        """Why it stopped. Some servers say that there are calls where the limit cut one off."""
        capped = 0 < self.max_tokens <= self._output_tokens
        if reason == "tool_calls" and capped and not all(is_object(call.arguments or "{}") for call in self._calls):
            return "length"
        return "refusal" if reason == "stop" and self._refused else reason


def _ended(call: Call) -> BlockEnd:
    block = ToolCallBlock(call_id=call.call_id, name=call.name, arguments=call.arguments or "{}")
    return BlockEnd(index=call.index, block=block)


def _kind(source: str) -> Literal["text", "thinking"]:
    return "thinking" if source in REASONING_FIELDS else "text"
