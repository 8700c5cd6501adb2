"""Everywhere a plugin's code runs in the loop, and a turn that gets there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import CoroutineType
from typing import Any, Final, get_args

import trio

import flightlog
from flightlog import Kernel, Session
from flightlog.testing import Bundle, Cue, FakeModel, calls, words
from flightlog_hookspecs import (
    BlockEvent,
    GoalCheck,
    Hook,
    Point,
    PromptSection,
    Request,
    Scope,
    Service,
    Tool,
)
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import ToolCall, ToolResult
from support.cutting import cut_log
from support.kernels import events_of, new_id, records_of, verified

Act = Callable[[], object]
"""What the code of the plugin does: returns something, or raises. A coroutine is awaited where it may be."""

BESIDE: Final = ("tool", "precheck", "reconcile", "section", "goal check", *get_args(Point))
"""Where a plugin may bring an async function or a plain one, which runs in a thread."""
PLACES: Final = (*(f"{where}, {how}" for where in BESIDE for how in ("async", "sync")), "adapter", "service")
_NONE: Final = {"type": "object"}


class Stream(FakeModel):
    """A model that does something of its own as it streams an answer."""

    def __init__(self, act: Act, replies: Sequence[Sequence[Cue]]) -> None:
        super().__init__(replies)
        self._act = act

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        async with super().stream(request, attempt) as events:
            await _done(self._act)
            yield events


async def _done(act: Act) -> object:
    await trio.lowlevel.checkpoint()
    value = act()
    return await value if type(value) is CoroutineType else value


def _body(act: Act, how: str) -> Callable[..., Any]:
    def plain(*_: object) -> object:
        return act()

    async def awaited(*_: object) -> object:
        return await _done(act)

    return plain if how == "sync" else awaited


def _service(act: Act) -> Callable[[Scope], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(scope: Scope) -> AsyncIterator[None]:
        await _done(act)
        yield

    return lifespan


async def steady() -> str:
    """Work as ever."""
    return "steady"


def _plugin(place: str, act: Act, replies: Sequence[Sequence[Cue]]) -> tuple[Bundle, FakeModel]:
    where, _, how = place.partition(", ")
    body = _body(act, how)
    planted = Tool(
        body=body if where == "tool" else lambda: "planted",
        name="planted",
        description="Do it.",
        parameters=_NONE,
        effect="write",
        mode="parallel",
        precheck=body if where == "precheck" else None,
        reconcile=body if where == "reconcile" else None,
    )
    model = Stream(act, replies) if place == "adapter" else FakeModel(replies)
    return (
        Bundle(
            tools=[Tool(body=steady, effect="idempotent", mode="parallel"), planted],
            adapters=[model],
            hooks=[Hook(point=where, body=body, name="planted")] if where in get_args(Point) else [],  # type: ignore[arg-type]
            sections=[
                PromptSection(name=f"{kind} planted", rank=1, kind=kind, render=body)
                for kind in ("static", "runtime", "last")
                if where == "section"
            ],
            goal_checks=[GoalCheck(name="planted", body=body)] if where == "goal check" else [],
            services=[Service(name="planted", lifespan=_service(act))] if where == "service" else [],
        ),
        model,
    )


async def reached(path: Path, place: str, act: Act) -> str:
    """How the call `planted` ended, "" for not at all, where `act` is done at `place` of its turn.

    Whatever is done there, `run` returns, the call beside it and another session have gone well, and the log is sound.
    """
    first = [ProviderError("bad_request", "odd")] if place.startswith("on_request_error") else []
    both = calls(("steady", {}), ("planted", {}))
    replies: list[Sequence[Cue]] = [*([first] if first else []), both, *[words("Fine.")] * 9]
    plugin, model = _plugin(place, act, replies)
    if place.startswith("reconcile"):
        async with _kernel(path, plugin) as kernel, kernel.session("s", model="fake:m") as session:
            await _turn(session)
        started = [record.seq for record in records_of(path) if isinstance(record.event, ToolCall)]
        cut_log(path, path.with_suffix(".cut"), started[-1])
        path = path.with_suffix(".cut")
    sound = FakeModel([words("Fine.")] * 9, name="sound")
    async with _kernel(path, plugin, Bundle(adapters=[sound])) as kernel:
        if place.startswith("goal check"):
            await kernel.tasks.submit("look", model="fake:m", goal_check="planted", id="s")
            await kernel.work(until_idle=True)
        else:
            async with kernel.session("s", model="fake:m", on_crash="continue") as session:
                await _turn(session)
                await _turn(session)
        async with kernel.session("other", model="sound:m") as other:
            await _turn(other)
    results = {result.name: result.outcome for result in events_of(path, ToolResult)}
    assert results.get("steady", "ok") in ("ok", "denied")
    verified(path, model, sound)
    verified(path, model, sound, name="other")
    return results.get("planted", "")


def _kernel(path: Path, *plugins: Bundle) -> AbstractAsyncContextManager[Kernel]:
    clock = flightlog.Clock(new_id=new_id)
    return flightlog.open_kernel(path, discover=False, plugins=plugins, clock=clock)


async def _turn(session: Session) -> None:
    await session.followup("go")
    await session.run(wait=False)
