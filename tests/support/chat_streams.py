"""Chat Completions in deltas, and the messages that they come to."""

from __future__ import annotations

import json
from typing import Any

from flightlog.core.assembler import Assembler
from flightlog.testing.conformance.blocks import fault_of
from flightlog_hookspecs import AssistantMessage, ToolCallBlock
from flightlog_plugins.openai_chat.decoding import Reading
from flightlog_plugins.wire.sse import Frame


def answer(
    *deltas: dict[str, Any],
    stop: str | None = "stop",
    usage: object = None,
    before: object = None,
    messages: tuple[Any, ...] = (),
    max_tokens: int = 0,
) -> AssistantMessage:
    """The message that a stream of `deltas` comes to; it ends with the counts `before` and `usage`."""
    reading, assembler = Reading("openai-chat-tag", messages, max_tokens), Assembler()
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    if stop:
        chunks.append({"choices": [{"delta": {}, "finish_reason": stop}]})
    chunks += [{"choices": [], "usage": count} for count in (before, usage)]
    frames = [*(Frame("", json.dumps(chunk)) for chunk in chunks), None]
    events = [event for frame in frames for event in reading.read(frame)]
    for event in events:
        assembler.push(event)
    message = assembler.message(1)
    assert fault_of(events, ended=True) is None
    return message


def piece(text: str, **more: Any) -> dict[str, Any]:
    """A delta with one piece of one call."""
    name = more.pop("name", None)
    function = {"arguments": text, **({"name": name} if name else {})}
    return {"tool_calls": [{"function": function, **more}]}


def called(*ids: str) -> AssistantMessage:
    """An answer that made calls with these ids."""
    made = tuple(ToolCallBlock(call_id=call_id, name="f", arguments="{}") for call_id in ids)
    return AssistantMessage(attempt=1, finish="tool_calls", content=made)


def calls(message: AssistantMessage) -> list[tuple[str, str, str]]:
    """The calls in `message`: ids, names and arguments."""
    return [(b.call_id, b.name, b.arguments) for b in message.content if isinstance(b, ToolCallBlock)]
