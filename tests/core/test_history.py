from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core.history import EncodedRequest, History, Prefix, place_of
from flightlog.core.request import assert_request_reconstructable, changes
from flightlog_hookspecs.content import ThinkingBlock, ToolCallBlock, text_blocks
from flightlog_hookspecs.errors import InvariantViolation
from flightlog_hookspecs.events import (
    AssistantMessage,
    Event,
    Head,
    Message,
    RequestHeader,
    StepEnd,
    ToolResult,
    ToolSpec,
    UserMessage,
)
from support.legal_logs import LegalLog, legal_logs

HEAD = Head(adapter="a", model="m", system="s")
ASK = UserMessage(message_id="m1", content=text_blocks("go"))
CALLS = AssistantMessage(
    attempt=1,
    content=tuple(ToolCallBlock(call_id=f"c{number}", name="look", arguments="{}") for number in range(4)),
    finish="tool_calls",
)
MORE = UserMessage(message_id="m2", content=text_blocks("and then"))


def result(position: int) -> ToolResult:
    return ToolResult(
        position=position,
        call_id=f"c{position}",
        name="look",
        message_seq=2,
        outcome="ok",
        content=text_blocks(f"result {position}"),
    )


def history(*events: tuple[int, Event]) -> History:
    made = History()
    for seq, event in events:
        made.add(event, seq)
    return made


def messages(of: History) -> list[Message]:
    return [message for _, message in of.since(0)]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_results_stand_in_the_order_of_their_calls_whatever_order_they_finished_in(order: Sequence[int]) -> None:
    finished = [(3 + index, result(position)) for index, position in enumerate(order)]
    made = history((1, ASK), (2, CALLS), *finished, (7, MORE))
    assert messages(made) == [ASK, CALLS, result(0), result(1), result(2), result(3), MORE]


def test_a_late_result_stands_before_what_entered_meanwhile() -> None:
    made = history((1, ASK), (2, CALLS), (3, result(1)), (4, MORE), (5, result(0)))
    assert messages(made) == [ASK, CALLS, result(0), result(1), MORE]
    assert [made.place(index) for index in range(len(made))] == [1, 2, 2, 2, 4]


def test_what_the_model_does_not_see_has_no_place() -> None:
    assert place_of(StepEnd(), 5) is None
    assert place_of(ASK, 5) == (5, 0)
    assert place_of(result(3), 5) == (2, 4)
    assert len(history((1, StepEnd()))) == 0


@given(legal_logs(), st.integers())
def test_a_conversation_holds_every_message_once_whatever_order_they_arrive_in(log: LegalLog, seed: int) -> None:
    records = [record for record in log.records if not replaces(record.event)]
    in_order = messages(history(*((record.seq, record.event) for record in records)))
    shuffled = list(records)
    Random(seed).shuffle(shuffled)
    assert messages(history(*((record.seq, record.event) for record in shuffled))) == in_order
    seen = [record.event for record in records if isinstance(record.event, Message)]
    assert sorted(map(repr, in_order)) == sorted(map(repr, seen))


def replaces(event: Event) -> bool:
    """Whether a message stands for earlier ones."""
    return getattr(event, "replaces", None) is not None or getattr(event, "replaces_from", None) is not None


def summary(text: str, first: int, last: int) -> UserMessage:
    content = text_blocks(text)
    return UserMessage(message_id="s", content=content, source="summary", replaces_from=first, replaces_to=last)


def test_a_summary_stands_where_the_first_of_what_it_covers_stood() -> None:
    made = history((1, ASK), (2, CALLS), *((3 + p, result(p)) for p in range(4)), (7, MORE))
    before = made.messages()
    made.add(summary("so far", 2, 6), 8)
    assert [message.text for message in made.messages() if not isinstance(message, AssistantMessage)] == [
        "go",
        "so far",
        "and then",
    ]
    assert made.rewritten_at == 8
    assert list(before)[1] == CALLS, "who reads the messages as they were keeps them"
    made.add(summary("all in all", 1, 7), 9)
    assert [message.text for message in made.messages()] == ["all in all"], "a later one may cover it"


def test_a_shortened_result_stands_in_the_place_of_the_whole_one() -> None:
    made = history((1, ASK), (2, CALLS), *((3 + p, result(p)) for p in range(4)))
    short = evolve(result(2), content=text_blocks("."), replaces=5)
    made.add(short, 8)
    assert messages(made) == [ASK, CALLS, result(0), result(1), short, result(3)]


def test_only_thinking_that_is_bound_to_what_is_gone_is_left_out() -> None:
    old = evolve(CALLS, content=(ThinkingBlock(text="hm", replay="sig"), *CALLS.content), replay="state")
    for bound in (True, False):
        request = EncodedRequest(HEAD, encode, rewritten_at=5, bound_thinking=bound)
        request.add((2, 0), old)
        request.add((7, 0), old)
        assert (b"hm" in request.fragments[1]) == (not bound)
        assert (b"state" in request.fragments[1]) == (not bound)
        assert b"hm" in request.fragments[2]
        assert request.messages == [old, old], "the messages are the log's"


def encode(part: Head | Message) -> bytes:
    return repr(part).encode()


def test_a_request_grows_message_by_message_to_what_it_would_be_in_one_go() -> None:
    grown = EncodedRequest(HEAD, encode)
    digests = [grown.digest]
    for message in (ASK, CALLS, MORE):
        grown.add((1, 0), message)
        digests.append(grown.digest)
    assert len(set(digests)) == 4
    at_once = EncodedRequest(HEAD, encode)
    for message in grown.messages:
        at_once.add((1, 0), message)
    assert at_once.digest == grown.digest
    assert grown.fragments == [encode(part) for part in (HEAD, ASK, CALLS, MORE)]
    framed = b"".join(len(fragment).to_bytes(8, "big") + fragment for fragment in grown.fragments)
    assert grown.digest == hashlib.sha256(framed).hexdigest()


def test_fragments_that_share_their_bytes_differently_have_different_digests() -> None:
    def cut(part: Head | Message) -> bytes:
        return {HEAD: b"ab", ASK: b"c"}[part]  # type: ignore[index]

    def cut_elsewhere(part: Head | Message) -> bytes:
        return {HEAD: b"a", ASK: b"bc"}[part]  # type: ignore[index]

    one, other = EncodedRequest(HEAD, cut), EncodedRequest(HEAD, cut_elsewhere)
    one.add((1, 0), ASK)
    other.add((1, 0), ASK)
    assert b"".join(one.fragments) == b"".join(other.fragments)
    assert one.digest != other.digest


def test_each_part_is_encoded_once() -> None:
    asked: list[object] = []
    request = EncodedRequest(HEAD, lambda part: asked.append(part) or b"")  # type: ignore[func-returns-value]
    request.add((1, 0), ASK)
    request.add((2, 0), MORE)
    assert asked == [HEAD, ASK, MORE]


@given(st.lists(st.integers()), st.lists(st.integers()), st.data())
def test_a_prefix_is_the_sequence_that_the_list_was(items: list[int], later: list[int], data: st.DataObject) -> None:
    growing = list(items)
    prefix = Prefix(growing)
    growing.extend(later)
    assert list(prefix) == items
    assert len(prefix) == len(items)
    assert list(reversed(prefix)) == items[::-1]
    bounds = st.none() | st.integers(-8, 8)
    part = slice(data.draw(bounds), data.draw(bounds), data.draw(st.sampled_from([None, 1, 2, -1, -3])))
    assert prefix[part] == items[part]
    for index in range(-len(items), len(items)):
        assert prefix[index] == items[index]
    for index in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            prefix[index]
    for item in {*items, *later}:
        assert (item in prefix) == (item in items)
        assert prefix.count(item) == items.count(item)


def test_a_prefix_cannot_be_changed() -> None:
    prefix = Prefix([1])
    with pytest.raises(TypeError):
        prefix[0] = 2  # type: ignore[index]
    with pytest.raises(AttributeError):
        prefix.append(2)  # type: ignore[attr-defined]


LOGGED = [((1, 0), ASK), ((2, 0), CALLS)]
HEADER = RequestHeader(head=HEAD, reason="first")


def test_what_the_log_says_may_be_sent() -> None:
    assert_request_reconstructable(HEADER, HEAD, LOGGED, list(LOGGED))


@pytest.mark.parametrize(
    ("header", "head", "in_memory", "why"),
    [
        (None, HEAD, LOGGED, "without a logged request/header"),
        (HEADER, Head(adapter="a", model="m", system="s "), LOGGED, "head differs"),
        (HEADER, HEAD, LOGGED[:1], "1 new messages in memory, 2 in the log"),
        (HEADER, HEAD, [*LOGGED, ((3, 0), MORE)], "3 new messages in memory, 2 in the log"),
        (HEADER, HEAD, [LOGGED[0], ((2, 0), MORE)], "differs from the log's"),
        (HEADER, HEAD, [LOGGED[0], ((2, 1), CALLS)], "differs from the log's"),
        (HEADER, HEAD, LOGGED[::-1], "differs from the log's"),
    ],
)
def test_what_the_log_does_not_say_is_never_sent(
    header: RequestHeader | None, head: Head, in_memory: list[tuple[tuple[int, int], Message]], why: str
) -> None:
    with pytest.raises(InvariantViolation, match=why):
        assert_request_reconstructable(header, head, in_memory, LOGGED)


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (HEAD, ""),
        (Head(adapter="b", model="m", system="s"), "adapter"),
        (Head(adapter="a", model="n", system="t"), "model"),
        (Head(adapter="a", model="m", system="t"), ""),
        (
            Head(
                adapter="a",
                model="m",
                system="s",
                tools=(ToolSpec(name="t", description="", parameters=""),),
                parameters='{"temperature":0}',
            ),
            "tools, parameters",
        ),
    ],
)
def test_a_new_head_says_what_changed(new: Head, reason: str) -> None:
    assert changes(HEADER, new) == reason
    assert changes(None, new) == "first"
