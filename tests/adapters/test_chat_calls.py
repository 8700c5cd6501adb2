"""Calls come out as the model made them, in whatever way a server that speaks Chat Completions tells them apart."""

from __future__ import annotations

import json
from itertools import chain, pairwise, product, zip_longest
from typing import Any, Literal, NamedTuple, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.chat_streams import answer, called, calls, piece


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        (
            [piece("", index=0, id="a", name="f"), piece("", index=1, id="b", name="g"), piece('{"x":1}', index=1)],
            [("a", "f", "{}"), ("b", "g", '{"x":1}')],
        ),
        ([piece("{", id="a", name="f"), piece("}")], [("a", "f", "{}")]),
        (
            [piece("{}", index=0, id="a", name="f"), piece("{}", index=0, id="b", name="g")],
            [("a", "f", "{}"), ("b", "g", "{}")],
        ),
        ([piece('{"x":', index=0, name="f"), piece("1}", index=0)], [("call_0_0", "f", '{"x":1}')]),
        (
            [{"tool_calls": [{"function": {"name": n, "arguments": "{}"}} for n in "fg"]}],
            [("call_0_0", "f", "{}"), ("call_0_1", "g", "{}")],
        ),
        (
            [piece("{}", index=0, id="a", name="f"), piece("{}", index=1, id="a", name="g")],
            [("a", "f", "{}"), ("call_0_1", "g", "{}")],
        ),
        (
            [piece(text, index=0, id="a", name="f") for text in ("{", "}", "")],
            [("a", "f", "{}")],
        ),
        (
            [piece("{}", id="a", name=name) for name in "fg"],
            [("a", "f", "{}"), ("call_0_1", "g", "{}")],
        ),
        (
            [
                *(piece("{}", index=0, id="", name="f"), piece("\n", index=0, id="")),
                *(piece("{} ", index=0, id="", name="f"), piece("{}", index=0, id="", name="f")),
            ],
            [("call_0_0", "f", "{}\n"), ("call_0_1", "f", "{} "), ("call_0_2", "f", "{}")],
        ),
        (
            [piece("", index=0, name="f"), piece("", index=0, name="g")],
            [("call_0_0", "f", "{}"), ("call_0_1", "g", "{}")],
        ),
        ([piece("", index=0, id="a"), piece("{}", index=0, name="f")], [("a", "f", "{}")]),
        (
            [piece("{}", index=0, name="f"), piece("{}", index=0, id="a", name="f")],
            [("call_0_0", "f", "{}"), ("a", "f", "{}")],
        ),
        (
            [*(piece("", index=at, id="a", name="f") for at in (0, 1)), piece('{"x":1}', index=1)],
            [("a", "f", "{}"), ("call_0_1", "f", '{"x":1}')],
        ),
        ([piece("{", index=0, id="a", name="f"), piece("}", index=1, id="a")], [("a", "f", "{}")]),
        ([piece("{", id="a", name="f"), piece("}", id="a", name="g")], [("a", "f", "{}")]),
    ],
    ids=[
        *("in turns", "no index", "one index for all", "no id", "whole calls in one chunk", "one id"),
        *("all of it repeated", "one id, no index", "neither", "without arguments", "a late name", "an id too late"),
        *("one id in pieces", "an index for each piece", "another name"),
    ],
)
def test_calls_are_told_apart_however_they_are_numbered(
    deltas: list[dict[str, Any]], expected: list[tuple[str, str, str]]
) -> None:
    assert calls(answer(*deltas, stop="tool_calls")) == expected


def test_an_id_that_an_earlier_answer_has_is_replaced() -> None:
    message = answer(piece("{}", index=0, id="call_0", name="f"), stop="tool_calls", messages=(called("call_0"),))
    assert calls(message) == [("call_1_0", "f", "{}")]


@pytest.mark.parametrize(
    ("before", "given_ids", "expected"),
    [
        (["call_1_0"], [None], ["call_1_1"]),
        (["call_1_0", "call_1_1"], [None, None], ["call_1_2", "call_1_3"]),
        ([], ["call_1_1", None], ["call_1_1", "call_1_2"]),
        ([], [None, "call_1_0"], ["call_1_1", "call_1_0"]),
    ],
    ids=["made in an earlier answer", "twice", "given before it", "given behind it"],
)
def test_an_id_that_is_made_is_nobody_else_s(
    before: list[str], given_ids: list[str | None], expected: list[str]
) -> None:
    deltas = [piece("{}", index=at, id=given_id, name="f") for at, given_id in enumerate(given_ids)]
    message = answer(*deltas, stop="tool_calls", messages=(called(*before),))
    assert [call_id for call_id, _, _ in calls(message)] == expected


Index = Literal["right", "0 for all", "missing"]
Ids = Literal["once", "always", "late", "never"]
Order = Literal["in turns", "mixed", "side by side"]
Fragment = dict[str, Any]

WAYS: list[tuple[Index, Ids, Order]] = [
    *product(get_args(Index), get_args(Ids), ["in turns"]),
    *product(["right"], get_args(Ids), ["mixed"]),
    *product(["0 for all", "missing"], ["always"], ["mixed"]),
    *product(["missing"], ["once", "never"], ["side by side"]),
]
"""All in which it can be known which call a fragment is of."""

WORDS = st.text('{}"\\: ,a🌍', max_size=4)
VALUES = st.recursive(WORDS | st.integers(), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner))
ARGUMENTS = st.dictionaries(WORDS, VALUES, max_size=3).map(json.dumps)
OLD_IDS = ("old", "call_1_0")
GIVEN_IDS = (*OLD_IDS, "a", "b", "call_1_1", "call_1_2")


class Made(NamedTuple):
    """A call as the model made it; the server may have no id for it."""

    name: str
    call_id: str | None
    arguments: str


@st.composite
def streams(draw: st.DrawFn, index: Index, ids: Ids, order: Order) -> tuple[list[Made], list[list[Fragment]]]:
    """Calls in the order in which they begin, and the fragments in each delta of a stream that tells them apart."""
    by_id = order == "mixed" and index != "right"
    arguments = ARGUMENTS | st.just("") if by_id or index == "right" else ARGUMENTS
    made = [
        Made(
            draw(st.sampled_from("fg")),
            call_id if ids != "never" and (by_id or draw(st.booleans())) else None,
            draw(arguments),
        )
        for call_id in draw(st.permutations(GIVEN_IDS))[: draw(st.integers(1, 4))]
    ]
    says_all = ids == "always" and all(call.call_id for call in made) and draw(st.booleans())
    cut = [
        draw(fragments(call, {"right": number, "0 for all": 0, "missing": None}[index], ids, says_all=says_all))
        for number, call in enumerate(made)
    ]
    if order == "side by side":
        return made, [list(delta) for delta in zip_longest(*cut, fillvalue={"function": {"arguments": ""}})]
    if order == "in turns":
        return made, draw(in_deltas(list(chain(*cut))))
    turns = draw(st.permutations([number for number, its in enumerate(cut) for _ in its]))
    rest = [iter(its) for its in cut]
    return [made[number] for number in dict.fromkeys(turns)], draw(in_deltas([next(rest[number]) for number in turns]))


@st.composite
def fragments(draw: st.DrawFn, call: Made, index: int | None, ids: Ids, *, says_all: bool) -> list[Fragment]:
    """`call` in pieces, some of them empty; with `says_all` each has its name."""
    late = ids == "late"
    cuts = draw(st.lists(st.integers(0, len(call.arguments)), min_size=int(late), max_size=3))
    texts = [call.arguments[start:end] for start, end in pairwise([0, *sorted(cuts), len(call.arguments)])]
    with_id = draw(st.integers(1, len(cuts))) if late else 0
    out: list[Fragment] = []
    for number, text in enumerate(texts):
        fragment: Fragment = {"function": {"arguments": text}, **draw(st.sampled_from([{}, {"id": ""}, {"id": None}]))}
        if number == 0 or says_all:
            fragment["function"]["name"] = call.name
        if index is not None:
            fragment["index"] = index
        if call.call_id and (ids == "always" or number == with_id):
            fragment["id"] = call.call_id
        out.append(fragment)
    return out


@st.composite
def in_deltas(draw: st.DrawFn, pieces: list[Fragment]) -> list[list[Fragment]]:
    """`pieces` in chunks, however many in each."""
    deltas: list[list[Fragment]] = []
    for fragment in pieces:
        if deltas and draw(st.booleans()):
            deltas[-1].append(fragment)
        else:
            deltas.append([fragment])
    return deltas


@pytest.mark.parametrize(("index", "ids", "order"), WAYS)
@given(data=st.data())
def test_those_calls_come_out_that_were_made(index: Index, ids: Ids, order: Order, data: st.DataObject) -> None:
    made, deltas = data.draw(streams(index, ids, order))
    message = answer(*({"tool_calls": delta} for delta in deltas), stop="tool_calls", messages=(called(*OLD_IDS),))
    found = calls(message)
    assert [(name, raw) for _, name, raw in found] == [(call.name, call.arguments or "{}") for call in made]
    found_ids = [call_id for call_id, _, _ in found]
    assert len({*found_ids, *OLD_IDS}) == len(found_ids) + len(OLD_IDS), "an id is another call's"
    own = [call.call_id if call.call_id not in OLD_IDS else None for call in made]
    assert [call_id for call_id, its in zip(found_ids, own, strict=True) if its] == [its for its in own if its]
