"""Tasks for tests: a shop whose orders change behind the agent's back, and short ways to work on its task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define, evolve, field

from flightlog.runtime.clock import Clock
from flightlog.testing import FakeModel, calls, fixed_clock, words
from flightlog_hookspecs import Tool
from flightlog_hookspecs.tools import Effect
from support.cutting import cut_log
from support.kernels import Path, new_id, opened, records_of

TASK = "t"
GOAL = "Ship order 7."
LOOK = [*words("I look."), *calls(("order", {"id": "7"}))]
SHIP = [*words("I ship."), *calls(("ship", {"id": "7"}))]
REPLIES: tuple[Any, ...] = (LOOK, SHIP, words("Shipped."))


@define
class Shop:
    """What orders stand at, what was shipped, and how often somebody looked."""

    price: str = "10"
    shipped: list[str] = field(factory=list)
    looks: list[str] = field(factory=list)
    cancelled: bool = False

    def tools(self, *, refreshable: bool = True, checked: bool = False, effect: Effect = "write") -> tuple[Tool, Tool]:
        """`order` reads one, `ship` ships it; with `checked`, not when it was cancelled."""

        async def order(id: str) -> str:
            """Look at an order."""
            self.looks.append(id)
            return f"order {id} costs {self.price}"

        async def ship(id: str) -> str:
            """Ship an order."""
            self.shipped.append(id)
            return f"order {id} is on its way"

        async def precheck(id: str) -> str | None:
            return f"order {id} was cancelled" if self.cancelled else None

        return (
            Tool(body=order, effect="read", mode="parallel", refreshable=refreshable),
            Tool(body=ship, effect=effect, precheck=precheck if checked else None),
        )


def clock_at(start_us: int) -> Clock:
    """A clock that goes on from `start_us`, and ids that no other kernel of this process has used."""
    return evolve(fixed_clock(start_us), new_id=new_id)


async def work(
    path: Path, model: FakeModel, *tools: Tool, goal: str | None = None, clock: Clock | None = None, **options: Any
) -> None:
    """Submit the task, if a `goal` is given, and work until there is nothing to do."""
    task = {name: options.pop(name) for name in ("parameters", "system", "max_steps") if name in options}
    async with opened(path, model, *tools, clock=clock, **options) as kernel:
        if goal is not None:
            await kernel.tasks.submit(goal, model="fake:m", id=TASK, **task)
        await kernel.work(until_idle=True)


async def whole_run(path: Path, *tools: Tool, replies: Sequence[Any] = REPLIES, **options: Any) -> FakeModel:
    """The log of a task that nothing interrupted."""
    model = FakeModel(list(replies))
    await work(path, model, *tools, goal=GOAL, **options)
    return model


def cut_behind(source: Path, target: Path, kind: str, occurrence: int = 1) -> int:
    """The log as a death left it right behind the `occurrence`-th row of `kind`; returns that row's seq."""
    seq = rows_of(source, kind)[occurrence - 1]
    cut_log(source, target, seq, TASK)
    return seq


def rows_of(path: Path, *kinds: str) -> list[int]:
    """The rows of these kinds in the task's log."""
    return [record.seq for record in records_of(path, TASK) if record.event.kind in kinds]


def shown(requests: Iterable[bytes]) -> str:
    """What a model was sent, as text."""
    return "\n".join(part.decode() for part in requests)
