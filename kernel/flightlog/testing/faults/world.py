"""The world outside the log: what it was told, and what was done to it. It survives every crash."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import trio
from attrs import define, field, frozen

from flightlog.runtime.inbox import Accepted
from flightlog.runtime.journal import HeadToken
from flightlog.runtime.session import Session
from flightlog.store.connection import ApswDatabase, Busy
from flightlog.store.log_file import LogFile
from flightlog.store.store import Store
from flightlog_hookspecs import Tool, ToolContext
from flightlog_hookspecs.errors import Fenced, StoreError
from flightlog_hookspecs.tools import Done as Reconciled
from flightlog_hookspecs.tools import Effect, Finding, Mode, NotDone


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
    """The body that was started at row `call_seq` has ended, and time has passed since, whoever else still runs.

    In that time the file could be written: no other process held it, and the kernel had not stopped.
    """

    session: str
    call_seq: int


@frozen
class Failed:
    """The file could not be written: nothing is, from here on."""


@frozen
class Entered:
    """A task was acknowledged: `session` is its own."""

    session: str


@frozen
class Wrong:
    """Something took effect that should not have, as only the workload can know."""

    how: str


Fact = Committed | Held | Reached | Posted | Done | Ended | Failed | Entered | Wrong

_WRITING: Final = (
    (ApswDatabase, "begin"),
    (ApswDatabase, "write"),
    (ApswDatabase, "commit"),
    (LogFile, "record_durable"),
)


def _unheard(path: str) -> None:
    pass


class Stuck(AssertionError):
    """A host finds its work unfinished, and nothing left to do about it."""


@define
class World:
    """The ledger of all facts, in order; its length is the clock of the laboratory.

    What took effect `earlier` stands in somebody else's ledger, and has happened all the same.
    """

    ledger: list[Fact] = field(factory=list)
    earlier: Sequence[Fact] = ()
    workspace: str = field(default="", kw_only=True)
    """The folder of the kernel's tools, in which a crash leaves what it leaves of the log."""
    life: int = field(default=0, init=False)
    """So many lives have ended before the one that this world sees."""
    keep: Callable[[str], None] = field(default=_unheard, init=False)
    """Called with the path of a file there that was just changed, all or nothing, by code that is not watched."""
    _barrier: bool = field(default=False, init=False)
    _ended: list[tuple[float, Ended]] = field(factory=list, init=False)
    _busy: bool = field(default=False, init=False)
    _failed: bool = field(default=False, init=False)

    def boundary(self, name: str, session: str, seq: int) -> None:
        """The kernel's `on_boundary`."""
        self._let_time_pass()
        if name == "committed":
            self.ledger.append(Committed(session, seq, self._barrier))
        elif name in ("request", "tool"):
            self.ledger.append(Reached(session, seq, name))
        elif name == "tool-done" and not self._failed:
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

    def entered(self, task: str) -> None:
        """Note that a task was acknowledged."""
        self.ledger.append(Entered(task))

    def wrong(self, how: str) -> None:
        """Note that something is about to take effect that should not."""
        self.ledger.append(Wrong(how))

    def done(self, context: ToolContext, tool: str, effect: Effect, arguments: object) -> None:
        """Note that a body takes effect: call it where the effect happens."""
        self.ledger.append(Done(context.invocation_id, tool, effect, json.dumps(arguments)))

    def has_done(self, *, invocation_id: str = "", tool: str = "", arguments: object = None) -> bool:
        """Whether that invocation, or a call of that tool about the same, has taken effect."""
        about = (tool, json.dumps(arguments))
        done = [fact for fact in (*self.earlier, *self.ledger) if isinstance(fact, Done)]
        return any(fact.invocation_id == invocation_id or (fact.tool, fact.arguments) == about for fact in done)

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
        reconciled: bool = False,
    ) -> Tool:
        """A tool that takes effect here, then ends after so many seconds. Its one argument is `task`.

        One that is `reconciled` finds out what it has done.
        """

        async def body(context: ToolContext, task: str) -> str:
            await trio.lowlevel.checkpoint()
            self.done(context, name, effect, {"task": task})
            await trio.sleep(seconds)
            return output(f"{name} {task}: done")

        async def reconcile(context: ToolContext, arguments: Mapping[str, Any]) -> Finding:
            await trio.lowlevel.checkpoint()
            if self.has_done(invocation_id=context.invocation_id):
                return Reconciled(output(f"{name} {arguments['task']}: done"))
            return NotDone()

        schema: dict[str, Any] = {
            "type": "object",
            "properties": {"task": {"type": "string"}},
            "required": ["task"],
        }
        return Tool(
            body=body,
            name=name,
            description="Work.",
            mode=mode,
            effect=effect,
            parameters=schema,
            reconcile=reconcile if reconciled else None,
        )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See which commits are barriers, as the store asks for them, who waits for the file, and what fails."""
        begin, stop = ApswDatabase.begin, Store.stop

        def watched_begin(database: ApswDatabase, *, barrier: bool) -> None:
            self._barrier = barrier
            self._let_time_pass()
            try:
                begin(database, barrier=barrier)
            except Busy:
                self._busy = True
                raise
            self._is_free()

        def watched_stop(store: Store, fault: StoreError) -> StoreError:
            self._has_failed()
            return stop(store, fault)

        with ExitStack() as undo:
            _replace(undo, ApswDatabase, "begin", watched_begin)
            _replace(undo, Store, "stop", watched_stop)
            for owner, name in _WRITING:  # seen here too: a kernel might not stop at it
                _replace(undo, owner, name, self._watched(getattr(owner, name)))
            yield

    def _watched(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            try:
                return write(*arguments, **options)
            except (Busy, Fenced):
                raise
            except StoreError:
                self._has_failed()
                raise

        return watched

    def _let_time_pass(self) -> None:
        """Take the results of those who ended before now for due: they needed no more than a commit."""
        while self._ended and not self._busy and self._ended[0][0] < trio.current_time():
            self.ledger.append(self._ended.pop(0)[1])

    def _is_free(self) -> None:
        """Whoever waited for the file owes what it has to save from now on."""
        if self._busy:
            self._busy = False
            self._ended = [(trio.current_time(), ended) for _, ended in self._ended]

    def _has_failed(self) -> None:
        """What was not saved by now never will be; the next open says of it that it is in doubt."""
        self._let_time_pass()
        self._ended.clear()
        if not self._failed:
            self.ledger.append(Failed())
        self._failed = True


def _replace(undo: ExitStack, owner: type, name: str, value: object) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def surviving(ledger: Sequence[Fact], *, power_lost: bool) -> list[Fact]:
    """What still holds after a crash: without power, ordinary commits promise nothing."""
    return [fact for fact in ledger if not (power_lost and isinstance(fact, Committed) and not fact.barrier)]
