"""Turns that end although the model would go on: without progress, and without steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from flightlog import Limits
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Continue, Tool, hook
from flightlog_hookspecs.events import InboxSplice, ToolCall, TurnEnd, UserMessage
from support.conversation import assert_at_rest
from support.kernels import events_of, session_of
from support.memory_folder import subfolder
from support.tasks import task_of

Action = tuple[int, str]
"""What a step asks for, and what comes of it."""


def looker(answers: Sequence[str], **options: object) -> Tool:
    """A tool that gives `answers`, one a call, then the last for ever."""
    number = count()

    def look(at: int = 0) -> str:
        return answers[min(next(number), len(answers) - 1)]

    return Tool(body=look, description="Look.", **{"effect": "read", **options})


def repeating(times: int, at: int = 0) -> list[list[object]]:
    return [calls(("look", {"at": at})) for _ in range(times)]


def ended(path: Path) -> TurnEnd:
    (end,) = events_of(path, TurnEnd)
    return end


async def test_a_task_that_does_the_same_three_times_ends_and_says_what_it_did(tmp_path: Path) -> None:
    async with task_of(tmp_path / "s.db", FakeModel(repeating(9, at=4)), looker(["blue"])) as session:
        turn = await session.run()
    assert turn is not None
    assert (turn.reason, turn.message) == (
        "no_progress",
        '3 steps in a row brought nothing new: look({"at": 4})',
    )
    assert len(events_of(tmp_path / "s.db", ToolCall)) == 3
    assert_at_rest(tmp_path / "s.db", FakeModel([]))


async def test_the_model_is_warned_before_it_may_repeat_itself_for_the_last_time(tmp_path: Path) -> None:
    model = FakeModel([*repeating(2), words("I cannot see it.")])
    async with task_of(tmp_path / "s.db", model, looker(["blue"])) as session:
        turn = await session.run()
    assert turn is not None
    assert turn.reason == "completed", "a model that heeds the warning goes on"
    goal, warning = events_of(tmp_path / "s.db", UserMessage)
    assert warning.source == "kernel"
    assert warning.text == (
        'You have done the same 2 times in a row, and nothing new came of it: look({"at": 0}). '
        "Once more, and you are stopped. Do something else, or say what you need."
    )
    assert goal.source == "user"


async def test_who_waits_for_an_answer_to_change_makes_progress_when_it_does(tmp_path: Path) -> None:
    answers = [f"build 17 of the main branch: {n} of 9 parts done" for n in range(9)]
    async with task_of(tmp_path / "s.db", FakeModel(repeating(9)), looker(answers)) as session:
        turn = await session.run()
    assert turn is not None
    assert turn.reason == "completed"


async def test_outputs_that_are_nearly_the_same_bring_nothing_new_unless_they_were_read(tmp_path: Path) -> None:
    answers = [f"12 tests passed, 3 tests failed in 0.{n} s" for n in range(9)]
    async with task_of(tmp_path / "s.db", FakeModel(repeating(9)), looker(answers, effect="external")) as session:
        turn = await session.run()
    assert turn is not None
    assert turn.reason == "no_progress"


async def test_calls_with_the_same_key_arguments_are_the_same_action(tmp_path: Path) -> None:
    def look(at: int, why: str) -> str:
        return "blue"

    replies = [calls(("look", {"at": 1, "why": why})) for why in "abcdef"]
    keyed = Tool(body=look, description="Look.", effect="read", key_arguments=("at",))
    async with task_of(tmp_path / "s.db", FakeModel(replies), keyed) as session:
        turn = await session.run()
    assert turn is not None
    assert (turn.reason, turn.message) == ("no_progress", '3 steps in a row brought nothing new: look({"at": 1})')
    assert {call.key for call in events_of(tmp_path / "s.db", ToolCall)} == {'{"at": 1}'}


async def test_a_person_who_says_something_meanwhile_brings_something_new(tmp_path: Path) -> None:
    spoken = iter(["is it still blue?", "and now?"])

    async def look() -> str:
        if text := next(spoken, None):
            await session.steer(text)
        return "blue"

    model = FakeModel([calls(("look", {})) for _ in range(9)])
    seen = Tool(body=look, description="Look.", effect="read")
    async with task_of(tmp_path / "s.db", model, seen) as session:
        turn = await session.run()
    assert turn is not None
    assert turn.reason == "no_progress"
    assert len(events_of(tmp_path / "s.db", ToolCall)) == 5, "twice it was told something, then it did the same thrice"


async def test_a_plain_session_repeats_itself_as_often_as_it_wants_unless_it_is_limited(tmp_path: Path) -> None:
    async with session_of(tmp_path / "free.db", FakeModel(repeating(9)), looker(["blue"])) as session:
        await session.followup("go")
        free = await session.run()
    limits = Limits(no_progress_steps=2)
    async with session_of(tmp_path / "s.db", FakeModel(repeating(9)), looker(["blue"]), limits=limits) as session:
        await session.followup("go")
        turn = await session.run()
    assert free is not None
    assert free.reason == "completed"
    assert turn is not None
    assert turn.reason == "no_progress"
    assert turn.message.startswith("2 steps in a row")


async def test_a_turn_that_a_hook_never_lets_stop_ends_without_progress_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    @hook("turn_stopping")
    def more(turn: object) -> Continue:
        return Continue("Go on.")

    model = FakeModel([words("Done.") for _ in range(9)])
    async with task_of(tmp_path / "s.db", model, plugins=[Bundle(hooks=[more])]) as session:
        turn = await session.run()
        assert turn is not None
        assert (turn.reason, session.pending) == ("no_progress", 0)
        assert await session.run() is None
    assert turn.message.endswith("the same words without a call")


async def test_a_task_has_its_steps_over_all_its_turns(tmp_path: Path) -> None:
    model = FakeModel([*repeating(1), words("One."), *repeating(1, at=1), *repeating(9, at=2)])
    limits = Limits(steps_per_turn=1)  # a task's own limit counts in its place
    async with task_of(tmp_path / "s.db", model, looker(["blue"]), wanted={"max_steps": 3}, limits=limits) as session:
        first = await session.run()
        await session.followup("go on")
        second = await session.run()
        await session.followup("go on")
        third = await session.run()
        assert session.pending == 0
    assert [turn and turn.reason for turn in (first, second, third)] == ["completed", "max_steps", "max_steps"]
    assert second is not None
    assert second.message == "3 steps"
    assert [s.cause for s in events_of(tmp_path / "s.db", InboxSplice)][-1] == "cancelled", "the model never saw it"
    assert len(events_of(tmp_path / "s.db", ToolCall)) == 2


def expected(script: Sequence[Action], max_steps: int) -> tuple[str, int]:
    """How a task that plays `script`, then says that it is done, must end, and after how many steps."""
    alike = 0
    for number, action in enumerate(script, 1):
        alike = alike + 1 if number > 1 and script[number - 2] == action else 1
        if number >= max_steps:
            return "max_steps", number
        if alike == 3:
            return "no_progress", number
    return "completed", len(script) + 1


@given(
    script=st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["blue", "grey"])), max_size=9),
    max_steps=st.integers(1, 10),
    effect=st.sampled_from(["read", "external"]),
)
def test_whatever_a_model_does_the_loop_ends_for_the_right_reason(
    tmp_path_factory: pytest.TempPathFactory, script: list[Action], max_steps: int, effect: str
) -> None:
    async def main(path: Path) -> None:
        model = FakeModel([calls(("look", {"at": at})) for at, _ in script])
        looks = looker([answer for _, answer in script] or [""], effect=effect)
        async with task_of(path, model, looks, wanted={"max_steps": max_steps}) as session:
            turn = await session.run()
            assert turn is not None
            assert (turn.reason, session._journal.state.steps) == expected(script, max_steps)

    trio.run(main, subfolder(tmp_path_factory.getbasetemp()) / "s.db")


async def test_a_message_that_comes_in_the_last_repetition_keeps_the_task_from_ending(tmp_path: Path) -> None:
    number = count(1)

    async def look() -> str:
        if next(number) == 3:
            await session.steer("Look up.")
        return "blue"

    model = FakeModel([*(calls(("look", {})) for _ in range(3)), words("It is up there.")])
    seen = Tool(body=look, description="Look.", effect="read")
    async with task_of(tmp_path / "s.db", model, seen) as session:
        turn = await session.run()
    assert turn is not None
    assert (turn.number, turn.reason, turn.text) == (1, "completed", "It is up there.")
    assert [message.source for message in events_of(tmp_path / "s.db", UserMessage)] == ["user", "kernel", "user"]
