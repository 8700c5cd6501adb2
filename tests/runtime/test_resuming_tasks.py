"""A task that goes on looks first at what it is based on and what it has read: the log says what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

from flightlog.core.limits import RESYNC_ANSWER_MAX_CHARS, RESYNC_READS_MAX
from flightlog.events import (
    ApprovalAsked,
    CheckpointSkipped,
    CheckpointWritten,
    RequestHeader,
    TaskResynced,
    TaskState,
    ToolCall,
    ToolResult,
    TurnEnd,
    UserMessage,
)
from flightlog.testing import Attempts, Bundle, FakeModel, calls, words
from flightlog_hookspecs import Deny, PromptSection, Tool, ToolContext, tool
from flightlog_hookspecs.errors import ProviderError, ToolError
from flightlog_hookspecs.tools import Done, Effect, NotDone
from flightlog_plugins.failover import Failover
from support.conversation import assert_at_rest
from support.cutting import cut_log
from support.kernels import events_of, opened, records_of
from support.legal_logs import extended, write
from support.paying import guard
from support.shop import (
    GOAL,
    LOOK,
    REPLIES,
    TASK,
    Shop,
    clock_at,
    cut_behind,
    rows_of,
    shown,
    whole_run,
    work,
)

DAWN_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000


def resyncs(path: Path) -> list[TaskResynced]:
    return events_of(path, TaskResynced, TASK)


def told(path: Path) -> list[str]:
    """What the model was told on resuming."""
    return [message.text for message in events_of(path, UserMessage, TASK) if message.source == "resync"]


def state_of(path: Path) -> str:
    return events_of(path, TaskState, TASK)[-1].state


async def dead_behind(
    path: Path, shop: Shop, kind: str, occurrence: int = 1, *, effect: Effect = "write", **options: Any
) -> Path:
    """The log of a task whose worker died right behind the `occurrence`-th row of `kind`."""
    whole = path.with_suffix(".whole")
    await whole_run(whole, *shop.tools(effect=effect), **options)
    cut_behind(whole, path, kind, occurrence)
    shop.shipped.clear()
    return path


async def resumed(path: Path, *tools: Tool, replies: Sequence[Any] = REPLIES, **options: Any) -> FakeModel:
    """Let the next worker bring the task to its end."""
    model = FakeModel(list(replies))
    await work(path, model, *tools, clock=clock_at(DAWN_US + 3 * HOUR_US), **options)
    assert state_of(path) == "completed"
    assert_at_rest(path, model, name=TASK)
    return model


async def test_a_task_dead_for_hours_sees_what_has_changed_before_it_acts(tmp_path: Path) -> None:
    shop = Shop()
    path = await dead_behind(tmp_path / "a.db", shop, "tool/result")
    shop.price = "12"
    model = await resumed(path, *shop.tools())
    assert "is now:\\norder 7 costs 12" in shown(model.requests[0])
    assert events_of(path, ToolResult, TASK)[0].text == "order 7 costs 10", "nothing is replaced"
    call = rows_of(path, "tool/call")[0]
    recalled, news = told(path)
    assert recalled == (
        f"This task goes on after an interruption.\nGoal: {GOAL}\n"
        "Done: steps 0, calls 1 (order 1). Next: give the model what came of order."
    )
    assert news == (
        f'The answer of order({{"id": "7"}}), a call in row {call}, is out of date. It is now:\norder 7 costs 12'
    )
    (resync,) = resyncs(path)
    assert (resync.before, resync.changed, resync.left_out) == (resync.after, (), 0)
    assert [(each.call_seq, each.came) for each in resync.refreshed] == [(call, "changed")]
    assert shop.shipped == ["7"]


async def test_what_is_the_same_as_before_is_not_told_again(tmp_path: Path) -> None:
    shop = Shop()
    path = await dead_behind(tmp_path / "a.db", shop, "tool/result")
    await resumed(path, *shop.tools())
    assert [each.came for each in resyncs(path)[0].refreshed] == ["same"]
    assert len(told(path)) == 1
    assert shop.looks == ["7", "7"]


async def test_a_call_that_was_decided_on_stale_news_is_stopped_by_its_precheck(tmp_path: Path) -> None:
    shop = Shop()
    path = await dead_behind(tmp_path / "a.db", shop, "assistant/message", 2)
    shop.price, shop.cancelled = "0", True
    model = await resumed(path, *shop.tools(checked=True))
    assert shop.shipped == []
    assert "order 7 costs 0" in shown(model.requests[0])
    assert events_of(path, ToolResult, TASK)[-1].outcome == "denied"


async def test_a_read_that_is_not_refreshable_is_not_asked_again(tmp_path: Path) -> None:
    shop = Shop()
    path = await dead_behind(tmp_path / "a.db", shop, "tool/result")
    await resumed(path, *shop.tools(refreshable=False))
    assert (shop.looks, resyncs(path)[0].refreshed) == (["7"], ())


async def test_a_task_that_nothing_interrupted_looks_at_nothing_again(tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "a.db"
    await whole_run(path, *shop.tools())
    assert (shop.looks, resyncs(path)) == (["7"], [])


async def test_a_paused_task_looks_again_when_it_is_resumed(tmp_path: Path) -> None:
    shop = Shop()
    path = await dead_behind(tmp_path / "a.db", shop, "tool/result")
    async with opened(path, FakeModel([]), *shop.tools()) as kernel:
        await kernel.tasks.pause(TASK)
        await kernel.work(until_idle=True)
        assert (await kernel.tasks.show(TASK)).state == "paused"
        assert resyncs(path) == []
        await kernel.tasks.resume(TASK)
    shop.price = "12"
    await resumed(path, *shop.tools())
    assert [each.came for each in resyncs(path)[0].refreshed] == ["changed"]


async def test_a_task_whose_turn_was_closed_goes_on_in_a_turn_that_begins_with_what_it_was_doing(
    tmp_path: Path,
) -> None:
    shop = Shop()
    path = await dead_behind(tmp_path / "a.db", shop, "tool/result")
    async with (
        opened(path, FakeModel([]), *shop.tools()) as kernel,
        kernel.session(TASK, model="fake:m", on_crash="close"),
    ):
        pass
    assert events_of(path, TurnEnd, TASK)[-1].reason == "interrupted"
    shop.price = "12"
    model = await resumed(path, *shop.tools())
    messages = [message for message in events_of(path, UserMessage, TASK) if message.source == "resync"]
    records = {record.event: record for record in records_of(path, TASK) if isinstance(record.event, UserMessage)}
    assert [(records[each].turn, records[each].step) for each in messages] == [(2, 1), (2, 1)]
    assert "order 7 costs 12" in shown(model.requests[0])


async def test_a_task_that_is_paused_while_it_looks_again_does_so_once_more_when_it_goes_on(tmp_path: Path) -> None:
    shop = Shop()
    path = await dead_behind(tmp_path / "a.db", shop, "tool/result")

    @tool(effect="read", mode="parallel", refreshable=True)
    async def order(id: str) -> str:
        """Look at an order."""
        await kernel.tasks.pause(TASK)
        async for record in kernel.read(TASK).events():
            if isinstance(record.event, TaskState) and record.event.state == "paused":
                break
        return f"order {id} costs 11"

    async with opened(path, FakeModel([]), order, shop.tools()[1]) as kernel:
        await kernel.work(until_idle=True)
        assert (await kernel.tasks.show(TASK)).state == "paused"
        assert resyncs(path) == []
        await kernel.tasks.resume(TASK)
    shop.price = "12"
    await resumed(path, *shop.tools())
    assert [text.rpartition(" ")[2] for text in told(path)[1:]] == ["12"]


async def test_only_the_newest_of_equal_calls_is_asked_again(tmp_path: Path) -> None:
    shop = Shop()
    replies = (LOOK, LOOK, [*words("Both."), *calls(("order", {"id": "8"}), ("order", {"id": "7"}))], words("Shipped."))
    path = await dead_behind(tmp_path / "a.db", shop, "step/end", 3, replies=replies)
    shop.looks.clear()
    await resumed(path, *shop.tools(), replies=replies)
    assert shop.looks == ["7", "8"], "the newest first"
    assert [each.call_seq for each in resyncs(path)[0].refreshed] == rows_of(path, "tool/call")[:1:-1]


async def test_so_many_are_asked_again_and_no_more(tmp_path: Path) -> None:
    shop, many = Shop(), RESYNC_READS_MAX + 4
    replies = (calls(*[("order", {"id": str(number)}) for number in range(many)]), words("Shipped."))
    path = await dead_behind(tmp_path / "a.db", shop, "tool/result", many, replies=replies)
    shop.looks.clear()
    shop.price = "9" * (RESYNC_ANSWER_MAX_CHARS + 1)
    await resumed(path, *shop.tools(), replies=replies)
    assert len(shop.looks) == RESYNC_READS_MAX
    assert resyncs(path)[0].left_out == 4
    *news, rest = told(path)[1:]
    assert len(news) == RESYNC_READS_MAX
    assert rest.endswith("4 older ones that were not asked for again")
    assert all(len(text) < RESYNC_ANSWER_MAX_CHARS + 200 for text in news)


@tool(name="order", effect="read", mode="parallel", refreshable=True)
async def broken_order(id: str) -> str:
    """Look at an order."""
    raise ToolError(f"no order {id} today")


@tool(name="order", effect="read", mode="parallel", refreshable=True, timeout_s=0.01)
async def slow_order(id: str) -> str:
    """Look at an order."""
    await trio.sleep_forever()
    return id


@tool(name="order", effect="read", mode="parallel", refreshable=True)
async def other_order(number: int) -> str:
    """Look at an order."""
    return str(number)


@tool(name="order", effect="read", mode="parallel", refreshable=True, isolation="process")
def dying_order(id: str) -> str:
    """Look at an order."""
    import os

    os._exit(3)


class Lazy(dict[str, str]):
    """A mapping that looks its items up when they are asked for."""

    def items(self) -> Any:
        raise OSError("gone")


@tool(name="order", effect="read", mode="parallel", refreshable=True)
async def lazy_order(id: str) -> object:
    """Look at an order."""
    return Lazy(id=id)


@pytest.mark.parametrize(
    "order", [broken_order, slow_order, other_order, dying_order, lazy_order], ids=lambda t: t.body.__name__
)
async def test_a_read_that_fails_on_resuming_costs_only_its_answer(tmp_path: Path, order: Tool) -> None:
    shop = Shop()
    path = await dead_behind(tmp_path / "a.db", shop, "step/end")
    await resumed(path, order, shop.tools()[1])
    assert [(each.came, each.answer) for each in resyncs(path)[0].refreshed] == [("failed", "")]
    assert told(path)[-1].startswith("These answers may be out of date; call again before you rely on them:\norder(")


async def test_guards_decide_about_what_is_asked_again(tmp_path: Path) -> None:
    shop = Shop()
    path = await dead_behind(tmp_path / "a.db", shop, "step/end")
    shop.looks.clear()
    denied = guard(lambda call: Deny("not now") if call.name == "order" else None)
    await resumed(path, *shop.tools(), plugins=[Bundle(hooks=[denied])])
    assert shop.looks == []
    assert [each.came for each in resyncs(path)[0].refreshed] == ["failed"]


async def test_an_error_that_is_still_the_same_is_no_news(tmp_path: Path) -> None:
    tools = (broken_order, Shop().tools()[1])
    whole, path = tmp_path / "whole.db", tmp_path / "a.db"
    await whole_run(whole, *tools)
    cut_behind(whole, path, "step/end")
    await resumed(path, *tools)
    assert [each.came for each in resyncs(path)[0].refreshed] in (["same"], ["failed"])


def section(text: str) -> PromptSection:
    return PromptSection(name="rules", rank=1, render=lambda: text)


@pytest.mark.parametrize("kind", ["tool/call", "tool/result", "request/sent"])
@pytest.mark.parametrize("change", ["system", "goal", "parameters", "tools", "goal, system, tools"])
async def test_what_the_work_is_based_on_has_changed(tmp_path: Path, change: str, kind: str) -> None:
    shop, names = Shop(), change.split(", ")
    path = await dead_behind(tmp_path / "a.db", shop, kind, 1, sections=[section("be kind")])
    tools, options = list(shop.tools()), {"sections": [section("be quick" if "system" in names else "be kind")]}
    if "tools" in names:
        tools[1] = evolve(tools[1], description="Ship an order at once.")
    async with opened(path, FakeModel([])) as kernel:
        if "goal" in names:
            await kernel.tasks.amend(TASK, goal="Ship order 8.")
        if "parameters" in names:
            await kernel.tasks.amend(TASK, parameters={"at": "night"})
    model = await resumed(path, *tools, **options)
    (resync,) = resyncs(path)
    assert set(resync.changed) == set(names)
    assert resync.before != resync.after
    first, last = events_of(path, TurnEnd, TASK)
    assert (first.reason, first.message) == ("interrupted", f"what the task is based on has changed: {change}")
    assert last.reason == "completed"
    if set(names) & {"system", "tools"}:
        header = events_of(path, RequestHeader, TASK)[-1]
        assert ("be quick" in header.head.system) == ("system" in names)
        assert any(spec.description.endswith("at once.") for spec in header.head.tools) == ("tools" in names)
    assert told(path)[-1 if kind != "tool/result" else 0].count("What has changed meanwhile") <= 1
    assert any(f"What has changed meanwhile: {change}" in text for text in told(path))
    if "goal" in names:
        assert "Goal: Ship order 8." in shown(model.requests[0])
    newest = [c for c in events_of(path, CheckpointWritten, TASK) if c.fingerprint][-1]
    assert newest.fingerprint == resync.after


@pytest.mark.parametrize(
    ("effect", "finding", "ships", "told_by"),
    [
        ("idempotent", None, 1, ""),
        ("write", Done("order 7 is on its way"), 0, "reconcile"),
        ("write", NotDone(), 1, ""),
    ],
)
async def test_what_was_cut_off_is_settled_by_the_table_also_where_the_basis_has_changed(
    tmp_path: Path, effect: Effect, finding: Done | NotDone | None, ships: int, told_by: str
) -> None:
    shop = Shop()
    path = await dead_behind(tmp_path / "a.db", shop, "tool/call", 2, effect=effect, sections=[section("be kind")])
    order, ship = shop.tools(effect=effect)
    if finding is not None:
        ship = evolve(ship, reconcile=lambda context, arguments: finding)
    await resumed(path, order, ship, sections=[section("be quick")])
    assert resyncs(path)[0].changed == ("system",)
    assert len(shop.shipped) == ships
    result = events_of(path, ToolResult, TASK)[-1]
    assert (result.name, result.outcome, result.told_by) == ("ship", "ok", told_by)
    assert len({call.invocation_id for call in events_of(path, ToolCall, TASK) if call.name == "ship"}) == 1


@pytest.mark.parametrize("now", [False, True])
async def test_a_pause_while_a_tool_looks_how_its_call_ended_leaves_it_to_look_again(tmp_path: Path, now: bool) -> None:
    shop, looks = Shop(), list[bool]()
    path = await dead_behind(tmp_path / "a.db", shop, "tool/call", 2)
    order, ship = shop.tools()

    async def look(context: ToolContext, arguments: Mapping[str, Any]) -> Done:
        looks.append(True)
        if len(looks) == 1:
            async with opened(path, FakeModel([])) as other:
                await other.tasks.pause(TASK, now=now)
            await trio.sleep_forever()
        return Done("order 7 is on its way")

    ship = evolve(ship, reconcile=look)
    await work(path, FakeModel(list(REPLIES)), order, ship)
    assert state_of(path) == "paused"
    assert len(events_of(path, ToolResult, TASK)) == 1, "nobody has said how it ended"
    async with opened(path, FakeModel([])) as kernel:
        await kernel.tasks.resume(TASK)
    await resumed(path, order, ship)
    assert (len(looks), shop.shipped) == (2, [])
    assert [result.outcome for result in events_of(path, ToolResult, TASK)] == ["ok", "ok"]


async def test_what_nobody_can_know_is_asked_also_where_the_basis_has_changed(tmp_path: Path) -> None:
    shop = Shop()
    path = await dead_behind(tmp_path / "a.db", shop, "tool/call", 2, sections=[section("be kind")])
    await work(path, FakeModel(list(REPLIES)), *shop.tools(), sections=[section("be quick")])
    assert state_of(path) == "paused"
    (asked,) = events_of(path, ApprovalAsked, TASK)
    assert asked.about == "outcome"
    assert not resyncs(path)
    async with opened(path, FakeModel([])) as kernel:
        await kernel.tasks.answer(TASK, rows_of(path, "approval/asked")[0], "done")
    await resumed(path, *shop.tools(), sections=[section("be quick")])
    assert shop.shipped == []
    assert [result.told_by for result in events_of(path, ToolResult, TASK)] == ["", "person"]


async def test_opening_a_task_as_a_session_leaves_what_was_cut_off_to_its_worker(tmp_path: Path) -> None:
    shop = Shop()
    path = await dead_behind(tmp_path / "a.db", shop, "tool/call", 2)
    async with opened(path, FakeModel([])) as kernel, kernel.session(TASK):
        pass
    assert len(events_of(path, ToolResult, TASK)) == 1
    order, ship = shop.tools()
    await resumed(path, order, evolve(ship, reconcile=lambda context, arguments: Done("shipped")))
    assert events_of(path, ToolResult, TASK)[-1].told_by == "reconcile"


async def test_a_model_that_the_host_has_changed_is_noticed(tmp_path: Path) -> None:
    shop = Shop()
    path = await dead_behind(tmp_path / "a.db", shop, "tool/result")
    model = FakeModel(list(REPLIES))
    async with (
        opened(path, model, *shop.tools()) as kernel,
        kernel.session(TASK, model="fake:other", on_crash="continue") as session,
    ):
        await session.run()
    (resync,) = resyncs(path)
    assert resync.changed == ("model",)
    assert events_of(path, RequestHeader, TASK)[-1].reason == "model"
    assert_at_rest(path, model, name=TASK)


async def test_a_model_that_serves_in_place_of_another_is_no_change(tmp_path: Path) -> None:
    shop, whole, path = Shop(), tmp_path / "whole.db", tmp_path / "a.db"
    busy = ProviderError("overloaded", "busy", retryable=True)
    first = FakeModel([Attempts([[busy], [busy], [busy]])] * 3)
    other = FakeModel(list(REPLIES), name="spare")
    failover = Failover(["fake:m", "spare:m"])
    await work(whole, [first, other], *shop.tools(), goal=GOAL, plugins=[failover])
    cut_behind(whole, path, "tool/result")
    await work(path, [first, other], *shop.tools(), plugins=[failover])
    (resync,) = resyncs(path)
    assert (resync.changed, state_of(path)) == ((), "completed")


async def test_a_checkpoint_that_disagrees_with_the_log_is_skipped_for_the_one_before(tmp_path: Path) -> None:
    shop, whole, path = Shop(), tmp_path / "whole.db", tmp_path / "a.db"
    await whole_run(whole, *shop.tools())
    behind = rows_of(whole, "tool/result")[0]
    records = records_of(whole, TASK)[:behind]
    sound = max(seq for seq in rows_of(whole, "checkpoint/written") if seq < behind)
    wrong = CheckpointWritten(level="heavy", phase="observe", steps=7, history="ab", fingerprint="cd", calls=1)
    log = [*records, *extended(records, wrong)[behind:]]
    write(str(path), [log[:1], log[1:]])
    await resumed(path, *shop.tools())
    (skipped,) = events_of(path, CheckpointSkipped, TASK)
    assert skipped.checkpoint_seq == behind + 1
    assert skipped.why.startswith("steps 7, the log says 0; history 'ab', the log says ")
    assert resyncs(path)[0].checkpoint_seq == sound
    assert shop.shipped == ["7", "7"], "once in each run"


@pytest.mark.parametrize("text", ["be kind", "be quick"])
@pytest.mark.parametrize(("kind", "occurrence"), [("assistant/message", 2), ("tool/call", 2), ("request/sent", 3)])
async def test_wherever_a_worker_dies_while_it_resumes_the_task_comes_to_the_same_end(
    tmp_path: Path, text: str, kind: str, occurrence: int
) -> None:
    shop, ends, changed = Shop(), list[int](), {"sections": [section(text)]}
    dead = await dead_behind(
        tmp_path / "dead.db", shop, kind, occurrence, effect="idempotent", sections=[section("be kind")]
    )
    tools = shop.tools(effect="idempotent")  # else a person would be asked what became of it
    shop.price, rows, whole = "12", len(records_of(dead, TASK)), tmp_path / "resumed.db"
    cut_log(dead, whole, rows, TASK)
    await resumed(
        whole, *tools, on_boundary=lambda name, _, seq: ends.append(seq) if name == "commit" else None, **changed
    )
    for seq in ends:
        path = tmp_path / f"{seq}.db"
        cut_log(whole, path, seq, TASK)
        if state_of(path) != "completed":
            await resumed(path, *tools, **changed)
            assert sum("is out of date" in text for text in told(path)) == 1, f"cut behind row {seq}"
            assert answers(path) == answers(whole), f"cut behind row {seq}"
            assert sum(resync.changed != () for resync in resyncs(path)) == (text == "be quick"), f"behind row {seq}"


async def test_another_goal_interrupts_what_is_under_way_once_wherever_a_worker_dies(tmp_path: Path) -> None:
    shop, ends = Shop(), list[int]()
    tools = shop.tools(effect="idempotent")
    dead = await dead_behind(tmp_path / "dead.db", shop, "tool/result", effect="idempotent")
    rows, whole = len(records_of(dead, TASK)), tmp_path / "resumed.db"
    cut_log(dead, whole, rows, TASK)
    await amended(whole)
    await resumed(whole, *tools, on_boundary=lambda name, _, seq: ends.append(seq) if name == "commit" else None)
    for seq in ends:
        path = tmp_path / f"{seq}.db"
        cut_log(whole, path, seq, TASK)
        if state_of(path) != "completed":
            if not rows_of(path, "task/amended"):
                await amended(path)
            await resumed(path, *tools)
            assert [resync.changed for resync in resyncs(path) if resync.changed] == [("goal",)], f"behind row {seq}"


async def amended(path: Path) -> None:
    async with opened(path, FakeModel([])) as kernel:
        await kernel.tasks.amend(TASK, goal="Ship order 8.")


async def test_a_model_that_has_said_nothing_since_is_not_reminded_again(tmp_path: Path) -> None:
    shop, resumed_once, path = Shop(), tmp_path / "once.db", tmp_path / "a.db"
    await resumed(await dead_behind(resumed_once, shop, "tool/result"), *shop.tools())
    cut_behind(resumed_once, path, "task/resync")
    await resumed(path, *shop.tools())
    assert len(resyncs(path)) == 2
    assert len(told(path)) == 1


def answers(path: Path) -> list[tuple[str, str]]:
    """How each call ended."""
    return [(result.outcome, result.text) for result in events_of(path, ToolResult, TASK)]


async def test_no_checkpoint_has_an_append_of_its_own(tmp_path: Path) -> None:
    path, ends = tmp_path / "a.db", list[int]()
    await whole_run(
        path, *Shop().tools(), on_boundary=lambda name, _, seq: ends.append(seq) if name == "commit" else None
    )
    kinds = [record.event.kind for record in records_of(path, TASK)]
    appends = [kinds[start:end] for start, end in pairwise([2, *sorted(set(ends))])]
    assert all(set(append) != {"checkpoint/written"} for append in appends)
    assert sum("checkpoint/written" in append for append in appends) == 7
