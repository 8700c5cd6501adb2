"""The block protocol, judged: which rule of `flightlog_hookspecs.stream` a list of events breaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

from attrs import define, field

from flightlog.core.shape import misfit
from flightlog_hookspecs import (
    Block,
    BlockEnd,
    BlockEvent,
    BlockStart,
    FileBlock,
    Finish,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolCallBlock,
    ToolCallDelta,
    Usage,
)

_TYPES: Final = {TextDelta: "text", ThinkingDelta: "thinking", ToolCallDelta: "tool_call",
                 TextBlock: "text", ThinkingBlock: "thinking", ToolCallBlock: "tool_call"}  # fmt: skip


def fault_of(events: Sequence[BlockEvent], *, ended: bool = False) -> str | None:
    """What is wrong with `events`, the beginning of a stream; with `ended`, all of one that was answered in full."""
    protocol = _Protocol()
    for event in events:
        if fault := protocol.push(event):
            return fault
    return "the stream ended without Finish" if ended and not protocol.finished else None


@define
class _Protocol:
    finished: bool = field(default=False, init=False)
    _open: dict[int, BlockStart] = field(factory=dict, init=False)
    _deltas: dict[int, list[str]] = field(factory=dict, init=False)

    def push(self, event: BlockEvent) -> str | None:
        """What `event` breaks, coming behind all before it."""
        name = type(event).__name__
        if type(event) not in get_args(BlockEvent):
            return f"{name} is not part of the block protocol"
        if wrong := misfit(event):
            return f"the {wrong} of a {name} is {getattr(event, wrong)!r}"
        if self.finished:
            return f"a {name} came behind Finish, which comes last"
        match event:
            case BlockStart(index=index):
                if index in self._deltas:
                    return f"block {index} was opened twice"
                self._open[index], self._deltas[index] = event, []
            case TextDelta() | ThinkingDelta() | ToolCallDelta():
                return self._delta(event)
            case BlockEnd(index=index, block=block):
                return self._end(index, block)
            case Usage():
                counts = (event.input_tokens, event.output_tokens, event.cached_tokens, event.cache_write_tokens)
                return None if min(counts) >= 0 else f"tokens are negative: {event}"
            case Finish():
                if self._open:
                    return f"Finish came while blocks {sorted(self._open)} were open"
                self.finished = True
        return None

    def _delta(self, event: TextDelta | ThinkingDelta | ToolCallDelta) -> str | None:
        start = self._open.get(event.index)
        if start is None:
            return f"a {type(event).__name__} came for block {event.index}, which is not open"
        if start.type != _TYPES[type(event)]:
            return f"a {type(event).__name__} came for block {event.index}, which began as {start.type}"
        self._deltas[event.index].append(event.text)
        return None

    def _end(self, index: int, block: Block) -> str | None:
        start = self._open.pop(index, None)
        if start is None:
            return f"block {index} ended without being open"
        if isinstance(block, FileBlock):
            return f"block {index} ended as a file, which no model sends"
        if start.type != _TYPES[type(block)]:
            return f"block {index} began as {start.type} and ended as {_TYPES[type(block)]}"
        streamed = "".join(self._deltas[index])
        if isinstance(block, ToolCallBlock):
            for field_name in ("call_id", "name"):
                began, is_now = getattr(start, field_name), getattr(block, field_name)
                if began and began != is_now:
                    return f"the {field_name} of block {index} was {began!r} at its start and {is_now!r} at its end"
            whole = block.arguments
            # A call without any argument text has an empty object for its arguments.
            same = streamed == whole or (not streamed and whole == "{}")
        else:
            whole = block.text
            same = streamed == whole
        return None if same else f"block {index} ended as {whole!r}, and its deltas make {streamed!r}"
