"""How an answer ends its step and its turn: every finish, and every way to say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from flightlog import Limits, tool
from flightlog.testing import Attempts, FakeModel, calls, words
from flightlog_hookspecs import BlockEnd, BlockStart, Finish, TextBlock, TextDelta, ThinkingBlock, ThinkingDelta
from flightlog_hookspecs.events import AssistantMessage, RequestFailed, StepStart, ToolCall, TurnEnd
from support.kernels import SOON, events_of, kinds_of, session_of, verified

ONCE = Limits(attempts_per_step=1)
THOUGHT = [
    BlockStart(index=0, type="thinking"),
    ThinkingDelta(index=0, text="hm"),
    BlockEnd(index=0, block=ThinkingBlock(text="hm", replay='{"signature":"x"}')),
]


@tool(effect="write")
async def act() -> str:
    """Do something that must not happen by accident."""
    return "done"


@pytest.mark.parametrize(
    ("finish", "reason", "code"),
    [
        ("stop", "completed", ""),
        ("stop_sequence", "completed", ""),
        ("length", "max_tokens", ""),
        ("refusal", "error", "refusal"),
        ("filter", "error", "filter"),
        ("steered", "completed", ""),
    ],
)
async def test_an_answer_with_words_ends_the_turn_by_its_finish(
    tmp_path: Path, finish: str, reason: str, code: str
) -> None:
    model = FakeModel([[*words("Some words."), Finish(reason=finish)]])
    async with session_of(tmp_path / "a.db", model) as session:
        await session.followup("hi")
        turn = await session.run()
    assert (turn.reason, turn.code, turn.text) == (reason, code, "Some words.")
    (message,) = events_of(tmp_path / "a.db", AssistantMessage)
    assert (message.text, message.finish) == ("Some words.", finish)
    assert verified(tmp_path / "a.db", model)


@pytest.mark.parametrize("said", [[], words(""), words(" \n\t "), THOUGHT], ids=["none", "empty", "white", "thought"])
@pytest.mark.parametrize(
    ("finish", "failure", "reason"),
    [
        ("stop", "empty", "error"),
        ("length", "length", "max_tokens"),
        ("refusal", "refusal", "error"),
        ("filter", "filter", "error"),
    ],
)
async def test_an_answer_without_words_is_a_failure_and_never_an_empty_message(
    tmp_path: Path, said: list[object], finish: str, failure: str, reason: str
) -> None:
    model = FakeModel([[*said, Finish(reason=finish)]])
    async with session_of(tmp_path / "a.db", model, limits=ONCE) as session:
        await session.followup("hi")
        turn = await session.run()
    assert turn.reason == reason
    assert [event.failure for event in events_of(tmp_path / "a.db", RequestFailed)] == [failure]
    assert events_of(tmp_path / "a.db", AssistantMessage) == []


async def test_an_empty_answer_is_asked_for_again(tmp_path: Path) -> None:
    model = FakeModel([Attempts(([Finish(reason="stop")], words("Now.")))])
    async with session_of(tmp_path / "a.db", model, plugins=[SOON]) as session:
        await session.followup("hi")
        turn = await session.run()
    assert (turn.reason, turn.text) == ("completed", "Now.")
    assert [(event.failure, event.retryable) for event in events_of(tmp_path / "a.db", RequestFailed)] == [
        ("empty", True)
    ]


@pytest.mark.parametrize(
    "said",
    [
        [],
        words("Half a sent"),
        [BlockStart(index=0, type="text"), TextDelta(index=0, text="open")],
        calls(("act", {})),
    ],
    ids=["nothing", "words", "open block", "a call"],
)
async def test_a_stream_that_ends_without_a_finish_is_cut_and_runs_no_tool(tmp_path: Path, said: list[object]) -> None:
    model = FakeModel([said], auto_finish=False)
    async with session_of(tmp_path / "a.db", model, act, limits=ONCE) as session:
        await session.followup("hi")
        turn = await session.run()
    assert (turn.reason, turn.code) == ("error", "cut")
    assert events_of(tmp_path / "a.db", AssistantMessage) == []
    assert events_of(tmp_path / "a.db", ToolCall) == []


@pytest.mark.parametrize("finish", ["length", "refusal", "filter"])
async def test_calls_in_an_answer_that_was_capped_or_refused_never_run(tmp_path: Path, finish: str) -> None:
    model = FakeModel([[*words("I will act."), *calls(("act", {})), Finish(reason=finish)]])
    async with session_of(tmp_path / "a.db", model, act) as session:
        await session.followup("hi")
        turn = await session.run()
    assert turn.reason in ("max_tokens", "error")
    assert events_of(tmp_path / "a.db", ToolCall) == []
    assert [message.text for message in events_of(tmp_path / "a.db", AssistantMessage)] == ["I will act."]


async def test_output_capped_inside_a_call_for_ever_ends_the_loop_without_running_it(tmp_path: Path) -> None:
    capped = [BlockStart(index=1, type="tool_call", call_id="c", name="act"), Finish(reason="length")]
    async with session_of(tmp_path / "a.db", FakeModel([capped] * 50), act, limits=ONCE) as session:
        for number in range(3):
            await session.followup(f"try {number}")
        turn = await session.run()
    assert turn.number == 3
    assert events_of(tmp_path / "a.db", ToolCall) == []
    assert len(events_of(tmp_path / "a.db", StepStart)) == 3


async def test_a_pause_of_the_provider_is_followed_by_another_step(tmp_path: Path) -> None:
    model = FakeModel([[*words("Wait "), Finish(reason="pause")], words("here.")])
    async with session_of(tmp_path / "a.db", model) as session:
        await session.followup("hi")
        turn = await session.run()
    assert (turn.reason, turn.text) == ("completed", "here.")
    assert len(events_of(tmp_path / "a.db", StepStart)) == 2


async def test_calls_run_also_when_the_provider_says_that_it_stopped(tmp_path: Path) -> None:
    model = FakeModel([[*calls(("act", {})), Finish(reason="stop")], words("ok")])
    async with session_of(tmp_path / "a.db", model, act) as session:
        await session.followup("hi")
        turn = await session.run()
    assert turn.text == "ok"
    assert len(events_of(tmp_path / "a.db", ToolCall)) == 1


async def test_a_turn_that_needs_too_many_steps_ends_as_max_steps_with_every_call_answered(tmp_path: Path) -> None:
    model = FakeModel([calls(("act", {}))] * 10)
    async with session_of(tmp_path / "a.db", model, act, limits=Limits(steps_per_turn=3)) as session:
        await session.followup("hi")
        turn = await session.run()
        assert (turn.reason, turn.message) == ("max_steps", "3 steps")
        await session.followup("go on")
        assert (await session.run()).number == 2
    assert len(events_of(tmp_path / "a.db", StepStart)) == 6
    assert kinds_of(tmp_path / "a.db").count("tool/result") == 6
    assert [end.reason for end in events_of(tmp_path / "a.db", TurnEnd)] == ["max_steps", "max_steps"]
    assert verified(tmp_path / "a.db", model)


async def test_thinking_is_kept_verbatim_with_the_provider_state_that_belongs_to_it(tmp_path: Path) -> None:
    model = FakeModel([[*THOUGHT, *words("So.", index=1), Finish(reason="stop", replay='{"id":"r\\u00e9"}')]])
    async with session_of(tmp_path / "a.db", model) as session:
        await session.followup("hi")
        turn = await session.run()
    assert turn.text == "So."
    (message,) = events_of(tmp_path / "a.db", AssistantMessage)
    assert message.content == (ThinkingBlock(text="hm", replay='{"signature":"x"}'), TextBlock(text="So."))
    assert message.replay == '{"id":"r\\u00e9"}'


async def test_blocks_stand_in_the_order_of_their_index_however_they_arrive(tmp_path: Path) -> None:
    model = FakeModel([[*words("second", index=7), *words("first ", index=2)]])
    async with session_of(tmp_path / "a.db", model) as session:
        await session.followup("hi")
        assert (await session.run()).text == "first second"
