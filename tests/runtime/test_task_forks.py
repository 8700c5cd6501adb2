"""A fork of a task goes on from the steps that were finished by a checkpoint, as a task of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from flightlog.errors import UsageError
from flightlog.events import (
    AssistantMessage,
    CheckpointWritten,
    SessionCreated,
    TaskResynced,
    TaskState,
    TaskSubmitted,
    TurnEnd,
    UserMessage,
)
from flightlog.testing import FakeModel
from support.kernels import events_of, opened, records_of, verified
from support.shop import REPLIES, TASK, Shop, cut_behind, rows_of, shown, whole_run


def checkpoints(path: Path, level: str) -> list[int]:
    return [
        record.seq
        for record in records_of(path, TASK)
        if isinstance(record.event, CheckpointWritten) and record.event.level == level
    ]


async def test_a_fork_goes_on_from_the_checkpoint_and_leaves_its_origin_alone(tmp_path: Path) -> None:
    shop, path = Shop(), tmp_path / "a.db"
    await whole_run(path, *shop.tools())
    before, model = records_of(path, TASK), FakeModel(list(REPLIES))
    async with opened(path, model, *shop.tools()) as kernel:
        fork = await kernel.fork_task(TASK, checkpoints(path, "light")[0])
        standing = await kernel.tasks.show(fork)
        assert (standing.state, standing.steps, standing.recoveries, standing.max_steps) == ("pending", 1, 0, 30)
        await kernel.work(until_idle=True)
        assert (await kernel.tasks.show(fork)).state == "completed"
    assert records_of(path, TASK) == before
    assert verified(path, model, name=fork) == len(records_of(path, fork))
    created, *_ = events_of(path, SessionCreated, fork)
    assert (created.origin_session, created.origin_turn, created.uid != created.origin_uid) == (TASK, 1, True)
    (mine,), (theirs,) = events_of(path, TaskSubmitted, fork), events_of(path, TaskSubmitted, TASK)
    assert mine == theirs
    assert [end.reason for end in events_of(path, TurnEnd, fork)] == ["interrupted", "completed"]
    assert [message.text for message in events_of(path, AssistantMessage, fork)] == ["I look.", "I ship.", "Shipped."]
    assert [state.state for state in events_of(path, TaskState, fork)] == ["running", "completed"]
    assert [message.source for message in events_of(path, UserMessage, fork)] == ["user", "resync"]
    assert len(events_of(path, TaskResynced, fork)) == 1
    assert "order 7 costs 10" in shown(model.requests[0])
    assert shop.shipped == ["7", "7"]


async def test_a_checkpoint_in_the_middle_of_a_step_forks_at_the_last_finished_one(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await whole_run(path, *Shop().tools())
    middle = checkpoints(path, "heavy")[2:]
    async with opened(path, FakeModel([]), *Shop().tools()) as kernel:
        for seq in middle:
            fork = await kernel.fork_task(TASK, seq, id=f"fork {seq}")
            assert fork == f"fork {seq}"
            assert (await kernel.tasks.show(fork)).steps == 1


async def test_the_last_checkpoint_forks_all_of_a_task_that_has_ended(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", FakeModel([*REPLIES, REPLIES[-1]])
    await whole_run(path, *Shop().tools())
    async with opened(path, model, *Shop().tools()) as kernel:
        fork = await kernel.fork_task(TASK, checkpoints(path, "archive")[-1])
        await kernel.work(until_idle=True)
        assert (await kernel.tasks.show(fork)).state == "completed"
    assert [end.reason for end in events_of(path, TurnEnd, fork)] == ["completed", "completed"]


async def test_a_fork_has_the_goal_that_held_at_its_checkpoint(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.db", tmp_path / "a.db"
    await whole_run(whole, *Shop().tools())
    cut_behind(whole, path, "step/start", 2)
    early = checkpoints(path, "light")[0]
    async with opened(path, FakeModel(list(REPLIES)), *Shop().tools()) as kernel:
        await kernel.tasks.amend(TASK, goal="Ship order 8.")
        await kernel.work(until_idle=True)
        late = checkpoints(path, "archive")[-1]
        goals = [(await kernel.tasks.show(await kernel.fork_task(TASK, seq))).goal for seq in (early, late)]
    assert goals == ["Ship order 7.", "Ship order 8."]


async def test_what_cannot_be_forked_is_refused_and_nothing_is_entered(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await whole_run(path, *Shop().tools())
    async with opened(path, FakeModel([]), *Shop().tools()) as kernel:
        for seq in (0, 1, rows_of(path, "step/end")[0], 10_000):
            with pytest.raises(UsageError, match=f"row {seq} of 't' is no checkpoint of a task"):
                await kernel.fork_task(TASK, seq)
        for seq in (checkpoints(path, "archive")[0], checkpoints(path, "heavy")[0]):
            with pytest.raises(UsageError, match=f"no step of task 't' was finished before checkpoint {seq}"):
                await kernel.fork_task(TASK, seq)
        with pytest.raises(UsageError, match="there is a session 't'"):
            await kernel.fork_task(TASK, checkpoints(path, "light")[0], id=TASK)
        with pytest.raises(UsageError, match="there is no task"):
            await kernel.fork_task("nobody", 5)
        assert len(await kernel.tasks.list()) == 1
