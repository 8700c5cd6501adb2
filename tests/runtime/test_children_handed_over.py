"""A worker that leaves hands over the children of its task: what they wait for and do is kept, as after a kill."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from flightlog import Kernel
from flightlog.events import (
    ApprovalAsked,
    ApprovalDecided,
    SubagentSettled,
    SubagentSpawned,
    ToolCall,
    ToolResult,
    TurnEnd,
)
from flightlog.testing import calls, words
from flightlog_hookspecs import Ask, Hook, ToolContext, tool
from support.children import until
from support.family import Family
from support.kernels import events_of

TASK = "t"
ASKS = Hook(point="before_tool", body=lambda call: Ask("May I?") if call.name == "pay" else None, name="guard")


async def leaves(kernel: Kernel, host: trio.CancelScope) -> None:
    kernel.leave_work(grace_s=0)


async def is_cancelled(kernel: Kernel, host: trio.CancelScope) -> None:
    host.cancel()


async def is_paused(kernel: Kernel, host: trio.CancelScope) -> None:
    await kernel.tasks.pause(TASK)


async def is_paused_now(kernel: Kernel, host: trio.CancelScope) -> None:
    await kernel.tasks.pause(TASK, now=True)


Way = Callable[[Kernel, trio.CancelScope], Awaitable[None]]
ways = pytest.mark.parametrize("way", [leaves, is_cancelled, is_paused, is_paused_now])


class Till:
    """A tool of the child: pays, or is at it until it is cut off."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.stuck = False
        self.busy = trio.Event()

    def tool(self) -> object:
        """It."""

        @tool(mode="parallel", effect="idempotent")
        async def pay(context: ToolContext) -> str:
            """Pay."""
            self.busy.set()
            if self.stuck:
                await trio.sleep_forever()
            self.paid.append(context.invocation_id)
            return "paid"

        return pay


def family_of(folder: Path, till: Till, *, background: bool = False, asks: bool = False) -> Family:
    """A task whose first call gives a child something to pay."""
    parent = [calls(("scout", {"task": "pay ada"})), words("All done."), words("All done, and paid.")]
    child = [calls(("pay", {})), words("Ada is paid.")]
    return Family(folder, parent, child, tools=[till.tool()], hooks=[ASKS] if asks else [], background=background)


async def left(family: Family, way: Way, ready: Callable[[], object]) -> None:
    """Work until that is so, then leave the task in that way."""
    async with family.kernel() as kernel:
        await kernel.tasks.submit("see that ada is paid", model="fake:m", id=TASK)
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as host:
                nursery.start_soon(_then, kernel, way, host, ready)
                await kernel.work(until_idle=True)


async def _then(kernel: Kernel, way: Way, host: trio.CancelScope, ready: Callable[[], object]) -> None:
    await until(ready)
    await way(kernel, host)


async def gone_on(family: Family, *, answers: bool = False) -> str:
    """What the next worker brings the task to."""
    async with family.kernel() as kernel:
        if answers:
            child = events_of(family.path, SubagentSpawned, TASK)[0].child
            ((question,),) = (await kernel.query(QUESTIONS, child)).rows
            await kernel.mailbox(child).approve(question)
        if (await kernel.tasks.show(TASK)).state == "paused":
            await kernel.tasks.resume(TASK)
        await kernel.work(until_idle=True)
        for session in (TASK, child_of(family)):
            kernel.read(session).verify()
        return (await kernel.tasks.show(TASK)).state


QUESTIONS = "SELECT seq FROM approvals WHERE session = ? AND decision = 'open'"


def child_of(family: Family) -> str:
    """Its only child."""
    (spawned,) = events_of(family.path, SubagentSpawned, TASK)
    return spawned.child


@ways
async def test_a_child_that_waits_for_a_person_still_does_once_its_task_is_taken_up(
    tmp_path: Path, way: Way, autojump_clock: object
) -> None:
    till = Till()
    family = family_of(tmp_path, till, asks=True)

    def asked() -> bool:
        spawned = events_of(family.path, SubagentSpawned, TASK)
        return bool(spawned) and bool(events_of(family.path, ApprovalAsked, spawned[0].child))

    await left(family, way, asked)
    child = child_of(family)
    assert events_of(family.path, ApprovalDecided, child) == []
    assert events_of(family.path, SubagentSettled, TASK) == []
    assert events_of(family.path, ToolResult, TASK) == []
    assert await gone_on(family, answers=True) == "completed"
    assert len(till.paid) == 1
    assert [result.text for result in events_of(family.path, ToolResult, TASK)] == ["Ada is paid."]
    assert [end.reason for end in events_of(family.path, TurnEnd, child)] == ["completed"]


@ways
async def test_a_child_at_work_goes_on_in_the_same_step_with_the_same_call(
    tmp_path: Path, way: Way, autojump_clock: object
) -> None:
    till = Till()
    till.stuck = True
    family = family_of(tmp_path, till)
    await left(family, way, till.busy.is_set)
    child = child_of(family)
    assert events_of(family.path, ToolResult, child) == []
    assert events_of(family.path, TurnEnd, child) == []
    till.stuck = False
    assert await gone_on(family) == "completed"
    assert {call.invocation_id for call in events_of(family.path, ToolCall, child)} == set(till.paid)
    assert [result.outcome for result in events_of(family.path, ToolResult, child)] == ["ok"]
    assert [result.text for result in events_of(family.path, ToolResult, TASK)] == ["Ada is paid."]


@pytest.mark.parametrize("way", [leaves, is_cancelled])
async def test_a_child_in_the_background_goes_on_without_being_told_to(
    tmp_path: Path, way: Way, autojump_clock: object
) -> None:
    till = Till()
    till.stuck = True
    family = family_of(tmp_path, till, background=True)
    await left(family, way, till.busy.is_set)
    child = child_of(family)
    assert events_of(family.path, TurnEnd, child) == []
    till.stuck = False
    assert await gone_on(family) == "completed"
    assert [end.reason for end in events_of(family.path, TurnEnd, child)] == ["completed"]
    assert len(till.paid) == 1
