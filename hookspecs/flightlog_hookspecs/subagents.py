"""Subagents: child sessions that a model may start as it calls a tool, and the port through which tools start them."""

from __future__ import annotations

from typing import Literal, Protocol

from attrs import frozen


@frozen(kw_only=True)
class Subagent:
    """A kind of child session: the model calls it by name with a task and is given its answer.

    Registering one offers a tool of its name. The call waits for the child, which is an ordinary session
    with a log of its own, and its result is the child's last words. With `background`, the call returns the
    child's name at once; the child goes on beside its parent, can be sent more by the same tool, and what
    came of it reaches the parent as a message.
    """

    name: str
    """What the model calls it by, as a tool's name; unique among the tools of its scope."""
    description: str
    """What it is for, for the model that may call it."""
    prompt: str
    """The child's system text."""
    tools: tuple[str, ...] | None = None
    """The names of the tools that it may use, all of which its parent must have; None for those of its parent."""
    model: str = ""
    """"adapter:model", or "" for its parent's."""
    background: bool = False
    """Whether the parent goes on meanwhile."""
    effect: Literal["read", "external"] = "external"
    """What repeating a call would do. One that says "read" may use reading tools only, and be called again after a
    crash. A background one is "external"."""
    timeout_s: float | None = None
    """Seconds a child may work on a task before it is ended. None: an hour if its call waits for it, as long as it
    wants in the background. There the time is that of the clock since the task was given, with all in which no process
    ran."""
    steps_per_turn: int | None = None
    """How many steps each of its turns may take, if less than its parent's `Limits.steps_per_turn`."""
    at_once: int | None = None
    """How many children of this kind a session may have at work at the same time; `Limits.subagents_at_once` bounds
    those of all kinds."""


@frozen(kw_only=True)
class ChildEnd:
    """How a child came to rest."""

    child: str
    """The name of its session."""
    reason: str
    """How its last turn ended, as in its turn/end; "completed" is the good one."""
    text: str
    """Its last words if it has completed, else what went wrong, for the model that called it."""


@frozen(kw_only=True)
class ChildState:
    """How a background child stands."""

    child: str
    """The name of its session."""
    task: str
    """The task it was given last."""
    working: bool
    """Whether it is still at work on that."""


class Children(Protocol):
    """The children of the session that a tool was called in. Each call may start one, as long as it lasts.

    One that starts again after a crash, as the same invocation, takes up the child that it had started, if any.
    What cannot be done is refused with a `ToolError` before anything happens: a tool that the parent lacks, too great
    a depth, too many at once, a second child, a name that is not a child's.
    """

    async def run(self, subagent: Subagent, task: str) -> ChildEnd:
        """Let a child work on `task` until it comes to rest. When the call is cancelled or ends, so is the child."""

    async def start(self, subagent: Subagent, task: str) -> str:
        """Let a child work on `task` beside its parent; returns the child's name once the child has its task.

        A subagent that is registered under its name can also be taken up after a crash before its first request.
        """

    async def send(self, subagent: Subagent, child: str, text: str, *, steer: bool = False) -> None:
        """Give a background child of this session and of this kind more to do, also one that had come to rest.

        With `steer`, it cuts into what the child is doing; else it waits for the child's next turn.
        """

    async def call_off(self, subagent: Subagent, child: str) -> None:
        """End what a background child of this session and of this kind does; it has settled when this returns.

        Its tools get `Limits.cancel_grace_s` to end, what waits in its inbox leaves it, children of its own end their
        turns. It can be sent more afterwards, which is a new task. One that had come to rest is refused.
        """

    def states(self, subagent: Subagent) -> tuple[ChildState, ...]:
        """The background children of this session and of this kind, in the order in which they were started."""
