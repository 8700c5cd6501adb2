"""A task's budget holds for its children: what they are given, what they have used, and how many there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flightlog
from flightlog import Budget
from flightlog.events import (
    BudgetCharged,
    BudgetGranted,
    Lent,
    SubagentSettled,
    SubagentSpawned,
    TaskState,
    ToolCall,
    ToolResult,
    TurnEnd,
)
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Subagent, tool
from flightlog_hookspecs.stream import Usage
from support.family import child_of
from support.kernels import events_of, opened, records_of, verified

SCOUT = Subagent(name="scout", description="Looks.", prompt="You look.", model="child:m")


@tool(mode="parallel", effect="read")
async def look(at: int = 0) -> str:
    """Look."""
    return f"nothing at {at}"


def scouts(count: int, *, usage: Usage | None = None, step: int = 0) -> list[Any]:
    found = calls(*[("scout", {"task": f"look {step}.{number}"}) for number in range(count)])
    return [*found, *([usage] if usage else [])]


def sessions_of(path: Path) -> list[Any]:
    with flightlog.open_log(path, discover=False) as log:
        return list(log.sessions())


def child_model(*replies: Any) -> FakeModel:
    return FakeModel(replies, "child")


async def brought(path: Path, parent: FakeModel, child: FakeModel, budget: Budget, *, times: int = 1) -> str:
    async with opened(path, [parent, child], look, plugins=[Bundle(subagents=[SCOUT])]) as kernel:
        await kernel.tasks.submit("look around", model="fake:m", id="s", budget=budget)
        for _ in range(times):
            await kernel.work(until_idle=True)
        shown = await kernel.tasks.show("s")
        return f"{shown.state} {shown.cause} {shown.message}".strip()


async def test_what_a_child_uses_counts_for_the_task_that_sent_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    parent = FakeModel([scouts(1, usage=Usage(input_tokens=100)), words("Good.")])
    child = child_model([*calls(("look", {})), Usage(input_tokens=500)], [*words("Sky."), Usage(input_tokens=700)])
    assert await brought(path, parent, child, Budget(tokens=10_000)) == "completed"
    (spawned,), (settled,) = events_of(path, SubagentSpawned), events_of(path, SubagentSettled)
    assert spawned.tokens == (10_000 - 100) // 2
    assert 1200 <= settled.charged < 1300
    name = child_of(path)
    granted = {event.card: event.most for event in events_of(path, BudgetGranted, name)}
    assert granted == {"tokens": spawned.tokens, "retries": 60, "subagents": 7}
    assert {event.by for event in events_of(path, BudgetGranted, name)} == {spawned.invocation_id}
    verified(path, parent, child, name=name)


async def test_a_child_stops_where_its_part_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    parent = FakeModel([scouts(1), words("Then not.")])
    child = child_model(*[[*calls(("look", {"at": n})), Usage(input_tokens=400)] for n in range(90)])
    await brought(path, parent, child, Budget(tokens=4_000))
    (settled,) = events_of(path, SubagentSettled)
    assert settled.reason == "paused"
    assert settled.charged <= 2_000
    assert len(child.requests) <= 5
    assert events_of(path, TurnEnd, child_of(path))[-1].cause == "quota"


@pytest.mark.parametrize(
    ("budget", "card", "most", "end"),
    [
        (Budget(calls_of={"look": 3}), "calls:look", 3, "completed"),
        (Budget(calls=4), "calls", 4, "paused quota"),
        (Budget(requests=5), "requests", 5, "paused quota"),
        (Budget(requests_of={"child": 2}), "requests:child", 2, "completed"),
    ],
)
async def test_what_a_task_may_do_it_does_no_more_of_by_children(
    tmp_path: Path, budget: Budget, card: str, most: int, end: str
) -> None:
    """A child that may do nothing more pauses, and its parent is told; it goes on as far as it can itself."""
    path = tmp_path / "a.db"
    parent = FakeModel([scouts(2, step=step) for step in range(6)] + [words("Enough.")])
    looks = [calls(*[("look", {"at": n}) for n in range(3)]) for _ in range(60)]
    child = child_model(*looks)
    came = await brought(path, parent, child, budget)
    assert came.startswith(end)
    names = [record.session for record in sessions_of(path)]
    looked = sum(event.name == "look" for name in names for event in events_of(path, ToolCall, name))
    called = sum(len(events_of(path, ToolCall, name)) for name in names)
    done = {
        "calls:look": looked,
        "calls": called,
        "requests": len(parent.requests) + len(child.requests),
        "requests:child": len(child.requests),
    }[card]
    assert done == most
    with flightlog.open_log(path, discover=False) as log:
        (use,) = [use for use in log.session("s").budget() if use.card == card]
    assert use.used == done, "what children did stands on the card, too"


async def test_what_a_child_was_lent_and_has_not_used_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    parent = FakeModel([scouts(1), calls(*[("look", {"at": n}) for n in range(5)]), words("Good.")])
    child = child_model(calls(("look", {})), words("Sky."))
    assert await brought(path, parent, child, Budget(calls_of={"look": 6})) == "completed"
    (spawned,) = events_of(path, SubagentSpawned)
    assert spawned.lent == (Lent(card="calls:look", amount=3),)
    (charged,) = events_of(path, BudgetCharged)
    assert (charged.card, charged.amount, charged.invocation_id) == ("calls:look", 1, spawned.invocation_id)
    for name in ("s", child_of(path)):
        verified(path, parent, child, name=name)


async def test_siblings_of_a_step_have_equal_shares(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    parent, child = FakeModel([scouts(4), words("Good.")]), child_model(*[words("Sky.")] * 4)
    assert await brought(path, parent, child, Budget(calls_of={"look": 10})) == "completed"
    assert [spawned.lent[0].amount for spawned in events_of(path, SubagentSpawned)] == [2, 2, 2, 2]


async def test_the_children_of_a_child_are_fewer(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    parent = FakeModel([scouts(1), words("Good.")])
    child = child_model(*[scouts(1, step=step) for step in range(40)])
    await brought(path, parent, child, Budget(subagents=16))
    spawned = [event for record in sessions_of(path) for event in events_of(path, SubagentSpawned, record.session)]
    assert len(spawned) == 1 + 2, "an eighth of sixteen, and theirs none"


async def test_so_many_children_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    parent, child = FakeModel([scouts(3), words("Good.")]), child_model()
    assert await brought(path, parent, child, Budget(subagents=2)) == "paused quota subagents: 2 of 2 are used"
    assert len(events_of(path, SubagentSpawned)) == 2
    assert sorted(result.outcome for result in events_of(path, ToolResult)) == ["error", "ok", "ok"]


async def test_of_many_that_are_sent_at_once_no_more_go_than_may(tmp_path: Path) -> None:
    path, parent = tmp_path / "a.db", FakeModel([scouts(6), words("Good.")])
    async with (
        opened(path, [parent, child_model()], look, plugins=[Bundle(subagents=[SCOUT])]) as kernel,
        kernel.session("other", model="fake:m"),  # so that appends wait for each other
    ):
        await kernel.tasks.submit("look around", model="fake:m", id="s", budget=Budget(subagents=2))
        await kernel.work(until_idle=True)
        assert (await kernel.tasks.show("s")).cause == "quota"
    assert len(events_of(path, SubagentSpawned)) == 2


async def test_without_a_budget_there_is_a_bound_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    parent, child = FakeModel([scouts(9, step=step) for step in range(20)]), child_model()
    async with opened(path, [parent, child], plugins=[Bundle(subagents=[SCOUT])]) as kernel:
        await kernel.tasks.submit("look around", model="fake:m", id="s")
        await kernel.work(until_idle=True)
        shown = await kernel.tasks.show("s")
    assert (shown.state, shown.cause) == ("paused", "quota")
    assert len(events_of(path, SubagentSpawned)) == 60
    assert [event.state for event in events_of(path, TaskState)] == ["running", "paused"]
    assert len(records_of(path)) > 60
