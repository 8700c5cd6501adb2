# mypy: disallow-any-decorated
"""What plugins and their tests may write: nothing here is an error, and nothing that it is given is `Any`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Literal, assert_type

from flightlog_hookspecs import (
    Adapter,
    Append,
    Block,
    BlockEvent,
    Continue,
    Deny,
    Done,
    Fail,
    FailedRequest,
    Finding,
    Finish,
    FinishedCall,
    Head,
    Hook,
    Message,
    NotDone,
    Parameter,
    Price,
    PromptSection,
    ProposedCall,
    Redaction,
    Replace,
    Request,
    RequestView,
    Retry,
    StepView,
    StoppingTurn,
    Subagent,
    Switch,
    Tool,
    ToolContext,
    ToolOutput,
    Unknown,
    Verdict,
    Veto,
    hook,
    hookimpl,
    text_of,
    tool,
)
from flightlog_hookspecs.events import Record

flightlog_contract = 1


@tool
def shout(text: str) -> str:
    """Say it loudly."""
    return text.upper()


async def found_out(context: ToolContext, arguments: Mapping[str, object]) -> Finding:
    """What became of it."""
    return Done(context.invocation_id) if arguments else NotDone()


def cannot_tell(_: ToolContext, __: Mapping[str, object]) -> Unknown:
    """Nobody knows."""
    return Unknown()


def not_at_night(context: ToolContext, to: str) -> str | None:
    """Why not."""
    return f"{to} sleeps" if context.turn else None


@tool(effect="write", reconcile=found_out, precheck=not_at_night, key_arguments=("to",))
def send(to: str) -> None:
    """Send it."""


assert_type(send, Tool)
Tool(body=str.upper, reconcile=cannot_tell)


@tool(mode="parallel", effect="read", timeout_s=2.5, isolation="thread")
async def look(context: ToolContext, at: list[str], times: int = 1) -> ToolOutput:
    """Look at things."""
    return ToolOutput(content=f"{context.invocation_id}: {at * times}")


@hook("before_step")
def remind(view: StepView) -> Append | None:
    return Append(f"step {view.step}") if view.step > 1 else None


@hook("before_step", name="nights off", limit_s=1.0)
async def closed(view: StepView) -> Veto:
    return Veto(f"closed, {view.session}")


@hook("before_request")
def frugal(view: RequestView) -> Veto | None:
    return Veto("too long") if len(view.messages) > 100 else None


@hook("before_tool")
def guard(call: ProposedCall) -> Verdict:
    return Deny("no") if call.effect == "external" else None


@hook("before_tool")
async def slow_guard(call: ProposedCall) -> Verdict:
    return Deny(call.arguments)


@hook("after_tool")
def redact(finished: FinishedCall) -> Replace | None:
    return Replace(ToolOutput(content=text_of(finished.content).replace("secret", "***")))


@hook("on_request_error")
def failover(failed: FailedRequest) -> Retry | Switch | None:
    return Switch("other:model") if failed.attempts_left == 1 else Retry(failed.retry_after_s or 1.0)


@hook("turn_stopping")
async def more(turn: StoppingTurn) -> Continue | None:
    return Continue("go on") if turn.usage.output_tokens == 0 else None


@hook("turn_stopping")
async def judge(turn: StoppingTurn) -> Continue | Fail | None:
    return Fail("too_long", turn.head.parameters) if turn.continued > 3 else Continue("on")


@hook("event_committed")
async def watch(record: Record) -> None:
    print(record.seq, record.event.kind)


@hook("before_tool")
def knows_less(call: object) -> None:
    """Taking more than it is given, and answering less than it may, is fine."""


class Silent:
    """An adapter."""

    name = "silent"

    def encode(self, part: Head | Message) -> bytes:
        return part.system.encode() if isinstance(part, Head) else text_of(part.content).encode()

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        yield self._nothing()

    async def _nothing(self) -> AsyncIterator[BlockEvent]:
        yield Finish(reason="stop")


async def rendered() -> str:
    return "Be kind."


by_hand = Hook(point="turn_stopping", body=print, name="by hand")


def nothing_is_any(step: StepView, call: ProposedCall, failed: FailedRequest, record: Record) -> None:
    assert_type(shout, Tool)
    assert_type(look, Tool)
    assert_type(remind, Hook)
    assert_type(slow_guard, Hook)
    assert_type(ToolOutput(content="words").content, tuple[Block, ...])
    assert_type(list(step.messages), list[Message])
    assert_type(call.effect, Literal["read", "idempotent", "write", "external", "transactional"])
    assert_type(failed.retry_after_s, float | None)
    assert_type(record.seq, int)


@hookimpl
def register_tools(register: Callable[[Tool], None]) -> None:
    register(shout)
    register(look)


@hookimpl
def register_adapters(register: Callable[[Adapter], None]) -> None:
    register(Silent())


@hookimpl
def register_prompt_sections(register: Callable[[PromptSection], None]) -> None:
    register(PromptSection(name="kind", rank=1, render=rendered))
    register(PromptSection(name="kinder", rank=2, render=lambda: "Be kinder.", kind="runtime"))
    register(PromptSection(name="kindest", rank=3, render=lambda view: f"Step {view.step}.", kind="runtime"))


@hookimpl
def register_hooks(register: Callable[[Hook], None]) -> None:
    for one in (remind, closed, frugal, guard, slow_guard, redact, failover, more, judge, watch, knows_less, by_hand):
        register(one)


@hookimpl
def register_redactions(register: Callable[[Redaction], None]) -> None:
    register(Redaction(name="keys", body=lambda text: text.replace("key", "[key]")))


@hookimpl
def register_subagents(register: Callable[[Subagent], None]) -> None:
    register(Subagent(name="critic", description="Find faults.", prompt="Be strict.", tools=("look",)))


@hookimpl
def register_parameters(register: Callable[[Parameter], None]) -> None:
    register(Parameter(name="seed", value=7))
    register(Parameter(name="metadata", value={"team": ["a", None]}))


@hookimpl
def register_prices(register: Callable[[Price], None]) -> None:
    register(Price(model="a:*", currency="USD", input="3", output="15", cached="0.30"))
