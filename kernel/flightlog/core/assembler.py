"""From block events to one complete message. The same stream also feeds live readers.

Fixed rules for a provider that misbehaves: a delta for a block that is not open, a delta of another
type and anything after `Finish` are dropped; of several `Usage` the last counts, and one with a number that
cannot be is dropped; a block opened twice is a protocol failure. None of them can alter the message.
"""

from __future__ import annotations

from typing import Final, get_args

from attrs import astuple, define, field

from flightlog.core.canonical import paired, whole
from flightlog.core.shape import misfit
from flightlog_hookspecs.content import Block, BlockType, TextBlock, ThinkingBlock, ToolCallBlock
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import AssistantMessage
from flightlog_hookspecs.stream import (
    Alive,
    BlockEnd,
    BlockEvent,
    BlockStart,
    Finish,
    FinishReason,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    Usage,
)

_TYPE_OF_DELTA: dict[type, BlockType] = {TextDelta: "text", ThinkingDelta: "thinking", ToolCallDelta: "tool_call"}
_TYPE_OF_BLOCK: dict[type, BlockType] = {TextBlock: "text", ThinkingBlock: "thinking", ToolCallBlock: "tool_call"}
_TOKENS_END: Final = 2**30
"""No request or answer has so many, ten times the largest window there is: it is a time, or a size. Counted, a single
one would use up a pool for as long as that looks back."""
_EVENTS = frozenset(get_args(BlockEvent))


@define
class Assembler:
    """Collects one attempt: push events in order, then ask for the message."""

    _open: dict[int, BlockStart] = field(factory=dict, init=False)
    _completed: dict[int, Block] = field(factory=dict, init=False)
    usage: Usage = field(factory=Usage, init=False)
    """What the provider has counted so far."""
    _finish: Finish | None = field(default=None, init=False)

    def push(self, event: BlockEvent) -> tuple[int, BlockType, str] | None:
        """Take the next event. Returns (block index, type, text) for a delta that counts.

        Raises `ProviderError(protocol)` for a block that opens twice, ends without being open, or
        ends as another type than it began, and for an event whose fields are not what they say.
        """
        if self._finish is not None:
            return None
        if type(event) not in _EVENTS:
            raise ProviderError("protocol", f"{type(event).__name__} is not part of the block protocol")
        if wrong := misfit(event):
            raise ProviderError("protocol", f"the {wrong} of a {type(event).__name__} is not what it must be")
        match event:
            case BlockStart(index=index):
                if index in self._open or index in self._completed:
                    raise ProviderError("protocol", f"block {index} was opened twice")
                self._open[index] = event
            case (
                TextDelta(index=index, text=text)
                | ThinkingDelta(index=index, text=text)
                | ToolCallDelta(index=index, text=text)
            ):
                start = self._open.get(index)
                if start is not None and start.type == _TYPE_OF_DELTA[type(event)] and text:
                    return index, start.type, paired(text)
            case BlockEnd(index=index, block=block):
                start = self._open.pop(index, None)
                if start is None:
                    raise ProviderError("protocol", f"block {index} ended without being open")
                if start.type != _TYPE_OF_BLOCK.get(type(block)):  # a file, too, is none that a model may send
                    raise ProviderError("protocol", f"block {index} began as {start.type} and ended as another type")
                self._completed[index] = whole(block)
            case Usage():
                if all(0 <= tokens < _TOKENS_END for tokens in astuple(event)):
                    self.usage = event
            case Finish():
                self._finish = event
            case Alive():
                pass
        return None

    @property
    def finished(self) -> bool:
        """True once the model has said that it stopped."""
        return self._finish is not None

    def message(self, attempt: int) -> AssistantMessage:
        """The complete message. Raises `ProviderError` unless the attempt was a full success.

        `cut`: the stream ended without a finish or inside a block. `empty`: it finished without words
        and calls. `length`: it was capped before any words. Calls in an answer that was capped,
        refused or filtered may be truncated and are left out: they never run.
        """
        if self._finish is None or self._open:
            raise ProviderError("cut", "the stream ended before the answer was complete")
        reason = self._finish.reason
        blocks = [self._completed[index] for index in sorted(self._completed)]
        if reason not in ("tool_calls", "stop"):
            blocks = [block for block in blocks if not isinstance(block, ToolCallBlock)]
        calls = any(isinstance(block, ToolCallBlock) for block in blocks)
        if not calls and not any(isinstance(block, TextBlock) and block.text.strip() for block in blocks):
            raise self._nothing(reason)
        return AssistantMessage(
            attempt=attempt,
            content=tuple(blocks),
            finish=reason,
            input_tokens=self.usage.input_tokens,
            output_tokens=self.usage.output_tokens,
            cached_tokens=self.usage.cached_tokens,
            cache_write_tokens=self.usage.cache_write_tokens,
            replay=paired(self._finish.replay),
        )

    def _nothing(self, reason: FinishReason) -> ProviderError:
        match reason:
            case "length":
                return ProviderError("length", "the output limit was reached before the answer began")
            case "refusal" | "filter":
                return ProviderError(reason, "the provider refused to answer")
            case _:
                return ProviderError("empty", "the answer had neither words nor calls")
