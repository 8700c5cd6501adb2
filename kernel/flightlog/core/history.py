"""The messages a model is sent: the pure twin of the `messages` view, extended event by event.

A disposable cache. `visible` is the one definition of what the model sees and in which order.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import TypeVar, cast, overload

from attrs import define, evolve, field, frozen

from flightlog.core.canonical import dumps_words
from flightlog_hookspecs.adapters import Request
from flightlog_hookspecs.content import Block, FileBlock, TextBlock, ThinkingBlock, ToolCallBlock, text_blocks
from flightlog_hookspecs.events import AssistantMessage, Event, Head, Message, ToolResult, UserMessage

Place = tuple[int, int]
"""Where a message stands: (row of the message it belongs to, position under it)."""


def place_of(event: Event, seq: int) -> Place | None:
    """The place of an event that the model sees, None for all others.

    A result stands under the message that asked for it, in the order of the calls: so a request has
    the same bytes whatever order the tools finished in.
    """
    if isinstance(event, ToolResult):
        return event.message_seq, event.position + 1
    if isinstance(event, UserMessage):
        return (seq if event.replaces_from is None else event.replaces_from), 0
    return (seq, 0) if isinstance(event, AssistantMessage) else None


def extended(digest: str, message: Message) -> str:
    """The digest (sha256, in hex) of what a model sees once `message` joins what has `digest`; "" is nothing.

    Each message is hashed once, in the order in which they were written, so a long session costs O(n) in all.
    """
    match message:
        case UserMessage():
            said: list[object] = ["user"]
        case AssistantMessage():
            said = ["assistant", message.replay]
        case ToolResult():
            said = ["tool", message.position, message.call_id, message.outcome]
    said.append([_seen(block) for block in message.content])
    return hashlib.sha256((digest + dumps_words(said)).encode()).hexdigest()


def answer_digest(content: tuple[Block, ...]) -> str:
    """What tells one answer of a tool from another (sha256, in hex)."""
    return hashlib.sha256(dumps_words([_seen(block) for block in content]).encode()).hexdigest()


def _seen(block: Block) -> list[str]:
    match block:
        case TextBlock():
            return ["text", block.text]
        case ThinkingBlock():
            return ["thinking", block.text, block.replay]
        case ToolCallBlock():
            return ["call", block.call_id, block.name, block.arguments]
        case FileBlock():
            return ["file", block.name, block.media_type, block.sha256]


@frozen(kw_only=True)
class Outline:
    """Some of a history without the messages: their `rows` in order, and the `numbers` of those that are no results.

    Of the history that was `rewritten_at` that row, in which `said` messages were said by the last of these at least.
    This is all that the messages, which are in the log, do not say themselves.
    """

    rows: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    said: int = 0
    rewritten_at: int = 0

    def joined(self, before: Sequence[Outline]) -> Outline:
        """It and what stands `before` it, of which only those count that are of the same history."""
        parts = [*(each for each in before if each.rewritten_at == self.rewritten_at), self]
        return evolve(
            self,
            rows=tuple([row for part in parts for row in part.rows]),
            numbers=tuple([number for part in parts for number in part.numbers]),
        )


@define
class History:
    """All visible messages so far, in order.

    `rewritten_at` is the row of the newest message that stands for earlier ones, 0 before the first: until another one
    comes, messages are only added behind.
    """

    rewritten_at: int = field(default=0, init=False)
    _entries: list[tuple[Place, Message]] = field(factory=list, init=False)
    _rows: dict[Place, int] = field(factory=dict, init=False)
    _numbers: dict[int, int] = field(factory=dict, init=False)
    _said: int = field(default=0, init=False)

    def add(self, event: Event, seq: int) -> None:
        """Take in the event committed at `seq`; ignored unless the model sees it."""
        place = place_of(event, seq)
        if place is None:
            return
        match event:
            case UserMessage(replaces_from=int(first), replaces_to=int(last)):
                self._replace((first, 0), (last + 1, 0), seq)
            case ToolResult(replaces=int()):
                self._replace(place, (place[0], place[1] + 1), seq)
            case UserMessage() | AssistantMessage():
                self._numbers[seq] = self._said + 1
                self._said += 1 + sum(isinstance(block, ToolCallBlock) for block in event.content)
        entry = (place, cast("Message", event))
        if not self._entries or place > self._entries[-1][0]:
            self._entries.append(entry)
        else:  # a late result of a parallel batch lands before earlier ones of higher position
            insort(self._entries, entry, key=itemgetter(0))
        if place[0] != seq:
            self._rows[place] = seq

    def outline(self, start: int = 0, end: int | None = None) -> Outline:
        """Those from index `start` to before `end`; of all, `outlined` makes the same history, given the messages.

        Neither stands between an answer and a result of it.
        """
        places = [place for place, _ in self._entries[start:end]]
        return Outline(
            rows=tuple([self._rows.get(place, place[0]) for place in places]),
            numbers=tuple([self._numbers[row] for row in dict.fromkeys(row for row, _ in places)]),
            said=self._said,
            rewritten_at=self.rewritten_at,
        )

    def settled(self) -> int:
        """So many messages have all others behind them until it is rewritten: a late result joins the last answer."""
        for index in range(len(self._entries) - 1, -1, -1):
            if isinstance(self._entries[index][1], AssistantMessage):
                return index
        return 0

    @classmethod
    def outlined(cls, outline: Outline, messages: Sequence[Event]) -> History:
        """The history of that outline with these messages, one a row. Raises `ValueError` when they do not fit."""
        history = cls()
        history.rewritten_at, history._said = outline.rewritten_at, outline.said
        for row, message in zip(outline.rows, messages, strict=True):
            place = place_of(message, row)
            if place is None or (history._entries and place <= history._entries[-1][0]):
                raise ValueError(f"row {row} is none of these messages")
            history._entries.append((place, cast("Message", message)))
            if place[0] != row:
                history._rows[place] = row
        first = dict.fromkeys(place[0] for place, _ in history._entries)
        history._numbers = dict(zip(first, outline.numbers, strict=True))
        return history

    def row(self, place: Place) -> int:
        """The row of the message that stands at `place`."""
        return self._rows.get(place, place[0])

    def number(self, place: Place) -> int:
        """Which message stood at `place` first, counted from 1: a result by its call, so the same in every fork."""
        return self._numbers[place[0]] + place[1]

    def at(self, place: Place) -> Message | None:
        """The message that stands at `place`, None when none does."""
        index = bisect_left(self._entries, place, key=itemgetter(0))
        found = self._entries[index] if index < len(self._entries) else None
        return found[1] if found and found[0] == place else None

    def _replace(self, start: Place, end: Place, seq: int) -> None:
        """Drop what stands from `start` to before `end`. Whoever reads the messages as they were keeps them."""
        entries = self._entries
        low, high = (bisect_left(entries, place, key=itemgetter(0)) for place in (start, end))
        for place, _ in entries[low:high]:
            self._rows.pop(place, None)
            if place[0] != start[0]:
                self._numbers.pop(place[0], None)
        self._entries = entries[:low] + entries[high:]
        self.rewritten_at = seq

    def __len__(self) -> int:
        return len(self._entries)

    def since(self, count: int) -> list[tuple[Place, Message]]:
        """The entries after the first `count`."""
        return self._entries[count:]

    def until(self, row: int) -> int:
        """How many of them stand up to that row."""
        return bisect_left(self._entries, (row + 1, 0), key=itemgetter(0))

    def page(self, start: int, most: int) -> list[tuple[Place, Message]]:
        """Some `most` entries from index `start`, and with the last of them all that stand at the same row."""
        end = min(start + most, len(self._entries))
        while 0 < end < len(self._entries) and self._entries[end][0][0] == self._entries[end - 1][0][0]:
            end += 1
        return self._entries[start:end]

    def messages(self) -> Sequence[Message]:
        """The messages so far, read-only and without a copy."""
        return _Messages(self._entries, len(self._entries))

    def place(self, index: int) -> int:
        """The row that the message at `index` stands under."""
        return self._entries[index][0][0]


class _Messages(Sequence["Message"]):
    """The messages of the first `length` entries."""

    __slots__ = ("_entries", "_length")

    def __init__(self, entries: list[tuple[Place, Message]], length: int) -> None:
        self._entries = entries
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self._entries[number][1] for number in range(self._length)[index]]
        return self._entries[range(self._length)[index]][1]


@define
class EncodedRequest:
    """The request of one head generation, encoded and hashed part by part.

    Each part is encoded once, so a session of n steps costs O(n) in all. The digest covers the
    fragments, each preceded by its length.

    In a history that was rewritten at row `rewritten_at`, answers older than that are encoded without their thinking
    where the provider has `bound_thinking`: it belongs to a conversation that began in other words.
    """

    head: Head
    _encode: Callable[[Head | Message], bytes]
    rewritten_at: int = 0
    bound_thinking: bool = False
    messages: list[Message] = field(factory=list, init=False)
    fragments: list[bytes] = field(factory=list, init=False)
    _hash: hashlib._Hash = field(factory=hashlib.sha256, init=False)

    def __attrs_post_init__(self) -> None:
        self._take(self.head)

    def add(self, place: Place, message: Message, whole: Message | None = None) -> None:
        """Append the next message. `whole` is the same one with the bytes of its files: encoded, and not kept."""
        self.messages.append(message)
        part = whole or message
        if self.bound_thinking and isinstance(part, AssistantMessage) and place[0] < self.rewritten_at:
            part = _without_thinking(part)
        self._take(part)

    def asking(self, instruction: str, count: int) -> tuple[Request, str]:
        """The request for a summary of the first `count` messages: those, the instruction behind; and its digest."""
        asked = UserMessage(message_id="", content=text_blocks(instruction), source="kernel")
        messages = (*self.messages[:count], asked)
        fragments = (*self.fragments[: 1 + count], self._encode(asked))
        whole = hashlib.sha256(b"".join(map(_framed, fragments)))
        return Request(head=self.head, messages=messages, fragments=fragments), whole.hexdigest()

    def _take(self, part: Head | Message) -> None:
        fragment = self._encode(part)
        self.fragments.append(fragment)
        self._hash.update(_framed(fragment))

    @property
    def digest(self) -> str:
        """sha256 (hex) of everything taken in so far."""
        return self._hash.hexdigest()


def _framed(fragment: bytes) -> bytes:
    return len(fragment).to_bytes(8, "big") + fragment


def _without_thinking(answer: AssistantMessage) -> AssistantMessage:
    content = tuple(block for block in answer.content if not isinstance(block, ThinkingBlock))
    return evolve(answer, content=content, replay="")


T = TypeVar("T")


class Prefix(Sequence[T]):
    """The first `length` items of a growing list, read-only and without a copy."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: list[T]) -> None:
        self._items = items
        self._length = len(items)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return self._items[: self._length][index]
        return self._items[range(self._length)[index]]

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self._length)
