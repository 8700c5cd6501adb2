"""What all sessions of a file use together: rates, pools and tasks at once, across kernels."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import trio
import trio.testing
from attrs import evolve

import flightlog
from flightlog import Budget, Kernel, Limits, Pool, Quotas, Rate
from flightlog.errors import UsageError
from flightlog.events import (
    BudgetAlert,
    RequestSent,
    SessionOpened,
    TaskState,
    ToolCall,
    ToolResult,
)
from flightlog.runtime.clock import Clock
from flightlog.testing import Bundle, FakeModel, calls, fixed_clock, words
from flightlog_hookspecs import Subagent, Tool, tool
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import TaskClass
from flightlog_hookspecs.stream import Usage
from support.cutting import cut_log
from support.kernels import events_of, new_id, records_of
from support.long_work import SUMMARISES, LongWork, looking

CHARGED = "SELECT sum(charged) FROM events JOIN session_keys k USING(session) WHERE k.name < 'n'"
START_US = 1_700_000_000_000_000


@tool(mode="parallel", effect="read")
async def look(at: int = 0) -> str:
    """Look."""
    return f"nothing at {at}"


def clock() -> Clock:
    """A wall clock that goes with trio's."""
    now_us = lambda: START_US + int(trio.current_time() * 1_000_000)  # noqa: E731
    return evolve(fixed_clock(), new_id=new_id, now_us=now_us)


@asynccontextmanager
async def kernel_of(
    path: Path, quotas: Quotas, *tools: Tool, model: Any = None, more: Sequence[Bundle] = ()
) -> AsyncIterator[Kernel]:
    plugins = [Bundle(adapters=[model or FakeModel([])], tools=tools or (look,)), *more]
    async with flightlog.open_kernel(path, discover=False, plugins=plugins, clock=clock(), quotas=quotas) as kernel:
        yield kernel


async def submitted(kernel: Kernel, name: str, task_class: TaskClass = "normal", **wish: Any) -> None:
    await kernel.tasks.submit("look around", model="fake:m", id=name, task_class=task_class, **wish)


def times_of(path: Path, kind: type, *names: str) -> list[float]:
    """When each event of a kind was written, in seconds."""
    at_us = [r.at_us for name in names for r in records_of(path, name) if isinstance(r.event, kind)]
    return sorted((each - START_US) / 1_000_000 for each in at_us)


def assert_rate(times: list[float], rate: Rate) -> None:
    for end in times:
        assert sum(end - rate.per_s < each <= end for each in times) <= rate.most


async def test_calls_of_a_tool_wait_for_its_rate_whoever_makes_them(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path, rate = tmp_path / "a.db", Rate(3, per_s=10)
    model = FakeModel([calls(*[("look", {"at": n}) for n in range(4)]), words("Seen.")])
    quotas = Quotas(rates={"tool:look": rate})
    async with kernel_of(path, quotas, model=model) as one, kernel_of(path, quotas, model=model) as two:
        await submitted(one, "a")
        await submitted(two, "b")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: one.work(until_idle=True, tasks_at_once=1))
            nursery.start_soon(lambda: two.work(until_idle=True, tasks_at_once=1))
        assert {(await one.tasks.show(name)).state for name in "ab"} == {"completed"}
    times = times_of(path, ToolCall, "a", "b")
    assert len(times) == 8
    assert_rate(times, rate)
    assert times[-1] < 25, "and they wait no longer than they must"


async def test_requests_to_an_adapter_wait_for_its_rate_in_sessions_without_a_task_too(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path, rate = tmp_path / "a.db", Rate(2, per_s=60)
    async with (
        kernel_of(path, Quotas(rates={"adapter:fake": rate})) as kernel,
        kernel.session("s", model="fake:m") as s,
    ):
        for text in ("one", "two", "three", "four", "five"):
            await s.followup(text)
            turn = await s.run()
            assert turn is not None
            assert turn.reason == "completed"
    times = times_of(path, RequestSent, "s")
    assert_rate(times, rate)
    assert times[-1] >= 120


async def test_a_restart_does_not_reset_a_rate(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    path, rate = tmp_path / "a.db", Rate(2, per_s=60)
    for number in range(3):
        quotas = Quotas(rates={"adapter:fake": rate})
        async with kernel_of(path, quotas) as kernel, kernel.session(f"s{number}", model="fake:m") as s:
            await s.followup("go")
            await s.run()
    times = times_of(path, RequestSent, "s0", "s1", "s2")
    assert_rate(times, rate)
    assert times[2] >= 60


async def test_a_session_that_is_brought_in_with_rows_of_old_resets_no_rate(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path, rate = tmp_path / "a.db", Rate(2, per_s=60)
    quotas = Quotas(rates={"adapter:fake": rate})
    async with kernel_of(path, quotas) as kernel:
        async with kernel.session("old", model="fake:m") as s:
            await s.followup("go")
            await s.run()
        await trio.sleep(600)
        async with kernel.session("s", model="fake:m") as s:
            for _ in range(2):
                await s.followup("go")
                await s.run()
        await kernel.fork("old", 1, "fork")
    async with kernel_of(path, quotas) as kernel, kernel.session("s", model="fake:m") as s:
        await s.followup("go")
        await s.run()
    assert_rate(times_of(path, RequestSent, "old", "s"), rate)
    assert times_of(path, RequestSent, "s")[-1] >= 660


async def test_a_task_that_would_wait_too_long_pauses_and_goes_on_when_the_rate_is_free(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([calls(("look", {"at": 1})), words("Seen.")])
    async with kernel_of(path, Quotas(rates={"adapter:fake": Rate(1, per_s=3600)}), model=model) as kernel:
        await submitted(kernel, "a")
        await kernel.work(until_idle=True)
        shown = await kernel.tasks.show("a")
        assert (shown.state, shown.cause) == ("paused", "quota")
        assert shown.due_at_us is not None
        assert 3590 < (shown.due_at_us - START_US) / 1_000_000 <= 3600
        await trio.sleep(3600)
        await kernel.work(until_idle=True)
        assert (await kernel.tasks.show("a")).state == "completed"
    (alert,) = [e for e in events_of(path, BudgetAlert, "a") if e.level == "exceeded"]
    assert (alert.card, alert.used, alert.most, alert.then) == ("rate:adapter:fake", 1, 1, "pauses")


async def test_tasks_that_wait_for_a_rate_again_and_again_have_all_their_steps_left(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path, names = tmp_path / "a.db", "abcde"
    async with kernel_of(path, Quotas(rates={"adapter:fake": Rate(1, per_s=60)})) as kernel:
        for name in names:
            await submitted(kernel, name, max_steps=1)
        for _ in names:
            await kernel.work(until_idle=True)
            await trio.sleep(60)
        assert [(await kernel.tasks.show(name)).state for name in names] == ["completed"] * 5
    assert_rate(times_of(path, RequestSent, *names), Rate(1, per_s=60))


async def test_a_summary_that_has_to_wait_for_a_rate_is_asked_for_when_that_is_free(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path, rate, model = tmp_path / "a.db", Rate(1, per_s=60), LongWork(steps=9, window_tokens=700)
    summarises = Bundle(compactors=[SUMMARISES])
    async with (
        kernel_of(path, Quotas(rates={"adapter:fake": rate}), looking(600), model=model, more=[summarises]) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await submitted(kernel, "a", max_steps=99)
        while not (await kernel.tasks.show("a")).ended:
            await kernel.work(until_idle=True)
            shown = await kernel.tasks.show("a")
            assert (shown.state, shown.cause) in (("completed", ""), ("paused", "quota"))
            await trio.sleep(60)
        assert (await kernel.tasks.show("a")).state == "completed"
        asked = model.asked
        assert asked
        await session.followup("go")
        turn = await session.run()
        assert turn is not None
        assert turn.reason == "completed", "who has no budget waits"
        assert model.asked > asked
    assert_rate(times_of(path, RequestSent, "a", "s"), rate)


async def test_of_those_that_wait_for_a_rate_core_goes_first_then_who_came_first(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path, rate, begun = tmp_path / "a.db", Rate(1, per_s=5), list[str]()

    async def ask(kernel: Kernel, name: str, after_s: float) -> None:
        await trio.sleep(after_s)
        if name == "session":
            async with kernel.session("s", model="fake:m") as session:
                await session.followup("go")
                await session.run()
        else:
            await submitted(kernel, name, name.rstrip("12"))  # type: ignore[arg-type]
            async with kernel._task(name, Limits(), take_over=False) as run:
                await run.to_rest()
        begun.append(name)

    async with kernel_of(path, Quotas(rates={"adapter:fake": rate})) as kernel, trio.open_nursery() as nursery:
        names = ["batch1", "batch2", "session", "normal1", "core1", "core2"]
        for number, name in enumerate(names):
            nursery.start_soon(ask, kernel, name, number / 10)
    assert begun == ["batch1", "core1", "core2", "session", "normal1", "batch2"]


async def test_a_task_waits_no_longer_than_its_patience_however_often_it_has_to_look(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path, names = tmp_path / "a.db", "abcdef"
    async with kernel_of(path, Quotas(rates={"adapter:fake": Rate(1, per_s=20)})) as kernel:
        for name in names:
            await submitted(kernel, name, "core")
        await kernel.work(until_idle=True, tasks_at_once=6)
        states = [(await kernel.tasks.show(name)).state for name in names]
        assert sorted(states) == ["completed"] * 2 + ["paused"] * 4
        assert times_of(path, BudgetAlert, *names)[-1] <= 30, "though each round takes less"
        while not all([(await kernel.tasks.show(name)).ended for name in names]):
            await kernel.work(until_idle=True, tasks_at_once=6)
            await trio.sleep(20)
    assert_rate(times_of(path, RequestSent, *names), Rate(1, per_s=20))


async def test_a_call_that_the_task_can_do_without_does_not_wait(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "a.db"

    @tool(mode="parallel", effect="read", core=False)
    async def glance(at: int) -> str:
        """Glance."""
        return "nothing"

    model = FakeModel([calls(("glance", {"at": 1}), ("glance", {"at": 2})), words("Seen.")])
    async with kernel_of(path, Quotas(rates={"tool:glance": Rate(1, per_s=5)}), glance, model=model) as kernel:
        await submitted(kernel, "a")
        await kernel.work(until_idle=True)
        assert (await kernel.tasks.show("a")).state == "completed"
    assert sorted(e.outcome for e in events_of(path, ToolResult, "a")) == ["denied", "ok"]
    assert len(times_of(path, ToolCall, "a")) == 1


async def test_the_tokens_of_a_pool_are_shared_and_come_back(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "a.db"
    quotas = Quotas(pools={"batch": Pool(tokens=Rate(500, per_s=86_400))})
    async with kernel_of(path, quotas) as kernel:
        for name in "abcde":
            await submitted(kernel, name, "batch", parameters={"where": "around the harbour " * 30})
        await submitted(kernel, "n")
        await kernel.work(until_idle=True)
        states = {name: (await kernel.tasks.show(name)).state for name in "abcden"}
        assert states["n"] == "completed", "another class has its own"
        assert "paused" in states.values()
        assert "completed" in [states[name] for name in "abcde"]
        (used,) = (await kernel.query(CHARGED)).rows[0]
        assert used <= 500
        await trio.sleep(86_000)
        for _ in range(20):
            await kernel.work(until_idle=True)
            await trio.sleep(86_000)
        assert {(await kernel.tasks.show(name)).state for name in "abcde"} == {"completed"}


async def test_who_finds_a_pool_taken_by_a_request_under_way_goes_on_once_that_has_counted(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([[partial(trio.sleep, 20), *words("Seen."), Usage(input_tokens=1)]])
    async with kernel_of(path, Quotas(pools={"normal": Pool(tokens=Rate(500, per_s=86_400))}), model=model) as kernel:
        for name in "ab":
            await submitted(kernel, name, parameters={"where": "around the harbour " * 70})
        await kernel.work(until_idle=True)
        assert {(await kernel.tasks.show(name)).state for name in "ab"} == {"completed"}
    assert len(set(times_of(path, RequestSent, "a", "b"))) == 2, "the second one has waited"


async def test_what_a_request_that_failed_has_taken_is_gone_from_its_pool(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path, pool = tmp_path / "a.db", Pool(tokens=Rate(5_000, per_s=86_400))
    model = FakeModel([[Usage(input_tokens=9_000), ProviderError("auth", "no key")]])
    async with kernel_of(path, Quotas(pools={"normal": pool}), model=model) as kernel:
        for name in "ab":
            await submitted(kernel, name)
        await kernel.work(until_idle=True, tasks_at_once=1)
        assert sorted([(await kernel.tasks.show(name)).cause for name in "ab"]) == ["error", "quota"]
    assert len(model.requests) == 1


async def test_who_waits_is_told_as_soon_as_somebody_else_sees_that_there_is_room_or_takes_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([[partial(trio.sleep, 3), *words("Seen."), Usage(input_tokens=1)]])
    quotas = Quotas(pools={"core": Pool(tokens=Rate(500, per_s=86_400))})
    async with kernel_of(path, quotas, model=model) as kernel, trio.open_nursery() as nursery:
        for name in "abc":
            await submitted(kernel, name, "core", parameters={"where": "around the harbour " * 70})
            nursery.start_soon(lambda: kernel.work(until_idle=True))
            await trio.sleep(2)
    _, second = times_of(path, RequestSent, *"abc")
    assert second <= 5, "the third one came then; by itself it would have looked again after seven"
    (paused,) = times_of(path, BudgetAlert, "c")
    assert paused <= 14, "once the second one had counted it was clear that nothing is left for the third"


@pytest.mark.parametrize("budget", [Budget(), Budget(tokens=10**6)], ids=["no budget", "a budget"])
async def test_children_share_the_pool_of_the_task_that_they_work_for(
    tmp_path: Path, budget: Budget, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "a.db"
    leaf = Subagent(name="leaf", description="Looks.", prompt="You look.", model="leaf:m", tools=())
    scout = Subagent(name="scout", description="Looks.", prompt="You look.", model="scout:m", tools=("leaf",))
    model = FakeModel([calls(("scout", {"task": "look"})), words("Good.")])
    scouts = FakeModel([calls(("leaf", {"task": "look"})), words("Sky.")], "scout")
    leaves = FakeModel([[*words("Blue."), Usage(input_tokens=1)]], "leaf")
    family = Bundle(subagents=[leaf, scout], adapters=[scouts, leaves])
    async with kernel_of(
        path, Quotas(pools={"batch": Pool(calls=Rate(5), tokens=Rate(10**6))}), model=model, more=[family]
    ) as kernel:
        await submitted(kernel, "a", "batch", budget=budget)
        await kernel.work(until_idle=True)
        names = [name for (name,) in (await kernel.query("SELECT session FROM sessions")).rows]
        assert len(names) == 3
        charged = (await kernel.query("SELECT min(charged) FROM events WHERE kind = 'assistant/message'")).rows[0]
        assert charged[0] > 1, "a provider that counts too little is not believed there, either"
    assert_rate(sorted([*times_of(path, RequestSent, *names), *times_of(path, ToolCall, *names)]), Rate(5))


async def test_what_never_fits_into_a_pool_waits_for_a_person(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "a.db"
    async with kernel_of(path, Quotas(pools={"normal": Pool(tokens=Rate(5))})) as kernel:
        await submitted(kernel, "a")
        await kernel.work(until_idle=True)
        shown = await kernel.tasks.show("a")
        assert (shown.state, shown.cause, shown.due_at_us) == ("paused", "quota", None)


class Waiting:
    """A tool whose calls take five seconds, and how many of them there were side by side."""

    def __init__(self) -> None:
        self.most = self._at_once = 0

    @property
    def tool(self) -> Tool:
        async def wait() -> str:
            """Wait."""
            self._at_once += 1
            self.most = max(self.most, self._at_once)
            await trio.sleep(5)
            self._at_once -= 1
            return "waited"

        return Tool(body=wait, effect="read")


async def test_so_many_tasks_of_a_file_at_once_in_all_kernels(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "a.db"
    waiting = Waiting()
    model = FakeModel([calls(("wait", {})), words("Done.")])
    quotas = Quotas(tasks_at_once=3, pools={"batch": Pool(tasks_at_once=1)})
    async with (
        kernel_of(path, quotas, waiting.tool, model=model) as one,
        kernel_of(path, quotas, waiting.tool, model=model) as two,
    ):
        for number in range(6):
            await submitted(one, f"n{number}")
            await submitted(one, f"b{number}", "batch")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: one.work(tasks_at_once=4))
            nursery.start_soon(lambda: two.work(tasks_at_once=4))
            for name in [f"{each}{number}" for each in "nb" for number in range(6)]:
                assert (await one.tasks.wait(name)).state == "completed"
            one.leave_work()
            two.leave_work()
    assert waiting.most <= 3
    running: dict[str, int] = {}
    names = [f"b{number}" for number in range(6)]
    moves = [(r.at_us, name, r.event) for name in names for r in records_of(path, name)]
    changes = sorted((at_us, name, event.state) for at_us, name, event in moves if isinstance(event, TaskState))
    for _, name, state in changes:
        running.pop(name, None)
        if state == "running":
            running[name] = 1
        assert len(running) <= 1, "batch tasks one after the other"
    opened = sum(len(events_of(path, SessionOpened, f"n{number}")) for number in range(6))
    assert opened <= 12, "who has no room is not opened again and again"


async def test_a_task_of_a_dead_worker_that_nobody_can_take_up_keeps_no_other_one_waiting(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path, cut, quotas = tmp_path / "a.db", tmp_path / "cut.db", Quotas(tasks_at_once=1)
    async with kernel_of(path, quotas, model=FakeModel([words("Seen.")], "gone")) as kernel:
        await kernel.tasks.submit("look around", model="gone:m", id="a")
        await kernel.work(until_idle=True)
    cut_log(path, cut, next(r.seq for r in records_of(path, "a") if isinstance(r.event, RequestSent)), "a")
    async with kernel_of(cut, quotas) as kernel:
        await submitted(kernel, "b")
        await kernel.work(until_idle=True)
        assert [(await kernel.tasks.show(name)).state for name in "ab"] == ["running", "completed"]


async def test_tasks_of_dead_workers_are_gone_on_with_no_more_at_once_than_others(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path, cut = tmp_path / "a.db", tmp_path / "cut.db"
    waiting = Waiting()
    model = FakeModel([calls(("wait", {})), words("Done.")])
    async with kernel_of(path, Quotas(), waiting.tool, model=model) as kernel:
        for name in "abc":
            await submitted(kernel, name)
        await kernel.work(until_idle=True)
    for name in "abc":
        rows = next(r.seq for r in records_of(path, name) if isinstance(r.event, RequestSent))
        cut_log(path, cut, rows, name)
    waiting.most = 0
    async with (
        kernel_of(cut, Quotas(tasks_at_once=1), waiting.tool, model=model) as kernel,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(kernel.work)
        for name in "abc":
            assert (await kernel.tasks.wait(name)).state == "completed"
        kernel.leave_work()
    assert waiting.most == 1


@tool(mode="parallel", effect="read")
async def listen() -> str:
    """Listen."""
    return "nothing"


async def run_everything(kernel: Kernel) -> None:
    """A task of each class, and a session without one, each with a request and calls of both tools."""
    for task_class in get_args(TaskClass):
        await submitted(kernel, task_class, task_class)
    await kernel.work(until_idle=True)
    assert {(await kernel.tasks.show(each)).state for each in get_args(TaskClass)} == {"completed"}
    async with kernel.session("s", model="fake:m") as session:
        await session.followup("go")
        await session.run()


@pytest.mark.parametrize(
    ("quotas", "kept"),
    [
        (Quotas(rates={"tool:look": Rate(99)}), {"rate:tool:look"}),
        (Quotas(rates={"adapter:fake": Rate(99)}), {"rate:adapter:fake"}),
        (Quotas(pools={"batch": Pool(calls=Rate(99))}), {"pool:batch:calls"}),
        (Quotas(pools={"core": Pool(tokens=Rate(10**6), tasks_at_once=2)}), {"pool:core:tokens"}),
        (Quotas(tasks_at_once=3, pools={"core": Pool(tasks_at_once=2)}), set()),
    ],
    ids=lambda each: ",".join(each) if isinstance(each, set) else "",
)
async def test_of_what_no_quota_bounds_nothing_is_kept_in_memory_whatever_runs(
    tmp_path: Path, quotas: Quotas, kept: set[str], autojump_clock: trio.testing.MockClock
) -> None:
    model = FakeModel([calls(("look", {"at": 1}), ("listen", {})), words("Seen.")])
    path = tmp_path / "a.db"
    async with kernel_of(path, quotas, look, listen, model=model) as kernel:
        await run_everything(kernel)
        usage = kernel._gate._usage
        assert usage._used.keys() == kept
        assert usage._taken.keys() == {each for each in kept if each.endswith("tokens")}


@pytest.mark.parametrize("pools", [{}, {"core": Pool(tasks_at_once=2)}], ids=["no pool", "a pool of tasks"])
async def test_nobody_asks_for_the_class_of_a_session_where_no_pool_counts_what_it_uses(
    tmp_path: Path, pools: dict[TaskClass, Pool], autojump_clock: trio.testing.MockClock
) -> None:
    model = FakeModel([calls(("look", {"at": 1}), ("listen", {})), words("Seen.")])
    quotas = Quotas(rates={"tool:look": Rate(99), "adapter:fake": Rate(99)}, pools=pools)
    async with kernel_of(tmp_path / "a.db", quotas, look, listen, model=model) as kernel:
        await run_everything(kernel)
        assert kernel._gate._classes == {}


async def test_what_others_use_is_forgotten_in_time_though_it_is_never_asked_for_here(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path, quotas = tmp_path / "a.db", Quotas(rates={"tool:look": Rate(99), "tool:listen": Rate(9, per_s=5)})
    looks = FakeModel([calls(("look", {"at": 1})), words("Seen.")])
    listens = FakeModel([calls(("listen", {}), ("listen", {})), words("Heard.")])
    async with (
        kernel_of(path, quotas, look, model=looks) as one,
        kernel_of(path, quotas, listen, model=listens) as two,
    ):
        for kernel, name in ((one, "a"), (two, "b"), (one, "c")):
            await submitted(kernel, name)
            await kernel.work(until_idle=True)
        assert len(one._gate._usage._used["rate:tool:listen"]) == 2
        await trio.sleep(6)
        await submitted(one, "d")
        await one.work(until_idle=True)
        assert not one._gate._usage._used["rate:tool:listen"]
        assert len(one._gate._usage._used["rate:tool:look"]) == 2, "the last call is counted by the next look"


async def test_quotas_are_looked_at_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        async with flightlog.open_kernel(tmp_path / "a.db", quotas={"tasks": 3}):  # type: ignore[arg-type]
            pass
    assert not (tmp_path / "a.db").exists()
