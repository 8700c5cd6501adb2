"""A task's turn that is ended from outside at every single point: it closes legally, for that reason, and once."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from flightlog import Session
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import GoalCheck, GoalView, Met, Missing, tool
from flightlog_hookspecs.events import GoalChecked, TurnEnd
from support.conversation import assert_at_rest
from support.kernels import events_of
from support.memory_folder import subfolder
from support.tasks import task_of

ENDS = (
    TurnEnd(reason="deadline"),
    TurnEnd(reason="paused", cause="person"),
    TurnEnd(reason="aborted", cause="user"),
)


@tool(effect="read")
async def look(at: int) -> str:
    """Look.

    Args:
        at: where
    """
    await trio.lowlevel.checkpoint()
    return f"blue at {at}"


def model() -> FakeModel:
    looking = [*words("I look."), *calls(("look", {"at": 1}), ("look", {"at": 2}))]
    return FakeModel([looking, words("Done."), words("So.")])


async def check(view: GoalView) -> Met | Missing:
    await trio.lowlevel.checkpoint()
    return Met() if view.text == "So." else Missing("a word")


async def run(path: Path, end: TurnEnd | None, at: int) -> int:
    """Run a task whose turn is ended with `end` at boundary `at`; returns how many boundaries there were."""
    passed = 0
    running: list[Session] = []

    def watch(name: str, _: str, seq: int) -> None:
        nonlocal passed
        for session in running:
            passed += 1
            if passed == at and end:
                session.end(end, grace_s=0)

    plugin = Bundle(goal_checks=[GoalCheck(name="seen", body=check)])
    async with task_of(
        path, model(), look, wanted={"goal_check": "seen"}, plugins=[plugin], on_boundary=watch
    ) as session:
        running.append(session)
        await session.run()
        running.clear()
    return passed


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.reason)
async def test_a_turn_may_be_ended_at_every_point(tmp_path: Path, end: TurnEnd) -> None:
    boundaries = await run(tmp_path / "whole.db", None, 0)
    assert boundaries > 20
    reasons = set()
    for at in range(1, boundaries + 1):
        path = subfolder(tmp_path) / "s.db"
        await run(path, end, at)
        assert_at_rest(path, model())
        (ended,) = events_of(path, TurnEnd)
        reasons.add(ended.reason)
        assert ended.reason in (end.reason, "completed")
        assert ended.reason != "completed" or events_of(path, GoalChecked)[-1].met
    assert end.reason in reasons
