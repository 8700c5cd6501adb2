"""Records as JSON values, for `--json`."""

from __future__ import annotations

from typing import Any, Final

import attrs

from flightlog_hookspecs.content import FileBlock, TextBlock, ThinkingBlock, ToolCallBlock
from flightlog_hookspecs.events import AssistantMessage, Message, Record, ToolResult, UserMessage

_TAGS: Final = {
    TextBlock: ("type", "text"),
    ThinkingBlock: ("type", "thinking"),
    ToolCallBlock: ("type", "tool_call"),
    FileBlock: ("type", "file"),
    UserMessage: ("role", "user"),
    AssistantMessage: ("role", "assistant"),
    ToolResult: ("role", "tool"),
}


def record_form(record: Record) -> dict[str, Any]:
    """One event: its place, its kind, and its own fields in `data`."""
    place = {
        "session": record.session,
        "seq": record.seq,
        "at_us": record.at_us,
        "turn": record.turn,
        "step": record.step,
        "epoch": record.epoch,
        "kind": record.event.kind,
    }
    data = {name: value for name, value in plain(record.event).items() if name not in ("kind", "role")}
    return place | {"data": data}


def message_form(message: Message) -> dict[str, Any]:
    """One message as the model sees it, its role first."""
    form: dict[str, Any] = plain(message)
    return form


def plain(value: Any) -> Any:
    """`value` as lists, dicts and scalars; blocks and messages say what they are."""
    if attrs.has(type(value)):
        tag = _TAGS.get(type(value))
        compared = [field.name for field in attrs.fields(type(value)) if field.eq]  # all but the bytes of a file
        named = {name: plain(getattr(value, name)) for name in compared}
        return {tag[0]: tag[1], **named} if tag else named
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
