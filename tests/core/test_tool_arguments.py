"""What a model sends as arguments: taken as the body wants it, or answered with what to change."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core import canonical
from flightlog.core.tool_schema import BadArguments, PreparedTool, prepare
from flightlog_hookspecs import Tool
from support import values


@dataclass
class Point:
    x: float
    y: float = 0.0


def move(
    to: Point,
    speed: Literal["slow", "fast"] = "slow",
    when: datetime | None = None,
    tags: list[str] = [],  # noqa: B006
) -> None:
    """Move."""


def anything(value: Any) -> None:
    """Take it."""


def nothing() -> None:
    """Do it."""


MOVE = prepare(Tool(body=move), "p", "1")
ANYTHING = prepare(Tool(body=anything), "p", "1")
NOTHING = prepare(Tool(body=nothing), "p", "1")
STRICT = prepare(
    Tool(body=lambda **_: None, name="strict", description="d", parameters={"type": "object", "required": ["a"]}),
    "p",
    "1",
)


def test_the_body_gets_what_its_annotations_say() -> None:
    raw = '{"to":{"x":1},"when":"2024-05-01T12:00:00Z","tags":["a"]}'
    assert MOVE.arguments(raw) == {
        "to": Point(x=1.0, y=0.0),
        "speed": "slow",
        "when": datetime(2024, 5, 1, 12, tzinfo=UTC),
        "tags": ["a"],
    }


def deal(cards: int, to: list[int], stake: float = 0.5) -> None:
    """Deal."""


@given(st.integers(-(2**53), 2**53), st.lists(st.integers(-9, 9)))
def test_a_whole_number_is_an_integer_however_it_is_written(cards: int, to: list[int]) -> None:
    raw = json.dumps({"cards": float(cards), "to": [float(one) for one in to], "stake": 3})
    assert prepare(Tool(body=deal), "p", "1").arguments(raw) == {"cards": cards, "to": to, "stake": 3.0}


@pytest.mark.parametrize("raw", ['{"cards":3.5,"to":[]}', '{"cards":"3","to":[]}', '{"cards":3.0,"to":[1.5]}'])
def test_and_nothing_else_is_one(raw: str) -> None:
    with pytest.raises(BadArguments):
        prepare(Tool(body=deal), "p", "1").arguments(raw)


def test_a_default_is_not_shared_between_calls() -> None:
    MOVE.arguments('{"to":{"x":1}}')["tags"].append("mine")
    assert MOVE.arguments('{"to":{"x":1}}')["tags"] == []


@pytest.mark.parametrize("raw", ["", "  \n", "{}"])
def test_no_arguments_may_be_written_in_any_way(raw: str) -> None:
    assert NOTHING.arguments(raw) == {}


def test_an_explicit_schema_hands_on_what_was_sent() -> None:
    assert STRICT.arguments('{"a":null,"b":[1]}') == {"a": None, "b": [1]}


@given(values.json_values())
def test_any_json_value_reaches_the_body_unaltered(value: Any) -> None:
    assert ANYTHING.arguments(canonical.dumps({"value": value})) == {"value": value}


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("[1]", "The arguments must be a JSON object, not list."),
        ('"to"', "The arguments must be a JSON object, not str."),
        ("null", "The arguments must be a JSON object, not NoneType."),
        ('{"to":{"x":1}', "not valid JSON"),
        ('{"to":{"x":1}} and more', "not valid JSON"),
        ("{'to': 1}", "not valid JSON"),
        ('{"to":{"x":1},"to":{"x":2}}', "duplicate key 'to'"),
        ('{"to":{"x":NaN}}', "NaN is not a JSON number"),
        ('{"to":{"x":1e999}}', "$.to.x: inf is not a JSON number"),
        ('{"to":{"x":' + "1" * 5000 + "}}", "not valid JSON"),
        ('{"to":' * 50_000, "nested deeper"),
        ("{}", "$: 'to' is a required property"),
        ('{"to":1}', "$.to: 1 is not of type 'object'"),
        ('{"to":{"x":"1"}}', "$.to.x: '1' is not of type 'number'"),
        ('{"to":{"x":1},"speed":"warp"}', "$.speed: 'warp' is not one of ['fast', 'slow']"),
        ('{"to":{"x":1},"sped":"slow"}', "'sped' was unexpected"),
        ('{"to":{"x":1},"tags":["a",5]}', "$.tags[1]: 5 is not of type 'string'"),
        ('{"to":{"x":1},"when":"tomorrow"}', "Invalid RFC3339 encoded datetime - at `$.when`"),
        ('{"speed":"warp","tags":5}', "$.tags: 5 is not of type 'array'"),
    ],
)
def test_arguments_that_do_not_fit_are_answered_with_what_to_change(raw: str, why: str) -> None:
    with pytest.raises(BadArguments) as refused:
        MOVE.arguments(raw)
    assert why in str(refused.value)


def test_the_answer_to_bad_arguments_is_short_however_long_they_are() -> None:
    with pytest.raises(BadArguments) as refused:
        MOVE.arguments(json.dumps({"to": ["x" * 100_000], "speed": "y" * 100_000, "tags": "z" * 100_000}))
    assert len(str(refused.value)) < 2000


@dataclass
class Choosy:
    value: int

    def __post_init__(self) -> None:
        raise ERRORS[self.value]


def choose(it: Choosy) -> None:
    """Choose."""


ERRORS = [KeyError("no"), SystemExit(3), AssertionError(), RecursionError(), MemoryError()]
CHOOSE = prepare(Tool(body=choose), "p", "1")
WINDING = prepare(
    Tool(
        body=lambda **_: None,
        name="wind",
        description="d",
        parameters={
            "type": "object",
            "properties": {"it": {"$ref": "#/$defs/one"}},
            "$defs": {"one": {"anyOf": [{"type": "integer"}, {"allOf": [{"items": {"$ref": "#/$defs/one"}}]}]}},
        },
    ),
    "p",
    "1",
)


@pytest.mark.parametrize(
    ("tool", "raw"),
    [
        *((CHOOSE, f'{{"it":{{"value":{index}}}}}') for index in range(len(ERRORS))),
        (WINDING, '{"it":' + "[" * 190 + "]" * 190 + "}"),
    ],
)
def test_arguments_that_cannot_be_judged_or_converted_are_bad_arguments(tool: PreparedTool, raw: str) -> None:
    with pytest.raises(BadArguments, match=r"cannot be used|do not fit"):
        tool.arguments(raw)
