"""Loop points: where a plugin may watch, guard or steer what the kernel is about to do.

| point              | is given        | may answer                     | kind     |
|--------------------|-----------------|--------------------------------|----------|
| `before_step`      | `StepView`      | `Veto`, `Append`               | guard    |
| `before_request`   | `RequestView`   | `Veto`                         | guard    |
| `before_tool`      | `ProposedCall`  | `Allow`, `Deny`, `Ask`, `Arguments` | guard |
| `after_tool`       | `FinishedCall`  | `Replace`, `Append`            | observer |
| `on_request_error` | `FailedRequest` | `Retry`, `Switch`              | observer |
| `turn_stopping`    | `StoppingTurn`  | `Continue`                     | observer |
| `event_committed`  | `Record`        | nothing                        | observer |

None has no opinion, at every point. A hook that raises, exceeds its time limit or answers something else
is recorded as `plugin/error`. Guards then fail closed, as if they had said no; observers fail open, as if
they had said nothing. The other hooks are asked all the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, overload

from attrs import field, frozen

from flightlog_hookspecs.content import Block, text_blocks
from flightlog_hookspecs.errors import FailureKind
from flightlog_hookspecs.events import Head, Message, Record
from flightlog_hookspecs.stream import Usage
from flightlog_hookspecs.tools import Effect, Outcome, ToolOutput

Point = Literal[
    "before_step",
    "before_request",
    "before_tool",
    "after_tool",
    "on_request_error",
    "turn_stopping",
    "event_committed",
]


@frozen(kw_only=True)
class StepView:
    """A step about to make its first request; `messages` are what the model will see, in order."""

    session: str
    turn: int
    step: int
    messages: Sequence[Message] = field(repr=False)


@frozen(kw_only=True)
class RequestView:
    """A request about to be sent, exactly as it will be: it can be refused, not edited."""

    session: str
    turn: int
    step: int
    attempt: int
    head: Head
    messages: Sequence[Message] = field(repr=False)


@frozen(kw_only=True)
class ProposedCall:
    """A call about to run: its tool exists and its arguments fit. `arguments` is raw JSON text.

    `remembered` is what a person decided about this tool earlier in the session, to be remembered:
    "allowed" or "denied", "" when there is no such decision.
    """

    session: str
    turn: int
    step: int
    position: int
    call_id: str
    name: str
    arguments: str
    effect: Effect
    remembered: Literal["", "allowed", "denied"] = ""


@frozen(kw_only=True)
class FinishedCall:
    """A call whose body has ended; its result is not in the log yet. `duration_us` is microseconds."""

    call: ProposedCall
    outcome: Outcome
    content: tuple[Block, ...]
    duration_us: int


@frozen(kw_only=True)
class FailedRequest:
    """An attempt that ended badly; `retry_after_s` is the provider's own wish, `model` is "adapter:model".

    `attempts_left` counts what the session's limits still allow in this step.
    """

    session: str
    turn: int
    step: int
    attempt: int
    model: str
    failure: FailureKind
    message: str
    retryable: bool
    retry_after_s: float | None
    attempts_left: int


@frozen(kw_only=True)
class StoppingTurn:
    """A turn about to end as completed: the model's last words, the tokens of the turn, its steps so far."""

    session: str
    turn: int
    steps: int
    text: str
    usage: Usage


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


@frozen
class Arguments:
    """Run it with these arguments instead, raw JSON text; they are checked against the tool's schema again."""

    arguments: str


@frozen
class Veto:
    """Do not go on: the turn ends as blocked because of `reason`."""

    reason: str


@frozen
class Append:
    """Tell the model this, too, in a message of source "plugin"."""

    content: tuple[Block, ...] = field(converter=text_blocks)


@frozen
class Replace:
    """Give the model this result instead. What the body did stays done."""

    output: ToolOutput


@frozen
class Retry:
    """Make another attempt after `after_s` seconds, if the session's limits allow one."""

    after_s: float = 0.0


@frozen
class Switch:
    """Make another attempt with `model`, "adapter:model", which serves the rest of the turn."""

    model: str
    after_s: float = 0.0


@frozen
class Continue:
    """Do not stop yet: the model is told this and goes on."""

    content: tuple[Block, ...] = field(converter=text_blocks)


Verdict = Allow | Deny | Ask | Arguments | None
"""What a guard says of a call. Deny beats Ask beats Arguments beats Allow; of equals the first counts."""

ANSWERS: Final[Mapping[Point, tuple[type, ...]]] = {
    "before_step": (Veto, Append),
    "before_request": (Veto,),
    "before_tool": (Allow, Deny, Ask, Arguments),
    "after_tool": (Replace, Append),
    "on_request_error": (Retry, Switch),
    "turn_stopping": (Continue,),
    "event_committed": (),
}
"""What a hook at each point may answer, besides None."""

GUARDS: Final[frozenset[Point]] = frozenset({"before_step", "before_request", "before_tool"})
"""The points whose hooks fail closed."""


@frozen(kw_only=True)
class Hook:
    """`body`, sync or async, is called on its own at `point`, with a time limit of `limit_s` seconds.

    A plain function runs in a thread, which a time-out leaves behind. Hooks are asked in the order in
    which they were registered, those of the kernel before those of the session.
    """

    point: Point
    body: Callable[[Any], object | Awaitable[object]]
    name: str
    limit_s: float = 5.0


View = TypeVar("View")
Answer = TypeVar("Answer")
_Wrap = Callable[[Callable[[View], Answer | Awaitable[Answer | None] | None]], Hook]


@overload
def hook(point: Literal["before_step"], *, name: str = ..., limit_s: float = ...) -> _Wrap[StepView, Veto | Append]: ...
@overload
def hook(point: Literal["before_request"], *, name: str = ..., limit_s: float = ...) -> _Wrap[RequestView, Veto]: ...
@overload
def hook(
    point: Literal["before_tool"], *, name: str = ..., limit_s: float = ...
) -> _Wrap[ProposedCall, Allow | Deny | Ask | Arguments]: ...
@overload
def hook(
    point: Literal["after_tool"], *, name: str = ..., limit_s: float = ...
) -> _Wrap[FinishedCall, Replace | Append]: ...
@overload
def hook(
    point: Literal["on_request_error"], *, name: str = ..., limit_s: float = ...
) -> _Wrap[FailedRequest, Retry | Switch]: ...
@overload
def hook(
    point: Literal["turn_stopping"], *, name: str = ..., limit_s: float = ...
) -> _Wrap[StoppingTurn, Continue]: ...
@overload
def hook(point: Literal["event_committed"], *, name: str = ..., limit_s: float = ...) -> _Wrap[Record, None]: ...
def hook(point: Point, *, name: str = "", limit_s: float = 5.0) -> Callable[[Callable[[Any], Any]], Hook]:
    """Make a `Hook` of a function, sync or async, whose types fit `point`; it is named like it by default."""

    def wrap(body: Callable[[Any], Any]) -> Hook:
        return Hook(point=point, body=body, name=name or getattr(body, "__name__", ""), limit_s=limit_s)

    return wrap
