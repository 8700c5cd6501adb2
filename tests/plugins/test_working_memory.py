"""Working memory: the model notes what it knows and what comes next, and sees it last, whatever it forgets."""

from __future__ import annotations

from pathlib import Path

import pytest

import flightlog
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import PromptSection, StepView, TaskView, Tool
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.errors import ToolError
from flightlog_hookspecs.events import CompactionEnd, ToolResult, UserMessage
from flightlog_plugins import working_memory
from flightlog_plugins.working_memory import note, render
from support.kernels import events_of, opened, session_of, verified
from support.long_work import SUMMARISES, LongWork, looking
from support.wall import Wall

GOAL = "Find the staging database"


def noting(**wanted: object) -> list[object]:
    return list(calls(("note", wanted)))


def told(path: Path, name: str = "s") -> list[str]:
    """What the section told the model."""
    return [event.text for event in events_of(path, UserMessage, name) if event.section == "working_memory"]


async def carried_out(
    path: Path, model: FakeModel, *, wall: Wall | None = None, goal: str = GOAL, **wish: object
) -> str:
    """A task that a worker has carried out."""
    async with opened(path, model, plugins=[working_memory]) as kernel:
        task = await kernel.tasks.submit(GOAL, model="fake:m", **wish)  # type: ignore[arg-type]
        await kernel.work(until_idle=True)
    assert verified(path, model, name=task)
    return task


async def test_it_is_there_without_anybody_asking(tmp_path: Path) -> None:
    async with flightlog.open_kernel(tmp_path / "a.db", discover=["working-memory"]) as kernel:
        assert not kernel.registry.problems
        assert "note" in kernel.registry.tools


async def test_nothing_is_said_while_nothing_was_noted_and_the_goal_can_be_seen(tmp_path: Path) -> None:
    task = await carried_out(tmp_path / "a.db", FakeModel([words("Done.")]), parameters={"stage": 7})
    assert told(tmp_path / "a.db", task) == []
    async with session_of(tmp_path / "b.db", FakeModel([]), plugins=[working_memory]) as session:
        await session.followup("hi")
        await session.run()
    assert told(tmp_path / "b.db") == []


async def test_what_was_noted_is_told_with_the_task_once_for_each_change(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = FakeModel(
        [
            noting(facts={"staging": "heron"}, next_step="ask Ada"),
            calls(("note", {"facts": {"staging": "heron"}})),  # nothing new
            noting(facts={"staging": "", "test": "stork"}),
            words("Done."),
        ]
    )
    task = await carried_out(path, model, parameters={"stage": 7})
    head = f'Task: {task}\nGoal: {GOAL}\nParameters: {{"stage": 7}}\nFacts that you have confirmed:\n'
    assert [text.partition(":\n")[2] for text in told(path, task)] == [
        f"{head}- staging: heron\nNext step: ask Ada",
        f"{head}- test: stork\nNext step: ask Ada",
    ]
    assert model.requests[1][-1].decode().startswith('["user", "The context \'working_memory\'')


async def test_what_is_taken_away_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([noting(facts={"sky": "blue"}), noting(facts={"sky": ""}), words("Done.")])
    async with session_of(path, model, plugins=[working_memory]) as session:
        await session.followup("look")
        await session.run()
    first, gone = told(path)
    assert first.endswith("Facts that you have confirmed:\n- sky: blue")
    assert gone == "The context 'working_memory' no longer applies."


async def test_a_note_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="nothing to note"):
        await note()
    path = tmp_path / "a.db"
    async with session_of(path, FakeModel([noting(facts={"sky": "x" * 9000})]), plugins=[working_memory]) as session:
        await session.followup("look")
        await session.run()
    (refused,) = events_of(path, ToolResult)
    assert "8000" in refused.text
    assert told(path) == []


async def test_a_goal_that_a_summary_hides_is_told_again_last(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(window_tokens=900, steps=12)
    plugins = [working_memory, Bundle(compactors=[SUMMARISES])]
    async with opened(path, model, looking(600), plugins=plugins) as kernel:
        task = await kernel.tasks.submit(GOAL, model="fake:m")
        await kernel.work(until_idle=True)
    assert [end for end in events_of(path, CompactionEnd, task) if end.outcome == "done"]
    assert told(path, task)
    assert set(told(path, task)) == {f"The context 'working_memory' is now:\nTask: {task}\nGoal: {GOAL}"}
    for fragments in model.requests:
        summing_up = SUMMARISES.instruction.encode() in fragments[-1]  # of the beginning only
        assert summing_up or any(GOAL.encode() in fragment for fragment in fragments), "it is never out of sight"


def view(*messages: str, goal: str = "count", facts: dict[str, str] | None = None, section: str = "") -> StepView:
    said = [
        UserMessage(message_id=str(number), content=text_blocks(text), section=section)
        for number, text in enumerate(messages)
    ]
    task = TaskView(id="t", goal=goal, parameters={}, done="steps 0, calls 0", steps_left=9)
    return StepView(
        session="t", turn=1, step=1, model="a:m", session_model="a:m", messages=said, facts=facts or {}, task=task
    )


SEEN = [
    "count",
    "count\n\nParameters:\n{}",
    "The goal of this task has changed. It is now:\n\ncount",
    "This task goes on after an interruption.\nGoal: count\nSo far: nothing",
]
HIDDEN = ["", "count to 300", "the goal is to count", "recount\n"]


@pytest.mark.parametrize("text", [*SEEN, *HIDDEN])
async def test_a_goal_is_seen_where_it_stands_in_lines_of_its_own(text: str) -> None:
    assert (await render(view(text)) == "") == (text in SEEN)


async def test_what_it_says_itself_does_not_count_as_seen() -> None:
    assert await render(view("Task: t\nGoal: count", section="working_memory"))


async def test_a_long_goal_is_cut() -> None:
    text = await render(view("hi", goal="x" * 5000))
    assert text == f"Task: t\nGoal: {'x' * 1999}…"


async def gone_on(path: Path, plugin: object) -> list[str]:
    """A task that notes something, waits for its next time and goes on: what it is told then of what it was doing."""
    wall = Wall()
    model = FakeModel([noting(facts={"staging": "heron"}, next_step="ask Ada"), words("For now.")])
    for _ in range(2):
        async with opened(path, model, plugins=[plugin], clock=wall.clock) as kernel:
            if not await kernel.tasks.list():
                await kernel.tasks.submit(GOAL, model="fake:m", every_s=3600.0, id="t")
            await kernel.work(until_idle=True)
        wall.forward(3600)
    return [each.text for each in events_of(path, UserMessage, "t") if each.text.startswith("This task goes on")]


async def test_a_task_that_goes_on_is_told_what_it_noted_unless_a_section_says_it(tmp_path: Path) -> None:
    birds = PromptSection(name="birds", rank=1, render=lambda: "heron, stork", kind="runtime")  # says no such fact
    tools = [Tool(body=note, effect="idempotent")]
    (text,) = await gone_on(tmp_path / "a.db", Bundle(tools=tools, sections=[birds]))
    assert f"Goal: {GOAL}\nWhat you have noted:\n- staging: heron\n- next step: ask Ada\n" in text
    (text,) = await gone_on(tmp_path / "b.db", working_memory)  # which says "Next step" with a capital
    assert "heron" not in text
    assert told(tmp_path / "b.db", "t")[-1].endswith("- staging: heron\nNext step: ask Ada")
