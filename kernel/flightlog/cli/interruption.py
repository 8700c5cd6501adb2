"""Ctrl+C and SIGTERM: the first ends the turn, the second hurries running tools, the third leaves at once."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from signal import SIGTERM
from typing import Final

import trio

from flightlog import Session
from flightlog.cli.exits import FAILED, TERMINATED
from flightlog.cli.output import complain

_PATIENCE: Final = 2
"""Signals after which the next one does not wait for the turn's end."""


class Interruption:
    """What signals do while a session is driven. `scope` surrounds all that may be cut short.

    `exit_code` is None until a signal came; `session` is None while no turn can be cancelled; `accepted`
    says that the user's text is durable in the inbox.
    """

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.session: Session | None = None
        self.accepted = False
        self.scope = trio.CancelScope()

    async def watch(self, signals: AsyncIterator[int]) -> None:
        """Obey `signals`, until cancelled."""
        count = 0
        async for number in signals:
            count += 1
            self.exit_code = TERMINATED if number == SIGTERM else self.exit_code or FAILED
            if count > _PATIENCE:
                self._leave(self.exit_code)
            complain("cancelling the turn" if count == 1 else "leaving; tools that run are cut off, once more kills")
            cause = "SIGTERM" if number == SIGTERM else "user"
            if self.session is None or not self.session.cancel(cause, now=count > 1):
                self.scope.cancel()

    def _leave(self, code: int) -> None:
        # A tool that does not heed its cancel would hold us for ever. To the log this is a death like any
        # other: it needs no goodbye, and the next open closes the turn.
        complain("left at once; the log is whole, and the turn is closed when the session is next opened")
        os._exit(code)
