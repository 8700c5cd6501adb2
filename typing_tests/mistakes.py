"""What plugins must not write: each line with an E comment is an error of that code, and no other line is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from flightlog_hookspecs import (
    Adapter,
    Append,
    BlockEvent,
    Deny,
    Fail,
    FinishedCall,
    Head,
    Hook,
    Message,
    Parameter,
    PromptSection,
    ProposedCall,
    Request,
    Retry,
    StepView,
    StoppingTurn,
    Subagent,
    Tool,
    ToolOutput,
    Veto,
    hook,
    hookimpl,
    tool,
)


@hook("before_lunch")  # E: call-overload, untyped-decorator
def at_no_point(view: StepView) -> None:
    pass


@hook("before_tool")  # E: arg-type
def given_something_else(view: StepView) -> None:
    pass


@hook("before_tool")  # E: arg-type
def answers_something_else(call: ProposedCall) -> Veto:
    return Veto("no")


@hook("before_request")  # E: arg-type
async def answers_something_else_later(view: object) -> Append:
    return Append("more")


@hook("turn_stopping")  # E: arg-type
def answers_a_truth_value(turn: StoppingTurn) -> bool:
    return True


@hook("event_committed")  # E: arg-type
def has_no_say(record: object) -> Veto:
    return Veto("no")


@hook("after_tool")  # E: arg-type
def takes_two(finished: FinishedCall, session: str) -> None:
    pass


@hook  # E: call-overload
def names_no_point(view: StepView) -> None:
    pass


@hook("before_tool", limit_s="soon")  # E: call-overload, untyped-decorator
def is_limited_by_words(call: ProposedCall) -> None:
    pass


@hook("before_tool")
def writes_to_what_it_is_given(call: ProposedCall) -> None:
    call.arguments = "{}"  # E: misc
    print(call.argument)  # E: attr-defined


@tool(mode="sideways")  # E: call-overload, untyped-decorator
def in_no_mode() -> str:
    return ""


@tool(effect="maybe")  # E: call-overload, untyped-decorator
def with_no_effect() -> str:
    return ""


@tool(timeout=3)  # E: call-overload, untyped-decorator
def misspelt() -> str:
    return ""


class Mute:
    """An adapter that encodes to text."""

    name = "mute"

    def encode(self, part: Head | Message) -> str:
        return ""

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        raise NotImplementedError
        yield


@hookimpl
def register_adapters(register: Callable[[Adapter], None]) -> None:
    register(Mute())  # E: arg-type


@hookimpl
def register_tools(register: Callable[[Tool], None]) -> None:
    register(lambda: "no tool")  # E: arg-type
    register(Tool(body=print, effect="none"))  # E: arg-type
    register(Tool(print))  # E: call-arg


def words_of(call: ProposedCall) -> str:
    return call.name


@hookimpl
def register_others(
    sections: Callable[[PromptSection], None], hooks: Callable[[Hook], None], agents: Callable[[Subagent], None]
) -> None:
    sections(PromptSection(name="s", rank="first", render=str))  # E: arg-type
    sections(PromptSection(name="s", rank=1, render=lambda: 5))  # E: arg-type
    sections(PromptSection(name="s", rank=1, render=words_of))  # E: arg-type
    hooks(Hook(point="before_lunch", body=print, name="h"))  # E: arg-type
    agents(Subagent(name="a", description="", prompt=None))  # E: arg-type


@hook("before_tool")  # E: arg-type
def fails_where_it_cannot(call: ProposedCall) -> Fail:
    return Fail("no", "no")


print(Deny())  # E: call-arg
print(Fail("no"))  # E: call-arg
print(Parameter("seed", 7))  # E: call-arg
print(Retry("soon"))  # E: arg-type
print(ToolOutput(content=5))  # E: arg-type
