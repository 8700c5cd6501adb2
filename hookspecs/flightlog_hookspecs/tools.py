"""Tools: what a plugin registers, what a body is given, what it may return."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, overload

from attrs import Factory, field, frozen

from flightlog_hookspecs.content import Block, text_blocks
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.past import Past
from flightlog_hookspecs.subagents import Children
from flightlog_hookspecs.timers import Timers

Mode = Literal["parallel", "exclusive"]
Effect = Literal["read", "idempotent", "write", "external", "transactional"]
Isolation = Literal["inline", "thread", "process"]
Risk = Literal["low", "high"]
Outcome = Literal["ok", "error", "denied", "aborted", "not_started", "unknown", "timeout"]

REPEATABLE: frozenset[Effect] = frozenset({"read", "idempotent"})

SqlValue = int | float | str | bytes | None
SqlParameters = Sequence[SqlValue] | Mapping[str, SqlValue]


class ToolDatabase(Protocol):
    """The database of a transactional tool, inside the call's transaction.

    Errors are those of the `sqlite3` module. What would end the transaction, lead out of it or change how it
    is kept (COMMIT, ROLLBACK, ATTACH, most PRAGMAs) is refused with `UsageError`; savepoints are fine.
    """

    def execute(self, sql: str, parameters: SqlParameters = (), /) -> list[tuple[Any, ...]]:
        """Run one statement. All its rows: of a SELECT, or of what a RETURNING clause names; else none."""

    def executemany(self, sql: str, rows: Iterable[SqlParameters], /) -> None:
        """Run one INSERT, UPDATE or DELETE once for each of `rows`."""


class _NoDatabase(ToolDatabase):
    def execute(self, *_: object) -> list[tuple[Any, ...]]:
        raise UsageError("only a tool with effect='transactional' has a database")

    def executemany(self, *_: object) -> None:
        self.execute()

    def __repr__(self) -> str:
        return "NO_DATABASE"


NO_DATABASE: Final[ToolDatabase] = _NoDatabase()
"""What tools without a database have instead."""


class _Nobody:
    def __call__(self, text: str, /) -> None:
        pass

    def __repr__(self) -> str:
        return "NOBODY"


NOBODY: Final[Callable[[str], None]] = _Nobody()
"""Who listens beside the body, in a process of its own, in a test of yours."""


@frozen(kw_only=True)
class ToolContext:
    """What one call knows about itself."""

    invocation_id: str
    """The idempotency key: stable across crashes, unique for ever, in the log before the body runs."""
    session: str
    """The session's name."""
    turn: int
    """The turn's number, from 1."""
    step: int
    """The step's number in its turn, from 1."""
    position: int
    """The call's place in its message, from 0."""
    call_id: str
    """The provider's id of the call; unique only within its message."""
    deadline: float
    """When the call is cut off, in seconds of the kernel's monotonic clock."""
    workspace: str = ""
    """The folder the host lets tools work in, or "" for none."""
    protected: tuple[str, ...] = ()
    """Absolute paths (the log and its companions) that no tool may touch."""
    children: Children | None = field(default=None, eq=False, repr=False)
    """How the call may start child sessions; only async bodies on the kernel's own thread have it."""
    timers: Timers | None = field(default=None, eq=False, repr=False)
    """How the call may have the session woken later; only async bodies on the kernel's own thread have it."""
    past: Past | None = field(default=None, eq=False, repr=False)
    """What was said in the session; only async bodies on the kernel's own thread have it."""
    database: ToolDatabase = field(default=NO_DATABASE, eq=False, repr=False)
    """The database of a transactional tool, for the time of the call, in the thread of its body."""
    report: Callable[[str], None] = field(default=NOBODY, eq=False, repr=False)
    """Say how far the work is: people who watch see it, the model does not, and it stands in the log.

    From any thread, and it never waits or raises. At most ten times a second, of what comes faster the newest; 1000
    characters at most. Bodies in a process of their own are not heard.
    """


@frozen
class Fact:
    """Something that stays in a session's working memory, whatever becomes of the conversation."""

    name: str
    """What it is about, in 1 to 100 characters. A later fact of that name takes its place."""
    text: str
    """What is known; "" takes the fact of that name away."""


def _facts(facts: Mapping[str, str] | tuple[Fact, ...]) -> tuple[Fact, ...]:
    if isinstance(facts, Mapping):
        return tuple(Fact(name, text) for name, text in facts.items())
    return facts


@frozen(kw_only=True)
class ToolOutput:
    """A result built by hand."""

    content: tuple[Block, ...] = field(converter=text_blocks)
    """Texts and files, or a string, for the model."""
    is_error: bool = False
    """Whether the call counts as failed."""
    facts: tuple[Fact, ...] = field(default=(), converter=_facts)
    """What is to stay in the session's working memory; also a mapping from name to text.

    A session has up to 50, of 8000 characters in all; a call that would bring more is an error, and notes nothing.
    """


@frozen
class Done:
    """The call has taken effect."""

    output: object
    """Its result, as the body would have returned it."""


@frozen
class NotDone:
    """The call has not taken effect, and never will by itself: it may run."""


@frozen
class Unknown:
    """Nobody can tell whether the call has taken effect."""


Finding = Done | NotDone | Unknown
"""What a reconciler finds out about a call."""
Reconcile = Callable[[ToolContext, Mapping[str, Any]], Finding | Awaitable[Finding]]
Precheck = Callable[..., str | Awaitable[str | None] | None]


def _path(path: str | os.PathLike[str] | None) -> str | None:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


@frozen(kw_only=True)
class Tool:
    """A capability the model may call.

    `body(**arguments)` or `body(context, **arguments)`, sync or async, returns a string, a JSON
    value, bytes or a `ToolOutput`. With `parameters=None` the JSON Schema (2020-12) comes from the
    signature and docstring when the tool is registered; a bad schema is an error there, not later.

    `mode="parallel"` may run beside other parallel calls, "exclusive" is a barrier. `effect` decides
    what happens to a call whose outcome a crash made unknowable: "read" and "idempotent" may be
    repeated, "write" and "external" never are. What a "transactional" one does is SQL in its one `database`,
    through `context.database`: it happens exactly once, as the body returns, or not at all when that raises.
    `timeout_s` seconds bound every call. Sync bodies run
    in a thread, async ones on the kernel's own unless `isolation="thread"` gives them one with a loop of
    theirs; `isolation="process"` runs the body in a process of its own, so that a segfault or
    an endless C loop is one failed call (the body must be importable by name).

    `reconcile` and `precheck` run beside the kernel or in a thread of it, sync or async, for at most
    `timeout_s` seconds each. One that raises or hangs finds nothing out, and lets nothing run.
    """

    body: Callable[..., object]
    """`body(**arguments)` or `body(context, **arguments)`, sync or async."""
    name: str = Factory(lambda self: getattr(self.body, "__name__", ""), takes_self=True)
    """What the model calls it: 1 to 64 ASCII letters, digits, "_" or "-", no digit first. Default: the body's name."""
    description: str = ""
    """What it does, for the model. Default: from the body's docstring."""
    parameters: Mapping[str, object] | None = None
    """JSON Schema (2020-12) of the arguments. Default: from the body's signature and docstring."""
    mode: Mode = "exclusive"
    """"parallel" may run beside other parallel calls, "exclusive" is a barrier."""
    effect: Effect = "external"
    """What repeating a call would do; decides what happens to one whose outcome a crash made unknowable."""
    timeout_s: float = 60.0
    """Seconds a call may take."""
    isolation: Isolation = "inline"
    """Where the body runs: beside the kernel, in a thread or in a process of its own."""
    reconcile: Reconcile | None = None
    """`reconcile(context, arguments)` finds out whether a call that was cut off has taken effect, and changes nothing.

    It is given the invocation id and the arguments that the body had. Asked only about "write" and "external" calls."""
    precheck: Precheck | None = None
    """`precheck(**arguments)` or `precheck(context, **arguments)`, asked right before each start of the body.

    None lets the call run; a string, or a `ToolError`, is why it must not, for the model."""
    refreshable: bool = False
    """Whether a "read" tool's answers go stale, so that they may be asked for again when a task is resumed."""
    key_arguments: Sequence[str] = ()
    """The parameters that make two calls the same action; none named: all of them."""
    core: bool = True
    """Whether a task cannot do without it. When a budget lets no more calls start, other tools are left out."""
    risk: Risk = "low"
    """After a step that called one of "high" risk no smaller model serves, whatever the budget."""
    database: str | None = field(default=None, converter=_path)
    """The SQLite file of a transactional tool, which must exist; a string or a `Path`. Other tools have none."""


@overload
def tool(body: Callable[..., object], /) -> Tool: ...
@overload
def tool(
    *,
    name: str = ...,
    description: str = ...,
    mode: Mode = ...,
    effect: Effect = ...,
    timeout_s: float = ...,
    isolation: Isolation = ...,
    reconcile: Reconcile | None = ...,
    precheck: Precheck | None = ...,
    refreshable: bool = ...,
    key_arguments: Sequence[str] = ...,
    core: bool = ...,
    risk: Risk = ...,
    database: str | os.PathLike[str] | None = ...,
) -> Callable[[Callable[..., object]], Tool]: ...
def tool(
    body: Callable[..., object] | None = None, /, **options: Any
) -> Tool | Callable[[Callable[..., object]], Tool]:
    """Make a `Tool` of a typed function with a docstring; use it with or without options."""

    def wrap(function: Callable[..., object]) -> Tool:
        return Tool(body=function, **options)

    return wrap if body is None else wrap(body)
