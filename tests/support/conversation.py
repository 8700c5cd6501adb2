"""What holds for every conversation at rest, however it got there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import flightlog
from flightlog.core.files import files_in
from flightlog.testing import Bundle
from flightlog_hookspecs.content import ToolCallBlock
from flightlog_hookspecs.events import (
    AssistantMessage,
    InboxSplice,
    Message,
    Record,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from flightlog_hookspecs.tools import REPEATABLE


def assert_at_rest(path: Path, *models: object, name: str = "s", verify: bool = True) -> list[Record]:
    """The log of a session nobody drives: legal, every bracket closed, every call answered once.

    With `verify`, everything else that can be checked is too, down to the hash of every request.
    """
    with flightlog.open_log(path, discover=False, plugins=[Bundle(adapters=models)]) as log:
        reader = log.session(name)
        records = list(reader.records())
        assert not verify or reader.verify() == len(records)
        messages = reader.messages()
    starts = [record.turn for record in records if isinstance(record.event, TurnStart)]
    ends = [record.turn for record in records if isinstance(record.event, TurnEnd)]
    assert starts == ends == list(range(1, len(starts) + 1))
    assert_conversation(messages)
    assert_delivered_once(records)
    return records


def assert_conversation(messages: Iterable[Message]) -> None:
    """Every call is followed by its result, in order, before anything else; nothing is empty."""
    open_calls: list[ToolCallBlock] = []
    for message in messages:
        match message:
            case ToolResult():
                assert open_calls, f"a result without a call: {message}"
                call = open_calls.pop(0)
                assert (call.call_id, call.name) == (message.call_id, message.name)
                assert message.text.strip() or files_in(message)
            case AssistantMessage():
                assert not open_calls, f"unanswered: {open_calls}"
                open_calls = [block for block in message.content if isinstance(block, ToolCallBlock)]
                assert open_calls or message.text.strip()
            case UserMessage():
                assert not open_calls, f"unanswered: {open_calls}"
    assert not open_calls, f"unanswered: {open_calls}"


def assert_delivered_once(records: Iterable[Record]) -> None:
    """What was accepted is in the inbox or in the transcript, once, and each slot was taken in the order it came."""
    accepted: list[str] = []
    entered, claimed = [], []
    waiting: dict[str, list[str]] = {"next_turn": [], "next_step": []}
    for record in records:
        match record.event:
            case InboxSplice(cause="accepted") as splice:
                accepted.append(splice.message_id)
                waiting[splice.slot].append(splice.message_id)
            case InboxSplice(cause="claimed") as splice:
                claimed.append(splice.message_id)
                assert waiting[splice.slot].pop(0) == splice.message_id
            case InboxSplice(cause="withdrawn" | "cancelled") as splice:
                waiting[splice.slot].remove(splice.message_id)
            case UserMessage() as message if (
                message.source not in ("kernel", "resync", "summary") or message.message_id in claimed
            ):
                entered.append(message.message_id)
    assert len(set(accepted)) == len(accepted)
    assert entered == claimed


def assert_effects(records: Iterable[Record], witnessed: Iterable[str]) -> None:
    """Each effect in the world has its call in the log; what may not be repeated happened at most once.

    `witnessed` are the invocation ids of the bodies that ran, in order.
    """
    records = list(records)
    calls = {record.event.invocation_id: record.event for record in records if isinstance(record.event, ToolCall)}
    seen = Counter(witnessed)
    assert seen.keys() <= calls.keys(), "an effect without its call in the log"
    for invocation_id, times in seen.items():
        assert times == 1 or calls[invocation_id].effect in REPEATABLE, f"{invocation_id} ran {times} times"
    results = {record.event.call_seq: record.event for record in records if isinstance(record.event, ToolResult)}
    for record in records:
        if isinstance(record.event, ToolCall) and results[record.seq].outcome == "ok":
            assert seen[record.event.invocation_id], "a result without its effect"
