"""Tasks that wait for timers: paused until then, woken by whichever worker is there, over when no timer is left."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
import trio.testing

from flightlog import Kernel
from flightlog.errors import UsageError
from flightlog.events import TaskState, TimerCancelled, TimerFired, UserMessage
from flightlog.testing import FakeModel, calls, words
from flightlog_plugins.wake_ups import WakeUps
from support.kernels import events_of, opened, records_of, trio_clock, verified
from support.legal_logs import folded
from support.wall import START_US, Wall

START = datetime.fromtimestamp(START_US / 1_000_000, UTC)
HOUR_S = 3600.0


def states(path: Path, task: str) -> list[str]:
    """The states a task has gone through, each with its cause."""
    return [f"{e.state} {e.cause}".strip() for e in events_of(path, TaskState, task)]


def texts(path: Path, task: str) -> list[str]:
    """What the model was told, but for the reminders of its task."""
    told = [event.text for event in events_of(path, UserMessage, task)]
    return [text for text in told if not text.startswith("This task goes on")]


async def worked(path: Path, wall: Wall, model: FakeModel | None = None) -> None:
    """What one more worker does, in a kernel of its own, until it is idle."""
    async with opened(path, model or FakeModel([]), plugins=[WakeUps()], clock=wall.clock) as kernel:
        await kernel.work(until_idle=True)


async def submitted(path: Path, wall: Wall, goal: str = "sweep", **wish: object) -> str:
    async with opened(path, FakeModel([]), clock=wall.clock) as kernel:
        return await kernel.tasks.submit(goal, model="fake:m", **wish)  # type: ignore[arg-type]


async def wake(path: Path, wall: Wall, task: str, after_s: float, text: str) -> str:
    """Have the task woken, by a letter; returns the timer's name."""
    async with opened(path, FakeModel([]), clock=wall.clock) as kernel:
        return (await kernel.mailbox(task).wake_after(after_s, text)).timer


WAITS = [calls(("wake_me", {"note": "look again", "after_s": 60})), words("I wait."), words("Done.")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


async def test_a_task_whose_model_has_itself_woken_is_over_when_it_was(path: Path) -> None:
    wall, model = Wall(), FakeModel(WAITS)
    task = await submitted(path, wall)
    await worked(path, wall, model)
    (*_, paused) = events_of(path, TaskState, task)
    assert (paused.state, paused.cause, paused.resume_at_us) == ("paused", "timer", START_US + 60_000_000)
    wall.forward(59)
    await worked(path, wall, model)
    assert states(path, task)[-1] == "paused timer"
    wall.forward(1)
    await worked(path, wall, model)
    assert states(path, task) == ["running", "paused timer", "pending due", "running", "completed"]
    assert texts(path, task) == ["sweep", "[wake-up] look again"]
    verified(path, model, name=task)


async def test_a_letter_to_a_task_that_waits_is_answered_at_once(path: Path) -> None:
    wall, model = Wall(), FakeModel([*WAITS[:2], words("Yes?"), words("Done.")])
    task = await submitted(path, wall)
    await worked(path, wall, model)
    async with opened(path, model, clock=wall.clock) as kernel:
        await kernel.tasks.steer(task, "are you there?")
    await worked(path, wall, model)
    assert states(path, task)[2:] == ["pending message", "running", "paused timer"]
    wall.forward(60)
    await worked(path, wall, model)
    assert texts(path, task) == ["sweep", "are you there?", "[wake-up] look again"]
    assert states(path, task)[-1] == "completed"


async def test_a_timer_that_is_due_earlier_is_waited_for_first(path: Path) -> None:
    wall, model = Wall(), FakeModel([*WAITS[:2], words("Early."), words("Done.")])
    task = await submitted(path, wall)
    await worked(path, wall, model)
    await wake(path, wall, task, 10, "early")
    await worked(path, wall, model)
    (*_, paused) = events_of(path, TaskState, task)
    assert (paused.cause, paused.resume_at_us) == ("timer", START_US + 10_000_000)
    wall.forward(10)
    await worked(path, wall, model)
    assert states(path, task)[-1] == "paused timer"
    wall.forward(3600)
    await worked(path, wall, model)
    assert texts(path, task) == ["sweep", "early", "[wake-up] look again"]
    assert states(path, task)[-1] == "completed"


async def test_a_model_whose_last_timer_is_cancelled_is_told_so(path: Path) -> None:
    wall, model = Wall(), FakeModel(WAITS)
    task = await submitted(path, wall)
    await worked(path, wall, model)
    async with opened(path, model, clock=wall.clock) as kernel:
        (row,) = (await kernel.query("SELECT timer FROM timers")).rows
        await kernel.mailbox(task).cancel_timer(str(row[0]))
    await worked(path, wall, model)
    assert states(path, task)[2:] == ["pending no_timer", "running", "completed"]
    assert texts(path, task)[-1].startswith("No timer is open any more")


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
async def test_a_task_that_ends_while_it_waits_cancels_its_timers(path: Path, how: str) -> None:
    wall, model = Wall(), FakeModel(WAITS)
    task = await submitted(path, wall, deadline=START + timedelta(seconds=30))
    await worked(path, wall, model)
    if how == "cancelled":
        async with opened(path, model, clock=wall.clock) as kernel:
            await kernel.tasks.cancel(task)
    else:
        wall.forward(30)
    await worked(path, wall, model)
    assert states(path, task)[-1] == ("cancelled user" if how == "cancelled" else "failed deadline")
    assert [event.by for event in events_of(path, TimerCancelled, task)] == ["task"]
    wall.forward(3600)
    await worked(path, wall, model)
    assert events_of(path, TimerFired, task) == []


async def test_a_goal_that_comes_again_is_run_for_anew_each_time(path: Path) -> None:
    wall = Wall()
    task = await submitted(path, wall, "sweep", every_s=HOUR_S, times=3, parameters={"room": 1})
    for _ in range(6):
        await worked(path, wall)
        wall.forward(HOUR_S)
    assert texts(path, task) == ['sweep\n\nParameters:\n{"room":1}'] * 3
    assert states(path, task) == [
        *("running", "paused timer", "pending due") * 2,
        *("running", "completed"),
    ]
    done = folded(records_of(path, task)).task
    assert done is not None
    assert (done.steps, done.run_steps) == (3, 1)


async def test_a_goal_comes_again_as_it_was_amended_and_missed_times_are_one(path: Path) -> None:
    wall = Wall()
    task = await submitted(path, wall, every_s=HOUR_S, due=START + timedelta(seconds=10))
    wall.forward(60)
    await worked(path, wall)
    async with opened(path, FakeModel([]), clock=wall.clock) as kernel:
        await kernel.tasks.amend(task, goal="mop")
    await worked(path, wall)
    wall.forward(3.5 * HOUR_S)
    await worked(path, wall)
    (fired,) = events_of(path, TimerFired, task)
    assert (fired.due_us, fired.missed) == (START_US + 3_610_000_000, 2), "counted from when it was due"
    assert texts(path, task)[-1] == "mop"
    async with opened(path, FakeModel([]), clock=wall.clock) as kernel:
        await kernel.tasks.cancel(task)
    await worked(path, wall)
    assert states(path, task)[-1] == "cancelled user"


async def test_a_task_that_begins_late_has_its_goal_come_again_when_it_would_have(path: Path) -> None:
    wall = Wall()
    task = await submitted(path, wall, every_s=HOUR_S, due=START)
    wall.forward(2.5 * HOUR_S)
    await worked(path, wall)
    (*_, paused) = events_of(path, TaskState, task)
    assert paused.resume_at_us == START_US + 3 * 3_600_000_000
    assert texts(path, task) == ["sweep"]


async def test_a_task_that_fails_cancels_its_timers(path: Path) -> None:
    wall = Wall()
    task = await submitted(path, wall)
    await worked(path, wall, FakeModel([WAITS[0], [RuntimeError("broken")]]))
    assert states(path, task)[-1] == "failed error"
    assert len(events_of(path, TimerCancelled, task)) == 1


async def test_a_task_that_a_person_paused_is_not_woken_by_its_timers(path: Path) -> None:
    wall, model = Wall(), FakeModel(WAITS)
    task = await submitted(path, wall)
    await worked(path, wall, model)
    async with opened(path, model, clock=wall.clock) as kernel:
        await kernel.tasks.pause(task)
        wall.forward(3600)
        await kernel.work(until_idle=True)
        async with kernel.session(task) as session:
            assert await session.run() is None
        assert events_of(path, TimerFired, task) == []
        assert states(path, task)[-1] == "paused person"
        await kernel.tasks.resume(task)
    await worked(path, wall, model)
    assert texts(path, task) == ["sweep", "[wake-up] look again"]
    assert states(path, task)[-1] == "completed"


async def test_a_time_that_fails_is_not_the_last(path: Path) -> None:
    wall, model = Wall(), FakeModel([[RuntimeError("broken")]])
    task = await submitted(path, wall, every_s=HOUR_S, times=2)
    await worked(path, wall, model)
    (*_, paused) = events_of(path, TaskState, task)
    assert (paused.state, paused.message) == ("paused", "this time it failed: error")
    wall.forward(HOUR_S)
    await worked(path, wall)
    assert states(path, task)[-1] == "completed"


async def test_nothing_comes_again_without_a_period(path: Path) -> None:
    for wish in ({"times": 2}, {"until": START}, {"every_s": 0.1}):
        with pytest.raises(UsageError):
            await submitted(path, Wall(), **wish)


async def test_a_worker_sleeps_until_timers_are_due(path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with opened(path, FakeModel([]), clock=trio_clock()) as kernel, trio.open_nursery() as nursery:
        task = await kernel.tasks.submit("sweep", model="fake:m", every_s=HOUR_S, times=3)
        nursery.start_soon(_work, kernel)
        await trio.sleep(2.5 * HOUR_S)
        assert (await kernel.tasks.show(task)).state == "completed"
        nursery.cancel_scope.cancel()
    assert [(fired.due_us - START_US) // 3_600_000_000 for fired in events_of(path, TimerFired, task)] == [1, 2]


async def _work(kernel: Kernel) -> None:
    await kernel.work()
