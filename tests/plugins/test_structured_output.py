"""Answers in JSON that fit a schema: asked for, judged, corrected, and never passed off when they do not fit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from flightlog import Limits, Registration, Session
from flightlog.errors import PluginError, UsageError
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Continue, Fail, Head, Hook, StoppingTurn, Usage, json_of
from flightlog_hookspecs.events import RequestHeader, RequestSent, TurnEnd, UserMessage
from flightlog_plugins import structured_output
from flightlog_plugins.structured_output import CODE, StructuredOutput
from support.cutting import cut_log
from support.kernels import events_of, opened, records_of, verified
from support.wire_kernels import look, said

LEGS = {
    "type": "object",
    "properties": {"animal": {"type": "string"}, "legs": {"type": "integer", "minimum": 0}},
    "required": ["animal", "legs"],
    "additionalProperties": False,
}
SPIDER = '{"animal": "spider", "legs": 8}'
WANTED = StructuredOutput(LEGS)


@asynccontextmanager
async def wanting(
    path: Path, *replies: Any, output: StructuredOutput = WANTED, **options: Any
) -> AsyncIterator[Session]:
    """A session that wants `output` of a model that gives these replies."""
    async with (
        opened(
            path, FakeModel([words(reply) if isinstance(reply, str) else reply for reply in replies]), look
        ) as kernel,
        kernel.session("s", model="fake:m", **options) as session,
        session.register(output),
    ):
        yield session


def corrections(path: Path) -> list[str]:
    return [event.text for event in events_of(path, UserMessage) if event.source == "plugin"]


async def test_an_answer_that_fits_is_handed_over_as_a_value(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with wanting(path, SPIDER) as session:
        turn = await said(session, "How many legs has a spider?")
    assert (turn.reason, turn.json()) == ("completed", {"animal": "spider", "legs": 8})
    assert len(events_of(path, RequestSent)) == 1
    assert verified(path, FakeModel([]))


async def test_the_schema_is_in_the_head_and_in_what_the_model_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with wanting(path, SPIDER, output=StructuredOutput(LEGS, name="animal_legs")) as session:
        await said(session, "legs?")
    (header,) = events_of(path, RequestHeader)
    assert json.loads(header.head.parameters) == {"output_schema": {"name": "animal_legs", "schema": LEGS}}
    told = header.head.system
    assert "animal_legs" in told
    assert "JSON" in told
    assert json.dumps(LEGS, separators=(",", ":")) in told


async def test_words_that_do_not_fit_go_back_with_where_and_why_and_the_next_ones_count(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with wanting(path, "Eight.", '{"animal": "spider", "legs": -8, "eyes": 8}', SPIDER) as session:
        turn = await said(session, "legs?")
    assert (turn.reason, turn.json()) == ("completed", json.loads(SPIDER))
    first, second = corrections(path)
    assert first.startswith("Your answer does not fit: it is not JSON: Expecting value: line 1 column 1")
    assert "$.legs: -8 is less than the minimum of 0 (rule properties/legs/minimum)" in second
    assert "$: Additional properties are not allowed ('eyes' was unexpected) (rule additionalProperties)" in second


async def test_only_the_last_words_are_judged_and_tools_may_come_before(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    looking = [*words("I will look."), *calls(("look", {"where": "up"}))]
    async with wanting(path, looking, SPIDER) as session:
        turn = await said(session, "legs?")
    assert (turn.reason, turn.json(), corrections(path)) == ("completed", json.loads(SPIDER), [])


@pytest.mark.parametrize("allowed", [0, 1, 3])
async def test_an_answer_that_never_fits_is_corrected_so_often_and_then_the_turn_has_failed(
    tmp_path: Path, allowed: int
) -> None:
    path = tmp_path / "a.db"
    async with wanting(path, *["no"] * 9, output=StructuredOutput(LEGS, corrections=allowed)) as session:
        turn = await said(session, "legs?")
        assert session.pending == 0
    assert (turn.reason, turn.code) == ("error", CODE)
    assert turn.message.startswith(
        f"the answer is not the JSON that was asked for, after {allowed} corrections: it is not"
    )
    assert len(events_of(path, RequestSent)) == allowed + 1
    with pytest.raises(UsageError, match=f"turn 1 has no JSON, it ended as error .{CODE}: the answer is not"):
        turn.json()


async def test_each_turn_has_its_own_corrections(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with wanting(path, "no", "no", SPIDER, "no", "no", SPIDER) as session:
        assert [(await said(session, "legs?")).reason for _ in range(2)] == ["completed"] * 2


async def test_at_the_limit_of_steps_an_answer_that_does_not_fit_is_no_completed_turn(tmp_path: Path) -> None:
    async with wanting(tmp_path / "a.db", "no", "no", limits=Limits(steps_per_turn=2)) as session:
        assert (await said(session, "legs?")).reason == "max_steps"


async def test_another_hook_that_has_the_turn_go_on_costs_no_corrections(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    more = Hook(
        point="turn_stopping", body=lambda turn: Continue("check it") if turn.continued < 2 else None, name="checks"
    )
    async with wanting(path, SPIDER, SPIDER, "no", "no", SPIDER) as session, session.register(Bundle(hooks=[more])):
        turn = await said(session, "legs?")
    assert (turn.reason, turn.json()) == ("completed", json.loads(SPIDER))


async def test_a_crash_between_corrections_leaves_the_wish_in_the_inbox_and_the_session_goes_on_with_it(
    tmp_path: Path,
) -> None:
    """The process ends after the correction was asked for and before the model was: nothing is lost or repeated."""
    whole, path = tmp_path / "whole.db", tmp_path / "cut.db"
    async with wanting(whole, "no", SPIDER) as session:
        await said(session, "legs?")
    (wish,) = [record.seq for record in records_of(whole) if getattr(record.event, "hook", "")]
    cut_log(whole, path, wish)
    async with wanting(path, "no", SPIDER) as session:
        turn = await session.run()
        assert turn is not None
        assert (turn.number, turn.reason, turn.json()) == (2, "completed", json.loads(SPIDER))
    assert [end.reason for end in events_of(path, TurnEnd)] == ["interrupted", "completed"]
    assert len(corrections(path)) == 1
    assert verified(path, FakeModel([]))


async def test_a_turn_under_way_when_it_is_registered_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    kept: list[Registration] = []

    async def register() -> None:
        kept.append(session.register(WANTED))

    model = FakeModel([[register, *words("Eight.")], words(SPIDER)])
    async with opened(path, model) as kernel, kernel.session("s", model="fake:m") as session:
        assert (await said(session, "legs?")).text == "Eight."
        assert (await said(session, "legs?")).json() == json.loads(SPIDER)
        await kept[0].aclose()
    assert [event.reason for event in events_of(path, RequestHeader)] == ["first", "parameters"]


async def test_a_sessions_schema_stands_in_place_of_its_kernels(tmp_path: Path) -> None:
    model = FakeModel([words("[1]"), words(SPIDER)])
    async with (
        opened(tmp_path / "a.db", model) as kernel,
        kernel.session("s", model="fake:m") as session,
        kernel.register(WANTED),
    ):
        async with session.register(StructuredOutput({"type": "array"})):
            assert (await said(session, "list")).json() == [1]
        assert (await said(session, "legs?")).json() == json.loads(SPIDER)


async def test_taken_back_the_next_turn_is_free(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([words(SPIDER), words("Eight.")])
    async with opened(path, model) as kernel, kernel.session("s", model="fake:m") as session:
        async with session.register(WANTED):
            assert (await said(session, "legs?")).json() == json.loads(SPIDER)
        turn = await said(session, "in words?")
    assert (turn.reason, turn.text) == ("completed", "Eight.")
    with pytest.raises(UsageError, match="turn 2 has no JSON: Expecting value: line 1 column 1"):
        turn.json()


STOPPING = StoppingTurn(
    session="s",
    turn=1,
    steps=1,
    text="",
    usage=Usage(),
    head=Head(adapter="a", model="m", parameters=json.dumps({"output_schema": {"name": "answer", "schema": LEGS}})),
    continued=0,
)


async def test_an_answer_that_cannot_be_judged_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, value: object) -> Any:
        raise RuntimeError("odd")

    monkeypatch.setattr(StructuredOutput, "_violations", broken)
    answer = await WANTED.judge(evolve(STOPPING, text=SPIDER, continued=2))
    assert isinstance(answer, Fail)
    assert "it cannot be judged: RuntimeError('odd')" in answer.message


async def test_an_answer_that_takes_too_long_to_judge_does_not_pass(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(structured_output, "JUDGE_MAX_S", 0.0)
    answer = await WANTED.judge(evolve(STOPPING, text=SPIDER, continued=2))
    assert isinstance(answer, Fail)
    assert "it takes too long to judge" in answer.message


def test_at_most_five_faults_are_named_and_none_at_length() -> None:
    output = StructuredOutput({"type": "array", "items": {"type": "integer"}})
    faults = output.faults(json.dumps(["x" * 9000] * 50))
    assert len(faults) == 5
    assert all(len(fault) < 700 for fault in faults)


def test_an_answer_nested_without_end_does_not_fit() -> None:
    output = StructuredOutput({"type": "array", "items": {"$ref": "#"}})
    assert output.faults("[" * 100_000 + "]" * 100_000) == ["it is not JSON: it is nested too deeply"]
    (fault,) = output.faults("[" * 900 + "]" * 900)
    assert fault.startswith("it cannot be judged: RecursionError")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "no such type"}, r"its schema is not a JSON Schema 2020-12: \$.type: 'no such type'"),
        ({"$ref": "#/$defs/gone"}, "it refers to '#/\\$defs/gone', which is not in it"),
        ({"$ref": "https://example.org/schema.json"}, "which is not in it"),
        ({"type": "string", "pattern": "("}, r"\$.pattern: '\(' is not a 'regex'"),
        ({"const": float("nan")}, "must be a JSON object"),
        ({"const": object()}, "must be a JSON object"),
        (["type"], "must be a JSON object"),
        (None, "must be a JSON object"),
    ],
)
def test_what_is_no_schema_is_refused_before_anything_is_registered(schema: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        StructuredOutput(schema)


@pytest.mark.parametrize("options", [{"name": ""}, {"name": "two words"}, {"name": "x" * 65}, {"corrections": -1}, {"corrections": "2"}])  # fmt: skip  # noqa: E501
def test_a_name_or_number_that_does_not_fit_is_refused(options: Any) -> None:
    with pytest.raises(UsageError):
        StructuredOutput(LEGS, **options)


async def test_two_of_them_in_one_scope_are_refused(tmp_path: Path) -> None:
    async with wanting(tmp_path / "a.db") as session:
        with pytest.raises(PluginError, match="prompt section 'output' exists already: plugin 'StructuredOutput'"):
            session.register(StructuredOutput({"type": "array"}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(value=JSON, fence=st.sampled_from(["{}", "```json\n{}\n```", "```\n{}```", "\n ```JSON \n{}\n```\n", "  {}\n"]))
def test_any_json_value_is_read_alone_or_in_one_fence(value: Any, fence: str) -> None:
    assert json_of(fence.replace("{}", json.dumps(value, indent=1))) == value


@given(value=JSON.map(json.dumps), remark=st.text(min_size=1), cut=st.integers(0, 40))
def test_of_several_blocks_all_of_them_are_the_value_or_else_the_last(value: str, remark: str, cut: int) -> None:
    assert json_of([value]) == json_of([value[:cut], value[cut:]]) == json.loads(value)
    assert json_of([f"{remark} So:", value]) == json.loads(value)
    with pytest.raises(ValueError, match="Expecting value"):
        json_of([value, "Well."])


async def test_a_remark_before_the_answer_does_not_spoil_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([[*words("Let me count."), *words(SPIDER, index=1)]])
    async with (
        opened(path, model) as kernel,
        kernel.session("s", model="fake:m") as session,
        session.register(WANTED),
    ):
        turn = await said(session, "legs?")
    assert (turn.reason, turn.blocks) == ("completed", ("Let me count.", SPIDER))
    assert turn.json() == json.loads(SPIDER)


@pytest.mark.parametrize(
    "text",
    ["", "{} {}", "Here: {}", "{}\nDone.", "```json\n{}\n```\nDone.", "```{}```", "```python\n{}\n```", "```\n```",
     "NaN", "-Infinity", "1e999", '{"a": 1, "a": 2}', "[" * 100_000, '{"a": }', "'a'", "```"],
)  # fmt: skip
def test_anything_else_is_no_json(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  each says something else
        json_of(text)


@given(value=JSON)
def test_what_a_schema_of_one_value_takes_is_that_value(value: Any) -> None:
    output = StructuredOutput({"enum": [value]})
    assert output.faults(json.dumps(value)) == []
    assert output.faults(json.dumps([value])) != []
