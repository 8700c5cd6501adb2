"""The world outside the log: what it was told, and what was done to it. It survives every crash."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import trio
from attrs import define, field, frozen

from flightlog.runtime.inbox import Accepted
from flightlog.runtime.journal import HeadToken
from flightlog.runtime.session import Session
from flightlog.store.connection import ApswDatabase, Busy
from flightlog_hookspecs import Tool, ToolContext
from flightlog_hookspecs.errors import StoreError
from flightlog_hookspecs.tools import Effect, Mode


@frozen
class Committed:
    """The kernel has committed the rows of `session` up to `seq`; with `barrier`, for power loss too."""

    session: str
    seq: int
    barrier: bool


@frozen
class Held:
    """Somebody outside holds `token`: message `message_id` was accepted or, without one, a turn was over."""

    token: HeadToken
    message_id: str = ""


@frozen
class Reached:
    """Something outside was about to be reached on account of row `seq`: a model, or a tool's body."""

    session: str
    seq: int
    what: str


@frozen
class Posted:
    """A letter was acknowledged; once more under its key, it is the same letter."""

    letter_id: str


@frozen
class Done:
    """A tool's body has taken effect. `arguments` is canonical JSON."""

    invocation_id: str
    tool: str
    effect: Effect
    arguments: str


@frozen
class Ended:
    """The body that was started at row `call_seq` has ended, and time has passed since, whoever else still runs."""

    session: str
    call_seq: int


@frozen
class Failed:
    """The file could not be written."""


Fact = Committed | Held | Reached | Posted | Done | Ended | Failed


def _unheard(path: str) -> None:
    pass


@define
class World:
    """The ledger of all facts, in order; its length is the clock of the laboratory."""

    ledger: list[Fact] = field(factory=list)
    workspace: str = field(default="", kw_only=True)
    """The folder of the kernel's tools, in which a crash leaves what it leaves of the log."""
    keep: Callable[[str], None] = field(default=_unheard, init=False)
    """Called with the path of a file there that was just changed, all or nothing, by code that is not watched."""
    _barrier: bool = field(default=False, init=False)
    _busy: bool = field(default=False, init=False)
    _ended: list[tuple[float, Ended]] = field(factory=list, init=False)

    def boundary(self, name: str, session: str, seq: int) -> None:
        """The kernel's `on_boundary`."""
        while self._ended and self._ended[0][0] < trio.current_time():
            self.ledger.append(self._ended.pop(0)[1])
        if name == "committed":
            self.ledger.append(Committed(session, seq, self._barrier))
        elif name in ("request", "tool"):
            self.ledger.append(Reached(session, seq, name))
        elif name == "tool-done" and not self._busy:
            self._ended.append((trio.current_time(), Ended(session, seq)))

    def held(self, token: HeadToken) -> None:
        """Note that somebody relies on the log up to `token`."""
        self.ledger.append(Held(token))

    def accepted(self, accepted: Accepted) -> None:
        """Note that a message was acknowledged."""
        self.ledger.append(Held(accepted.token, accepted.message_id))

    def posted(self, letter_id: str) -> None:
        """Note that a letter was acknowledged."""
        self.ledger.append(Posted(letter_id))

    def done(self, context: ToolContext, tool: str, effect: Effect, arguments: object) -> None:
        """Note that a body takes effect: call it where the effect happens."""
        self.ledger.append(Done(context.invocation_id, tool, effect, json.dumps(arguments)))

    async def followup(self, session: Session, text: str, *, key: str | None = None) -> Accepted:
        """`session.followup`, and note the acknowledgement."""
        accepted = await session.followup(text, key=key)
        self.accepted(accepted)
        return accepted

    def tool(
        self,
        name: str,
        effect: Effect,
        mode: Mode = "parallel",
        *,
        output: Callable[[str], str] = str,
        seconds: float = 0,
    ) -> Tool:
        """A tool that takes effect here, then ends after so many seconds. Its one argument is `task`."""

        async def body(context: ToolContext, task: str) -> str:
            await trio.lowlevel.checkpoint()
            self.done(context, name, effect, {"task": task})
            await trio.sleep(seconds)
            return output(f"{name} {task}: done")

        schema: dict[str, Any] = {
            "type": "object",
            "properties": {"task": {"type": "string"}},
            "required": ["task"],
        }
        return Tool(body=body, name=name, description="Work.", mode=mode, effect=effect, parameters=schema)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See which commits are barriers, as the store asks for them, and which of them fail."""
        begin, commit = ApswDatabase.begin, ApswDatabase.commit

        def watched_begin(database: ApswDatabase, *, barrier: bool) -> None:
            self._barrier = barrier
            with self._failing():
                begin(database, barrier=barrier)
            self._busy = False

        def watched_commit(database: ApswDatabase) -> None:
            with self._failing():
                commit(database)

        ApswDatabase.begin, ApswDatabase.commit = watched_begin, watched_commit  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            ApswDatabase.begin, ApswDatabase.commit = begin, commit  # type: ignore[method-assign]

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Busy:
            self._busy = True  # who waits for the file owes nothing meanwhile
            self._ended.clear()
            raise
        except StoreError:
            self._ended.clear()
            self.ledger.append(Failed())
            raise


def surviving(ledger: Sequence[Fact], *, power_lost: bool) -> list[Fact]:
    """What still holds after a crash: without power, ordinary commits promise nothing."""
    return [fact for fact in ledger if not (power_lost and isinstance(fact, Committed) and not fact.barrier)]
