"""The rules of a subagent, tried in a real kernel on a log in memory, with models that say what the rule needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import trio
from attrs import evolve, frozen

from flightlog.api import Kernel, open_kernel
from flightlog.runtime.session import Session
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog.testing.conformance.check import Broken, Check, checks_of
from flightlog.testing.memory import memory_folder
from flightlog_hookspecs import Subagent, Tool
from flightlog_hookspecs.errors import PluginError
from flightlog_hookspecs.events import (
    RequestHeader,
    SubagentSettled,
    SubagentSpawned,
    ToolResult,
    UserMessage,
)

OFFERED: Final = "a kernel takes it, and it says to models what it is for and what to do"
EFFECT: Final = "one that says that it only reads has reading tools only"
TASK: Final = "it takes a task, and its last words reach the session that gave it"
TOOLS: Final = "it has the tools that it names, and no others"
CUT_OFF: Final = "when its call is cut off it ends, and its task is settled"
GOES_ON: Final = "one in the background goes on after a restart, and settles once"

E = TypeVar("E")
_SESSION: Final = "conformance"
_SAID: Final = "This is what came of it."


@frozen(kw_only=True)
class SubagentCase:
    """A subagent, and what it needs of the session that calls it."""

    subagent: Subagent
    """The subagent. Its model is replaced by one of the suite's."""
    tools: Sequence[Tool] = ()
    """The tools of its parent: those that it names, and some that are none of its business. None of them is called."""
    task: str = "Do what you are there for."
    """A task as a model would give it."""
    patience_s: float = 10.0
    """How long anything may take before it counts as hanging."""


def subagent_checks(case: SubagentCase) -> Iterator[Check]:
    """Every check of `case`."""
    left_out = "cut-off" if case.subagent.background else "goes-on"
    return checks_of(case.subagent.name, case, {rule: of for rule, of in RULES.items() if rule != left_out})


async def _offered(case: SubagentCase) -> None:
    for part in ("description", "prompt"):
        if not getattr(case.subagent, part).strip():
            raise Broken(OFFERED, f"its {part} is empty")
    async with _kernel(case, FakeModel([], "child")):
        pass


async def _effect(case: SubagentCase) -> None:
    named = {tool.name: tool for tool in case.tools}
    changing = [
        name
        for name in _wanted(case)
        if name in named and named[name].effect != "read" and case.subagent.effect == "read"
    ]
    if changing:
        raise Broken(EFFECT, f"it has {', '.join(map(repr, changing))}, so each of its calls is refused")


async def _task(case: SubagentCase) -> None:
    async with _kernel(case, child := FakeModel([words(_SAID)], "child")) as (kernel, session):
        await session.followup("Go on.")
        await session.run(children=True)
        name = _child(kernel)
        asked = [message.text for message in kernel.read(name).messages() if isinstance(message, UserMessage)]
        if case.task not in asked or len(child.requests) != 1:
            raise Broken(TASK, f"it was told {asked!r:.200}, and made {len(child.requests)} requests")
        if not any(_SAID in text for text in _heard(kernel)):
            raise Broken(TASK, f"it said {_SAID!r}, and heard was {_heard(kernel)!r:.400}")


async def _tools(case: SubagentCase) -> None:
    async with _kernel(case, FakeModel([words(_SAID)], "child")) as (kernel, session):
        await session.followup("Go on.")
        await session.run(children=True)
        (header, *_) = _events(kernel, RequestHeader, _child(kernel))
        has = {spec.name for spec in header.head.tools}
        if header.head.system != case.subagent.prompt:
            raise Broken(TOOLS, f"it has another system text than its prompt: {header.head.system!r:.200}")
        if has != set(_wanted(case)):
            raise Broken(TOOLS, f"it has {sorted(has)}, and should have {sorted(_wanted(case))}")


async def _cut_off(case: SubagentCase) -> None:
    began = trio.Event()

    async def stand() -> None:
        began.set()
        await trio.sleep_forever()

    async with _kernel(case, FakeModel([[stand]], "child")) as (kernel, session):
        await session.followup("Go on.")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await began.wait()
            session.cancel()
        reasons = [settled.reason for settled in _events(kernel, SubagentSettled, _SESSION)]
        if reasons != ["aborted"]:
            raise Broken(CUT_OFF, f"its task was settled {len(reasons)} times: {reasons}")


async def _goes_on(case: SubagentCase) -> None:
    began = trio.Event()

    async def stand() -> None:
        began.set()
        await trio.sleep_forever()

    with memory_folder() as folder:
        async with _kernel(case, FakeModel([[stand]], "child"), folder) as (kernel, session):
            await session.followup("Go on.")
            await session.run()
            _child(kernel)
            await began.wait()
        async with _kernel(case, FakeModel([words(_SAID)], "child"), folder) as (kernel, session):
            await session.run(children=True)
            reasons = [settled.reason for settled in _events(kernel, SubagentSettled, _SESSION)]
            if reasons != ["completed"] or sum(_SAID in text for text in _heard(kernel)) != 1:
                raise Broken(GOES_ON, f"it was settled as {reasons}, and heard was {_heard(kernel)!r:.400}")


def _wanted(case: SubagentCase) -> Sequence[str]:
    return (
        [*(tool.name for tool in case.tools), case.subagent.name]
        if case.subagent.tools is None
        else case.subagent.tools
    )


def _events(kernel: Kernel, kind: type[E], name: str) -> list[E]:
    return [record.event for record in kernel.read(name).records() if isinstance(record.event, kind)]


def _child(kernel: Kernel) -> str:
    """The only child's name."""
    spawned = _events(kernel, SubagentSpawned, _SESSION)
    if len(spawned) != 1:
        raise Broken(TASK, f"no child was started: {_heard(kernel)!r:.400}")
    return spawned[0].child


def _heard(kernel: Kernel) -> list[str]:
    """What its parent was told of it."""
    messages = kernel.read(_SESSION).messages()
    results = [message.text for message in messages if isinstance(message, ToolResult)]
    return results + [m.text for m in messages if isinstance(m, UserMessage) and m.source == "subagent"]


@asynccontextmanager
async def _kernel(
    case: SubagentCase, child: FakeModel, folder: Path | None = None
) -> AsyncIterator[tuple[Kernel, Session]]:
    """A kernel whose session calls the subagent once, and whose children play `child`."""
    if folder is None:
        with memory_folder() as fresh:
            async with _kernel(case, child, fresh) as made:
                yield made
        return
    parent = FakeModel([calls((case.subagent.name, {"task": case.task})), *([words("I see.")] * 4)])
    mine = evolve(case.subagent, model="child:model")
    plugin = Bundle(adapters=[parent, child], tools=list(case.tools), subagents=[mine])
    with trio.move_on_after(case.patience_s) as patience:
        try:
            async with (
                open_kernel(folder / "agent.db", discover=False, plugins=[plugin]) as kernel,
                kernel.session(_SESSION, model="fake:model") as session,
            ):
                yield kernel, session
        except PluginError as error:
            raise Broken(OFFERED, str(error)) from error
    if patience.cancelled_caught:
        raise Broken(TASK, f"it was not through after {case.patience_s:g} s")


RULES: Final[Mapping[str, Callable[[SubagentCase], Awaitable[None]]]] = {
    "offered": _offered,
    "effect": _effect,
    "task": _task,
    "tools": _tools,
    "cut-off": _cut_off,
    "goes-on": _goes_on,
}
