"""A task in the hands of its worker: from the claim to its rest, whatever people want of it meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from flightlog import Kernel
from flightlog.errors import UsageError
from flightlog.events import (
    ApprovalAsked,
    InboxSplice,
    RequestSent,
    TaskState,
    ToolCall,
    ToolResult,
    TurnEnd,
    UserMessage,
)
from flightlog.runtime.letters import POLL_S
from flightlog.testing import Attempts, Cue, FakeModel, calls, words
from flightlog_hookspecs import Ask, Finish, Hook, Tool, tool
from support.children import until
from support.kernels import events_of, kinds_of, opened, records_of, trio_clock, verified
from support.wall import Wall

Reply = Sequence[Cue]


def states(path: Path, task: str) -> list[str]:
    """The states a task has gone through, each with its cause."""
    return [f"{e.state} {e.cause}".strip() for e in events_of(path, TaskState, task)]


def texts(path: Path, task: str) -> list[str]:
    return [event.text for event in events_of(path, UserMessage, task)]


def ends(path: Path, task: str) -> list[str]:
    return [event.reason for event in events_of(path, TurnEnd, task)]


async def submitted(kernel: Kernel, goal: str = "sweep", **wish: object) -> str:
    return await kernel.tasks.submit(goal, model="fake:m", **wish)  # type: ignore[arg-type]


async def worked(path: Path, *tools: Tool, replies: Sequence[Reply | Attempts] = (), **options: object) -> None:
    """What one more worker does, until it is idle."""
    async with opened(path, FakeModel(replies), *tools, **options) as kernel:  # type: ignore[arg-type]
        await kernel.work(until_idle=True)


@tool(mode="parallel", effect="write")
async def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


async def test_a_task_is_told_its_goal_first_and_is_completed_when_the_model_stops(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([calls(("pay", {"to": "ada"})), words("All is paid.")])
    async with opened(path, model, pay) as kernel:
        task = await submitted(kernel, "pay", parameters={"to": "ada"})
        await kernel.work(until_idle=True)
        shown = await kernel.tasks.show(task)
        assert (shown.state, shown.steps, shown.recoveries, shown.ended) == ("completed", 2, 0, True)
    assert states(path, task) == ["running", "completed"]
    assert texts(path, task) == ['pay\n\nParameters:\n{"to":"ada"}']
    assert kinds_of(path, task)[-1] == "session/closed"
    verified(path, model, name=task)


async def test_the_system_text_and_the_model_are_those_of_the_task(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([])
    async with opened(path, model) as kernel:
        await kernel.tasks.submit("sweep", model="fake:broom", system="You sweep.")
        await kernel.work(until_idle=True)
    assert b'"broom", "You sweep."' in model.requests[0][0]


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        ([RuntimeError("broken")], "failed error"),
        ([*words("Half a sen"), Finish(reason="length")], "failed max_tokens"),
        ([*words("Never."), Finish(reason="refusal")], "failed error"),
    ],
    ids=["a fault", "cut", "refused"],
)
async def test_a_task_ends_as_its_last_turn_did(tmp_path: Path, reply: Reply, state: str) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([reply]), pay) as kernel:
        task = await submitted(kernel)
        other = await submitted(kernel, "another")
        await kernel.work(until_idle=True, tasks_at_once=1)
    assert states(path, task) == ["running", state]
    assert states(path, other)[0] == "running"


async def test_a_task_that_needs_more_steps_than_it_may_have_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([calls(("pay", {"to": str(n)})) for n in range(5)]), pay) as kernel:
        task = await submitted(kernel, max_steps=3)
        await kernel.work(until_idle=True)
    assert states(path, task) == ["running", "failed max_steps"]


# Before it runs


async def test_what_was_written_before_a_task_began_comes_behind_its_goal(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel:
        task = await submitted(kernel)
        await kernel.mailbox(task).followup("then rest")
        await kernel.tasks.steer(task, "from left to right")
        await kernel.work(until_idle=True)
    assert texts(path, task) == ["sweep", "from left to right", "then rest"]
    assert states(path, task) == ["running", "completed"]


async def test_a_task_that_was_paused_or_cancelled_before_it_began_does_not_begin(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([])
    async with opened(path, model) as kernel:
        paused, cancelled = await submitted(kernel), await submitted(kernel)
        await kernel.tasks.pause(paused, "ada")
        await kernel.tasks.cancel(cancelled)
        await kernel.work(until_idle=True)
        await kernel.work(until_idle=True)
        assert model.requests == []
        await kernel.tasks.resume(paused, "bob")
        await kernel.work(until_idle=True)
    assert states(path, paused) == ["paused person", "pending resumed", "running", "completed"]
    assert states(path, cancelled) == ["cancelled user"]
    assert texts(path, paused) == ["sweep"]


async def test_a_task_that_was_amended_before_it_began_is_told_the_new_goal_only(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel:
        task = await submitted(kernel)
        await kernel.tasks.amend(task, goal="mop")
        await kernel.work(until_idle=True)
        assert (await kernel.tasks.show(task)).goal == "mop"
    assert texts(path, task) == ["mop"]


async def test_a_task_does_not_begin_before_it_is_due_and_ends_at_its_deadline(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    from datetime import UTC, datetime, timedelta

    path, clock = tmp_path / "a.db", trio_clock()
    now = datetime.fromtimestamp(clock.now_us() / 1e6, UTC)
    due = now + timedelta(hours=2)
    async with opened(path, FakeModel([[trio.sleep_forever]] * 2), clock=clock) as kernel:
        task = await submitted(kernel, due=due, deadline=due + timedelta(minutes=5))
        with trio.move_on_after(3600):
            await kernel.work()
        assert states(path, task) == []
        with trio.move_on_after(3 * 3600):
            await kernel.work()
    assert states(path, task) == ["running", "failed deadline"]
    assert ends(path, task) == ["deadline"]
    began, ended = [r.at_us for r in records_of(path, task) if isinstance(r.event, TaskState)]
    assert ended - began == pytest.approx(300e6, rel=0.05)


async def test_a_task_whose_deadline_passed_while_nobody_worked_fails_without_a_request(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    path, model, wall = tmp_path / "a.db", FakeModel([]), Wall()
    async with opened(path, model, clock=wall.clock) as kernel:
        task = await submitted(kernel, deadline=datetime.fromtimestamp(wall.now_us / 1e6 + 60, UTC))
        wall.forward(60)
        await kernel.work(until_idle=True)
    assert (states(path, task), model.requests) == (["failed deadline"], [])


# While it runs


async def test_a_pause_ends_the_stream_at_once_and_a_resume_begins_a_turn_with_a_word_about_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as other:

        async def pause() -> None:
            await other.tasks.pause(task, "ada")
            await trio.sleep_forever()

        task = await submitted(other)
        await worked(path, replies=[[*words("I am sweeping"), pause]])
        assert states(path, task) == ["running", "paused person"]
        assert ends(path, task) == ["paused"]
        await worked(path)
        assert states(path, task) == ["running", "paused person"]
        await other.tasks.resume(task)
        await worked(path)
    assert states(path, task)[2:] == ["pending resumed", "running", "completed"]
    sources = [event.source for event in events_of(path, UserMessage, task)]
    assert sources == ["user", "resync"]


@pytest.mark.parametrize("now", [False, True])
async def test_a_pause_lets_running_tools_finish_unless_it_is_to_be_now(tmp_path: Path, now: bool) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as other:

        @tool(effect="write")
        async def sweep() -> str:
            """Sweep."""
            await other.tasks.pause(task, now=now)
            await until(lambda: "paused person" in states(path, task))
            await trio.sleep(0.1)
            return "swept"

        task = await submitted(other)
        await worked(path, sweep, replies=[calls(("sweep", {}))])
    assert states(path, task) == ["running", "paused person"]
    assert [event.outcome for event in events_of(path, ToolResult, task)] == ([] if now else ["ok"])
    async with opened(path, FakeModel([])) as other:
        await other.tasks.resume(task)
        await worked(path, sweep)
    assert states(path, task)[-1] == ("paused question" if now else "completed"), "what was cut off is no guess"


async def test_a_cancel_ends_the_task(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as other:

        async def cancel() -> None:
            await other.tasks.cancel(task, "no longer wanted")
            await trio.sleep_forever()

        task = await submitted(other)
        await worked(path, replies=[[cancel]])
    assert states(path, task) == ["running", "cancelled no longer wanted"]
    assert ends(path, task) == ["aborted"]


async def test_steering_and_amending_reach_the_next_step(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as other:

        async def write() -> None:
            await other.tasks.steer(task, "mind the cat")
            await other.tasks.amend(task, goal="mop", parameters={"room": 3})
            await until(lambda: len(events_of(path, InboxSplice, task)) == 4)

        task = await submitted(other)
        await worked(path, replies=[[*words("sweeping"), write]])
    first, *others = texts(path, task)
    assert (first, others[0]) == ("sweep", "mind the cat")
    assert others[1].endswith('mop\n\nParameters:\n{"room":3}')
    assert states(path, task) == ["running", "completed"]


async def test_a_key_of_a_message_is_not_that_of_the_news_about_a_goal(tmp_path: Path) -> None:
    """Whoever counts requests may use the same number for both, and neither may keep the task from being opened."""
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([words("swept"), words("mopped")])) as kernel:
        await kernel.tasks.submit("sweep", model="fake:m", id="t", every_s=3_600)
        await kernel.work(until_idle=True)
        async with kernel.session("t", model="fake:m") as session:
            await session.steer("mind the cat", key="req-1")
            await kernel.tasks.amend("t", goal="mop", key="req-1")
            await session.take_letters()
            assert session.pending == 2
        await kernel.work(until_idle=True)
    told = texts(path, "t")
    assert told[:2] == ["sweep", "mind the cat"]
    assert told[2].endswith("mop")
    assert ends(path, "t") == ["completed", "completed"]


async def test_wishes_for_a_task_that_has_ended_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel:
        task = await submitted(kernel)
        await kernel.work(until_idle=True)
        for wish in (kernel.tasks.pause, kernel.tasks.resume, kernel.tasks.cancel):
            with pytest.raises(UsageError, match="completed"):
                await wish(task)
        assert (await kernel.tasks.wait(task)).state == "completed"


# Questions


ASKING = Hook(point="before_tool", body=lambda call: Ask("may it?") if "bob" in call.arguments else None, name="guard")


async def test_a_question_pauses_the_task_and_its_answer_lets_it_go_on_without_running_siblings_again(
    tmp_path: Path,
) -> None:
    from flightlog.testing import Bundle

    path, paid = tmp_path / "a.db", []

    @tool(mode="parallel", effect="write")
    async def pay(to: str) -> str:
        """Pay."""
        paid.append(to)
        return "paid"

    replies = [calls(*[("pay", {"to": name}) for name in ("ada", "bob", "eve", "bobby")]), words("paid")]

    async def another_worker() -> None:
        await worked(path, pay, replies=replies, plugins=[Bundle(hooks=[ASKING])])

    async with opened(path, FakeModel([])) as other:
        task = await submitted(other)
        await another_worker()
        assert states(path, task) == ["running", "paused question"]
        assert sorted(paid) == ["ada", "eve"]
        asked = {r.event.position: r.seq for r in records_of(path, task) if isinstance(r.event, ApprovalAsked)}
        first, second = asked[1], asked[3]
        await another_worker()
        assert states(path, task) == ["running", "paused question"]
        open_ones = ", ".join(map(str, sorted((first, second))))  # both calls ask at once
        for seq in (1, min(first, second) - 1, 99999):
            with pytest.raises(UsageError, match=f"no question is open at seq {seq}; some are at seq {open_ones}"):
                await other.tasks.answer(task, seq, "deny")
        with pytest.raises(UsageError, match="asks whether a call may start"):
            await other.tasks.answer(task, first, "done")
        assert await other.mailbox(task).waiting() == 0
        sent = await other.tasks.answer(task, second, "deny", by="grace", key="k")
        await another_worker()
        assert await other.tasks.answer(task, second, "deny", by="grace", key="k") == sent
        with pytest.raises(UsageError, match=f"one is at seq {first}$"):
            await other.tasks.answer(task, second, "deny", by="grace", key="another")
        assert states(path, task)[2:] == ["pending answered", "running", "paused question"]
        await other.tasks.pause(task)
        await other.tasks.answer(task, first, "allow")
        await another_worker()
        assert states(path, task)[-1] == "paused person"
        await other.tasks.resume(task)
        await another_worker()
    assert states(path, task)[-2:] == ["running", "completed"]
    assert sorted(paid) == ["ada", "bob", "eve"]
    assert len(events_of(path, RequestSent, task)) == 2


async def test_an_answer_that_comes_as_the_worker_lets_go_is_not_lost(tmp_path: Path) -> None:
    from flightlog.testing import Bundle

    path = tmp_path / "a.db"
    replies = [calls(("wait", {}), ("pay", {"to": "bob"}))]
    async with opened(path, FakeModel([])) as other:

        @tool(mode="parallel", effect="read")
        async def wait() -> str:
            """Let the answer come while the other call is parked."""
            await until(lambda: "approval/asked" in kinds_of(path, task))
            (seq,) = [r.seq for r in records_of(path, task) if r.event.kind == "approval/asked"]
            await other.tasks.answer(task, seq, "allow")
            await until(lambda: "approval/decided" in kinds_of(path, task))
            return "ok"

        task = await submitted(other)
        await worked(path, wait, pay, replies=replies, plugins=[Bundle(hooks=[ASKING])])
    assert states(path, task) == ["running", "completed"]
    assert [event.outcome for event in events_of(path, ToolResult, task)] == ["ok", "ok"]


# Leaving without ending


async def test_a_worker_that_leaves_finishes_its_step_and_the_next_one_goes_on_in_the_same_turn(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    replies: list[Reply] = [calls(("sweep", {})), words("swept")]
    async with opened(path, FakeModel(replies)) as other:

        @tool(effect="write")
        async def sweep() -> str:
            """Sweep."""
            kernel.leave_work()
            await trio.sleep(0.05)
            return "swept"

        task = await submitted(other)
        async with opened(path, FakeModel(replies), sweep) as kernel:
            await kernel.work()
        assert states(path, task) == ["running", "pending handed_over"]
        assert [event.outcome for event in events_of(path, ToolResult, task)] == ["ok"]
        assert ends(path, task) == []
        await worked(path, sweep, replies=replies)
        assert (await other.tasks.show(task)).recoveries == 0
    assert states(path, task)[2:] == ["running", "completed"]
    assert ends(path, task) == ["completed"]
    assert len(events_of(path, ToolCall, task)) == 1


@pytest.mark.parametrize("way", ["its grace is over", "its host cancels it"])
async def test_a_worker_that_must_leave_at_once_leaves_the_turn_open_and_calls_in_doubt(
    tmp_path: Path, way: str, autojump_clock: trio.testing.MockClock
) -> None:
    path, tries = tmp_path / "a.db", []
    replies: list[Reply] = [calls(("sweep", {})), words("swept")]

    @tool(effect="idempotent")
    async def sweep() -> str:
        """Sweep."""
        tries.append(1)
        if len(tries) == 1:
            await trio.sleep_forever()
        return "swept"

    async with opened(path, FakeModel(replies), sweep, clock=trio_clock()) as kernel:
        task = await submitted(kernel)
        if way == "its grace is over":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kernel.work)
                await trio.sleep(1)
                kernel.leave_work(grace_s=5)
        else:
            with trio.move_on_after(1):
                await kernel.work()
        assert states(path, task) == ["running", "pending handed_over"]
        assert (ends(path, task), events_of(path, ToolResult, task)) == ([], [])
    await worked(path, sweep, replies=replies, clock=trio_clock(1_800_000_000_000_000))
    first, second = events_of(path, ToolCall, task)
    assert (first.invocation_id, first.resumed, second.resumed) == (second.invocation_id, "", "repeatable")
    assert states(path, task)[2:] == ["running", "completed"]


@pytest.mark.parametrize("hangs", ["in a request", "in a body"])
async def test_a_task_whose_workers_are_ended_again_and_again_in_the_same_step_is_paused_until_it_is_resumed(
    tmp_path: Path, hangs: str, autojump_clock: trio.testing.MockClock
) -> None:
    path, slow = tmp_path / "a.db", True
    answer = calls(("sweep", {}))

    async def wait() -> None:
        if slow:
            await trio.sleep_forever()

    @tool(effect="idempotent", timeout_s=9e9)
    async def sweep() -> str:
        """Sweep."""
        await wait()
        return "swept"

    replies: list[Reply] = [[wait, *answer] if hangs == "in a request" else answer, words("swept")]

    async def lives(count: int) -> None:
        for _ in range(count):
            async with opened(path, FakeModel(replies), sweep, clock=trio_clock()) as kernel:
                with trio.move_on_after(1):
                    await kernel.work()

    async with opened(path, FakeModel(replies), clock=trio_clock()) as other:
        task = await submitted(other, max_recoveries=2)
        await lives(9)
        paused = await other.tasks.show(task)
        assert (paused.state, paused.cause, paused.recoveries) == ("paused", "too_many_hand_overs", 0)
        assert paused.message.startswith("3 workers were ended in the middle of a step that none finished")
        tries = events_of(path, RequestSent if hangs == "in a request" else ToolCall, task)
        assert len(tries) == 3
        await other.tasks.resume(task)
        await lives(1)
        assert (await other.tasks.show(task)).state == "pending", "the count has begun anew"
        slow = False
        await lives(1)
        assert (await other.tasks.show(task)).state == "completed"


async def test_a_worker_that_left_takes_up_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kernel.work)
            await trio.sleep(POLL_S)
            kernel.leave_work()
            task = await submitted(kernel)
        await kernel.work()
    assert states(path, task) == []


async def test_ctrl_c_in_the_host_leaves_the_turn_open(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def interrupt() -> None:
        raise KeyboardInterrupt

    async with opened(path, FakeModel([[*words("half"), interrupt]])) as kernel:
        task = await submitted(kernel)
        with pytest.raises(KeyboardInterrupt):
            await kernel.work()
    assert (states(path, task), ends(path, task)) == (["running", "pending handed_over"], [])
    await worked(path)
    assert states(path, task)[2:] == ["running", "completed"]
