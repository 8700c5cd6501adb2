"""Workers: who comes first, how many at once, what one bad task costs the others, and what a look costs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from flightlog import Kernel, Limits
from flightlog.core.claims import Shares
from flightlog.errors import DiskFull, UsageError
from flightlog.events import TaskState, TurnEnd
from flightlog.runtime.task_board import TaskBoard
from flightlog.store.connection import Row, Value
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import tool
from flightlog_hookspecs.events import TaskClass
from support.children import until
from support.kernels import committing, events_of, opened, plant, records_of


def states(path: Path, task: str) -> list[str]:
    return [f"{e.state} {e.cause}".strip() for e in events_of(path, TaskState, task)]


async def submitted(kernel: Kernel, goal: str = "sweep", **wish: object) -> str:
    return await kernel.tasks.submit(goal, model="fake:m", **wish)  # type: ignore[arg-type]


def order(path: Path, tasks: Sequence[str]) -> list[str]:
    """The tasks in the order in which they began, which the clock of tests tells."""
    began = {task: next(r.at_us for r in records_of(path, task) if isinstance(r.event, TaskState)) for task in tasks}
    return sorted(tasks, key=began.__getitem__)


async def test_tasks_begin_by_class_and_then_as_they_were_submitted(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    classes: list[TaskClass] = ["batch", "normal", "core", "normal", "core"]
    async with opened(path, FakeModel([])) as kernel:
        tasks = [await submitted(kernel, task_class=task_class) for task_class in classes]
        await kernel.work(until_idle=True, tasks_at_once=1)
    assert [tasks.index(task) for task in order(path, tasks)] == [2, 4, 1, 3, 0]


async def test_a_core_task_that_arrives_starts_next(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    tasks: list[str] = []

    async def submit_core() -> None:
        if len(tasks) == 5:
            tasks.append(await submitted(kernel, task_class="core"))

    async with opened(path, FakeModel([[submit_core, *words("done")]])) as kernel:
        tasks += [await submitted(kernel, task_class="batch") for _ in range(5)]
        await kernel.work(until_idle=True, tasks_at_once=1)
    assert [tasks.index(task) for task in order(path, tasks)] == [0, 5, 1, 2, 3, 4]


async def test_no_more_tasks_run_at_once_than_there_is_room_for(tmp_path: Path) -> None:
    running, most = 0, 0

    async def meanwhile() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await until(lambda: most >= 3)
        running -= 1

    async with opened(tmp_path / "a.db", FakeModel([[meanwhile, *words("done")]])) as kernel:
        for _ in range(9):
            await submitted(kernel, task_class="core")
        await kernel.work(until_idle=True, tasks_at_once=3)
        assert {task.state for task in await kernel.tasks.list()} == {"completed"}
    assert most == 3


@pytest.mark.parametrize(
    ("flood", "places", "took"), [("batch", 4, 3), ("normal", 4, 4), ("batch", 2, 1), ("normal", 2, 2), ("batch", 1, 1)]
)
async def test_a_flood_of_batch_leaves_the_last_place_of_a_worker_to_others(
    tmp_path: Path, flood: TaskClass, places: int, took: int
) -> None:
    path, running, over = tmp_path / "a.db", list[str](), trio.Event()

    async def meanwhile() -> None:
        running.append("")
        await over.wait()

    models = [FakeModel([[meanwhile, *words("done")]]), FakeModel([], name="fast")]
    async with opened(path, models) as kernel, trio.open_nursery() as nursery:
        for _ in range(6):
            await submitted(kernel, task_class=flood)
        nursery.start_soon(lambda: kernel.work(until_idle=True, tasks_at_once=places))
        await until(lambda: len(running) == took)
        task = await kernel.tasks.submit("sweep", model="fast:m", task_class="core")
        if took < places:
            assert (await kernel.tasks.wait(task)).state == "completed"
        assert len(running) == took
        over.set()
    assert len(running) == 6, "and all is done in the end"


async def test_tasks_that_a_dead_worker_left_leave_the_last_place_to_a_core_task_too(tmp_path: Path) -> None:
    path, running, core_ran = tmp_path / "a.db", list[str](), trio.Event()

    async def meanwhile() -> None:
        running.append("")
        await core_ran.wait()

    async def core() -> None:
        assert len(running) < 3
        core_ran.set()

    models = [FakeModel([[meanwhile, *words("done")]]), FakeModel([[core, *words("done")]], name="core")]
    async with opened(path, models) as kernel:
        for _ in range(3):
            async with kernel._task(await submitted(kernel, task_class="batch"), Limits(), take_over=False) as run:
                await run.journal.append(TaskState(state="running"))
        await kernel.tasks.submit("sweep", model="core:m", task_class="core")
        with trio.fail_after(60):
            await kernel.work(until_idle=True, tasks_at_once=3)
        assert {task.state for task in await kernel.tasks.list()} == {"completed"}
    assert len(running) == 3


async def test_workers_of_two_kernels_share_the_tasks_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def meanwhile() -> None:
        await trio.sleep(0.01)

    model = FakeModel([[meanwhile, *words("done")]])
    async with opened(path, model) as one, opened(path, model) as two:
        tasks = [await submitted(one) for _ in range(12)]
        async with trio.open_nursery() as nursery:
            for kernel in (one, two):
                nursery.start_soon(lambda kernel=kernel: kernel.work(until_idle=True, tasks_at_once=2))
        assert {task.state for task in await one.tasks.list()} == {"completed"}
    for task in tasks:
        assert states(path, task) == ["running", "completed"]


async def test_a_task_that_somebody_else_drives_is_left_alone_until_he_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as one, opened(path, FakeModel([])) as two:
        task = await submitted(one)
        async with two.session(task), trio.open_nursery() as nursery:
            nursery.start_soon(one.work)
            await trio.sleep(0.2)
            assert states(path, task) == []
            nursery.cancel_scope.cancel()
        await one.work(until_idle=True)
    assert states(path, task) == ["running", "completed"]


async def test_a_task_is_begun_as_soon_as_it_is_submitted_from_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with (
        opened(path, FakeModel([])) as one,
        opened(path, FakeModel([])) as two,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(one.work)
        assert (await two.tasks.wait(await submitted(two))).state == "completed"
        one.leave_work()


async def test_a_task_whose_model_is_not_installed_here_is_left_alone_and_told_of_once(tmp_path: Path) -> None:
    path, told = tmp_path / "a.db", list[tuple[str, str]]()
    async with opened(path, FakeModel([])) as kernel:
        task, other = await submitted(kernel), await submitted(kernel)
    async with opened(path, FakeModel([], name="other")) as kernel:
        for _ in range(2):
            await kernel.work(until_idle=True, on_problem=lambda task, error: told.append((task, str(error)[:24])))
    assert sorted(told[:2]) == sorted([(task, "no adapter named 'fake' "), (other, "no adapter named 'fake' ")])
    assert states(path, task) == []


async def test_tasks_that_cannot_run_here_hide_none_that_can(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, [FakeModel([]), FakeModel([], name="gone")]) as kernel:
        for _ in range(5):
            await kernel.tasks.submit("sweep", model="gone:m")
        task = await submitted(kernel)
    async with opened(path, FakeModel([])) as kernel:
        await kernel.work(until_idle=True, tasks_at_once=1)
    assert states(path, task) == ["running", "completed"]


async def test_a_task_in_which_something_breaks_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"

    async def broken(run: object) -> None:
        raise RuntimeError("a stage broke")

    async with opened(path, FakeModel([])) as kernel:
        task = await submitted(kernel)
        monkeypatch.setattr("flightlog.api.STAGES", [broken])
        await kernel.work(until_idle=True)
        monkeypatch.undo()
        other = await submitted(kernel)
        await kernel.work(until_idle=True)
    assert states(path, task) == ["running", "failed error"]
    assert states(path, other) == ["running", "completed"]


async def test_a_storage_fault_ends_the_worker_and_the_next_one_takes_the_task_up(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel:
        task, other = await submitted(kernel), await submitted(kernel)
        plant(kernel, committing("assistant/message"))
        with pytest.raises(DiskFull):
            await kernel.work(until_idle=True, tasks_at_once=2)
    async with opened(path, FakeModel([])) as kernel:
        await kernel.work(until_idle=True)
    for each in (task, other):
        assert states(path, each) == ["running", "recovering", "running", "completed"]


async def test_an_orphan_comes_before_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel:
        new, orphan = await submitted(kernel), await submitted(kernel)
        async with kernel._task(orphan, Limits(), take_over=False) as run:
            await run.journal.append(TaskState(state="running"))
        await kernel.work(until_idle=True, tasks_at_once=1)
    recovering = next(r.at_us for r in records_of(path, orphan) if getattr(r.event, "state", "") == "recovering")
    assert recovering < next(r.at_us for r in records_of(path, new) if isinstance(r.event, TaskState))


async def test_a_task_is_taken_over_from_an_owner_that_is_stuck(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    tries: list[str] = []

    @tool(effect="idempotent")
    async def sweep() -> str:
        """Sweep."""
        tries.append("")
        if len(tries) == 1:
            await trio.sleep_forever()
        return "swept"

    async with (
        opened(path, FakeModel([calls(("sweep", {}))]), sweep) as stuck,
        opened(path, FakeModel([calls(("sweep", {}))]), sweep) as other,
        trio.open_nursery() as nursery,
    ):
        task = await submitted(stuck)
        nursery.start_soon(stuck.work)
        await until(lambda: tries)
        await other.work(until_idle=True)
        assert states(path, task) == ["running"]
        await other.work(until_idle=True, take_over=[task])
        assert states(path, task) == ["running", "recovering", "running", "completed"]
        nursery.cancel_scope.cancel()
    assert [event.reason for event in events_of(path, TurnEnd, task)] == ["completed"]


@pytest.mark.parametrize("wrong", [{"tasks_at_once": 0}, {"tasks_at_once": True}, {"take_over": "task"}])
async def test_a_worker_that_cannot_be_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        with pytest.raises(UsageError):
            await kernel.work(until_idle=True, **wrong)  # type: ignore[arg-type]


async def test_a_look_costs_what_is_new_and_not_what_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        for _ in range(30):
            await submitted(kernel)
        await kernel.work(until_idle=True)
        board = TaskBoard(kernel._store)
        reads: list[tuple[str, int]] = []
        read = kernel._store.read

        def counted(name: str, *arguments: Value) -> list[Row]:
            rows = read(name, *arguments)
            reads.append((name, len(rows)))
            return rows

        monkeypatch.setattr(kernel._store, "read", counted)
        assert board.look()
        assert ("tasks_open", 0) in reads
        reads.clear()
        assert not board.look()
        assert reads == [("last_id", 1), ("last_letter", 1)]
        task = await submitted(kernel)
        reads.clear()
        assert board.look()
        assert [candidate.name for candidate in board.first(2**60, 9, Shares(), (), ())] == [task]
        assert sum(rows for _, rows in reads) <= 4


@pytest.mark.parametrize("first", ["the task", "the letter"])
async def test_a_letter_to_a_task_that_is_not_due_is_taken_at_once(tmp_path: Path, first: str) -> None:
    path, later = tmp_path / "a.db", datetime(2100, 1, 1, tzinfo=UTC)
    async with opened(path, FakeModel([])) as kernel, trio.open_nursery() as nursery:
        nursery.start_soon(kernel.work)
        if first == "the task":
            await submitted(kernel, id="t", due=later)
            await trio.sleep(0.1)
            await kernel.tasks.cancel("t")
        else:
            await kernel.mailbox("t").cancel()
            await trio.sleep(0.1)
            await submitted(kernel, id="t", due=later)
        with trio.fail_after(60):
            assert (await kernel.tasks.wait("t")).state == "cancelled"
        kernel.leave_work()


async def test_a_pause_that_is_taken_as_the_task_begins_breaks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel, kernel.session("beside", model="fake:m"):
        for _ in range(20):
            task = await submitted(kernel)
            async with kernel._task(task, Limits(), take_over=False) as run, trio.open_nursery() as nursery:
                await kernel.tasks.pause(task)
                nursery.start_soon(run.session.take_letters)
                nursery.start_soon(run.to_rest)
            assert states(path, task) in (
                ["paused person"],
                ["running", "paused person"],
                ["running", "completed"],
            ), states(path, task)
