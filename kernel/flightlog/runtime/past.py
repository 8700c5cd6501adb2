"""What was said in one owned session, row by row, also what was replaced since."""

from __future__ import annotations

from typing import get_args

from attrs import frozen

from flightlog.core.files import bare
from flightlog.runtime.journal import Journal
from flightlog.store.replay import lone_record
from flightlog_hookspecs.events import AssistantMessage, Message, ToolResult, UserMessage

_KINDS = frozenset(message.kind for message in get_args(Message))


@frozen
class Past:
    """`flightlog_hookspecs.Past` for one session."""

    _journal: Journal

    def message(self, row: int) -> tuple[int, Message] | None:
        """The message in that row, else the first one behind it, with its row; None when there is none."""
        journal = self._journal
        for found in journal.store.rows(journal.key, after=max(row, 1) - 1):
            if found.kind in _KINDS:
                event = bare(lone_record(journal.store, journal.session, found).event)
                assert isinstance(event, (UserMessage, AssistantMessage, ToolResult)), "the kind decides the class"
                return found.seq, event
        return None
