"""Calls as models should never make them: what a provider is shown of them, which it would refuse for ever."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flightlog_hookspecs import AssistantMessage, Head, ToolCallBlock, ToolResult, UserMessage
from flightlog_hookspecs.content import text_blocks
from flightlog_plugins.wire.stand_ins import plain_id, short_id, tool_name
from support import wire_json
from support.wire_kernels import ONCE, answers_of, asked, wired
from support.wire_providers import CHAT, PROVIDERS, Provider
from support.wire_server import served

providers = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)

ODD_ARGUMENTS = (
    '{"where": "\\ud83d"}',
    '{"where": "\\ude00\\ud83d"}',
    '{"\\ud83d": "up"}',
    '{"where": "\ud83d"}',
    '{"where": "\ud83d", "where": "up"}',
    '{"far": 1e999}',
    '{"far": -Infinity}',
    f'{{"far": 1{"0" * 999}}}',
    f'{{"deep": {"[" * 600}{"]" * 600}}}',
    '{"a":' * 600 + "1" + "}" * 600,
    "\xa0{}",
    "{",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=3), inner, max_size=3)
    ),
)
ARGUMENTS = st.builds(json.dumps, JSON, ensure_ascii=st.booleans()) | st.text(st.characters())

ODD_NAMES = ("multi_tool_use.parallel", "functions.look", "look ", "", "x" * 300, "l\xf6k", "\U0001f30d", "\ud83d")
STRINGS = st.text(st.characters(), max_size=80) | st.sampled_from(
    [*ODD_NAMES, "functions.look:0", "look", "toolu_01-x"]
)


def broken_call(provider: Provider, raw: str = "{}", name: str = "look", call_id: str = "") -> Any:
    """A reply that makes one call."""
    pieces, stop = provider.full
    (call, *_) = [piece for piece in pieces if "raw" in piece]
    return [{**call, "raw": raw, "name": name, **({"id": call_id} if call_id else {})}], stop


async def answered(provider: Provider, path: Path, raw: str = "{}", name: str = "look") -> tuple[ToolCallBlock, bytes]:
    """The call in the log at `path` and the request behind it, once a turn with such a call came to its end."""
    wire = provider.wire([broken_call(provider, raw, name), provider.short])
    async with served(wire) as server, wired(path, provider.plugin) as kernel:
        turn = await asked(kernel, provider.at(server.url), limits=ONCE)
    assert (turn.message, turn.text, wire.refused) == ("", provider.short_text, [])
    (call,) = [block for block in answers_of(path)[0].content if isinstance(block, ToolCallBlock)]
    return call, server.asked[1].raw


def conversation(provider: Provider, *calls: ToolCallBlock) -> Any:
    """What is sent behind an answer that made `calls`, as a strict server reads it."""
    results = [
        ToolResult(position=at, call_id=call.call_id, name=call.name, message_seq=2, outcome="ok", content=())
        for at, call in enumerate(calls)
    ]
    messages = [
        UserMessage(message_id="m", content=text_blocks("Hi.")),
        AssistantMessage(attempt=1, content=calls, finish="tool_calls"),
        *results,
    ]
    head = Head(adapter=provider.name, model=provider.model)
    adapter = provider.adapter()
    return wire_json.read(provider.body([adapter.encode(part) for part in (head, *messages)]))


@providers
@given(ARGUMENTS)
@example(f'{{"deep": {"[" * 99}{"]" * 99}}}')
def test_whatever_the_arguments_are_a_strict_server_reads_what_is_sent(provider: Provider, raw: str) -> None:
    conversation(provider, ToolCallBlock(call_id="a", name="look", arguments=raw))


@providers
@pytest.mark.parametrize("raw", ODD_ARGUMENTS, ids=lambda raw: ascii(raw)[:30])
async def test_arguments_that_no_server_reads_are_answered_and_shown_as_words(
    provider: Provider, raw: str, tmp_path: Path
) -> None:
    call, sent_back = await answered(provider, tmp_path / "log.db", raw=raw)
    assert b"unreadable_arguments" in sent_back
    assert call.arguments == raw, "the log keeps what was received"


@providers
@pytest.mark.parametrize("raw", ['{"x":\n1.0,\t"y": "\\ud83d\\ude00"}', f'{{"deep": {"[" * 99}{"]" * 99}}}'])
def test_arguments_that_every_server_reads_are_sent_as_they_came(provider: Provider, raw: str) -> None:
    assert "unreadable" not in json.dumps(
        conversation(provider, ToolCallBlock(call_id="a", name="look", arguments=raw))
    )


@providers
@pytest.mark.parametrize("name", ODD_NAMES, ids=lambda name: ascii(name)[:30])
async def test_a_name_that_a_model_made_up_is_answered_and_never_sent_back_as_it_is(
    provider: Provider, name: str, tmp_path: Path
) -> None:
    call, _ = await answered(provider, tmp_path / "log.db", name=name)
    assert call.name == name, "the log keeps what was received"


@providers
@pytest.mark.parametrize("call_id", ["call_" + "x" * 80, "functions.look:0", "l\xf6k"], ids=ascii)
async def test_a_call_of_another_provider_is_accepted_whatever_its_id(
    provider: Provider, call_id: str, tmp_path: Path
) -> None:
    first, second = CHAT.wire([broken_call(CHAT, call_id=call_id), CHAT.short]), provider.wire([provider.short])
    plugins = {each.name: each.plugin for each in (CHAT, provider)}
    async with served(first) as one, served(second) as two, wired(tmp_path / "log.db", *plugins.values()) as kernel:
        await asked(kernel, CHAT.at(one.url), limits=ONCE)
        turn = await asked(kernel, provider.at(two.url), limits=ONCE)
    assert (turn.message, turn.text, first.refused, second.refused) == ("", provider.short_text, [], [])


@given(st.sets(STRINGS, min_size=1))
def test_a_stand_in_is_legal_for_every_provider_and_stands_for_one_string(given: set[str]) -> None:
    for stand_in in (tool_name, plain_id):
        made = {stand_in(each) for each in given}
        assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", each) for each in made)
        assert len(made) == len(given)
    made = {short_id(each) for each in given}
    assert all(each.isascii() and 0 < len(each) <= 64 for each in made)
    assert len(made) == len(given)


@given(st.from_regex("[a-zA-Z0-9_-]{1,64}", fullmatch=True))
def test_what_every_provider_takes_has_no_stand_in(given: str) -> None:
    assert {tool_name(given), plain_id(given), short_id(given)} == {given}


def test_an_id_is_kept_where_it_is_taken_and_a_stand_in_never_changes() -> None:
    assert short_id("functions.look:0") == "functions.look:0", "some servers read it"
    assert plain_id("functions.look:0") == "call_ec0002042636dd8aa1e59e55"
    assert tool_name("functions.look") == "functions_look_c15535c1"
    assert tool_name("") == "_e3b0c442"
