"""A cancel at every single point of a run: each boundary, each step of the scheduler, by session and by host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio._core._run as trio_run
import trio.testing
from attrs import define, field

from flightlog import Limits, Session
from flightlog.testing import Attempts, FakeModel, calls, words
from flightlog_hookspecs import Tool, ToolContext
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import ToolResult, TurnEnd
from flightlog_plugins.retry import Retry
from support.conversation import assert_at_rest, assert_effects
from support.kernels import session_of, trio_clock

LIMITS = Limits(delta_flush_ms=5, cancel_grace_s=0.05, parallel_tools=2)
RETRY = Retry(base_s=0.05, random=lambda: 1.0)


@define
class World:
    """One run of the same two turns, and what their tools did."""

    path: Path
    effects: list[str] = field(factory=list)
    session: Session | None = None
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    cancelled_at: float = float("inf")

    def tool(self, name: str, effect: str, mode: str, seconds: float) -> Tool:
        """A tool that leaves its mark, then takes `seconds`."""

        async def body(context: ToolContext) -> str:
            self.effects.append(context.invocation_id)
            await trio.sleep(seconds)
            return f"{name} done"

        return Tool(body=body, name=name, description="Work.", effect=effect, mode=mode)

    def tools(self) -> list[Tool]:
        """One of each kind; the slow one outlasts the grace."""
        return [
            self.tool("look", "read", "parallel", 0.01),
            self.tool("slow", "idempotent", "parallel", 0.2),
            self.tool("act", "write", "exclusive", 0.02),
        ]

    def model(self) -> FakeModel:
        """Words and calls, with a failed attempt in between."""
        first = [*words("I will look and act."), *calls(("look", {}), ("slow", {}), ("act", {}), ("nope", {}))]
        failing = [*words("Half a"), ProviderError("transport", "reset")]
        return FakeModel([first, Attempts((failing, words("That is done."))), words("The second turn.")])

    async def run(self, **options: Any) -> None:
        """Two messages and a run that may be cancelled while `session` is set; then the session must go on."""
        async with session_of(
            self.path, self.model(), *self.tools(), limits=LIMITS, plugins=[RETRY], clock=trio_clock(), **options
        ) as session:
            await session.followup("first")
            await session.followup("second")
            self.session = session
            with trio.CancelScope() as self.scope:
                await session.run()
            self.session = None
            # Virtual time: what was running has had its grace, and not a moment more.
            assert trio.current_time() <= self.cancelled_at + LIMITS.cancel_grace_s + 1e-9
            self.check_closed()
            while session.pending:
                turn = await session.run()
                assert turn.reason == "completed"
            await session.followup("last")
            turn = await session.run()
            assert turn.reason == "completed"

    def cancel(self, by: str) -> None:
        """End the turn from inside or from outside."""
        if self.session is None:
            return
        self.cancelled_at = trio.current_time()
        if by == "session":
            self.session.cancel()
        else:
            self.scope.cancel()

    def check_closed(self) -> None:
        """Straight after the run returned: every bracket is closed."""
        records = assert_at_rest(self.path, verify=False)
        assert_effects(records, self.effects)

    def check(self) -> str:
        """In the end; returns how the first turn ended."""
        model = self.model()
        records = assert_at_rest(self.path, model)
        assert_effects(records, self.effects)
        ends = [record.event for record in records if isinstance(record.event, TurnEnd)]
        assert len(ends) == 3, "three messages, three turns"
        aborted = [end for end in ends if end.reason != "completed"]
        assert len(aborted) <= 1
        for end in aborted:
            assert end.reason == "aborted"
        unknown = [r.event for r in records if isinstance(r.event, ToolResult) and r.event.outcome == "unknown"]
        assert all(result.name == "act" for result in unknown), "only a write can be in doubt"
        return ends[0].reason


def boundaries(path: Path) -> int:
    """How many boundaries an undisturbed run has."""
    world, passed = World(path), [0]

    def watch(name: str, session: str, seq: int) -> None:
        passed[0] += 1

    async def main() -> None:
        await world.run(on_boundary=watch)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert world.check() == "completed"
    return passed[0]


@pytest.mark.parametrize("by", ["session", "host"])
def test_a_cancel_at_every_boundary_leaves_a_closed_turn_and_a_session_that_goes_on(tmp_path: Path, by: str) -> None:
    total = boundaries(tmp_path / "whole.db")
    assert total > 40
    endings = set()
    for number in range(total):
        world = World(tmp_path / f"{number}.db")
        passed = [0]

        def watch(name: str, session: str, seq: int) -> None:
            passed[0] += 1  # noqa: B023
            if passed[0] == number:  # noqa: B023
                world.cancel(by)  # noqa: B023

        async def main() -> None:
            await world.run(on_boundary=watch)  # noqa: B023

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        endings.add(world.check())
    assert endings == {"completed", "aborted"}


class AtStep(trio.abc.Instrument):
    """Cancels when the scheduler is about to take its `number`-th step within the run."""

    def __init__(self, world: World, number: int, by: str) -> None:
        self.world, self.number, self.by, self.steps = world, number, by, 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.world.session is not None:
            self.steps += 1
            if self.steps == self.number:
                self.world.cancel(self.by)


@pytest.mark.parametrize("by", ["session", "host"])
def test_a_cancel_at_every_scheduler_step_leaves_a_closed_turn_and_a_session_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)

    def run(number: int) -> tuple[int, str]:
        world = World(tmp_path / f"{number}.db")
        instrument = AtStep(world, number, by)
        trio_run._r.seed(number)
        trio.run(world.run, clock=trio.testing.MockClock(autojump_threshold=0), instruments=[instrument])
        return instrument.steps, world.check()

    total, ending = run(0)
    assert ending == "completed"
    assert total > 60
    endings = {run(number)[1] for number in range(1, total + 1)}
    assert endings == {"completed", "aborted"}
