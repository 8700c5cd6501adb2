"""The inbox as its owner changes it: accept, edit, withdraw. Each returns once it is durable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen

from flightlog.core import inbox
from flightlog.core.files import refusal
from flightlog.core.inbox import Way
from flightlog.core.state import State
from flightlog.runtime.journal import HeadToken, Journal
from flightlog.store.replay import lone_record
from flightlog.store.rows import EventRow
from flightlog_hookspecs.content import Block, FileBlock, TextBlock, text_blocks
from flightlog_hookspecs.errors import LogCorrupt, UsageError
from flightlog_hookspecs.events import Event, InboxSplice, SpliceCause

KEY_MAX_CHARS: Final = 200

_GONE: Final[dict[SpliceCause, str]] = {
    "claimed": "has entered a turn, so it can be changed no more",
    "withdrawn": "was withdrawn before",
    "cancelled": "was removed when its turn was cancelled",
}


@frozen(kw_only=True)
class Accepted:
    """A message is durable in the inbox. `token` proves how far the log had come by then."""

    message_id: str
    token: HeadToken


class Inbox:
    """The inbox of one owned session."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def accept(self, way: Way, content: str | tuple[Block, ...], key: str | None) -> Accepted:
        """Let a message in. Under a `key` that was used before it changes nothing and returns that message."""
        blocks = checked_content(content)
        message_id = self._journal.clock.new_id() if key is None else inbox.keyed_id(checked_key(key))

        def accepted(state: State) -> Event | Sequence[Event]:
            splice = inbox.accepted(state, way, message_id, blocks)
            earlier = None if key is None else self.first_splice(message_id)
            return () if inbox.is_repeat(splice, earlier) else splice

        await self._journal.append(accepted, barrier=True)
        return Accepted(message_id=message_id, token=self._journal.token)

    async def edit(self, message_id: str, content: str | tuple[Block, ...]) -> None:
        """Give a waiting message other content. Raises `UsageError` when it does not wait any more."""
        blocks = checked_content(content)

        def edited(state: State) -> InboxSplice:
            splice = inbox.edited(state, message_id, blocks)
            if splice is None:
                raise self._not_waiting(message_id)
            return splice

        await self._journal.append(edited, barrier=True)

    async def withdraw(self, message_id: str) -> None:
        """Take a waiting message back. Raises `UsageError` when it does not wait any more."""

        def withdrawn(state: State) -> Sequence[InboxSplice]:
            splices = inbox.removed(state, (message_id,), "withdrawn")
            if not splices:
                raise self._not_waiting(message_id)
            return splices

        await self._journal.append(withdrawn, barrier=True)

    def first_splice(self, message_id: str) -> InboxSplice | None:
        """The splice that first accepted `message_id`, None when none ever did.

        Whether one did is known from reading the whole log: an index with a page that came back as zeros
        would say that there is none. Raises `LogCorrupt` when it does not lead to the row.
        """
        journal = self._journal
        if message_id not in journal.state.accepted:
            return None
        splice = self._splice("first_splice", message_id)
        if splice is None:
            raise LogCorrupt(journal.session, None, "index-whole", f"the index does not lead to message {message_id!r}")
        return splice

    def _not_waiting(self, message_id: object) -> UsageError:
        last = self._splice("last_splice", message_id) if isinstance(message_id, str) else None
        fate = "was never accepted here" if last is None else _GONE[last.cause]
        return UsageError(f"message {message_id!r} does not wait in session {self._journal.session!r}: it {fate}")

    def _splice(self, query: str, message_id: str) -> InboxSplice | None:
        journal = self._journal
        rows = journal.store.read(query, journal.key, message_id)
        if not rows:
            return None
        event = lone_record(journal.store, journal.session, EventRow(*rows[0])).event
        assert isinstance(event, InboxSplice), "the query finds only splices"
        return event


def checked_content(content: object) -> tuple[Block, ...]:
    """`content` as blocks. Raises `UsageError` when it is neither a string nor a tuple of texts and files, or is empty.

    Only who writes is told: what stands in a log or a mailbox already is read as it is.
    """
    blocks = text_blocks(content) if isinstance(content, str) else content
    if not isinstance(blocks, tuple):
        raise UsageError(f"a message is a string or a tuple of blocks, not {type(content).__name__}")
    for block in blocks:
        if not isinstance(block, (TextBlock, FileBlock)):
            raise UsageError(
                f"a message holds texts and files, not a {type(block).__name__}: only models think and call"
            )
        if isinstance(block, FileBlock) and (why := refusal(block)):
            raise UsageError(f"{why}. Nothing was accepted.")
    if not any(map(_says_something, blocks)):
        raise UsageError("a message needs words or a file; this one is empty. Nothing was accepted.")
    return blocks


def _says_something(block: TextBlock | FileBlock) -> bool:
    return isinstance(block, FileBlock) or not isinstance(block.text, str) or bool(block.text.strip())


def checked_key(key: object) -> str:
    """`key` as an idempotency key. Raises `UsageError` when it cannot be one."""
    if not isinstance(key, str) or not 0 < len(key) <= KEY_MAX_CHARS or not key.isprintable():
        raise UsageError(f"a key is 1 to {KEY_MAX_CHARS} printable characters, not {key!r}")
    return key
