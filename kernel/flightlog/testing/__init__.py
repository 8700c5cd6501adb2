"""Deterministic fakes for tests of hosts and plugins: a model that plays a script, a clock, a plugin.

    model = FakeModel([[*words("I will look."), *calls(("look", {"at": "sky"}))], [*words("Blue.")]])
    async with flightlog.open_kernel(path, discover=False, plugins=[Bundle(adapters=[model], tools=[look])]) as kernel:
        async with kernel.session("s", model="fake:model") as session: ...

Which reply is played follows from the conversation (how many answers it holds), so a resumed session
goes on with the right one.

With `discover=False` nothing is tried again: a reply that raises ends its turn, and of `Attempts` the first one is
all there is. A test that is about retries passes the plugin beside the bundle, without chance or waiting:
`plugins=[Bundle(...), flightlog_plugins.retry.Retry(base_s=0, max_s=0)]`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import count

import trio
from attrs import define, field, frozen

from flightlog.runtime.clock import Clock
from flightlog_hookspecs import (
    Adapter,
    AssistantMessage,
    BlockEnd,
    BlockEvent,
    BlockStart,
    Compactor,
    FileBlock,
    Finish,
    FinishReason,
    GoalCheck,
    Head,
    Hook,
    Message,
    Parameter,
    Price,
    PromptSection,
    Redaction,
    Request,
    Service,
    Subagent,
    TextBlock,
    TextDelta,
    Tool,
    ToolCallBlock,
    ToolCallDelta,
    ToolResult,
    UserMessage,
    hookimpl,
)

Cue = BlockEvent | BaseException | Callable[[], Awaitable[object]]
"""One element of a reply: an event to yield, an error to raise, or something to await in between."""


@frozen
class Attempts:
    """A reply that differs from attempt to attempt: the last one repeats."""

    of: tuple[Sequence[Cue], ...]


def words(text: str, *, chunk: int = 4, index: int = 0) -> list[Cue]:
    """A text block streamed `chunk` characters at a time."""
    deltas = [TextDelta(index=index, text=text[start : start + chunk]) for start in range(0, len(text), chunk)]
    return [BlockStart(index=index, type="text"), *deltas, BlockEnd(index=index, block=TextBlock(text=text))]


def calls(*wanted: tuple[str, object], start: int = 1) -> list[Cue]:
    """Tool calls (name, arguments), each a block; a string stands for raw argument text."""
    cues: list[Cue] = []
    for index, (name, arguments) in enumerate(wanted, start):
        raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call_id = f"call_{index}"
        cues += [
            BlockStart(index=index, type="tool_call", call_id=call_id, name=name),
            ToolCallDelta(index=index, text=raw),
            BlockEnd(index=index, block=ToolCallBlock(call_id=call_id, name=name, arguments=raw)),
        ]
    return cues


def _files(part: UserMessage | ToolResult) -> list[str]:
    return [block.data.hex() for block in part.content if isinstance(block, FileBlock)]


def _tries(reply: Sequence[Cue] | Attempts) -> int:
    return len(reply.of) if isinstance(reply, Attempts) else 1


@define
class FakeModel:
    """An adapter that plays one reply per answer of the conversation; after the last one it says "done".

    A reply that does not end with `Finish` gets the fitting one, unless `auto_finish` is off.
    `requests` keeps what was asked, in order. Its models have a window of `window_tokens`.
    """

    replies: Sequence[Sequence[Cue] | Attempts]
    name: str = "fake"
    auto_finish: bool = True
    window_tokens: int | None = None
    requests: list[tuple[bytes, ...]] = field(factory=list, init=False)
    _played: set[tuple[int, int]] = field(factory=set, init=False)
    """Reply and, of `Attempts`, which: those of which nothing was left."""

    def assert_all_played(self) -> None:
        """Raise `AssertionError` unless each reply, and each attempt of it, was played to its end.

        One that raises is at its end there. A test that forgets this passes when the loop stops too early.
        """
        left = [
            f"reply {number}" + (f", attempt {attempt}" if tries > 1 else "")
            for number, tries in enumerate(map(_tries, self.replies), 1)
            for attempt in range(1, tries + 1)
            if (number, attempt) not in self._played
        ]
        if left:
            raise AssertionError(
                f"the script of model {self.name!r} was not played to its end: {'; '.join(left)} of "
                f"{len(self.replies)} ({len(self.requests)} requests were made)"
            )

    def window(self, model: str) -> int | None:  # noqa: ARG002
        """How much it can take."""
        return self.window_tokens

    def encode(self, part: Head | Message) -> bytes:
        """Readable JSON, without anything that depends on time or finishing order."""
        match part:
            case Head():
                value: object = ["head", part.model, part.system, [tool.name for tool in part.tools], *_asked(part)]
            case UserMessage():
                value = ["user", part.text, *_files(part)]
            case AssistantMessage():
                wanted = [[b.call_id, b.name, b.arguments] for b in part.content if isinstance(b, ToolCallBlock)]
                value = ["assistant", part.text, wanted]
            case ToolResult():
                value = ["tool", part.call_id, part.outcome, part.text, *_files(part)]
        return json.dumps(value).encode()

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        """Play the reply."""
        self.requests.append(tuple(request.fragments))
        position = sum(isinstance(message, AssistantMessage) for message in request.messages)
        reply = self.replies[position] if position < len(self.replies) else words("done")
        which = 1
        if isinstance(reply, Attempts):
            which = min(attempt, len(reply.of))
            reply = reply.of[which - 1]
        yield self._play(reply, (position + 1, which))

    async def _play(self, reply: Sequence[Cue], which: tuple[int, int] = (0, 0)) -> AsyncIterator[BlockEvent]:
        finished = wants_tools = False
        for left, cue in zip(range(len(reply) - 1, -1, -1), reply, strict=True):
            if not left or isinstance(cue, BaseException):
                self._played.add(which)  # before it is yielded: the kernel leaves a stream at its Finish
            if isinstance(cue, BaseException):
                raise cue
            if callable(cue):
                await cue()
                continue
            finished |= isinstance(cue, Finish)
            wants_tools |= isinstance(cue, BlockEnd) and isinstance(cue.block, ToolCallBlock)
            await trio.lowlevel.checkpoint()
            yield cue
        if self.auto_finish and not finished:
            reason: FinishReason = "tool_calls" if wants_tools else "stop"
            yield Finish(reason=reason)


@define
class Bundle:
    """A plugin made of what it is given."""

    tools: Iterable[Tool] = ()
    adapters: Iterable[Adapter] = ()
    sections: Iterable[PromptSection] = ()
    hooks: Iterable[Hook] = ()
    subagents: Iterable[Subagent] = ()
    parameters: Iterable[Parameter] = ()
    prices: Iterable[Price] = ()
    goal_checks: Iterable[GoalCheck] = ()
    redactions: Iterable[Redaction] = ()
    services: Iterable[Service] = ()
    compactors: Iterable[Compactor] = ()

    @hookimpl
    def register_hooks(self, register: Callable[[Hook], None]) -> None:
        """Register the hooks."""
        for hook in self.hooks:
            register(hook)

    @hookimpl
    def register_tools(self, register: Callable[[Tool], None]) -> None:
        """Register the tools."""
        for tool in self.tools:
            register(tool)

    @hookimpl
    def register_adapters(self, register: Callable[[Adapter], None]) -> None:
        """Register the adapters."""
        for adapter in self.adapters:
            register(adapter)

    @hookimpl
    def register_prompt_sections(self, register: Callable[[PromptSection], None]) -> None:
        """Register the sections."""
        for section in self.sections:
            register(section)

    @hookimpl
    def register_subagents(self, register: Callable[[Subagent], None]) -> None:
        """Register the subagents."""
        for subagent in self.subagents:
            register(subagent)

    @hookimpl
    def register_parameters(self, register: Callable[[Parameter], None]) -> None:
        """Register the parameters."""
        for parameter in self.parameters:
            register(parameter)

    @hookimpl
    def register_prices(self, register: Callable[[Price], None]) -> None:
        """Register the prices."""
        for price in self.prices:
            register(price)

    @hookimpl
    def register_goal_checks(self, register: Callable[[GoalCheck], None]) -> None:
        """Register the goal checks."""
        for check in self.goal_checks:
            register(check)

    @hookimpl
    def register_redactions(self, register: Callable[[Redaction], None]) -> None:
        """Register the redactions."""
        for redaction in self.redactions:
            register(redaction)

    @hookimpl
    def register_services(self, register: Callable[[Service], None]) -> None:
        """Register the services."""
        for service in self.services:
            register(service)

    @hookimpl
    def register_compactors(self, register: Callable[[Compactor], None]) -> None:
        """Register the compactors."""
        for compactor in self.compactors:
            register(compactor)


def _asked(head: Head) -> list[str]:
    return [head.parameters] if head.parameters != "{}" else []


def fixed_clock(start_us: int = 1_700_000_000_000_000, step_us: int = 1000) -> Clock:
    """A clock that advances `step_us` at each look, and ids that count: the same log on every run."""
    ids, walls, ticks = count(1), count(start_us, step_us), count(0, step_us)
    return Clock(now_us=lambda: next(walls), monotonic_us=lambda: next(ticks), new_id=lambda: f"{next(ids):032x}")
