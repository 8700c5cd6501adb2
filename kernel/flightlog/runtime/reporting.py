"""What a running body says of how far it is: written as it comes, the newest of what comes too fast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import trio
from attrs import define, field

from flightlog.core.limits import PROGRESS_EVERY_S, PROGRESS_MAX_CHARS, PROGRESS_ROWS_MAX
from flightlog.core.state import State
from flightlog.runtime.journal import Journal
from flightlog_hookspecs.events import ToolCall, ToolProgress

_KEPT_CHARS: Final = 10 * PROGRESS_MAX_CHARS
"""More than is written, so that no secret is cut in two before it is redacted."""


@define(eq=False)
class Reports:
    """Those of one start of a call, in row `call_seq`. Nothing is begun for a body that says nothing.

    `redact` is put over the words, `start_soon` starts a task that ends with the calls of the step.
    """

    _journal: Journal
    _intent: ToolCall
    _call_seq: int
    _redact: Callable[[str], str]
    _start_soon: Callable[..., object]
    _token: trio.lowlevel.TrioToken = field(factory=trio.lowlevel.current_trio_token)
    _newest: str | None = field(default=None, init=False)
    _rows: int = field(default=0, init=False)
    _writing: trio.CancelScope | None = field(default=None, init=False)
    _over: bool = field(default=False, init=False)

    def take(self, text: str) -> None:
        """Keep what the body says. From any thread; words that are none count for nothing."""
        if not self._over and isinstance(text, str) and text:
            with suppress(trio.RunFinishedError):  # a thread that was left behind
                self._token.run_sync_soon(self._take, text[:_KEPT_CHARS])

    def end(self) -> None:
        """The body has ended, or is left: what was not written by now is not news any more."""
        self._over, self._newest = True, None
        if self._writing is not None:
            self._writing.cancel()

    def _take(self, text: str) -> None:
        if self._over or self._rows >= PROGRESS_ROWS_MAX:
            return
        self._newest = text
        if self._writing is None:
            self._writing = trio.CancelScope()
            self._start_soon(self._write)

    async def _write(self) -> None:
        """Write what there is, and again what has come by the time the next may follow."""
        scope = self._writing
        assert scope is not None, "set by who starts this"
        with scope:
            while (text := self._newest) is not None:
                self._newest = None
                self._rows += 1
                if words := self._redact(text)[:PROGRESS_MAX_CHARS]:
                    await self._journal.append(partial(self._event, words))
                await trio.sleep(PROGRESS_EVERY_S)
        self._writing = None

    def _event(self, words: str, _: State) -> tuple[ToolProgress, ...]:
        """What is written, unless the body has ended since."""
        if self._over:
            return ()
        intent, row = self._intent, self._call_seq
        return (
            ToolProgress(position=intent.position, call_id=intent.call_id, name=intent.name, call_seq=row, text=words),
        )
