"""Loop points: where a plugin may watch, guard or steer what the kernel is about to do.

| point              | is given        | may answer                     | kind     |
|--------------------|-----------------|--------------------------------|----------|
| `before_step`      | `StepView`      | `Veto`, `Append`, `Switch`     | guard    |
| `before_request`   | `RequestView`   | `Veto`                         | guard    |
| `before_tool`      | `ProposedCall`  | `Allow`, `Deny`, `Ask`, `Arguments` | guard |
| `after_tool`       | `FinishedCall`  | `Replace`, `Append`            | observer |
| `on_request_error` | `FailedRequest` | `Retry`, `Switch`              | observer |
| `turn_stopping`    | `StoppingTurn`  | `Continue`, `Fail`             | observer |
| `event_committed`  | `Record`        | nothing                        | observer |

None has no opinion, at every point. A hook that raises, exceeds its time limit or answers something else
is recorded as `plugin/error`. Guards then fail closed, as if they had said no; observers fail open, as if
they had said nothing. The other hooks are asked all the same.

Of several answers, Deny beats Ask beats Arguments beats Allow, and Switch beats Retry; of equals the first counts.
What is appended adds up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, overload

from attrs import field, frozen

from flightlog_hookspecs.content import Block, text_blocks
from flightlog_hookspecs.errors import FailureKind
from flightlog_hookspecs.events import Head, Message, Record
from flightlog_hookspecs.stream import Usage
from flightlog_hookspecs.tools import Effect, Fact, Outcome, ToolOutput

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
class TaskView:
    """The task that a session is for."""

    id: str
    """Its id, which is the session's name."""
    goal: str
    """What is to be reached now."""
    parameters: Any
    """The goal's parameters, from JSON."""
    done: str
    """What was done so far by the log's own count, in a few words."""
    steps_left: int
    """How many steps it may still have, one that is open included."""


@frozen(kw_only=True)
class StepView:
    """A step about to make its first request."""

    session: str
    """The session's name."""
    turn: int
    """The turn's number, from 1."""
    step: int
    """The step's number in its turn, from 1."""
    model: str
    """"adapter:model" that will serve the step: the session's own in a turn's first, else that of the step before."""
    session_model: str
    """"adapter:model" that the session was opened with."""
    messages: Sequence[Message] = field(repr=False)
    """What the model will see, in order."""
    facts: Mapping[str, str] = field(factory=dict)
    """What tools have noted in the session's working memory: each fact's text by its name, the oldest name first."""
    task: TaskView | None = None
    """The task that the session is for, None when it is no task's."""


@frozen(kw_only=True)
class RequestView:
    """A request about to be sent, exactly as it will be: it can be refused, not edited."""

    session: str
    """The session's name."""
    turn: int
    """The turn's number, from 1."""
    step: int
    """The step's number in its turn, from 1."""
    attempt: int
    """Which try at this step's request it is, from 1."""
    head: Head
    """System text, tools, model and parameters."""
    messages: Sequence[Message] = field(repr=False)
    """The messages behind the head, in order."""


@frozen(kw_only=True)
class ProposedCall:
    """A call about to run: its tool exists and its arguments fit."""

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
    name: str
    """The tool's name."""
    arguments: str
    """Raw JSON text."""
    effect: Effect
    """What repeating the call would do."""
    remembered: Literal["", "allowed", "denied"] = ""
    """What a person decided about this tool earlier in the session, to be remembered; "" for nothing."""


@frozen(kw_only=True)
class FinishedCall:
    """A call whose body has ended; its result is not in the log yet."""

    call: ProposedCall
    """The call, with the arguments that it ran with."""
    outcome: Outcome
    """How it ended."""
    content: tuple[Block, ...]
    """What the model would be given."""
    duration_us: int
    """How long the body took, in microseconds."""
    facts: tuple[Fact, ...] = ()
    """What it has noted. What replaces the result has facts of its own, so pass these on to keep them."""


@frozen(kw_only=True)
class Failure:
    """That an attempt of the open step failed, and with which model."""

    model: str
    """"adapter:model"."""
    kind: FailureKind
    """The kind of failure."""


@frozen(kw_only=True)
class FailedRequest:
    """An attempt that ended badly."""

    session: str
    """The session's name."""
    turn: int
    """The turn's number, from 1."""
    step: int
    """The step's number in its turn, from 1."""
    attempt: int
    """Which try at this step's request it is, from 1."""
    model: str
    """"adapter:model"."""
    failure: FailureKind
    """The kind of failure."""
    message: str
    """What the adapter says about it."""
    retryable: bool
    """Whether the adapter thinks that another attempt may help."""
    retry_after_s: float | None
    """The provider's own wish in seconds, or None."""
    attempts_left: int
    """How many attempts the session's limits still allow in this step, whoever asks for them."""
    failures: tuple[Failure, ...]
    """All that failed in this step so far by the log, in order; this attempt stands last."""


@frozen(kw_only=True)
class StoppingTurn:
    """A turn about to end as completed."""

    session: str
    """The session's name."""
    turn: int
    """The turn's number, from 1."""
    steps: int
    """How many steps it has had."""
    text: str
    """The model's last words."""
    usage: Usage
    """The tokens of all its answers."""
    head: Head
    """What the last answer was asked for with: system text, tools, model and parameters."""
    continued: int
    """How often the hook that is asked has had this turn go on before; counted in the log, so no crash forgets it."""
    blocks: tuple[str, ...] = ()
    """The same words, block by block as they came."""


@frozen
class Allow:
    """Let it run."""


@frozen
class Deny:
    """Do not run it."""

    reason: str
    """What the model is told."""


@frozen
class Ask:
    """Let a person decide. Without an approver it is denied."""

    question: str
    """What the person is asked."""


@frozen
class Arguments:
    """Run it with these arguments instead; they are checked against the tool's schema again."""

    arguments: str
    """Raw JSON text."""


@frozen
class Veto:
    """Do not go on: the turn ends as blocked."""

    reason: str
    """Why the turn ends; it is in the log."""


@frozen
class Append:
    """Tell the model this, too, in a message of source "plugin"."""

    content: tuple[Block, ...] = field(converter=text_blocks)
    """Text blocks, or a string."""


@frozen
class Replace:
    """Give the model this result instead. What the body did stays done."""

    output: ToolOutput
    """The result that the model is given."""


@frozen
class Retry:
    """Make another attempt, if the session's limits allow one."""

    after_s: float = 0.0
    """Seconds to wait, from 0."""


@frozen
class Switch:
    """Let another model serve the next attempt, or the step about to begin, and the rest of the turn."""

    model: str
    """"adapter:model"."""
    after_s: float = 0.0
    """Seconds to wait, from 0. A step that is about to begin does not wait."""


@frozen
class Continue:
    """Do not stop yet: the model is told this and goes on. Without a step left, the turn ends as max_steps."""

    content: tuple[Block, ...] = field(converter=text_blocks)
    """Text blocks, or a string."""


@frozen
class Fail:
    """The turn is not what it should be: it ends as error, whatever other hooks want it to go on for."""

    code: str
    """What kind of failure it is, for programs."""
    message: str
    """What is wrong, for people; it is in the log."""


Verdict = Allow | Deny | Ask | Arguments | None
"""What a guard says of a call. Deny beats Ask beats Arguments beats Allow; of equals the first counts."""

ANSWERS: Final[Mapping[Point, tuple[type, ...]]] = {
    "before_step": (Veto, Append, Switch),
    "before_request": (Veto,),
    "before_tool": (Allow, Deny, Ask, Arguments),
    "after_tool": (Replace, Append),
    "on_request_error": (Retry, Switch),
    "turn_stopping": (Continue, Fail),
    "event_committed": (),
}
"""What a hook at each point may answer, besides None."""

GUARDS: Final[frozenset[Point]] = frozenset({"before_step", "before_request", "before_tool"})
"""The points whose hooks fail closed."""


@frozen(kw_only=True)
class Hook:
    """A function that is called at a point of the loop, on its own. See also `hook`, which makes one of a function.

    A plain function runs in a thread, which a time-out leaves behind. Hooks are asked in the order in
    which they were registered, those of the kernel before those of the session.
    """

    point: Point
    """Where it is asked."""
    body: Callable[[Any], object | Awaitable[object]]
    """Takes what the point gives, returns what the point allows; sync or async."""
    name: str
    """What the log calls it."""
    limit_s: float = 5.0
    """Seconds it may take each time."""
    models: tuple[str, ...] = ()
    """The models that it may switch to. One whose adapter nobody offers is refused as the hook is registered."""


View = TypeVar("View")
Answer = TypeVar("Answer")
_Wrap = Callable[[Callable[[View], Answer | Awaitable[Answer | None] | None]], Hook]


@overload
def hook(
    point: Literal["before_step"], *, name: str = ..., limit_s: float = ...
) -> _Wrap[StepView, Veto | Append | Switch]: ...
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
) -> _Wrap[StoppingTurn, Continue | Fail]: ...
@overload
def hook(point: Literal["event_committed"], *, name: str = ..., limit_s: float = ...) -> _Wrap[Record, None]: ...
def hook(point: Point, *, name: str = "", limit_s: float = 5.0) -> Callable[[Callable[[Any], Any]], Hook]:
    """Make a `Hook` of a function, sync or async, whose types fit `point`; it is named like it by default."""

    def wrap(body: Callable[[Any], Any]) -> Hook:
        return Hook(point=point, body=body, name=name or getattr(body, "__name__", ""), limit_s=limit_s)

    return wrap
