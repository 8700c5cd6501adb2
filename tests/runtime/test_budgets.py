"""Tasks with a budget: what happens at each card, whatever model, plugins and crashes do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from flightlog import Budget, Kernel, SubGoal
from flightlog.core import account as accounts
from flightlog.errors import UsageError
from flightlog.events import (
    AssistantMessage,
    BudgetAlert,
    BudgetDegraded,
    BudgetGranted,
    CheckpointWritten,
    CompactionEnd,
    CompactionStart,
    LetterTaken,
    RequestFailed,
    RequestHeader,
    RequestSent,
    TaskState,
    ToolCall,
    ToolResult,
    UserMessage,
)
from flightlog.testing import Bundle, Cue, FakeModel, calls, words
from flightlog.testing.faults.oracles import within_budget
from flightlog_hookspecs import Compactor, Hook, Retry, TextBlock, Tool, ToolContext, tool
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.stream import BlockEnd, BlockStart, Finish, TextDelta, Usage
from support import long_work
from support.conversation import assert_at_rest
from support.cutting import cut_log
from support.kernels import SOON, events_of, opened, records_of, trio_clock, verified
from support.long_work import SUMMARISES, LongWork
from support.memory_folder import subfolder
from support.wall import Wall

PAGE = "and then it went on and on " * 20
SHORTENS = Bundle(compactors=[Compactor(name="shortens", keep_steps=1)])


@tool(mode="parallel", effect="read")
async def look(at: int = 0) -> str:
    """Look."""
    return f"Page {at}: {PAGE}"


def looking(times: int, *, usage: Usage | None = None) -> list[Sequence[Cue]]:
    """Replies that look at a new page each time, with this usage."""
    return [[*calls(("look", {"at": number})), *([usage] if usage else [])] for number in range(times)]


async def submitted(kernel: Kernel, budget: Budget, **wish: object) -> None:
    await kernel.tasks.submit("look around", model="fake:m", id="t", budget=budget, **wish)  # type: ignore[arg-type]


async def worked(path: Path, model: FakeModel, budget: Budget, *tools: Tool, **wish: object) -> str:
    """Where a worker brings a task with that budget: state, cause and message."""
    async with opened(path, model, *(tools or (look,)), plugins=[SHORTENS, SOON]) as kernel:
        await submitted(kernel, budget, **wish)
        return await go_on(kernel)


async def go_on(kernel: Kernel) -> str:
    await kernel.work(until_idle=True)
    shown = await kernel.tasks.show("t")
    return f"{shown.state} {shown.cause} {shown.message}".strip()


def alerts(path: Path) -> list[tuple[str, str, str]]:
    return [(event.card, event.level, event.then) for event in events_of(path, BudgetAlert, "t")]


def moves(path: Path) -> list[str]:
    return [event.move for event in events_of(path, BudgetDegraded, "t")]


def assert_within(path: Path) -> None:
    """By the log alone: nothing was begun that the cards had no room for by then."""
    assert not list(within_budget(records_of(path, "t")))


# Tokens


async def test_tokens_that_run_out_make_the_context_shorter_then_the_goal_then_the_model_and_pause_the_task(
    tmp_path: Path,
) -> None:
    path, model = tmp_path / "a.db", FakeModel(looking(60))
    goals = ["paint it", SubGoal(text="sell it", core=True)]
    async with opened(path, model, look, plugins=[SHORTENS, SOON]) as kernel:
        await submitted(kernel, Budget(tokens=40_000), sub_goals=goals, smaller_model="fake:small", max_steps=999)
        rest = await go_on(kernel)
        assert rest.startswith("paused quota tokens:")
        assert moves(path) == ["compress", "shrink", "smaller_model", "pause"]
        reasons = [event.reason for event in events_of(path, BudgetDegraded, "t")]
        assert all("of 40000" in reason for reason in reasons)
        assert alerts(path) == [("tokens", "warning", "goes_on"), ("tokens", "exceeded", "pauses")]
        assert [event.reason for event in events_of(path, RequestHeader, "t")] == ["first", "model"]
        assert events_of(path, RequestHeader, "t")[-1].instead_of == "fake:m"
        assert any(end.outcome == "done" for end in events_of(path, CompactionEnd, "t"))
        shrunk = next(event for event in events_of(path, UserMessage, "t") if "Deliver the main result" in event.text)
        assert shrunk.source == "kernel"
        assert "- paint it" in shrunk.text
        assert "sell" not in shrunk.text

        # A worker has nothing to do for it until more is granted.
        assert (await go_on(kernel)).startswith("paused quota")
        await kernel.tasks.grant("t", Budget(tokens=400_000), by="ada")
        assert await go_on(kernel) == "completed"
    assert "- paint it" in next(
        e.text for e in events_of(path, UserMessage, "t") if e.source == "resync" and "paint" in e.text
    )
    assert events_of(path, RequestHeader, "t")[-1].head.model == "m"
    assert_within(path)
    verified(path, model, name="t")


async def test_what_was_put_off_keeps_a_task_from_being_completed(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    replies = [*looking(9, usage=Usage(input_tokens=1_700)), words("The main part is done.")]
    async with opened(path, FakeModel(replies), look, plugins=[SHORTENS]) as kernel:
        await submitted(kernel, Budget(tokens=18_000), sub_goals=["sell it"], degradation=["shrink"])
        assert await go_on(kernel) == "paused quota put off until more tokens are granted: sell it"
        await kernel.tasks.grant("t", Budget(tokens=9_000))
        assert await go_on(kernel) == "completed"
    assert [event.state for event in events_of(path, TaskState, "t")] == [
        *("running", "paused", "pending", "running", "completed"),
    ]


async def test_each_time_that_a_goal_comes_it_comes_with_the_parts_that_were_not_put_off(tmp_path: Path) -> None:
    path, wall = tmp_path / "a.db", Wall()
    said = [[*words("Looked."), Usage(input_tokens=850)] for _ in range(10)]
    goals = ["sell it", SubGoal("paint it", core=True)]
    async with opened(path, FakeModel(said), clock=wall.clock) as kernel:
        await submitted(kernel, Budget(tokens=8_000), sub_goals=goals, degradation=["shrink"], every_s=60)
        for _ in range(10):
            await go_on(kernel)
            wall.forward(60)
    told = [event.text for event in events_of(path, UserMessage, "t") if event.text.startswith("look around")]
    assert ["- paint it" in text for text in told] == [True] * 10
    assert ["- sell it" in text for text in told] == [*[True] * 9, False]


@pytest.mark.parametrize(
    "usage",
    [
        None,
        Usage(),
        Usage(input_tokens=1),
        Usage(input_tokens=-9, output_tokens=-9),
        Usage(input_tokens=2**70, output_tokens=1),
    ],
    ids=["nothing", "zeros", "too little", "negative", "nonsense"],
)
async def test_a_card_holds_whatever_the_provider_counts(tmp_path: Path, usage: Usage | None) -> None:
    path, model = tmp_path / "a.db", FakeModel(looking(200, usage=usage))
    rest = await worked(path, model, Budget(tokens=20_000), max_steps=1000)
    assert rest.startswith(("paused quota tokens:", "failed"))
    assert len(model.requests) < 100
    assert_within(path)


@pytest.mark.parametrize("counts", [0.001, 0.4, 0.6])
async def test_no_request_counts_less_than_half_of_its_estimate_however_often_too_little_was_said(
    tmp_path: Path, counts: float
) -> None:
    path, model = tmp_path / "a.db", LongWork(steps=9, counts=counts)
    async with opened(path, model, long_work.looking(600)) as kernel:
        await submitted(kernel, Budget(tokens=100_000))
        assert await go_on(kernel) == "completed"
    charged = [answer.charged for answer in events_of(path, AssistantMessage, "t")]
    assert [size // 2 <= counted for size, counted in zip(model.sizes, charged, strict=True)] == [True] * 10


async def test_an_answer_without_an_end_is_cut_off_where_the_card_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    endless = FakeModel([words("and on and on " * 50_000, chunk=2000)])
    rest = await worked(path, endless, Budget(tokens=3000))
    assert rest.startswith("paused quota tokens:")
    (failed,) = events_of(path, RequestFailed, "t")
    assert failed.failure == "length"
    assert moves(path)[-1] == "pause"
    assert 2500 < failed.charged < 4500
    assert_at_rest(path, endless, name="t")


def whole_blocks(text: str) -> list[Cue]:
    """Very many blocks of that text, without deltas."""
    block = TextBlock(text=text)
    return [e for n in range(1_500) for e in (BlockStart(index=n, type="text"), BlockEnd(index=n, block=block))]


@pytest.mark.parametrize(
    "reply",
    [
        whole_blocks("word " * 200)[:200],
        whole_blocks(""),
        [Usage(output_tokens=1)] * 3_000,
        [TextDelta(index=9, text="word " * 200)] * 3_000,
    ],
    ids=["whole blocks", "empty blocks", "usage", "deltas of no block"],
)
async def test_an_answer_without_an_end_is_cut_off_whatever_it_consists_of(tmp_path: Path, reply: list[Cue]) -> None:
    path = tmp_path / "a.db"
    assert (await worked(path, FakeModel([reply]), Budget(tokens=2_000))).startswith("paused quota tokens:")
    (failed,) = events_of(path, RequestFailed, "t")
    assert failed.failure == "length"
    assert 1_990 < failed.charged < 2_500


async def test_a_step_has_a_card_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    wall = Wall()
    async with opened(
        path, FakeModel([words("on and on " * 5_000, chunk=1000), words("Well.")]), look, clock=wall.clock
    ) as kernel:
        await submitted(kernel, Budget(step_tokens=2000))
        assert (await go_on(kernel)).startswith("paused quota step_tokens:")
        assert (await kernel.tasks.show("t")).due_at_us == wall.now_us + 60_000_000
        wall.forward(61)
        assert (await go_on(kernel)).startswith("paused quota step_tokens:"), "the model says the same again"


@pytest.mark.parametrize("card", [Budget(step_tokens=1500), Budget(step_tokens=1500, tokens=900_000)])
async def test_a_context_that_outgrows_the_card_of_a_step_is_made_shorter(tmp_path: Path, card: Budget) -> None:
    path, model = tmp_path / "a.db", FakeModel([*looking(20), words("All seen.")])
    assert await worked(path, model, card, max_steps=99) == "completed"
    assert len(events_of(path, ToolCall, "t")) == 20
    assert alerts(path).count(("step_tokens", "exceeded", "pauses")) == 0
    assert_within(path)


@given(st.integers(2000, 4000), st.integers(50, 700))
async def test_whatever_grows_in_a_context_a_step_pays_for_its_summary_in_time(
    tmp_path: Path, step_tokens: int, chars: int
) -> None:
    path, model = subfolder(tmp_path) / "a.db", LongWork(steps=60)
    async with opened(path, model, long_work.looking(chars), plugins=[Bundle(compactors=[SUMMARISES])]) as kernel:
        await submitted(kernel, Budget(step_tokens=step_tokens), max_steps=99)
        assert await go_on(kernel) == "completed"
    assert model.asked > 0
    assert max(model.sizes) < step_tokens * 2 / 3
    assert_within(path)


async def test_a_head_that_takes_most_of_a_step_s_card_has_no_summary_asked_for_in_each(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(steps=12)
    async with opened(path, model, long_work.looking(50), plugins=[Bundle(compactors=[SUMMARISES])]) as kernel:
        await submitted(kernel, Budget(step_tokens=2500), system="Mind the gap. " * 300)
        assert await go_on(kernel) == "completed"
    assert model.asked == 0
    assert_within(path)


async def test_what_is_counted_anew_in_each_step_is_granted_as_all_else_is(tmp_path: Path) -> None:
    path, wall = tmp_path / "a.db", Wall()

    @tool(mode="parallel", effect="read", timeout_s=9e9)
    async def nap(at: int) -> str:
        """Nap, for three seconds of work."""
        wall.forward(3)
        await trio.sleep(0 if steps_s() > 3 else math.inf)
        return "slept"

    def steps_s() -> int:
        return [event.most for event in events_of(path, BudgetGranted, "t") if event.card == "step_s"][-1]

    model = FakeModel([*looking(3), calls(("nap", {"at": 1})), calls(("nap", {"at": 1})), words("All seen.")])
    async with opened(path, model, look, nap, clock=wall.clock) as kernel:
        await submitted(kernel, Budget(step_tokens=400, step_s=2, tools_at_once=1))
        assert (await go_on(kernel)).startswith(
            "paused quota step_tokens: 0 of 400 are used, and the next request needs"
        )
        assert (await kernel.tasks.show("t")).due_at_us is None
        await kernel.tasks.grant("t", Budget(step_tokens=5000))
        assert (await go_on(kernel)).startswith("paused quota step_s")
        await kernel.tasks.grant("t", Budget(step_s=2, tools_at_once=3))
        assert await go_on(kernel) == "completed"
    given = {event.card: event.most for event in events_of(path, BudgetGranted, "t")}
    assert given == {"step_tokens": 5400, "step_s": 4, "tools_at_once": 4}
    verified(path, model, name="t")


async def test_no_summary_is_asked_for_that_the_card_has_no_room_for(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", FakeModel(looking(9))
    summarises = Bundle(compactors=[Compactor(name="summarises", keep_steps=1, instruction="In short.")])
    async with opened(path, model, look, plugins=[summarises]) as kernel:
        await submitted(kernel, Budget(tokens=20_000, summary_tokens=1), degradation=["compress"])
        await go_on(kernel)
    assert not [e for e in events_of(path, CompactionEnd, "t") if e.asked]


@pytest.mark.parametrize("most", range(3, 9))
@pytest.mark.parametrize("card", ["requests", "requests_of"])
async def test_requests_for_summaries_count_and_each_try_does(tmp_path: Path, card: str, most: int) -> None:
    path = tmp_path / "a.db"
    model = LongWork(steps=30, window_tokens=700, summary=lambda _: [ConnectionError("cut")])
    stubborn = Hook(point="on_request_error", body=lambda failed: Retry(after_s=0), name="stubborn")
    bundle = Bundle(compactors=[SUMMARISES], hooks=[stubborn])
    budget = Budget(requests=most) if card == "requests" else Budget(requests_of={"fake": most})
    async with opened(path, model, long_work.looking(600), plugins=[bundle]) as kernel:
        await submitted(kernel, budget, max_steps=99)
        await go_on(kernel)
    assert len(model.requests) <= most


async def test_where_only_the_budget_has_no_room_for_a_summary_the_task_pauses_with_what_it_has_just_read(
    tmp_path: Path,
) -> None:
    """Else it would read the same again, and end without progress."""
    path, model = tmp_path / "a.db", FakeModel(looking(9))
    summarises = Bundle(compactors=[Compactor(name="summarises", keep_steps=1, instruction="In short.")])
    async with opened(path, model, look, plugins=[summarises]) as kernel:
        await submitted(kernel, Budget(tokens=1_200), max_input_tokens=420, degradation=())
        assert (await go_on(kernel)).startswith("paused quota tokens: ")
        assert f"Page {len(events_of(path, ToolCall, 't')) - 1}:" in kernel.read("t").messages()[-1].text
    assert_within(path)


@pytest.mark.parametrize("budget", [Budget(requests=9), Budget(requests_of={"fake": 9})], ids=["all", "of an adapter"])
async def test_where_only_a_summary_has_no_request_left_the_task_pauses_with_what_it_has_just_read(
    tmp_path: Path, budget: Budget
) -> None:
    path, model = tmp_path / "a.db", FakeModel(looking(9))
    summarises = Bundle(compactors=[Compactor(name="summarises", keep_steps=1, instruction="In short.")])
    async with opened(path, model, look, plugins=[summarises]) as kernel:
        await submitted(kernel, budget, max_input_tokens=420, degradation=())
        (card,) = budget.cards
        assert await go_on(kernel) == f"paused quota {card}: 8 of 9 are used"
        assert f"Page {len(events_of(path, ToolCall, 't')) - 1}:" in kernel.read("t").messages()[-1].text
        assert alerts(path)[-1] == (card, "exceeded", "pauses")
        asked = [start.level for start in events_of(path, CompactionStart, "t")].count("summarise")
        await kernel.tasks.grant("t", Budget(requests=30) if card == "requests" else Budget(requests_of={"fake": 30}))
        await go_on(kernel)
        assert [start.level for start in events_of(path, CompactionStart, "t")].count("summarise") > asked
    assert_within(path)


# Requests and retries


@pytest.mark.parametrize("budget", [Budget(requests=3), Budget(requests_of={"fake": 3})], ids=["all", "of an adapter"])
async def test_so_many_requests_and_no_more(tmp_path: Path, budget: Budget) -> None:
    path, model = tmp_path / "a.db", FakeModel(looking(9))
    (card,) = budget.cards
    assert await worked(path, model, budget) == f"paused quota {card}: 3 of 3 are used"
    assert len(model.requests) == 3
    assert_within(path)


async def test_a_model_that_fails_for_ever_is_not_asked_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([[ConnectionError("cut")]] * 9)

    hook = Hook(point="on_request_error", body=lambda failed: Retry(after_s=0), name="stubborn")
    async with opened(path, model, look, plugins=[Bundle(hooks=[hook])]) as kernel:
        await submitted(kernel, Budget(retries=2))
        rest = await go_on(kernel)
    assert rest == "paused quota retries: 2 of 2 are used"
    assert len(events_of(path, RequestFailed, "t")) == 2


@pytest.mark.parametrize(
    "end", [ProviderError("server", "boom", retryable=True), Finish(reason="stop")], ids=["an error", "an empty answer"]
)
async def test_what_a_provider_has_counted_by_the_time_it_fails_is_used_up(tmp_path: Path, end: Cue) -> None:
    path, model = tmp_path / "a.db", FakeModel([[Usage(input_tokens=50_000), end]])
    assert (await worked(path, model, Budget(tokens=100_000))).startswith("paused quota tokens:")
    assert len(model.requests) == 2
    assert [50_000 <= failed.charged < 50_010 for failed in events_of(path, RequestFailed, "t")] == [True, True]
    assert_within(path)


async def test_what_a_provider_has_counted_by_the_time_its_summary_fails_is_used_up(tmp_path: Path) -> None:
    path, failing = tmp_path / "a.db", [Usage(input_tokens=5_000), ProviderError("auth", "no key")]
    model = LongWork(steps=9, window_tokens=700, summary=lambda _: failing)
    async with opened(path, model, long_work.looking(600), plugins=[Bundle(compactors=[SUMMARISES])]) as kernel:
        await submitted(kernel, Budget(tokens=100_000))
        await go_on(kernel)
    ends = [event for event in events_of(path, CompactionEnd, "t") if event.outcome == "failed"]
    assert ends
    assert all(5_000 <= event.charged < 5_010 for event in ends)


# Calls


@pytest.mark.parametrize("budget", [Budget(calls=2), Budget(calls_of={"look": 2})], ids=["all", "of a tool"])
async def test_a_core_call_too_many_pauses_the_task_with_its_siblings_answered(tmp_path: Path, budget: Budget) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([calls(("look", {"at": 1}), ("look", {"at": 2}), ("look", {"at": 3})), words("All seen.")])
    (card,) = budget.cards
    async with opened(path, model, look) as kernel:
        await submitted(kernel, budget)
        assert await go_on(kernel) == f"paused quota {card}: all 2 are used"
        assert sorted(event.outcome for event in events_of(path, ToolResult, "t")) == ["denied", "ok", "ok"]
        assert len(events_of(path, ToolCall, "t")) == 2
        await kernel.tasks.grant("t", Budget(calls=5) if card == "calls" else Budget(calls_of={"look": 5}))
        assert await go_on(kernel) == "completed"
    assert_within(path)
    assert_at_rest(path, model, name="t")


async def test_a_core_call_too_many_pauses_a_task_that_was_taken_up_from_a_dead_worker_too(tmp_path: Path) -> None:
    path, cut = tmp_path / "a.db", tmp_path / "cut.db"
    model = FakeModel([calls(("look", {"at": 1}), ("look", {"at": 2})), words("All seen.")])
    async with opened(path, model, look) as kernel:
        await submitted(kernel, Budget(calls=1))
        await go_on(kernel)
    cut_log(path, cut, next(r.seq for r in records_of(path, "t") if isinstance(r.event, RequestSent)), "t")
    async with opened(cut, model, look) as kernel:
        assert await go_on(kernel) == "paused quota calls: all 1 are used"


async def test_a_call_that_the_task_can_do_without_is_left_out_and_the_model_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    @tool(mode="parallel", effect="read", core=False)
    async def glance(at: int) -> str:
        """Glance."""
        return "nothing new"

    model = FakeModel([calls(("glance", {"at": 1})), calls(("glance", {"at": 2})), words("Enough.")])
    assert await worked(path, model, Budget(calls_of={"glance": 1}), glance) == "completed"
    assert alerts(path) == [("calls:glance", "warning", "goes_on"), ("calls:glance", "exceeded", "shed")]
    first, second = events_of(path, ToolResult, "t")
    assert (first.outcome, second.outcome) == ("ok", "denied")
    assert "calls:glance: all 1 are used" in second.text


async def test_so_many_tools_at_once(tmp_path: Path) -> None:
    path, at_once, most = tmp_path / "a.db", 0, 0

    @tool(mode="parallel", effect="read")
    async def wait(at: int) -> str:
        """Wait."""
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await trio.sleep(0.001)
        at_once -= 1
        return str(at)

    model = FakeModel([calls(*[("wait", {"at": n}) for n in range(6)]), words("Done.")])
    assert await worked(path, model, Budget(tools_at_once=2), wait) == "completed"
    assert most == 2


# Time


async def test_a_day_of_work_that_is_used_up_goes_on_tomorrow(tmp_path: Path) -> None:
    path, wall = tmp_path / "a.db", Wall()

    @tool(effect="read")
    async def study(at: int) -> str:
        """Study, for some forty minutes."""
        wall.forward(2400)
        return f"learned {at}"

    model = FakeModel([*[calls(("study", {"at": n})) for n in range(4)], words("Learned.")])
    async with opened(path, model, study, clock=wall.clock) as kernel:
        await submitted(kernel, Budget(active_s=3600))
        rest = await go_on(kernel)
        assert rest.startswith("paused quota active_s:")
        shown = await kernel.tasks.show("t")
        assert shown.due_at_us is not None
        assert shown.due_at_us % 86_400_000_000 == 0, "at midnight"
        wall.now_us = shown.due_at_us - 1
        assert (await go_on(kernel)).startswith("paused quota"), "not before"
        wall.forward(1)
        await go_on(kernel)
        assert len(events_of(path, ToolCall, "t")) == 4
    verified(path, model, name="t")


async def test_each_day_a_task_is_warned_once_and_told_the_truth_as_its_time_is_used_up(
    tmp_path: Path, autojump_clock: object
) -> None:
    path = tmp_path / "a.db"

    @tool(mode="parallel", effect="read", timeout_s=9e9)
    async def study(at: int) -> str:
        """Study, for ten minutes."""
        await trio.sleep(600)
        return f"learned {at}"

    model = FakeModel([*[calls(("study", {"at": n})) for n in range(20)], words("Learned.")])
    async with opened(path, model, study, clock=trio_clock()) as kernel:
        await submitted(kernel, Budget(active_s=3600))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kernel.work)
            for _ in range(2):
                await kernel.tasks.wait("t")
                await trio.sleep(86_400)
            nursery.cancel_scope.cancel()
    said = [(event.card, event.level, event.used) for event in events_of(path, BudgetAlert, "t")]
    assert said[:4] == [("active_s", "warning", 2880), ("active_s", "exceeded", 3600)] * 2


async def test_a_body_that_takes_all_the_time_of_its_step_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    wall = Wall()

    @tool(effect="read", timeout_s=9e9)
    async def hang() -> str:
        """Hang."""
        wall.forward(2)
        await trio.sleep_forever()
        return ""

    with trio.fail_after(30):
        async with opened(path, FakeModel([calls(("hang", {}))]), hang, clock=wall.clock) as kernel:
            await submitted(kernel, Budget(step_s=1))
            assert (await go_on(kernel)).startswith("paused quota")
    assert [alert.used for alert in events_of(path, BudgetAlert, "t") if alert.level == "exceeded"] == [2]
    (result,) = events_of(path, ToolResult, "t")
    assert result.outcome == "aborted"


async def test_a_step_that_pauses_in_the_end_has_no_more_time_than_another_one(tmp_path: Path) -> None:
    path, wall = tmp_path / "a.db", Wall()

    @tool(mode="parallel", effect="read", timeout_s=9e9)
    async def hang(at: int) -> str:
        """Hang."""
        wall.forward(2)
        await trio.sleep_forever()
        return ""

    model = FakeModel([calls(("hang", {"at": 1}), ("hang", {"at": 2}))])
    with trio.fail_after(30):
        async with opened(path, model, hang, clock=wall.clock) as kernel:
            await submitted(kernel, Budget(step_s=1, calls=1))
            assert (await go_on(kernel)).startswith("paused quota")
    assert sorted(result.outcome for result in events_of(path, ToolResult, "t")) == ["aborted", "denied"]


# Grants


async def test_only_what_is_bounded_can_be_granted_and_only_to_what_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([]), look) as kernel:
        await submitted(kernel, Budget(tokens=5_000))
        for wrong in (Budget(), 5):
            with pytest.raises(UsageError):
                await kernel.tasks.grant("t", wrong)  # type: ignore[arg-type]
        none = "no card 'calls', so it is not bounded there; it has retries, subagents, tokens"
        with pytest.raises(UsageError, match=none):
            await kernel.tasks.grant("t", Budget(tokens=1, calls=5))
        await kernel.mailbox("t").grant(Budget(calls=5))
        await kernel.tasks.grant("t", Budget(tokens=5), key="once")
        await kernel.tasks.grant("t", Budget(tokens=5), key="once")
        assert await go_on(kernel) == "completed"
        with pytest.raises(UsageError, match="completed"):
            await kernel.tasks.grant("t", Budget(tokens=5))
    taken = [(event.outcome, event.reason) for event in events_of(path, LetterTaken, "t")]
    assert taken == [("refused", f"this task has {none}"), ("obeyed", "")]
    assert [event.most for event in events_of(path, BudgetGranted, "t")] == [5_000, 5_005]


async def test_a_task_is_the_same_only_with_the_same_budget(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        wish = {"model": "fake:m", "key": "k"}
        task = await kernel.tasks.submit("sweep", budget=Budget(tokens=5, calls=2), **wish)
        assert await kernel.tasks.submit("sweep", budget=Budget(tokens=5, calls=2), **wish) == task
        for other in (Budget(), Budget(tokens=5), Budget(tokens=6, calls=2), Budget(tokens=5, calls=2, requests=1)):
            with pytest.raises(UsageError, match="submitted before"):
                await kernel.tasks.submit("sweep", budget=other, **wish)


async def test_who_names_the_pause_in_the_order_is_told_that_it_comes_anyway(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        with pytest.raises(UsageError, match="not 'pause'; in the end the task is paused"):
            await submitted(kernel, Budget(tokens=5), degradation=["compress", "pause"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"budget": 5},
        {"sub_goals": "sell it"},
        {"sub_goals": [""]},
        {"sub_goals": [5]},
        {"degradation": ["pause"]},
        {"degradation": ["compress", "compress"]},
        {"smaller_model": "nobody:m"},
        {"smaller_model": 5},
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_entered(tmp_path: Path, wrong: dict[str, object]) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        with pytest.raises(UsageError):
            await kernel.tasks.submit("sweep", model="fake:m", **wrong)  # type: ignore[arg-type]
        assert not await kernel.tasks.list()


# The smaller model


async def test_after_a_step_of_high_risk_the_tasks_own_model_serves(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    @tool(effect="read", risk="high")
    async def decide(at: int) -> str:
        """Decide."""
        return f"decided {at}"

    @tool(effect="read")
    async def glance(at: int) -> str:
        """Glance."""
        return f"nothing new at {at}"

    count = Usage(input_tokens=1000)
    glances = [[*calls(("glance", {"at": number})), count] for number in range(18)]
    model = FakeModel([*glances[:17], [*calls(("decide", {"at": 1})), count], glances[17], words("So be it.")])
    async with opened(path, model, glance, decide) as kernel:
        await submitted(kernel, Budget(tokens=20_000), smaller_model="fake:small", degradation=["smaller_model"])
        await go_on(kernel)
    models = [event.head.model for event in events_of(path, RequestHeader, "t")]
    assert models == ["m", "small", "m", "small"]


@pytest.mark.parametrize("chosen", [False, True], ids=["before", "once it served"])
async def test_a_worker_without_the_smaller_model_goes_on_with_the_task_s_own(tmp_path: Path, chosen: bool) -> None:
    path, usage = tmp_path / "a.db", Usage(input_tokens=3000)
    small, budget = FakeModel(looking(40, usage=usage), "small"), Budget(tokens=60_000, calls=18 if chosen else 5)
    async with opened(path, [FakeModel(looking(40, usage=usage)), small], look) as kernel:
        await submitted(kernel, budget, smaller_model="small:m", degradation=["smaller_model"], max_steps=99)
        assert (await go_on(kernel)).startswith("paused quota calls")
        assert bool(small.requests) is chosen
    async with opened(path, FakeModel(looking(40, usage=usage)), look) as kernel:
        await kernel.tasks.grant("t", Budget(calls=99))
        assert (await go_on(kernel)).startswith("paused quota tokens")
    assert moves(path) == (["smaller_model", "pause"] if chosen else ["pause"])
    assert_within(path)


# Crashes


async def whole_flight(path: Path, boundaries: list[int], budget: Budget) -> None:
    def committed(name: str, session: str, seq: int) -> None:
        if name == "committed" and session == "t":
            boundaries.append(seq)

    count = Usage(input_tokens=400, output_tokens=100)
    model = FakeModel(looking(30, usage=count))
    async with opened(path, model, look, plugins=[SHORTENS], on_boundary=committed) as kernel:
        await submitted(kernel, budget, sub_goals=["sell it"], smaller_model="fake:small", max_recoveries=9)
        assert (await go_on(kernel)).startswith("paused quota")


async def test_from_wherever_a_worker_died_the_counters_go_on_and_the_card_holds(tmp_path: Path) -> None:
    path, boundaries, budget = tmp_path / "a.db", [3], Budget(tokens=9_000, calls=40, requests=30)
    await whole_flight(path, boundaries, budget)
    whole = used_of(path)
    for rows in boundaries:
        cut = tmp_path / f"{rows}.db"
        cut_log(path, cut, rows, "t")
        model = FakeModel(looking(30, usage=Usage(input_tokens=400, output_tokens=100)))
        async with opened(cut, model, look, plugins=[SHORTENS]) as kernel:
            assert (await go_on(kernel)).startswith("paused quota"), rows
        assert_within(cut)
        verified(cut, model, name="t")
        # What an open request has cost counts, although nothing came of it.
        assert used_of(cut)["tokens"] <= 9_000
        assert used_of(cut)["tokens"] >= whole["tokens"] * 0.8, f"cut behind row {rows}"


def used_of(path: Path) -> dict[str, int]:
    account = accounts.EMPTY
    for record in records_of(path, "t"):
        account = accounts.counted(account, record.event)
    return dict(account.used)


async def test_a_task_that_was_killed_five_times_has_used_all_it_has_used(tmp_path: Path) -> None:
    path, boundaries = tmp_path / "a.db", [2]
    await whole_flight(path, boundaries, Budget(tokens=9_000))
    before, rows = 0, boundaries[len(boundaries) // 2]
    for life in range(5):
        if life:  # what a life began with was durable before it
            rows = max(rows, len(records_of(path, "t")) - 2)
        cut = tmp_path / f"life {life}.db"
        cut_log(path, cut, rows, "t")
        used = used_of(cut).get("tokens", 0)
        assert used >= before
        before = used
        path = cut
        async with (
            opened(path, FakeModel(looking(30)), look, plugins=[SHORTENS]) as kernel,
            kernel.session("t") as session,
        ):
            assert session._journal.state.account is not None
            assert session._journal.state.account.used_of("tokens") >= used


@given(
    st.integers(300, 6_000),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3000), st.integers(0, 900)), min_size=1, max_size=8),
    st.integers(1, 12),
    st.integers(1, 12),
    st.data(),
)
async def test_for_any_usage_and_crash_no_card_is_exceeded_and_no_work_is_lost(
    tmp_path: Path, tokens: int, steps: list[tuple[int, int, int]], most_calls: int, requests: int, data: st.DataObject
) -> None:
    folder = subfolder(tmp_path)
    path, swept = folder / "a.db", list[str]()
    replies: list[Sequence[Cue]] = [
        [
            *calls(*[("sweep", {"room": f"{number}.{each}"}) for each in range(count)]),
            Usage(input_tokens=input_tokens, output_tokens=output_tokens),
        ]
        for number, (count, input_tokens, output_tokens) in enumerate(steps)
    ]

    @tool(mode="parallel", effect="write", core=False)
    async def sweep(context: ToolContext, room: str) -> str:
        """Sweep."""
        swept.append(context.invocation_id)
        return f"{room} is swept. {'Dust. ' * 30}"

    boundaries = [5]

    def committed(name: str, session: str, seq: int) -> None:
        if name == "committed" and session == "t":
            boundaries.append(seq)

    async with opened(path, FakeModel(replies), sweep, plugins=[SHORTENS], on_boundary=committed) as kernel:
        await submitted(kernel, Budget(tokens=tokens, calls=most_calls, requests=requests), max_recoveries=9)
        rest = await go_on(kernel)
    assert_within(path)
    assert rest == "completed" or rest.startswith("paused quota")
    rows = data.draw(st.sampled_from(boundaries))
    cut = folder / "cut.db"
    cut_log(path, cut, rows, "t")
    done = {r.event.invocation_id for r in records_of(cut, "t") if isinstance(r.event, ToolCall)}
    swept.clear()
    model = FakeModel(replies)
    async with opened(cut, model, sweep, plugins=[SHORTENS]) as kernel:
        await go_on(kernel)
        assert_within(cut)
        assert not done & set(swept), "what was started before is not done again"
        if not (await kernel.tasks.show("t")).ended:
            await kernel.tasks.grant("t", Budget(tokens=10**6, calls=10**6, requests=10**6))
            while (rest := await go_on(kernel)).startswith("paused question"):
                async with kernel.session("t", approver=True) as session:
                    for question in session.questions():
                        await session.answer(question.seq, "unknown")
            assert rest == "completed"
    verified(cut, model, name="t")


async def test_a_fork_of_a_task_has_its_budget_and_has_used_what_its_steps_have_used(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([*looking(3, usage=Usage(input_tokens=500)), words("Seen.")])
    async with opened(path, model, look) as kernel:
        await submitted(kernel, Budget(tokens=5_000, calls_of={"look": 3}, requests_of={"fake": 9}))
        assert await go_on(kernel) == "completed"
        light = [
            r.seq for r in records_of(path, "t") if isinstance(r.event, CheckpointWritten) and r.event.level == "light"
        ]
        fork = await kernel.fork_task("t", light[1])
        used = {card.card: (card.used, card.most) for card in kernel.read(fork).budget()}
        assert used == {"calls:look": (2, 3), "requests:fake": (2, 9), "tokens": (1000, 5_000)}
        await kernel.work(until_idle=True)
    verified(path, model, name=fork)


async def test_a_budget_goes_with_its_session_where_that_is_exported(tmp_path: Path) -> None:
    path, other = tmp_path / "a.db", tmp_path / "b.db"
    assert await worked(path, FakeModel(looking(9)), Budget(requests=2)) == "paused quota requests: 2 of 2 are used"
    async with opened(path, FakeModel([])) as kernel:
        kernel.read("t").export(tmp_path / "t.jsonl")
    async with opened(other, FakeModel(looking(9)), look) as kernel:
        await kernel.import_session(tmp_path / "t.jsonl")
        assert await go_on(kernel) == "paused quota requests: 2 of 2 are used"
        await kernel.tasks.grant("t", Budget(requests=1))
        assert await go_on(kernel) == "paused quota requests: 3 of 3 are used"
