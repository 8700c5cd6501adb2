"""The past of a session: what was said in it, also what the model is sent no longer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flightlog_hookspecs.events import Message  # which needs what tools say


class Past(Protocol):
    """What was said in the session that a tool was called in, as it is in the log. No other session can be seen."""

    def message(self, number: int) -> Message | None:
        """The message with that number, None when there is none.

        They are counted from 1, results in the order of their calls, so a number means the same in every fork. What
        stands for others is not counted. Files are without their bytes. Raises `LogCorrupt`.
        """
