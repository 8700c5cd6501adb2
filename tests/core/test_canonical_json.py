from __future__ import annotations

import enum
import json
import math
from collections import UserDict, namedtuple
from typing import Any

import pytest
from hypothesis import given

from flightlog.core import canonical
from flightlog_hookspecs.content import TextBlock, ThinkingBlock, ToolCallBlock
from flightlog_hookspecs.errors import BadPayload
from support import values

HIGH, LOW = "\ud83d", "\ude00"


def same(left: Any, right: Any) -> bool:
    """Equal in type, value and order of keys all the way down; 1, 1.0 and True differ, as do 0.0 and -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return repr(left) == repr(right)


def refusal(value: object) -> BadPayload:
    with pytest.raises(BadPayload) as caught:
        canonical.dumps(value)
    return caught.value


@given(values.json_values())
def test_every_json_value_comes_back_as_it_was(value: Any) -> None:
    text = canonical.dumps(value)
    assert same(canonical.loads(text), value)
    assert same(json.loads(text), value), "any JSON reader arrives at the same value"


@given(values.json_values())
def test_what_is_written_again_has_the_same_bytes(value: Any) -> None:
    text = canonical.dumps(value)
    assert canonical.dumps(canonical.loads(text)).encode() == text.encode()


@given(values.json_values())
def test_the_short_way_for_typed_values_writes_the_same(value: Any) -> None:
    assert canonical.dumps_typed(value) == canonical.dumps(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [1.0, None, True]}, '{"b":1,"a":[1.0,null,true]}'),
        ("é🎉\u2028", '"é🎉\u2028"'),
        ("\0\n\x1f", '"\\u0000\\n\\u001f"'),
        ("\ud800x", '"\\ud800x"'),
        (-0.0, "-0.0"),
        (1e22, "1e+22"),
        (2**63 - 1, "9223372036854775807"),
        (-(2**63), "-9223372036854775808"),
    ],
)
def test_canonical_form(value: object, text: str) -> None:
    assert canonical.dumps(value) == text
    assert canonical.dumps_typed(value) == text


class Text(str):
    __slots__ = ()


class Number(enum.IntEnum):
    ONE = 1


Pair = namedtuple("Pair", "a b")  # noqa: PYI024


class Liar(str):
    """A class of somebody's own that answers nothing as a string would."""

    __slots__ = ()

    def isascii(self) -> bool:
        return True

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __format__ = encode = __str__  # type: ignore[assignment]


@pytest.mark.parametrize("text", ["x", "\xe9", HIGH + LOW, f"{LOW}{HIGH}"], ids=ascii)
@pytest.mark.parametrize("make", [str, Text, Liar])
def test_words_are_made_plain_and_whole_whatever_their_class(make: type[str], text: str) -> None:
    wanted = text.replace(HIGH + LOW, "\U0001f600")
    found = [canonical.paired(make(text)), canonical.plain(make(text))]
    found += [
        block.text for block in map(canonical.whole, (TextBlock(text=make(text)), ThinkingBlock(text=make(text))))
    ]
    assert [(type(words), words) for words in found] == [(str, wanted)] * 4


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (math.nan, "not a JSON number"),
        (math.inf, "not a JSON number"),
        (-math.inf, "not a JSON number"),
        (2**63, "64 bits"),
        (-(2**63) - 1, "64 bits"),
        pytest.param(10**5000, "64 bits", id="5000 digits"),
        ((1, 2), "tuple is not a JSON value"),
        (Pair(1, 2), "Pair is not a JSON value"),
        ({1, 2}, "set is not a JSON value"),
        (b"x", "bytes is not a JSON value"),
        (Text("x"), "Text is not a JSON value"),
        (Number.ONE, "Number is not a JSON value"),
        (UserDict(), "UserDict is not a JSON value"),
        (object(), "object is not a JSON value"),
        ({1: "x"}, "a key is of type int"),
        ({None: "x"}, "a key is of type NoneType"),
        ({Text("k"): "x"}, "a key is of type Text"),
        pytest.param({10**5000: "x"}, "a key is of type int", id="key of 5000 digits"),
        (HIGH + LOW, "surrogate pair"),
        ({HIGH + LOW: 1}, "surrogate pair"),
    ],
)
def test_what_json_would_lose_is_refused_by_path(bad: object, why: str) -> None:
    error = refusal({"a": [0, {"b": bad}]})
    assert error.path == "$.a[1].b"
    assert why in error.reason


def test_a_cycle_is_refused() -> None:
    around: list[object] = []
    around.append({"again": around})
    assert "cycle" in refusal(around).reason
    assert "cycle" in refusal({"first": around}).reason


def test_a_cycle_that_branches_is_refused_at_once() -> None:
    around: list[object] = []
    around += [around, around]
    assert "cycle" in refusal(around).reason
    with pytest.raises(BadPayload, match="cycle"):
        canonical.plain(around)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_nesting_is_bounded() -> None:
    assert same(canonical.loads(canonical.dumps(nested(canonical.MAX_DEPTH))), nested(canonical.MAX_DEPTH))
    assert "nested deeper" in refusal(nested(canonical.MAX_DEPTH + 1)).reason
    assert "nested deeper" in refusal(nested(100_000)).reason


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, 2**63, [-(2**63) - 1], {"a": 10**18 * 100}, HIGH + LOW, ["x", HIGH + LOW]]
)
def test_the_short_way_refuses_what_typed_fields_can_still_hold(bad: object) -> None:
    with pytest.raises(BadPayload) as caught:
        canonical.dumps_typed({"field": bad})
    assert caught.value.path.startswith("$.field")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ('{"a":1} x', "Extra data"),
        ("NaN", "NaN is not a JSON number"),
        ("[Infinity]", "Infinity is not a JSON number"),
        ('{"a":-Infinity}', "-Infinity is not a JSON number"),
        ("1e999", "inf is not a JSON number"),
        ("9223372036854775808", "64 bits"),
        ("1" * 5000, "4300"),
        ('{"a":1,"b":2,"a":1}', "duplicate key 'a'"),
        ('[{"x":{"k":1,"k":2}}]', "duplicate key 'k'"),
        ("[" * 201 + "]" * 201, "nested deeper"),
        ("[" * 100_000, "nested deeper"),
        ('{"a":' * 100_000, "nested deeper"),
    ],
)
def test_foreign_json_is_parsed_strictly(text: str, why: str) -> None:
    with pytest.raises(BadPayload, match=why):
        canonical.loads(text)


@given(values.texts(large=False))
def test_a_text_column_shows_the_text_or_a_replacement_for_what_it_cannot_keep(text: str) -> None:
    shown = canonical.displayed(text)
    assert shown.encode().decode() == shown
    assert "\0" not in shown
    assert canonical.is_faithful(shown)
    assert (shown == text) == canonical.is_faithful(text)
    assert len(shown) == len(text)
    assert all(b in {a, "\ufffd"} for a, b in zip(text, shown, strict=True))


def test_a_surrogate_pair_that_a_stream_cut_in_two_is_joined() -> None:
    assert canonical.paired(f"a{HIGH}{LOW}b") == "a😀b"
    assert canonical.paired(HIGH) == HIGH
    assert canonical.paired(LOW + HIGH) == LOW + HIGH
    assert canonical.paired(HIGH + HIGH + LOW + LOW) == HIGH + "😀" + LOW


@pytest.mark.parametrize(
    ("block", "joined"),
    [
        (TextBlock(text=HIGH + LOW), TextBlock(text="😀")),
        (ThinkingBlock(text=HIGH + LOW, replay="r"), ThinkingBlock(text="😀", replay="r")),
        (
            ToolCallBlock(call_id="c", name="n", arguments=HIGH + LOW),
            ToolCallBlock(call_id="c", name="n", arguments="😀"),
        ),
    ],
)
def test_a_block_is_joined_in_its_words_or_arguments(block: Any, joined: Any) -> None:
    assert canonical.whole(block) == joined


def test_what_an_author_hands_in_becomes_plain() -> None:
    given_value = {"a": (1, Pair(2, 3)), "b": UserDict(c=[(4,)])}
    assert same(canonical.plain(given_value), {"a": [1, [2, 3]], "b": {"c": [[4]]}})
