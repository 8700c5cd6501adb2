"""What brings something new and what does not: outputs that are alike, calls that are the same, words told."""

from __future__ import annotations

from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from flightlog.core.fold import fold
from flightlog.core.limits import ALIKE_MAX_CHARS
from flightlog.core.progress import alike, gist, repeats
from flightlog.core.state import EMPTY, Call, Step
from flightlog_hookspecs.content import FileBlock, ToolCallBlock, text_blocks
from flightlog_hookspecs.events import (
    ApprovalAsked,
    AssistantMessage,
    Record,
    StepEnd,
    ToolCall,
    ToolResult,
    UserMessage,
)
from flightlog_hookspecs.tools import Effect, Outcome
from support.legal_logs import LegalLog, legal_logs

STATUS = "build 17 of the main branch: running"


def subsequence_chars(one: str, other: str) -> int:
    """The length of the longest common subsequence, by the book."""
    row = [0] * (len(other) + 1)
    for char in one:
        before = row[:]
        for i, its in enumerate(other, 1):
            row[i] = before[i - 1] + 1 if char == its else max(before[i], row[i - 1])
    return row[-1]


@given(
    st.text("ab", max_size=60), st.lists(st.tuples(st.integers(0, 59), st.sampled_from(["", "c", "ab"])), max_size=4)
)
@example("a" * 20, [(3, "c")])
def test_texts_are_alike_when_all_but_a_twentieth_of_them_is_the_same(one: str, edits: list[tuple[int, str]]) -> None:
    other = one
    for at, piece in edits:
        other = other[:at] + piece + other[at + 1 :]
    whole = len(one) + len(other)
    assert alike(one, other) == (20 * 2 * subsequence_chars(one, other) >= 19 * whole)
    assert alike(one, other) == alike(other, one)
    if SequenceMatcher(None, one, other, autojunk=False).ratio() > 0.951:
        assert alike(one, other)


def test_long_texts_are_kept_as_hashes_and_alike_only_when_equal() -> None:
    long = "x" * (ALIKE_MAX_CHARS + 1)
    assert len(gist(text_blocks(long))) == 64
    assert alike(gist(text_blocks(long)), gist(text_blocks(long)))
    assert not alike(gist(text_blocks(long)), gist(text_blocks(f"{long[:-1]}y")))


def test_two_files_are_not_alike_because_the_words_beside_them_are() -> None:
    one, other = (FileBlock.of(data, media_type="image/png") for data in (b"1", b"2"))
    assert gist((*text_blocks("a picture"), one)) != gist((*text_blocks("a picture"), other))


def called(
    output: str,
    arguments: str = "{}",
    *,
    name: str = "look",
    effect: Effect | None = "external",
    outcome: Outcome = "ok",
    key: str = "",
) -> Call:
    """A call that is answered; with no `effect` it was never started."""
    call = Call(position=0, call_id="c", name=name, arguments=arguments, outcome=outcome, output=output)
    if effect is None:
        return call
    started = ToolCall(
        position=0,
        call_id="c",
        name=name,
        arguments=arguments,
        invocation_id="i",
        message_seq=1,
        mode="exclusive",
        effect=effect,
        plugin="p",
        plugin_version="1",
        key=key,
    )
    return evolve(call, started=started)


def said(text: str) -> Step:
    return Step(number=1, message=AssistantMessage(attempt=1, content=text_blocks(text), finish="stop"))


def step(*calls: Call, told: tuple[str, ...] = ()) -> Step:
    return Step(number=1, calls=calls, told=told)


REPEATED: list[tuple[str, Step, Step]] = [
    ("the same call and answer", step(called("blue")), step(called("blue"))),
    ("arguments written otherwise", step(called("", '{"a":1,"b":2}')), step(called("", '{ "b": 2, "a": 1 }'))),
    ("an answer that is nearly the same", step(called(f"{STATUS} 1")), step(called(f"{STATUS} 2"))),
    (
        "the same key arguments",
        step(called("", '{"at":1,"why":"a"}', key='{"at":1}')),
        step(called("", '{"at":1,"why":"b"}', key='{"at":1}')),
    ),
    ("a call that never starts", step(called("no", effect=None)), step(called("no", effect=None))),
    (
        "a read that fails in nearly the same words",
        step(called(f"{STATUS} 1", effect="read", outcome="error")),
        step(called(f"{STATUS} 2", effect="read", outcome="error")),
    ),
    ("the same words", said("I am done."), said("I am done.")),
    ("told the same again", step(called("blue"), told=("go on",)), step(called("blue"), told=("go on",))),
    ("told nothing any more", step(called("blue"), told=("go on",)), step(called("blue"))),
]
NEW: list[tuple[str, Step, Step]] = [
    ("another answer", step(called("blue")), step(called("grey"))),
    ("another outcome", step(called("blue")), step(called("blue", outcome="error"))),
    ("another tool", step(called("blue")), step(called("blue", name="see"))),
    ("other arguments", step(called("blue", '{"at":1}')), step(called("blue", '{"at":2}'))),
    ("other key arguments", step(called("", key='{"at":1}')), step(called("", key='{"at":2}'))),
    ("one more call", step(called("blue")), step(called("blue"), called("blue"))),
    ("words after a call", step(called("blue")), said("blue")),
    ("other words", said("I am done."), said("I will look.")),
    (
        "a read whose answer has changed in anything",
        step(called(f"{STATUS} 1", effect="read")),
        step(called(f"{STATUS} 2", effect="read")),
    ),
    ("told something", step(called("blue")), step(called("blue"), told=("look up",))),
    ("told something else", step(called("blue"), told=("a",)), step(called("blue"), told=("b",))),
]


@pytest.mark.parametrize(("before", "after"), [pytest.param(*case[1:], id=case[0]) for case in REPEATED])
def test_a_step_that_brings_nothing_new_repeats_the_one_before(before: Any, after: Any) -> None:
    assert repeats(before, after)


@pytest.mark.parametrize(("before", "after"), [pytest.param(*case[1:], id=case[0]) for case in NEW])
def test_a_step_that_brings_something_new_repeats_nothing(before: Any, after: Any) -> None:
    assert not repeats(before, after)


def rebuilt(records: list[Record]) -> list[tuple[int | None, Step]]:
    """The closed steps of a log with their turns, made of their records one by one and not by folding."""
    steps: list[tuple[int | None, Step]] = []
    for end in (record for record in records if isinstance(record.event, StepEnd)):
        own = [r.event for r in records if (r.turn, r.step) == (end.turn, end.step) and r.seq < end.seq]
        message = next((event for event in own if isinstance(event, AssistantMessage)), None)
        blocks = [block for block in message.content if isinstance(block, ToolCallBlock)] if message else []
        calls = []
        for position, block in enumerate(blocks):
            starts = [e for e in own if isinstance(e, ToolCall) and e.position == position]
            asked = [e.arguments for e in own if isinstance(e, ApprovalAsked) and e.position == position]
            (result,) = [e for e in own if isinstance(e, ToolResult) and e.position == position]
            arguments = starts[-1].arguments if starts else (asked[-1:] or [""])[0] or block.arguments
            call = called(gist(result.content), arguments, name=block.name, outcome=result.outcome)
            calls.append(evolve(call, started=starts[-1] if starts else None))
        told = [e for e in own if isinstance(e, UserMessage) and e.source not in ("context", "kernel")]
        gists = tuple(gist(e.content) for e in told)
        steps.append((end.turn, Step(number=1, message=message, calls=tuple(calls), told=gists)))
    return steps


@given(legal_logs())
def test_how_often_a_log_says_the_same_follows_from_its_rows_alone(log: LegalLog) -> None:
    turn, state = 0, EMPTY
    for record in log.records:
        state = fold(state, record.event, record.seq, record.epoch)
        turn = record.turn or turn
    steps = [step for its_turn, step in rebuilt(list(log.records)) if its_turn == state.turn]
    alike_steps = min(1, len(steps))
    for before, step in pairwise(steps):
        alike_steps = alike_steps + 1 if repeats(before, step) else 1
    assert state.alike == alike_steps
