"""What servers that speak Chat Completions do differently, and what they are sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightlog_hookspecs import (
    AssistantMessage,
    Head,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolSpec,
    Usage,
    UserMessage,
)
from flightlog_hookspecs.errors import ProviderError
from flightlog_plugins import deepseek, openai_chat
from flightlog_plugins.openai_chat.decoding import Reading
from flightlog_plugins.wire.sse import Frame
from support import values
from support.chat_streams import answer, piece


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_words_and_calls_are_blocks_in_the_order_they_came(name: str) -> None:
    message = answer(
        {name: "Hm", "content": None}, {name: "m."}, {"content": "Yes"}, {name: "So."}, piece("{}", id="a", name="f")
    )
    kinds = [(type(block), getattr(block, "text", "")) for block in message.content]
    assert kinds == [(ThinkingBlock, "Hmm."), (TextBlock, "Yes"), (ThinkingBlock, "So."), (ToolCallBlock, "")]


def thoughts(message: AssistantMessage) -> list[tuple[str, str]]:
    """The reasoning, each block with the name under which it goes back."""
    blocks = [block for block in message.content if isinstance(block, ThinkingBlock)]
    return [(block.text, json.loads(block.replay)["field"]) for block in blocks]


REASONING = ("reasoning_content", "reasoning")


@pytest.mark.parametrize("both", [REASONING, REASONING[::-1]], ids=str)
def test_reasoning_that_is_sent_under_two_names_is_heard_once(both: tuple[str, str]) -> None:
    message = answer(*(dict.fromkeys(both, text) for text in ("Hel", "lo", "", ".")), {"content": "Yes."})
    assert thoughts(message) == [("Hello.", "reasoning_content")]


@given(said=st.lists(st.tuples(st.sets(st.sampled_from(REASONING), min_size=1), st.sampled_from("abc")), min_size=1))
def test_nothing_is_lost_or_doubled_when_reasoning_changes_its_name(said: list[tuple[set[str], str]]) -> None:
    message = answer(*(dict.fromkeys(names, text) for names, text in said), {"content": "Yes."})
    ((text, name),) = thoughts(message)
    assert text == "".join(text for _, text in said)
    assert name in said[0][0], "the first name is the one that it goes back under"


def test_of_two_texts_under_two_names_the_one_is_heard_that_was_heard_before() -> None:
    deltas = [{"reasoning": "I "}, {"reasoning": "look", "reasoning_content": "(short"}, {"reasoning_content": "."}]
    assert thoughts(answer(*deltas, {"content": "Yes."})) == [("I look.", "reasoning")]


def tokens(message: AssistantMessage) -> Usage:
    return Usage(
        input_tokens=message.input_tokens,
        output_tokens=message.output_tokens,
        cached_tokens=message.cached_tokens,
        cache_write_tokens=message.cache_write_tokens,
    )


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2}, Usage(input_tokens=9, output_tokens=2)),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
            Usage(input_tokens=5, output_tokens=2, cached_tokens=4),
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None, "prompt_cache_hit_tokens": 4},
            Usage(input_tokens=5, output_tokens=2, cached_tokens=4),
        ),
        (
            {"prompt_tokens": 3, "completion_tokens": 2, "prompt_cache_hit_tokens": 4},
            Usage(input_tokens=0, output_tokens=2, cached_tokens=4),
        ),
        ({"prompt_tokens": None, "completion_tokens": None}, Usage()),
        (
            {"prompt_tokens": 9.0, "completion_tokens": 2.5, "prompt_tokens_details": {"cached_tokens": 4.0}},
            Usage(input_tokens=5, output_tokens=2, cached_tokens=4),
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": [4]},
            Usage(input_tokens=9, output_tokens=2),
        ),
    ],
    ids=str,
)
def test_tokens_are_counted_as_each_server_counts_them(usage: dict[str, Any], expected: Usage) -> None:
    assert tokens(answer({"content": "x"}, usage=usage)) == expected


NO_NUMBERS = ("12", "", True, False, -1, -0.5, float("nan"), float("inf"), [], [12], {}, {"total": 12}, 10**400)
COUNTS = ("prompt_tokens", "completion_tokens", "prompt_cache_hit_tokens")
DETAILS = ("cached_tokens", "cache_write_tokens")
ODD_COUNTS = st.dictionaries(st.sampled_from(COUNTS), st.sampled_from(NO_NUMBERS) | values.json_values())
ODD_DETAILS = st.dictionaries(st.sampled_from(DETAILS), st.sampled_from(NO_NUMBERS)) | st.sampled_from(NO_NUMBERS)


@given(
    usage=st.sampled_from(NO_NUMBERS)
    | st.builds(lambda counts, more: {**counts, "prompt_tokens_details": more}, ODD_COUNTS, ODD_DETAILS)
)
def test_no_count_costs_an_answer(usage: object) -> None:
    message = answer({"content": "x"}, usage=usage)
    assert (message.content, message.finish) == ((TextBlock(text="x"),), "stop")


RIGHT = {"prompt_tokens": 9, "completion_tokens": 2}


@pytest.mark.parametrize(
    "usage",
    [
        *(None, {}, [], "12", True),
        *({**RIGHT, "prompt_tokens": number} for number in NO_NUMBERS),
        *({**RIGHT, "completion_tokens": number} for number in NO_NUMBERS),
    ],
    ids=lambda usage: str(usage)[:60],
)
def test_what_is_no_count_leaves_the_one_before_it(usage: object) -> None:
    message = answer({"content": "x"}, before=RIGHT, usage=usage)
    assert tokens(message) == Usage(input_tokens=9, output_tokens=2)


def test_a_call_that_the_limit_cut_off_is_not_a_call_whatever_the_server_says() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 50}
    deltas = [{"content": "I look."}, piece('{"where": "u', index=0, id="a", name="f")]
    assert answer(*deltas, stop="tool_calls", usage=usage, max_tokens=50).finish == "length"
    assert answer(*deltas, stop="tool_calls", usage=usage, max_tokens=51).finish == "tool_calls"


@pytest.mark.parametrize(
    ("deltas", "stop", "kind"),
    [
        ([], None, "cut"),
        ([{"content": "x"}], None, "cut"),
        ([], "stop", "empty"),
        ([{"content": "x"}], "insufficient_system_resource", "overloaded"),
        ([{"content": "x"}], "error", "server"),
        ([piece("{}", index=0, id="a", name="f")], "error", "server"),
        ([{"content": "x"}], "tired", "protocol"),
        ([{"content": ["x"]}], "stop", "protocol"),
        ([{"tool_calls": [None]}], "stop", "protocol"),
        ([], "content_filter", "filter"),
        ([], "length", "length"),
    ],
    ids=str,
)
def test_what_is_no_answer_has_a_name(deltas: list[dict[str, Any]], stop: str | None, kind: str) -> None:
    with pytest.raises(ProviderError) as caught:
        answer(*deltas, stop=stop)
    assert caught.value.kind == kind


def test_a_refusal_is_one_though_the_server_says_stop() -> None:
    assert answer({"refusal": "I will not."}).finish == "refusal"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "busy", "code": "server_overloaded"}, "overloaded"),
        ({"message": "slow", "code": 429, "type": "x"}, "rate_limit"),
        ({"message": "maximum context length is 5", "code": 400}, "context_overflow"),
        ("broken", "server"),
        ({"message": None}, "server"),
    ],
    ids=str,
)
def test_an_error_in_mid_stream_is_named(error: object, kind: str) -> None:
    with pytest.raises(ProviderError) as caught:
        Reading("tag", ()).read(Frame("", json.dumps({"error": error})))
    assert caught.value.kind == kind


TOOL = ToolSpec(name="f", description="Do.", parameters='{"type":"object","properties":{}}')


def body(dialect: openai_chat.Dialect, model: str, *messages: Any, system: str = "") -> dict[str, Any]:
    """What is sent."""
    head = Head(adapter=dialect.adapter, model=model, system=system, tools=(TOOL,))
    value: dict[str, Any] = json.loads(dialect.body([dialect.encoded(part) for part in (head, *messages)]))
    return value


ASK = UserMessage(message_id="m", content=(TextBlock(text="Hi \ud800!"),))


def test_the_options_of_a_model_s_name_are_sent() -> None:
    model = "deepseek-x?thinking=disabled&effort=max&max_tokens=7&temperature=0.5"
    assert body(deepseek.DIALECT, model, ASK, system="Be brief.") == {
        "model": "deepseek-x",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 7,
        "temperature": 0.5,
        "reasoning_effort": "max",
        "thinking": {"type": "disabled"},
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": "Do.", "parameters": {"type": "object", "properties": {}}},
            }
        ],
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi \ufffd!"}],
    }


@pytest.mark.parametrize(
    ("model", "name"),
    [("m?max_tokens=7", "max_completion_tokens"), ("m?max_tokens=7&base_url=http://x/v1", "max_tokens")],
)
def test_the_limit_has_its_new_name_where_that_is_known(model: str, name: str) -> None:
    assert body(openai_chat.DIALECT, model, ASK)[name] == 7


def test_reasoning_goes_back_to_the_address_it_came_from_and_to_no_other() -> None:
    def sent(model: str, by: str) -> object:
        head = Head(adapter="openai-chat", model=by)
        tag = openai_chat.DIALECT.encoded(head).decode().partition("\n")[0]
        thought = ThinkingBlock(text="Hm.", replay=json.dumps({"by": tag, "field": "reasoning"}))
        said = AssistantMessage(attempt=1, finish="stop", content=(thought, TextBlock(text="Yes.")))
        return body(openai_chat.DIALECT, model, ASK, said, ASK)["messages"][1]

    assert sent("a?base_url=http://x", "b?base_url=http://x") == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning": "Hm.",
    }
    assert sent("a?base_url=http://x", "b?base_url=http://y") == {"role": "assistant", "content": "Yes."}
