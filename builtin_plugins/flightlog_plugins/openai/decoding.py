"""From the events of a Responses stream to the block protocol.

The stream says most things twice, in pieces and whole; what differs has lost something on its way and is
no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import define, field

from flightlog_hookspecs import (
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
)
from flightlog_hookspecs.errors import ProviderError
from flightlog_plugins.wire.fragments import kept
from flightlog_plugins.wire.json_text import MALFORMED, inner, malformed, paired, received
from flightlog_plugins.wire.reported import refuse_errors, reported
from flightlog_plugins.wire.sse import Frame
from flightlog_plugins.wire.tokens import counted

_INCOMPLETE: Final[Mapping[str, FinishReason]] = {
    "max_output_tokens": "length",
    "max_messages": "length",
    "content_filter": "filter",
    "steered": "steered",
}
Key = tuple[int, int]
"""Where a block stands in the output: item, and part of it for words, -1 for a whole item."""

_WHOLE: Final = -1


@define
class _Open:
    """A block that is being streamed."""

    start: BlockStart
    pieces: list[str] = field(factory=list)

    @property
    def index(self) -> int:
        return self.start.index

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def cut_off(self) -> BlockEnd:
        """Its end in an answer that was capped: what there is of it, and nothing that could go back as whole."""
        match self.start.type:
            case "text":
                return BlockEnd(index=self.index, block=TextBlock(text=self.text))
            case "thinking":
                return BlockEnd(index=self.index, block=ThinkingBlock(text=self.text))
            case "tool_call":
                call = ToolCallBlock(call_id=self.start.call_id, name=self.start.name, arguments=self.text)
                return BlockEnd(index=self.index, block=call)


@define
class Reading:
    """Reads one stream, event by event. Reasoning is kept for heads with `tag`."""

    tag: str
    _count: int = field(default=0, init=False)
    _open: dict[Key, _Open] = field(factory=dict, init=False)
    _number: int | None = field(default=None, init=False)
    _unsure: int = field(default=0, init=False)
    _phases: list[str | None] = field(factory=list, init=False)
    _parts: int = field(default=0, init=False)
    _called: bool = field(default=False, init=False)
    _refused: bool = field(default=False, init=False)

    def read(self, frame: Frame | None) -> list[BlockEvent]:
        """What `frame` means. Nothing follows from the end of the stream: a whole one has said that it ends.

        Raises `ProviderError` for a failure that it reports, and for what is not of the protocol.
        """
        if frame is None or frame.data.strip() == "[DONE]":
            return []
        event = received(frame.data)
        refuse_errors(event)
        try:
            self._check_number(event)
            return self._read(event)
        except MALFORMED as error:
            raise malformed(f"{event.get('type')!r}", error) from None

    def _check_number(self, event: dict[str, Any]) -> None:
        number = event.get("sequence_number")
        if event.get("type") == "keepalive":
            self._unsure += 1  # it has a number of its own, or the next one
        elif isinstance(number, int):
            if self._number is not None and not 1 <= number - self._number <= 1 + self._unsure:
                raise ProviderError("transport", f"event {number} came after event {self._number}: some were lost")
            self._number, self._unsure = number, 0

    def _read(self, event: dict[str, Any]) -> list[BlockEvent]:
        match event["type"]:
            case "response.output_item.added":
                return self._item_added(event["output_index"], event["item"])
            case "response.output_item.done":
                return self._item_done(event["output_index"], event["item"])
            case "response.content_part.added":
                return self._part_added(event["output_index"], event["content_index"], event["part"])
            case "response.content_part.done":
                return self._part_done(event["output_index"], event["content_index"], event["part"])
            case "response.output_text.delta" | "response.refusal.delta":
                return self._delta((event["output_index"], event["content_index"]), TextDelta, event["delta"])
            case "response.function_call_arguments.delta":
                return self._delta((event["output_index"], _WHOLE), ToolCallDelta, event["delta"])
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return self._delta((event["output_index"], _WHOLE), ThinkingDelta, event["delta"])
            case "response.reasoning_summary_part.added" if event["summary_index"]:
                return self._delta((event["output_index"], _WHOLE), ThinkingDelta, "\n\n")
            case "response.completed":
                reason: FinishReason = "tool_calls" if self._called else "refusal" if self._refused else "stop"
                return self._finish(inner(event, "response"), reason)
            case "response.incomplete":
                return self._incomplete(event["response"])
            case "response.failed":
                raise reported(inner(event, "response").get("error") or {})
            case "response.cancelled":
                raise ProviderError("server", "the provider cancelled the response")
            case _:
                return []

    def _item_added(self, output: int, item: dict[str, Any]) -> list[BlockEvent]:
        match item["type"]:
            case "message":
                return []  # its parts are blocks
            case "function_call":
                return self._start((output, _WHOLE), "tool_call", item["call_id"], item["name"])
            case _:
                return self._start((output, _WHOLE), "thinking")

    def _item_done(self, output: int, item: dict[str, Any]) -> list[BlockEvent]:
        if item["type"] == "message":
            self._phases += [item.get("phase")] * self._parts
            self._parts = 0
            return []
        opened = self._open.pop((output, _WHOLE))
        if item["type"] == "function_call":
            self._called = True
            raw = item["arguments"]
            block = ToolCallBlock(call_id=item["call_id"], name=item["name"], arguments=raw or "{}")
            return [*_rest(opened, ToolCallDelta, raw), BlockEnd(index=opened.index, block=block)]
        # Reasoning, and kinds of items that this adapter does not know, go back as they came.
        item = {name: value for name, value in item.items() if name not in ("status", "created_by")}
        thought = ThinkingBlock(text=opened.text, replay=kept(self.tag, item=item))
        return [BlockEnd(index=opened.index, block=thought)]

    def _part_added(self, output: int, content: int, part: dict[str, Any]) -> list[BlockEvent]:
        if part["type"] not in ("output_text", "refusal"):
            return []
        return self._start((output, content), "text")

    def _part_done(self, output: int, content: int, part: dict[str, Any]) -> list[BlockEvent]:
        if part["type"] not in ("output_text", "refusal"):
            return []
        self._refused = self._refused or part["type"] == "refusal"
        text = part["refusal" if part["type"] == "refusal" else "text"]
        opened = self._open.pop((output, content))
        self._parts += 1
        return [*_rest(opened, TextDelta, text), BlockEnd(index=opened.index, block=TextBlock(text=text))]

    def _delta(self, key: Key, kind: type[TextDelta | ThinkingDelta | ToolCallDelta], text: str) -> list[BlockEvent]:
        opened = self._open[key]
        opened.pieces.append(text)
        return [kind(index=opened.index, text=text)]

    def _start(self, key: Key, kind: BlockType, call_id: str = "", name: str = "") -> list[BlockEvent]:
        if key in self._open:
            raise ProviderError("protocol", f"the provider opened output {key} twice")
        start = BlockStart(index=self._count, type=kind, call_id=call_id, name=name)
        self._open[key] = _Open(start)
        self._count += 1
        return [start]

    def _incomplete(self, response: dict[str, Any]) -> list[BlockEvent]:
        """A capped answer: what words there are, and no call that may have been cut off."""
        reason = response["incomplete_details"]["reason"]
        if reason not in _INCOMPLETE:
            raise ProviderError("protocol", f"the provider stopped for an unknown reason: {reason!r}")
        closing = [opened.cut_off() for opened in self._open.values()]
        return [*closing, *self._finish(response, _INCOMPLETE[reason])]

    def _finish(self, response: dict[str, Any], reason: FinishReason) -> list[BlockEvent]:
        usage = inner(response, "usage")
        details = inner(usage, "input_tokens_details")
        replay = kept(self.tag, phases=self._phases) if any(self._phases) else ""
        tokens = counted(
            usage.get("input_tokens"),
            usage.get("output_tokens"),
            details.get("cached_tokens"),
            details.get("cache_write_tokens"),
        )
        return [*([tokens] if tokens else []), Finish(reason=reason, replay=replay)]


def _rest(opened: _Open, kind: type[TextDelta | ToolCallDelta], whole: str) -> list[BlockEvent]:
    """`whole` as a piece, if no pieces of it came. Else they must be what is said to have come."""
    if not opened.text:
        return [kind(index=opened.index, text=whole)] if whole else []
    # A character may have been cut in two.
    if paired(opened.text) != paired(whole):
        raise ProviderError("transport", "a part of the answer differs from its pieces: some were lost")
    return []
