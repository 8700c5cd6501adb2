"""The past of a session: what was said in it, also what the model is sent no longer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flightlog_hookspecs.events import Message  # which needs what tools say


class Past(Protocol):
    """What was said in the session that a tool was called in, as it is in the log. No other session can be seen."""

    def message(self, row: int) -> tuple[int, Message] | None:
        """The message in that row, else the first one behind it, with its row; None when there is none.

        Files are without their bytes. Raises `LogCorrupt`.
        """
