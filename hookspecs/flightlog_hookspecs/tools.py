"""Tools: what a plugin registers, what a body is given, what it may return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

from attrs import Factory, field, frozen

from flightlog_hookspecs.content import Block, text_blocks

Mode = Literal["parallel", "exclusive"]
Effect = Literal["read", "idempotent", "write", "external"]
Isolation = Literal["inline", "thread", "process"]
Outcome = Literal["ok", "error", "denied", "aborted", "not_started", "unknown", "timeout"]

REPEATABLE: frozenset[Effect] = frozenset({"read", "idempotent"})


@frozen(kw_only=True)
class ToolContext:
    """What one call knows about itself.

    `invocation_id` is the idempotency key: stable across crashes, unique for ever, in the log before
    the body runs. `deadline` is in seconds of the kernel's monotonic clock. `workspace` is the
    folder the host lets tools work in, or "" for none; `protected` are absolute paths (the log and
    its companions) that no tool may touch.
    """

    invocation_id: str
    session: str
    turn: int
    step: int
    position: int
    call_id: str
    deadline: float
    workspace: str = ""
    protected: tuple[str, ...] = ()


@frozen(kw_only=True)
class ToolOutput:
    """A result built by hand: blocks, or a string, for the model."""

    content: tuple[Block, ...] = field(converter=text_blocks)
    is_error: bool = False


@frozen(kw_only=True)
class Tool:
    """A capability the model may call.

    `body(**arguments)` or `body(context, **arguments)`, sync or async, returns a string, a JSON
    value, bytes or a `ToolOutput`. With `parameters=None` the JSON Schema (2020-12) comes from the
    signature and docstring when the tool is registered; a bad schema is an error there, not later.

    `mode="parallel"` may run beside other parallel calls, "exclusive" is a barrier. `effect` decides
    what happens to a call whose outcome a crash made unknowable: "read" and "idempotent" may be
    repeated, "write" and "external" never are. `timeout_s` seconds bound every call. Sync bodies run
    in a thread, async ones on the kernel's own unless `isolation="thread"` gives them one with a loop of
    theirs; `isolation="process"` runs the body in a process of its own, so that a segfault or
    an endless C loop is one failed call (the body must be importable by name).
    """

    body: Callable[..., object]
    name: str = Factory(lambda self: getattr(self.body, "__name__", ""), takes_self=True)
    description: str = ""
    parameters: Mapping[str, object] | None = None
    mode: Mode = "exclusive"
    effect: Effect = "external"
    timeout_s: float = 60.0
    isolation: Isolation = "inline"


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
) -> Callable[[Callable[..., object]], Tool]: ...
def tool(
    body: Callable[..., object] | None = None, /, **options: Any
) -> Tool | Callable[[Callable[..., object]], Tool]:
    """Make a `Tool` of a typed function with a docstring; use it with or without options."""

    def wrap(function: Callable[..., object]) -> Tool:
        return Tool(body=function, **options)

    return wrap if body is None else wrap(body)
