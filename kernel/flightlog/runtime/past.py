"""What was said in one owned session, message by message, also what was replaced since."""

from __future__ import annotations

from attrs import frozen

from flightlog.core.files import bare
from flightlog.runtime.journal import Journal
from flightlog.store.replay import lone_record
from flightlog.store.rows import EventRow
from flightlog_hookspecs.events import AssistantMessage, Message, ToolResult, UserMessage


@frozen
class Past:
    """`flightlog_hookspecs.Past` for one session."""

    _journal: Journal

    def message(self, number: int) -> Message | None:
        """The message with that number, None when there is none."""
        journal = self._journal
        rows = journal.store.read("message_said", journal.key, number - 1) if number > 0 else []
        if not rows:
            return None
        event = bare(lone_record(journal.store, journal.session, EventRow._make(rows[0])).event)
        assert isinstance(event, (UserMessage, AssistantMessage, ToolResult)), "the statement reads nothing else"
        return event
