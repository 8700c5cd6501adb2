"""What Anthropic is sent, and that nothing of it ever changes once it was sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core.history import EncodedRequest, History
from flightlog.runtime.plugins import bound_thinking, window_of
from flightlog_hookspecs import (
    AssistantMessage,
    Head,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResult,
    ToolSpec,
    Usage,
    UserMessage,
)
from flightlog_hookspecs.content import text_blocks
from flightlog_plugins.anthropic import adapter
from flightlog_plugins.anthropic.decoding import Reading
from flightlog_plugins.anthropic.encoding import NO_WORDS, body, encoded
from flightlog_plugins.wire.sse import Frame
from support import wire_anthropic
from support.wire_providers import ANTHROPIC, PROVIDERS, Provider
from support.wire_recordings import ODD_COUNTS
from support.wire_server import sse

TOOL = ToolSpec(name="look", description="Look.", parameters='{"type":"object","properties":{}}')
HEAD = Head(adapter="anthropic", model="m", system="Be brief.", tools=(TOOL,))
WORDS = st.text(max_size=6) | st.sampled_from(["", " ", "\n", '{"a": 1}', "\ud800", "\x00", "role\tby"])


def user(words: str) -> UserMessage:
    return UserMessage(message_id="m", content=text_blocks(words))


def result(call_id: str, words: str = "seen", outcome: Any = "ok") -> ToolResult:
    content = text_blocks(words)
    return ToolResult(position=0, call_id=call_id, name="look", message_seq=1, outcome=outcome, content=content)


def answer(*content: Any, **more: Any) -> AssistantMessage:
    return AssistantMessage(attempt=1, content=content, finish="stop", **more)


def sent(head: Head, *messages: Message) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(body([encoded(part) for part in (head, *messages)]))
    return value


def kinds_of(message: AssistantMessage) -> list[str]:
    """The types of the blocks that are sent of an answer."""
    return [block["type"] for block in sent(HEAD, user("Hi."), message)["messages"][1]["content"]]


def call(call_id: str, arguments: str = "{}") -> ToolCallBlock:
    return ToolCallBlock(call_id=call_id, name="look", arguments=arguments)


def own_thought(head: Head, words: str = "Hm.") -> ThinkingBlock:
    """A block of thinking that came behind `head`."""
    tag = encoded(head).decode().partition("\n")[0]
    block = {"type": "thinking", "thinking": words, "signature": "s"}
    return ThinkingBlock(text=words, replay=json.dumps({"by": tag, "block": block}))


def test_a_whole_request_looks_as_the_provider_wants_it() -> None:
    thought = own_thought(HEAD)
    messages = [
        user("Hi."),
        answer(thought, TextBlock(text=""), TextBlock(text="I look."), call("a", ' {"x":\n1.0}'), call("b", "{broken")),
        result("a"),
        result("b", "", "error"),
        user("And?"),
        answer(TextBlock(text="Nothing.")),
        user(" "),
    ]
    mark = {"type": "ephemeral"}
    assert sent(HEAD, *messages) == {
        "model": "m",
        "max_tokens": 32000,
        "stream": True,
        "cache_control": mark,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": mark}],
        "tools": [
            {
                "name": "look",
                "description": "Look.",
                "input_schema": {"type": "object", "properties": {}},
                "cache_control": mark,
            }
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi."}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "a", "name": "look", "input": {"x": 1.0}},
                    {"type": "tool_use", "id": "b", "name": "look", "input": {"unreadable_arguments": "{broken"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "seen"}]},
                    {"type": "tool_result", "tool_use_id": "b", "is_error": True},
                    {"type": "text", "text": "And?"},
                ],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "Nothing."}]},
            {"role": "user", "content": [{"type": "text", "text": NO_WORDS}]},
        ],
    }


def test_what_a_request_takes_is_said_before_its_answer_can_fail() -> None:
    usage = {"input_tokens": 11, "cache_creation_input_tokens": None, "cache_read_input_tokens": 7, "output_tokens": 1}
    start = {"type": "message_start", "message": {"usage": usage}}
    read = Reading("tag").read(Frame("message_start", json.dumps(start)))
    assert read == [Usage(input_tokens=11, cached_tokens=7, output_tokens=1)]


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("max_tokens=5", {"max_tokens": 5}),
        ("thinking=adaptive&display=omitted", {"thinking": {"type": "adaptive", "display": "omitted"}}),
        ("thinking=2048", {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        ("effort=xhigh", {"output_config": {"effort": "xhigh"}}),
        ("cache=1h", {"cache_control": {"type": "ephemeral", "ttl": "1h"}}),
    ],
)
def test_the_options_of_a_model_s_name_are_sent(query: str, fields: dict[str, object]) -> None:
    request = sent(Head(adapter="anthropic", model=f"m?{query}"), user("Hi."))
    assert {name: request[name] for name in fields} == fields


def test_a_cache_that_is_off_is_not_spoken_of() -> None:
    assert b"cache_control" not in body([encoded(Head(adapter="anthropic", model="m?cache=off", system="x"))])


@pytest.mark.parametrize(
    "other",
    [
        Head(adapter="anthropic", model="n", system="Be brief.", tools=(TOOL,)),
        Head(adapter="anthropic", model="m", system="Be long.", tools=(TOOL,)),
        Head(adapter="anthropic", model="m", system="Be brief."),
    ],
    ids=["model", "system", "tools"],
)
def test_thinking_is_left_out_behind_any_other_head(other: Head) -> None:
    messages = [user("Hi."), answer(own_thought(HEAD), TextBlock(text="Yes.")), user("And?")]
    assert len(sent(HEAD, *messages)["messages"][1]["content"]) == 2
    assert sent(other, *messages)["messages"][1]["content"] == [{"type": "text", "text": "Yes."}]


def test_thinking_from_before_the_context_was_made_shorter_is_left_out() -> None:
    history = History()
    messages = [user("Hi."), answer(own_thought(HEAD), call("a")), result("a"), user("So?")]
    rows = [2, 4, 6, 8]
    for row, message in zip(rows, messages, strict=True):
        history.add(evolve(message, message_seq=4) if isinstance(message, ToolResult) else message, row)
    summary = UserMessage(
        message_id="s", content=text_blocks("Short."), source="summary", replaces_from=2, replaces_to=2
    )
    history.add(summary, 10)
    history.add(answer(own_thought(HEAD, "Now."), TextBlock(text="Blue.")), 12)
    model = adapter()
    request = EncodedRequest(HEAD, model.encode, history.rewritten_at, bound_thinking(model))
    for place, message in history.since(0):
        request.add(place, message)
    first, old, _, new = json.loads(body(request.fragments))["messages"]
    assert first["content"][0]["text"] == "Short."
    assert [block["type"] for block in old["content"]] == ["tool_use"]
    assert [block["type"] for block in new["content"]] == ["thinking", "text"]


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("claude-new", 200_000), ("claude-new?window=1000000&cache=1h", 1_000_000), ("m?window=0", 200_000)],
)
def test_a_model_has_the_window_that_its_name_says(name: str, tokens: int) -> None:
    assert window_of(adapter(), name) == tokens


@pytest.mark.parametrize(
    "replay", ["", "x", "[]", "{}", '{"by":7}', '{"by":"openai-0011223344556677","item":{}}', '{"by":"anthropic-x"}',
               '{"by":"anthropic-x","block":7}', '{"by":"anthropic-x","block":{"type":"new","n":1e999}}',
               '{"by":"anthropic-x","block":{"type":"new","n":"\\ud83d"}}',
               f'{{"by":"anthropic-x","block":{{"type":"new","n":{"[" * 600}{"]" * 600}}}}}',
               '{"by":"anthropic-a\\tb","block":{}}', '{"by":"anthropic-a\\nb","block":{}}'],
    ids=lambda replay: replay[:60],
)  # fmt: skip
def test_state_of_another_provider_or_of_nobody_or_that_no_server_reads_is_left_out(replay: str) -> None:
    message = answer(ThinkingBlock(text="Hm.", replay=replay), TextBlock(text="Yes."))
    assert encoded(message) == b'assistant\n{"type":"text","text":"Yes."}'


THOUGHT = own_thought(HEAD)
REDACTED = evolve(THOUGHT, replay=THOUGHT.replay.replace('"thinking"', '"redacted_thinking"', 1))
RESULT = evolve(THOUGHT, replay=THOUGHT.replay.replace('"thinking"', '"web_search_tool_result"', 1))


@pytest.mark.parametrize(
    "led_to", [(), (TextBlock(text="\n"),), (THOUGHT,), (REDACTED,), (ThinkingBlock(text="cut off"),)], ids=str
)
def test_thinking_that_led_to_nothing_is_left_out_unless_the_answer_is_to_go_on(led_to: Any) -> None:
    message = answer(THOUGHT, TextBlock(text="Yes."), THOUGHT, *led_to)
    assert kinds_of(message) == ["thinking", "text"]
    assert kinds_of(evolve(message, finish="pause"))[:3] == ["thinking", "text", "thinking"]


def test_a_result_of_the_provider_s_own_tools_may_be_the_last_of_an_answer() -> None:
    assert kinds_of(answer(TextBlock(text="Yes."), RESULT)) == ["text", "web_search_tool_result"]


def test_an_answer_of_which_nothing_is_sent_is_no_message() -> None:
    nothing = [
        answer(ThinkingBlock(text="Hm.")),
        answer(THOUGHT),
        answer(evolve(THOUGHT, replay=""), TextBlock(text=" ")),
    ]
    for message in [*nothing, evolve(nothing[0], finish="pause")]:
        request = sent(HEAD, user("Hi."), message, user("So?"))
        wire_anthropic.check({**request, "model": "claude-test"})
        assert len(request["messages"]) == 1


BLOCKS = (
    WORDS.map(lambda words: TextBlock(text=words))
    | st.builds(ThinkingBlock, text=WORDS, replay=WORDS)
    | st.just(own_thought(HEAD))
)
ANSWERS = st.builds(
    lambda blocks, more, finish, replay: AssistantMessage(
        attempt=1, content=(*blocks, TextBlock(text="x"), *more), finish=finish, replay=replay
    ),
    st.lists(BLOCKS, max_size=3),
    st.lists(BLOCKS, max_size=2),
    st.sampled_from(["stop", "interrupted", "length"]),
    WORDS,
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Steps: some input, an answer, its calls with their results."""
    messages: list[Message] = []
    for step in range(draw(st.integers(1, 4))):
        messages += [user(draw(WORDS)) for _ in range(draw(st.integers(int(not step), 2)))]
        said = draw(ANSWERS)
        made = [call(f"{draw(WORDS)}{step}.{number}", draw(WORDS)) for number in range(draw(st.integers(0, 2)))]
        messages.append(AssistantMessage(attempt=1, content=(*said.content, *made), finish=said.finish))
        outcomes = st.sampled_from(["ok", "error", "unknown"])
        messages += [result(block.call_id, draw(WORDS), draw(outcomes)) for block in made]
    return [*messages, user(draw(WORDS))]


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
@given(st.data())
def test_up_to_each_answer_every_later_request_has_the_same_bytes(provider: Provider, data: st.DataObject) -> None:
    messages = data.draw(conversations())
    head = Head(adapter=provider.name, model=provider.model, system=data.draw(WORDS), tools=(TOOL,))
    adapter, made = provider.adapter(), provider.body
    fragments = [adapter.encode(part) for part in (head, *messages)]
    whole = made(fragments)
    for at, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            before = made(fragments[: at + 1])
            json.loads(before)
            # What closes the list, and the last message, differs; nothing in front of it does.
            closed = before.rstrip(b"}]")
            assert whole.startswith(closed), "what was sent was rewritten"
    json.loads(whole)


@given(conversations(), WORDS)
def test_what_is_sent_keeps_the_provider_s_rules_whatever_was_said(messages: list[Message], system: str) -> None:
    head = Head(adapter="anthropic", model="claude-test", system=system, tools=(TOOL,))
    wire_anthropic.check(sent(head, *messages))


def test_a_character_that_comes_in_two_pieces_is_whole_in_the_end() -> None:
    reply = [wire_anthropic.thinking("\ud83d\ude00"), wire_anthropic.text("\ud83d\ude00!")]
    request = {"model": "claude-test", "messages": []}
    message = ANTHROPIC.outcome(wire_anthropic.AnthropicWire([], chunk=1).frames(request, reply, "end_turn"))
    assert isinstance(message, AssistantMessage)
    assert message.text == "\U0001f600!"
    assert '"thinking":"\U0001f600"' in encoded(message).decode()


def test_unknown_blocks_go_back_as_they_came() -> None:
    frames = [
        {"type": "message_start", "message": {"usage": {}}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "server_tool_use", "id": "s", "input": {}},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"q":'}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "1}"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "Y"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "something_new", "x": 1}},
        {"type": "content_block_stop", "index": 1},
        {"type": "something_new"},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 3, "input_tokens": None},
        },
        {"type": "message_stop"},
    ]
    message = ANTHROPIC.outcome([f"data: {json.dumps(frame)}\n\n".encode() for frame in frames])
    assert isinstance(message, AssistantMessage)
    opaque = message.content[0]
    assert isinstance(opaque, ThinkingBlock)
    assert json.loads(opaque.replay)["block"] == {"type": "server_tool_use", "id": "s", "input": {"q": 1}}


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        ({"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta", "text": "x"}}, "protocol"),
        ({"type": "content_block_stop", "index": 3}, "protocol"),
        ({"type": "content_block_start", "index": "x", "content_block": {"type": "text", "text": ""}}, "protocol"),
        ({"type": "message_delta", "delta": {"stop_reason": "tired"}, "usage": {}}, "protocol"),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "x"}}, "rate_limit"),
        ({"type": "error", "error": {"type": "api_error", "message": "x"}}, "server"),
        ({"type": "error", "error": {"type": "overloaded_error"}}, "overloaded"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": None}}, "overloaded"),
        ({"error": {"type": "overloaded_error", "message": "x"}}, "overloaded"),
        ({"error": {"code": 429, "message": "x"}}, "rate_limit"),
        ({"type": "error", "error": "busy"}, "server"),
        ({"type": "error", "error": None}, "server"),
        ({"type": "ping"}, "cut"),
        ({"type": "message_delta", "delta": {"stop_reason": None}}, "cut"),
        ({"type": "message_delta", "delta": None}, "cut"),
        ({}, "protocol"),
        ([], "protocol"),
    ],
    ids=str,
)
def test_what_is_no_answer_has_a_name(frame: object, kind: str) -> None:
    frames = [{"type": "message_start", "message": {"usage": {}}}, frame, {"type": "message_stop"}]
    assert ANTHROPIC.outcome([f"data: {json.dumps(frame)}\n\n".encode() for frame in frames]) == kind


BEGIN = {"type": "message_start", "message": {"usage": {"input_tokens": 11, "output_tokens": 1}}}
SAYS_HI = [
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi."}},
    {"type": "content_block_stop", "index": 0},
]


def outcome(*events: Any, stop: str = "end_turn") -> AssistantMessage | str:
    """What comes of a stream of `events` that ends for the reason `stop`."""
    end = {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 5}}
    return ANTHROPIC.outcome([sse(event) for event in (*events, end, {"type": "message_stop"})])


@pytest.mark.parametrize(
    "begun",
    [
        (),
        ({"type": "text", "text": " "},),
        ({"type": "thinking", "thinking": "Hm.", "signature": "s"},),
        ({"type": "text", "text": ""}, {"type": "tool_use", "id": "a", "name": "look", "input": {"where": "u"}}),
    ],
    ids=str,
)
def test_a_window_that_is_full_before_there_are_words_is_an_overflow(begun: tuple[Any, ...]) -> None:
    blocks = [
        event
        for index, block in enumerate(begun, 1)
        for event in (
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_stop", "index": index},
        )
    ]
    full = "model_context_window_exceeded"
    assert outcome(BEGIN, *blocks, stop=full) == "context_overflow"
    capped = outcome(BEGIN, *SAYS_HI, *blocks, stop=full)
    assert isinstance(capped, AssistantMessage)
    assert (capped.text.strip(), capped.finish) == ("Hi.", "length")


@pytest.mark.parametrize(
    ("block", "delta"),
    [
        ({"type": "something_new", "text": ""}, {"type": "text_delta", "text": "abc"}),
        ({"type": "something_new"}, {"type": "something_new", "x": 1}),
        ({"type": "server_tool_use", "input": {}}, {"type": "input_json_delta", "partial_json": '{"q":'}),
        ({"type": "server_tool_use", "input": {}}, {"type": "input_json_delta", "partial_json": '{"q":1e999}'}),
    ],
    ids=str,
)
def test_a_block_that_cannot_be_put_together_is_never_sent_back_and_costs_no_answer(block: Any, delta: Any) -> None:
    message = outcome(
        BEGIN,
        *SAYS_HI,
        {"type": "content_block_start", "index": 1, "content_block": block},
        {"type": "content_block_delta", "index": 1, "delta": delta},
        {"type": "content_block_stop", "index": 1},
    )
    assert isinstance(message, AssistantMessage)
    assert encoded(message) == b'assistant\n{"type":"text","text":"Hi."}'


@pytest.mark.parametrize(
    "block",
    [{"type": "text"}, {"type": "thinking"}, {"type": "thinking", "thinking": None, "signature": None}],
    ids=str,
)
def test_a_block_may_begin_with_nothing(block: Any) -> None:
    kind = block["type"]
    events = [
        {"type": "content_block_start", "index": 1, "content_block": block},
        {"type": "content_block_delta", "index": 1, "delta": {"type": f"{kind}_delta", kind: "Hm."}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "signature_delta", "signature": "s"}},
        {"type": "content_block_stop", "index": 1},
    ]
    message = outcome(BEGIN, *SAYS_HI, *events)
    assert isinstance(message, AssistantMessage)
    assert getattr(message.content[1], "text", "") == "Hm."


@pytest.mark.parametrize("counts", ODD_COUNTS, ids=str)
def test_counts_that_are_none_cost_no_answer_and_change_no_other(counts: Any) -> None:
    usage = {"input_tokens": counts, "output_tokens": counts, "cache_read_input_tokens": counts}
    more = {"type": "message_delta", "delta": {}, "usage": usage}
    message = outcome(BEGIN, *SAYS_HI, more)
    assert isinstance(message, AssistantMessage)
    assert (message.text, message.input_tokens, message.output_tokens, message.cached_tokens) == ("Hi.", 11, 5, 0)


@pytest.mark.parametrize(
    "fields", [{}, *({"message": odd} for odd in (None, [], *({"usage": odd} for odd in ODD_COUNTS)))], ids=str
)
def test_a_beginning_that_counts_nothing_costs_no_answer(fields: Any) -> None:
    answered = outcome({"type": "message_start", **fields}, *SAYS_HI)
    assert isinstance(answered, AssistantMessage)
    assert (answered.text, answered.input_tokens, answered.output_tokens) == ("Hi.", 0, 5)


def test_a_count_may_be_a_whole_number_in_any_form() -> None:
    message = outcome({"type": "message_start", "message": {"usage": {"input_tokens": 11.0}}}, *SAYS_HI)
    assert isinstance(message, AssistantMessage)
    assert message.input_tokens == 11


def test_what_is_nested_too_deeply_is_a_failure_with_a_name() -> None:
    end = {"type": "content_block_stop", "index": 1}
    for levels in range(800, 1000):
        block = f'{{"type":"something_new","x":{"[" * levels}{"]" * levels}}}'
        start = f'{{"type":"content_block_start","index":1,"content_block":{block}}}'
        message = outcome(BEGIN, *SAYS_HI, start, end)
        assert message == "protocol" or isinstance(message, AssistantMessage)
