"""Tasks from outside: entered once and durably, looked at, written to, and refused before anything is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from flightlog import Kernel, Tasks
from flightlog.errors import BadPayload, UsageError
from flightlog.events import SessionCreated, TaskSubmitted
from flightlog.testing import FakeModel
from support.kernels import events_of, opened, records_of
from support.wall import START_US, Wall

START = datetime.fromtimestamp(START_US / 1_000_000, UTC)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


async def test_a_submitted_task_is_a_session_whose_second_row_is_its_wish(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel:
        task = await kernel.tasks.submit(
            "count the ships", model="fake:m", parameters={"port": "Oslo"}, due=NOON, deadline=NOON + timedelta(hours=1)
        )
    assert [type(record.event) for record in records_of(path, task)] == [SessionCreated, TaskSubmitted]
    assert events_of(path, TaskSubmitted, task) == [
        TaskSubmitted(
            goal="count the ships",
            model="fake:m",
            parameters='{"port":"Oslo"}',
            due_us=1893499200_000_000,
            deadline_us=1893502800_000_000,
        )
    ]


async def test_what_is_shown_is_what_was_submitted(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        task = await kernel.tasks.submit(
            "sweep", model="fake:m", parameters={"n": [1, None]}, task_class="core", due=NOON
        )
        shown = await kernel.tasks.show(task)
        assert (shown.id, shown.state, shown.goal, shown.parameters) == (task, "pending", "sweep", {"n": [1, None]})
        assert (shown.task_class, shown.due_at_us, shown.deadline_us) == ("core", 1893499200_000_000, None)
        assert not shown.ended


@pytest.mark.parametrize("named", [{"key": "order 7"}, {"id": "sweep-7"}], ids=["a key", "an id"])
async def test_the_same_wish_under_a_name_that_was_used_before_is_the_earlier_task(
    tmp_path: Path, named: dict[str, str]
) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel, opened(path, FakeModel([])) as other:
        ids: set[str] = set()

        async def submit(tasks: Tasks) -> None:
            ids.add(await tasks.submit("sweep", model="fake:m", **named))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(submit, kernel.tasks)
                nursery.start_soon(submit, other.tasks)
        (task,) = ids
        with pytest.raises(UsageError, match="submitted before"):
            await kernel.tasks.submit("sweep twice", model="fake:m", **named)
        assert [shown.goal for shown in await kernel.tasks.list()] == ["sweep"]
    assert len(records_of(path, task)) == 2


async def test_a_task_without_a_name_is_another_one_each_time(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        first, second = [await kernel.tasks.submit("sweep", model="fake:m") for _ in range(2)]
        assert first != second
        assert [task.id for task in await kernel.tasks.list()] == [second, first]
        assert [task.id for task in await kernel.tasks.list(limit=1)] == [second]
        assert await kernel.tasks.list("running") == ()


async def test_a_session_that_is_no_task_s_is_not_taken_for_one(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        async with kernel.session("chat", model="fake:m"):
            pass
        with pytest.raises(UsageError, match="no task's"):
            await kernel.tasks.submit("sweep", model="fake:m", id="chat")
        with pytest.raises(UsageError, match="no task's"):
            await kernel.tasks.show("chat")


BAD: dict[str, dict[str, Any]] = {
    "goal": {"goal": "  "},
    "parameters": {"parameters": [1]},
    "parameter": {"parameters": {"x": float("nan")}},
    "class": {"task_class": "urgent"},
    "system": {"system": None},
    "no steps": {"max_steps": 0},
    "steps": {"max_steps": True},
    "recoveries": {"max_recoveries": -1},
    "no tokens": {"max_input_tokens": 0},
    "a time without a zone": {"deadline": datetime(2030, 1, 1)},  # noqa: DTZ001
    "a deadline before it is due": {"due": NOON, "deadline": NOON},
    "a deadline that has passed": {"deadline": datetime(2001, 1, 31, 18, tzinfo=UTC)},
    "model": {"model": "m"},
    "adapter": {"model": "nobody:m"},
    "key": {"key": ""},
    "id": {"id": "\n"},
    "a key and an id": {"key": "k", "id": "i"},
}


@pytest.mark.parametrize("wrong", BAD.values(), ids=BAD)
async def test_what_cannot_be_is_refused_and_nothing_is_entered(tmp_path: Path, wrong: Mapping[str, Any]) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        with pytest.raises((UsageError, BadPayload)):
            await kernel.tasks.submit(**{"goal": "sweep", "model": "fake:m", **wrong})
        assert await kernel.tasks.list() == ()


async def test_a_task_that_was_entered_in_time_is_that_task_also_once_its_deadline_has_passed(tmp_path: Path) -> None:
    wall = Wall()
    wish: dict[str, Any] = {"goal": "sweep", "model": "fake:m", "deadline": START + timedelta(seconds=60)}
    async with opened(tmp_path / "a.db", FakeModel([]), clock=wall.clock) as kernel:
        task = await kernel.tasks.submit(**wish, key="k")
        wall.forward(60)
        assert await kernel.tasks.submit(**wish, key="k") == task
        with pytest.raises(UsageError, match="has passed"):
            await kernel.tasks.submit(**wish, key="another")
        assert [one.id for one in await kernel.tasks.list()] == [task]


WISHES: dict[str, Callable[[Kernel, str], Awaitable[object]]] = {
    "pause": lambda kernel, task: kernel.tasks.pause(task),
    "resume": lambda kernel, task: kernel.tasks.resume(task),
    "cancel": lambda kernel, task: kernel.tasks.cancel(task),
    "amend": lambda kernel, task: kernel.tasks.amend(task, goal="other"),
    "steer": lambda kernel, task: kernel.tasks.steer(task, "left"),
    "answer": lambda kernel, task: kernel.tasks.answer(task, 7, "allow"),
}


@pytest.mark.parametrize("wish", WISHES)
async def test_a_wish_for_a_task_is_a_letter_to_its_session_and_refused_where_there_is_none(
    tmp_path: Path, wish: str
) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        with pytest.raises(UsageError, match="no task"):
            await WISHES[wish](kernel, "nobody")
        task = await kernel.tasks.submit("sweep", model="fake:m")
        if wish == "answer":
            with pytest.raises(UsageError, match="no question is open at seq 7; none is open at all"):
                await WISHES[wish](kernel, task)
        else:
            await WISHES[wish](kernel, task)
        assert await kernel.mailbox(task).waiting() == (wish != "answer")


async def test_an_amendment_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        task = await kernel.tasks.submit("sweep", model="fake:m")
        with pytest.raises(UsageError, match="neither"):
            await kernel.tasks.amend(task)
