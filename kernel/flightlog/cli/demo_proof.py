"""What the demo has to prove, from the log file and notes.txt alone: nothing it remembers counts."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence

from attrs import frozen

from flightlog import SessionReader
from flightlog.cli.terminal_text import counted
from flightlog.runtime.reader import open_log
from flightlog_hookspecs.errors import StoreError
from flightlog_hookspecs.events import (
    AssistantDelta,
    AssistantMessage,
    Record,
    SessionOpened,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
)


@frozen(kw_only=True)
class Check:
    """One thing that was to be proven, whether it holds, and the evidence."""

    name: str
    ok: bool
    evidence: str


@frozen(kw_only=True)
class Sight:
    """How far a session has come, as its log tells.

    `words` is what the agent said, also of the answer that is still being streamed; `mid_stream`: the
    last row is a piece of such an answer; `turn_open`: a turn has begun and not ended.
    """

    words: str
    mid_stream: bool
    turn_open: bool
    last: Record | None

    @property
    def number(self) -> int:
        """The last number said in full."""
        return self.words.count("\n")


def look(db: str, session: str) -> Sight:
    """See how far `session` has come; it may be running just now, or not exist yet."""
    with open_log(db, discover=False) as log:
        records = list(log.session(session).records(deltas=True)) if session in log.names() else []
    return sight_of(records)


def sight_of(records: Sequence[Record]) -> Sight:
    """How far these records have come."""
    said, streamed, turn_open = "", "", False
    for record in records:
        match record.event:
            case AssistantDelta(type="text") as event:
                streamed += "".join(piece.text for piece in event.pieces)
            case AssistantMessage() as event:
                said, streamed = said + event.text, ""
            case TurnStart():
                turn_open = True
            case TurnEnd():
                turn_open = False
    last = records[-1] if records else None
    mid_stream = last is not None and isinstance(last.event, AssistantDelta) and last.event.type == "text"
    return Sight(words=said + streamed, mid_stream=mid_stream, turn_open=turn_open, last=last)


def prove(db: str, session: str, notes: str, to: int) -> Iterator[Check]:
    """The checks, each made when it is asked for. `notes` is the path of the file the tool wrote."""
    with open_log(db) as log:
        reader = log.session(session)
        try:
            records = list(reader.records(deltas=True))
        except StoreError as error:
            yield Check(name="the log can be read", ok=False, evidence=str(error))
            return
        yield _cut_in_mid_stream(records)
        yield _nothing_lost(records)
        yield _counted_through(reader, to)
        yield _each_call_once(records, _lines_of(notes))
        yield _turn_closed(records)
        try:
            log.check_file()
            events = reader.verify()
        except StoreError as error:
            yield Check(name="verify accepts the log", ok=False, evidence=str(error))
        else:
            yield Check(name="verify accepts the log", ok=True, evidence=counted(events, "event"))


def _lines_of(path: str) -> list[str]:
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()


def _of_first_owner(records: Sequence[Record]) -> list[Record]:
    """The rows the killed process left."""
    second = [record.seq for record in records if isinstance(record.event, SessionOpened)][1:]
    return [record for record in records if not second or record.seq < second[0]]


def _cut_in_mid_stream(records: Sequence[Record]) -> Check:
    left = _of_first_owner(records)
    sight = sight_of(left)
    assert sight.last is not None, "a session has a first row"
    return Check(
        name="it was killed in mid-stream, without a turn/end",
        ok=len(left) < len(records) and sight.mid_stream and sight.turn_open,
        evidence=f"row {sight.last.seq}, {sight.last.event.kind}",
    )


def _nothing_lost(records: Sequence[Record]) -> Check:
    """The half answer is in the conversation, to the last character that reached the log."""
    left = _of_first_owner(records)
    kept = [r.event for r in records[len(left) :] if isinstance(r.event, AssistantMessage) and r.event.interrupted]
    before = "".join(r.event.text for r in left if isinstance(r.event, AssistantMessage))
    streamed = sight_of(left).words.removeprefix(before)
    return Check(
        name="every streamed word was kept",
        ok=len(kept) == 1 and kept[0].text == streamed,
        evidence=f"{len(streamed):,} streamed, {len(kept[0].text) if kept else 0:,} kept",
    )


def _counted_through(reader: SessionReader, to: int) -> Check:
    """The words of all answers, through the `messages` view, before the closing sentence."""
    words = "".join(message.text for message in reader.messages() if isinstance(message, AssistantMessage))
    expected = "".join(f"{number}\n" for number in range(1, to + 1))
    numbers, rest = words[: len(expected)], words[len(expected) :]
    wrong = next((i for i, pair in enumerate(zip(numbers, expected, strict=False)) if pair[0] != pair[1]), len(numbers))
    ok = numbers == expected and not any(character.isdigit() for character in rest.removesuffix(f"Counted to {to}."))
    evidence = counted(len(numbers), "character") if ok else f"wrong after {numbers[:wrong][-20:]!r}"
    return Check(name=f"the words are exactly 1 to {to}, no gap, no repeat", ok=ok, evidence=evidence)


def _each_call_once(records: Sequence[Record], lines: Sequence[str]) -> Check:
    calls = [record for record in records if isinstance(record.event, ToolCall)]
    answered = Counter(
        record.event.call_seq
        for record in records
        if isinstance(record.event, ToolResult) and record.event.outcome == "ok"
    )
    wanted = [json.loads(record.event.arguments)["line"] for record in calls if isinstance(record.event, ToolCall)]
    once = all(answered[record.seq] == 1 for record in calls) and len(answered) == len(calls)
    return Check(
        name="each tool call took effect exactly once",
        ok=bool(calls) and once and list(lines) == wanted and len(set(lines)) == len(lines),
        evidence=f"{counted(len(calls), 'call')}, {counted(len(lines), 'line')}",
    )


def _turn_closed(records: Sequence[Record]) -> Check:
    turns = [record for record in records if isinstance(record.event, (TurnStart, TurnEnd))]
    last = turns[-1] if turns else None
    reason = last.event.reason if last and isinstance(last.event, TurnEnd) else "none"
    evidence = f"row {last.seq}, {reason}" if last else "no turn at all"
    return Check(name="the last turn is closed", ok=reason == "completed", evidence=evidence)
