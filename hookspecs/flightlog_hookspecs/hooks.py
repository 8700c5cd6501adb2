"""Loop points: where a plugin may watch or guard what the kernel is about to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from attrs import frozen

from flightlog_hookspecs.tools import Effect

Point = Literal["before_tool"]


@frozen(kw_only=True)
class ProposedCall:
    """A call about to run: its tool exists and its arguments fit. `arguments` is the model's raw text."""

    session: str
    turn: int
    step: int
    position: int
    call_id: str
    name: str
    arguments: str
    effect: Effect


@frozen
class Allow:
    """Let it run."""


@frozen
class Deny:
    """Do not run it; the model is told `reason`."""

    reason: str


@frozen
class Ask:
    """Let a person decide; `question` is what they are asked. Without an approver it is denied."""

    question: str


Verdict = Allow | Deny | Ask | None
"""What a guard says; None has no opinion. Deny beats Ask beats Allow."""


@frozen(kw_only=True)
class Hook:
    """A guard at `point`, called on its own with a time limit of `limit_s` seconds.

    `body(call)`, sync or async, returns a `Verdict`. Guards fail closed: one that raises, hangs or
    returns something else denies that call, and the others are asked all the same.
    """

    point: Point
    body: Callable[[ProposedCall], Verdict | Awaitable[Verdict]]
    name: str
    limit_s: float = 5.0
