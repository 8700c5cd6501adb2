"""A worker that dies anywhere changes nothing about what a task may use: it pauses for the same card as ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from flightlog import Budget
from flightlog.core.budget import QUOTA
from flightlog.events import AssistantMessage, BudgetAlert, RequestFailed, ToolCall
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import tool
from support.cutting import cut_log
from support.kernels import events_of, opened, verified

REPLIES = [
    calls(("pay", {"n": 1})),
    calls(("pay", {"n": 2}), ("pay", {"n": 3}), ("pay", {"n": 4})),
    words("All is paid."),
    words("All is paid, I said."),
]
BUDGETS = {
    "calls": Budget(calls=2),
    "calls of a tool": Budget(calls_of={"pay": 3}),
    "requests": Budget(requests=2),
}


@tool(mode="parallel", effect="idempotent")
async def pay(n: int) -> str:
    """Pay a bill."""
    return f"paid {n}"


async def worked(path: Path, boundaries: list[int] | None = None) -> tuple[str, str]:
    """Where a worker leaves the task."""

    def committed(name: str, session: str, seq: int) -> None:
        if name == "committed" and session == "t" and boundaries is not None:
            boundaries.append(seq)

    async with opened(path, FakeModel(REPLIES), pay, on_boundary=committed) as kernel:
        await kernel.work(until_idle=True)
        task = await kernel.tasks.show("t")
        return task.state, task.cause


@pytest.mark.parametrize("budget", BUDGETS)
async def test_a_task_pauses_for_the_same_card_from_wherever_its_worker_died(budget: str, tmp_path: Path) -> None:
    path, boundaries = tmp_path / "a.db", [3]
    async with opened(path, FakeModel([])) as kernel:
        await kernel.tasks.submit("pay the bills", model="fake:m", id="t", budget=BUDGETS[budget], max_recoveries=3)
    assert await worked(path, boundaries) == ("paused", QUOTA)
    answers = len(events_of(path, AssistantMessage, "t"))
    calls_made = {event.invocation_id for event in events_of(path, ToolCall, "t")}
    for rows in boundaries:
        cut = tmp_path / f"{rows}.db"
        cut_log(path, cut, rows, "t")
        assert await worked(cut) == ("paused", QUOTA), rows
        lost = sum(event.failure == "interrupted" for event in events_of(cut, RequestFailed, "t"))
        assert answers - lost <= len(events_of(cut, AssistantMessage, "t")) <= answers, rows
        assert {event.invocation_id for event in events_of(cut, ToolCall, "t")} <= calls_made, rows
        assert events_of(cut, BudgetAlert, "t"), rows
        verified(cut, FakeModel([]), name="t")
