"""What a Responses stream says, twice and in numbered events, and how it may end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightlog_hookspecs import AssistantMessage, TextBlock, ThinkingBlock, ToolCallBlock
from support import wire_responses
from support.wire_kernels import ONCE, answers_of, asked, wired
from support.wire_providers import RESPONSES
from support.wire_recordings import ODD_COUNTS
from support.wire_server import served, sse


def events_of(items: Any, why: str = "", chunk: int = 7) -> list[dict[str, Any]]:
    """The events of a reply."""
    frames = wire_responses.ResponsesWire([], chunk=chunk).frames("gpt-test", items, why)
    return [json.loads(frame.decode().partition("data: ")[2]) for frame in frames]


def outcome(events: list[dict[str, Any]]) -> AssistantMessage | str:
    return RESPONSES.outcome([sse(event) for event in events])


FULL = events_of(RESPONSES.full[0])


def test_reasoning_goes_into_the_log_whole_and_without_what_the_server_keeps_for_itself() -> None:
    message = outcome(FULL)
    assert isinstance(message, AssistantMessage)
    thought = message.content[0]
    assert isinstance(thought, ThinkingBlock)
    assert thought.text == "Where shall I look?\n\nUp, perhaps."
    kept = json.loads(thought.replay)
    assert kept["by"] == "openai-tag"
    assert kept["item"].keys() == {"type", "id", "summary", "encrypted_content"}
    assert kept["item"]["encrypted_content"] != "half", "the sealed text of the beginning is not the whole one"
    assert json.loads(message.replay) == {"by": "openai-tag", "phases": ["commentary"]}


@pytest.mark.parametrize("at", range(1, len(FULL) - 1))
def test_an_event_that_is_lost_is_noticed(at: int) -> None:
    assert outcome([*FULL[:at], *FULL[at + 1 :]]) == "transport"


def renumbered(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


KEPT_ALIVE: list[dict[str, Any]] = [{"type": "keepalive", "sequence_number": number} for number in (0, 1, 7, 100)]


@given(st.lists(st.tuples(st.integers(0, len(FULL)), st.sampled_from(KEPT_ALIVE))), st.booleans())
def test_what_keeps_a_connection_alive_has_any_number(alive: list[tuple[int, Any]], counts: bool) -> None:
    events = list(FULL)
    for at, event in sorted(alive, key=lambda pair: pair[0], reverse=True):
        events.insert(at, event)
    assert outcome(renumbered(events) if counts else events) == outcome(FULL)


@pytest.mark.parametrize("at", range(1, len(FULL) - 1))
def test_an_event_that_is_lost_is_noticed_though_the_connection_was_kept_alive_before(at: int) -> None:
    assert outcome([*FULL[: at - 1], KEPT_ALIVE[-1], FULL[at - 1], *FULL[at + 1 :]]) == "transport"


@pytest.mark.parametrize("at", [at for at, event in enumerate(FULL) if event["type"].endswith("_text.delta")])
def test_lost_words_are_noticed_though_nobody_numbers_the_events(at: int) -> None:
    events = [{key: value for key, value in event.items() if key != "sequence_number"} for event in FULL]
    without = outcome([*events[:at], *events[at + 1 :]])
    if FULL[at]["type"] == "response.output_text.delta":
        assert without == "transport"
    else:
        assert isinstance(without, AssistantMessage), "of a summary nothing depends on the words"


def test_a_character_that_comes_in_two_pieces_is_whole_in_the_end() -> None:
    items = [wire_responses.text("\ud83d\ude00!"), wire_responses.call("look", '{"where":"\ud83d\ude00"}')]
    events = events_of(items, chunk=1)
    assert [event["delta"] for event in events if "delta" in event][:2] == ["\ud83d", "\ude00"]
    message = outcome(events)
    assert isinstance(message, AssistantMessage)
    assert message.text == "\U0001f600!"
    (call,) = [block for block in message.content if isinstance(block, ToolCallBlock)]
    assert call.arguments == '{"where":"\U0001f600"}'


@pytest.mark.parametrize(
    ("why", "finish"),
    [("max_output_tokens", "length"), ("content_filter", "filter"), ("steered", "steered"), ("max_messages", "length")],
)
def test_an_incomplete_answer_keeps_its_words_and_none_of_its_calls(why: str, finish: str) -> None:
    message = outcome(events_of(RESPONSES.full[0], why))
    assert isinstance(message, AssistantMessage)
    assert message.finish == finish
    assert not any(isinstance(block, ToolCallBlock) for block in message.content)


def test_an_answer_that_is_capped_in_the_middle_of_its_words_keeps_those() -> None:
    events = events_of([wire_responses.text("Hello there, you.")], "max_output_tokens")
    at = next(at for at, event in enumerate(events) if event["type"] == "response.output_text.done")
    capped = [*events[:at], {**events[-1], "sequence_number": at}]
    message = outcome(capped)
    assert isinstance(message, AssistantMessage)
    assert message.content == (TextBlock(text="Hello there, you."),)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "response.failed", "response": {"error": {"code": "server_error", "message": "x"}}}, "server"),
        (
            {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "x"}}},
            "rate_limit",
        ),
        ({"type": "response.failed", "response": {"error": {"code": "bio_policy", "message": "x"}}}, "filter"),
        ({"type": "response.failed", "response": {}}, "server"),
        ({"type": "response.failed", "response": None}, "server"),
        ({"type": "response.failed", "response": {"error": "busy"}}, "server"),
        ({"type": "response.failed", "response": {"error": {"code": "new", "type": "overloaded_error"}}}, "overloaded"),
        ({"type": "response.failed", "response": {"error": {"type": "invalid_request_error"}}}, "bad_request"),
        ({"type": "error", "code": "server_overloaded", "message": "x", "param": None}, "overloaded"),
        ({"type": "error", "error": {"type": "server_error", "code": None, "message": "x"}}, "server"),
        ({"type": "error", "code": "context_length_exceeded", "message": "x"}, "context_overflow"),
        ({"type": "error", "error": "busy"}, "server"),
        ({"error": {"message": "x", "type": "server_error", "code": None}}, "server"),
        ({"error": {"message": "x", "code": "context_length_exceeded"}}, "context_overflow"),
        ({"error": "busy"}, "server"),
        ({"type": "response.incomplete", "response": {"incomplete_details": {"reason": "tired"}}}, "protocol"),
        ({"type": "response.incomplete", "response": {}}, "protocol"),
        ({"type": "response.cancelled", "response": {}}, "server"),
        ({"type": "response.output_text.delta", "output_index": 5, "content_index": 0, "delta": "x"}, "protocol"),
        ({"type": "response.something.new"}, "cut"),
        ({}, "protocol"),
    ],
    ids=str,
)
def test_what_is_no_answer_has_a_name(event: dict[str, Any], kind: str) -> None:
    assert outcome([*FULL[:2], event]) == kind


CALL = wire_responses.call("look", '{"where": "up"}')


@pytest.mark.parametrize(
    "items",
    [
        [wire_responses.unsealed(), CALL],
        [wire_responses.unsealed(encrypted_content=None), CALL],
        [wire_responses.unsealed(encrypted_content=""), CALL],
        [wire_responses.thinking("Hm."), wire_responses.unsealed(), wire_responses.text("I look."), CALL],
        [wire_responses.thinking("Hm."), wire_responses.search(), wire_responses.thinking("So."), CALL],
        [wire_responses.search(), wire_responses.text("I look."), wire_responses.search(), CALL],
    ],
    ids=lambda items: "-".join(item["type"] for item in items),
)
async def test_items_that_the_provider_could_not_find_again_are_not_sent_back(items: Any, tmp_path: Path) -> None:
    wire = RESPONSES.wire([(items, ""), RESPONSES.short])
    path = tmp_path / "log.db"
    async with served(wire) as server, wired(path, RESPONSES.plugin) as kernel:
        turn = await asked(kernel, RESPONSES.at(server.url), limits=ONCE)
    assert (turn.message, turn.text, wire.refused) == ("", "Hi.", [])
    thoughts = [block for block in answers_of(path)[0].content if isinstance(block, ThinkingBlock)]
    assert all(json.loads(thought.replay)["item"] for thought in thoughts), "the log keeps what was received"


def test_reasoning_that_led_to_nothing_is_not_sent_back() -> None:
    message = outcome(events_of([wire_responses.text("Yes."), wire_responses.thinking("Hm.")], "max_output_tokens"))
    assert isinstance(message, AssistantMessage)
    assert isinstance(message.content[-1], ThinkingBlock)
    adapter = RESPONSES.plugin.adapter()
    assert b"reasoning" not in adapter.encode(message)


@pytest.mark.parametrize("odd", ODD_COUNTS, ids=str)
def test_counts_that_are_none_cost_no_answer(odd: Any) -> None:
    usage = {"input_tokens": odd, "output_tokens": 9, "input_tokens_details": {"cached_tokens": odd}}
    for counts in (odd, usage, {"input_tokens_details": odd, "output_tokens": odd}):
        message = outcome([*FULL[:-1], {**FULL[-1], "response": {"usage": counts}}])
        assert isinstance(message, AssistantMessage)
        assert (message.input_tokens, message.cached_tokens) == (0, 0)
        assert message.output_tokens == (9 if counts is usage and odd is None else 0), "half a count is a wrong one"


@pytest.mark.parametrize("fields", [{}, {"response": None}, {"response": []}], ids=str)
def test_an_end_that_says_nothing_more_costs_no_answer(fields: Any) -> None:
    last = {"type": "response.completed", "sequence_number": FULL[-1]["sequence_number"], **fields}
    assert isinstance(outcome([*FULL[:-1], last]), AssistantMessage)


def test_what_is_nested_too_deeply_is_a_failure_with_a_name() -> None:
    start = {"type": "response.output_item.added", "output_index": 9, "item": {"type": "new"}}
    for levels in range(800, 1000):
        item = f'{{"type":"new","x":{"[" * levels}{"]" * levels}}}'
        deep = f'{{"type":"response.output_item.done","output_index":9,"item":{item}}}'
        message = RESPONSES.outcome([sse(event) for event in (start, deep, {"type": "response.completed"})])
        assert message in ("protocol", "empty")
