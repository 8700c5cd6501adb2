"""What came of a task is remembered, without anybody saying so: its goal and the model's last words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flightlog
from flightlog.errors import LogCorrupt, StoreError, ToolError, UsageError
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import (
    AssistantMessage,
    Event,
    Record,
    TaskState,
    TaskSubmitted,
    UserMessage,
)
from flightlog_plugins.memory import TEXT_MAX_CHARS, Memory, Remembered
from flightlog_plugins.memory.index import WordIndex
from flightlog_plugins.memory.remembered import GOAL_MAX_CHARS, Follower
from support.kernels import events_of, opened, verified
from support.wall import Wall
from support.workspaces import call_in

HOUR_S = 3600.0


def memory_of(folder: Path) -> Memory:
    return Memory(folder / "memory.db", log=lambda: flightlog.open_log(folder / "a.db", discover=False))


async def done(folder: Path, goal: str, *replies: object, wall: Wall | None = None, **wish: object) -> str:
    """A task that a worker has carried out, with a memory."""
    wall, model = wall or Wall(), FakeModel(replies)
    async with opened(folder / "a.db", model, plugins=[memory_of(folder)], clock=wall.clock) as kernel:
        task = await kernel.tasks.submit(goal, model="fake:m", **wish)  # type: ignore[arg-type]
        await kernel.work(until_idle=True)
    return task


async def worked(folder: Path, wall: Wall, *replies: object) -> None:
    """What one more worker does."""
    async with opened(folder / "a.db", FakeModel(replies), plugins=[memory_of(folder)], clock=wall.clock) as kernel:
        await kernel.work(until_idle=True)


def recalled(folder: Path, query: str) -> list[str]:
    """What `recall` finds, without the day."""
    lines = memory_of(folder).recall(call_in(folder), query, 20).splitlines()
    return [line.replace(line[line.index(",") : line.index("]")], "") for line in lines if line.startswith("- ")]


HERON = "- [conclusion] Task: Find the staging database Result: It is called heron."


async def test_what_came_of_a_task_is_told_to_later_sessions_that_it_fits(tmp_path: Path) -> None:
    await done(tmp_path, "Find the staging database", words("It is called heron."))
    model = FakeModel([])
    async with (
        opened(tmp_path / "a.db", model, plugins=[memory_of(tmp_path)]) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await session.followup("Which database is for staging?")
        await session.run()
    (told,) = [event.text for event in events_of(tmp_path / "a.db", UserMessage) if event.section == "memory"]
    assert "Find the staging database Result: It is called heron." in told
    assert verified(tmp_path / "a.db", model)


@pytest.mark.parametrize("way", ["followed", "deleted", "rebuilt"])
async def test_the_index_is_made_of_the_log_alone(tmp_path: Path, way: str) -> None:
    await done(tmp_path, "Find the staging database", words("It is called heron."))
    match way:
        case "deleted":
            (tmp_path / "memory.db").unlink()
        case "rebuilt":
            memory_of(tmp_path).rebuild()
    assert recalled(tmp_path, "heron") == [HERON]


async def test_what_the_index_missed_of_a_task_that_nobody_opens_again_is_made_up_for(tmp_path: Path) -> None:
    """As after a kill between the commit and the index."""
    await done(tmp_path, "Find the test database", words("It is called stork."))
    async with opened(tmp_path / "a.db", FakeModel([words("It is called heron.")])) as kernel:
        await kernel.tasks.submit("Find the staging database", model="fake:m")
        await kernel.work(until_idle=True)
    assert recalled(tmp_path, "heron") == [HERON]


async def test_a_session_that_cannot_be_read_costs_one_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        async with opened(tmp_path / "a.db", FakeModel([words("It is called heron.")])) as kernel:
            await kernel.tasks.submit(f"Find {name}", model="fake:m", id=name)
            await kernel.work(until_idle=True)
    plugin, records = memory_of(tmp_path), flightlog.SessionReader.records
    WordIndex(str(tmp_path / "memory.db")).rebuild(lambda writer: None)

    def broken(self: flightlog.SessionReader) -> Iterator[Record]:
        if self.session == "one":
            raise LogCorrupt("one", 3, "hash-chain", "planted")
        return records(self)

    monkeypatch.setattr(flightlog.SessionReader, "records", broken)
    with pytest.raises(ToolError, match="planted"):
        plugin.recall(call_in(tmp_path), "heron")
    assert "Find two" in plugin.recall(call_in(tmp_path), "heron")


async def test_only_the_last_words_are_its_conclusion_and_the_goal_is_that_of_the_end(tmp_path: Path) -> None:
    wall = Wall()
    again = calls(("recall", {"query": "nothing"}))
    async with opened(tmp_path / "a.db", FakeModel([]), plugins=[memory_of(tmp_path)], clock=wall.clock) as kernel:
        task = await kernel.tasks.submit("Find any database", model="fake:m", parameters={"stage": 7})
        await kernel.tasks.amend(task, goal="Find the staging database", parameters={})
    await worked(tmp_path, wall, again, words("It is called heron."))
    assert recalled(tmp_path, "heron") == [HERON]


async def test_parameters_tell_the_conclusions_of_equal_goals_apart(tmp_path: Path) -> None:
    for room in (1, 2):
        await done(tmp_path, "Sweep the room", words(f"Found {room} coins."), parameters={"room": room})
    assert sorted(recalled(tmp_path, "coins")) == [
        f'- [conclusion] Task: Sweep the room {{"room":{room}}} Result: Found {room} coins.' for room in (1, 2)
    ]


async def test_a_task_that_failed_or_was_cancelled_has_no_conclusion(tmp_path: Path) -> None:
    again = calls(("recall", {"query": "nothing"}))
    task = await done(tmp_path, "Find the database", again, again, words("heron"), max_steps=1)
    assert events_of(tmp_path / "a.db", TaskState, task)[-1].state == "failed"
    assert recalled(tmp_path, "find database heron") == []


async def test_of_a_goal_that_comes_again_the_newest_conclusion_is_remembered(tmp_path: Path) -> None:
    wall, counts = Wall(), [words(f"Herons: {number}.") for number in ("one", "two", "three")]
    await done(tmp_path, "Count the birds", *counts, wall=wall, every_s=HOUR_S)
    assert recalled(tmp_path, "birds") == ["- [conclusion] Task: Count the birds Result: Herons: one."]
    for _ in range(2):
        wall.forward(HOUR_S)
        await worked(tmp_path, wall, *counts)
    newest = ["- [conclusion] Task: Count the birds Result: Herons: three."]
    assert recalled(tmp_path, "birds") == newest
    assert recalled(tmp_path, "one") == []
    memory_of(tmp_path).rebuild()
    assert recalled(tmp_path, "birds") == newest


async def test_tasks_that_come_to_the_same_are_told_once(tmp_path: Path) -> None:
    for _ in range(3):
        await done(tmp_path, "Look at the birds", words("All is well."))
    assert recalled(tmp_path, "birds") == ["- [conclusion] Task: Look at the birds Result: All is well."]


def rows(*events: Event) -> list[Record]:
    return [
        Record(session="s", seq=seq, at_us=seq, turn=None, step=None, epoch=1, event=event)
        for seq, event in enumerate(events, 1)
    ]


def concluded(*events: Event) -> list[Remembered]:
    """What a follower that is fed all of these finds."""
    follower = Follower()
    return [found for record in rows(*events) if (found := follower.feed(record))]


texts = st.text(max_size=3 * TEXT_MAX_CHARS // 2) | st.integers(0, 2 * TEXT_MAX_CHARS).map(lambda many: "x" * many)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(goal=texts, last=texts)
def test_a_conclusion_has_the_beginnings_of_goal_and_words_and_no_more_than_fits(goal: str, last: str) -> None:
    submitted = TaskSubmitted(goal=goal, model="fake:m")
    answered = AssistantMessage(attempt=1, content=text_blocks(last), finish="stop")
    found = concluded(submitted, answered, TaskState(state="completed"))
    assert len(found) == bool(last.strip())
    for each in found:
        assert len(each.text) <= TEXT_MAX_CHARS
        assert each.text.encode()
        assert each.text.startswith(f"Task: {goal.strip()[: GOAL_MAX_CHARS - 1]}".encode(errors="replace").decode())


KILLED = """
import sys, flightlog, trio
from pathlib import Path
from flightlog.testing import Bundle, FakeModel, words
from flightlog_plugins.memory import Memory

async def main(folder):
    memory = Memory(folder / "memory.db", log=lambda: flightlog.open_log(folder / "a.db", discover=False))
    plugins = [memory, Bundle(adapters=[FakeModel([words(f"result {n}") for n in range(10_000)])])]
    async with flightlog.open_kernel(folder / "a.db", discover=False, plugins=plugins) as kernel:
        for n in range(300):
            await kernel.tasks.submit(f"goal {n}", model="fake:m")
        await kernel.work(until_idle=True)

trio.run(main, Path(sys.argv[1]))
"""


@pytest.mark.kill
def test_after_a_kill_each_completed_task_has_one_conclusion_though_nobody_opens_it_again(tmp_path: Path) -> None:
    def completed() -> set[str]:
        with flightlog.open_log(tmp_path / "a.db", discover=False) as log:
            return {task.goal for task in log.tasks(state="completed")}

    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
    try:
        while process.poll() is None:
            with suppress(StoreError, UsageError):
                if len(completed()) > 5:
                    break
    finally:
        process.kill()
        process.wait()
    assert len(completed()) > 5
    for goal in completed():
        (line,) = [line for line in recalled(tmp_path, goal) if f"Task: {goal} Result" in line]
        assert "Result: result" in line
