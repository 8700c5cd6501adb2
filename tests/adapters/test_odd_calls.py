"""Calls as models should never make them: what a provider is shown of them, which it would refuse for ever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flightlog_hookspecs import AssistantMessage, Head, ToolCallBlock, ToolResult, UserMessage
from flightlog_hookspecs.content import text_blocks
from support import wire_json
from support.wire_kernels import ONCE, answers_of, asked, wired
from support.wire_providers import PROVIDERS, Provider
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


def broken_call(provider: Provider, raw: str = "{}", name: str = "look", call_id: str = "") -> Any:
    """A reply that makes one call."""
    pieces, stop = provider.full
    (call, *_) = [piece for piece in pieces if "raw" in piece]
    return [{**call, "raw": raw, "name": name, **({"id": call_id} if call_id else {})}], stop


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
    wire = provider.wire([broken_call(provider, raw), provider.short])
    path = tmp_path / "log.db"
    async with served(wire) as server, wired(path, provider.plugin) as kernel:
        turn = await asked(kernel, provider.at(server.url), limits=ONCE)
    assert (turn.message, turn.text, wire.refused) == ("", provider.short_text, [])
    assert b"unreadable_arguments" in server.asked[1].raw
    (call,) = [block for block in answers_of(path)[0].content if isinstance(block, ToolCallBlock)]
    assert call.arguments == raw, "the log keeps what was received"


@providers
@pytest.mark.parametrize("raw", ['{"x":\n1.0,\t"y": "\\ud83d\\ude00"}', f'{{"deep": {"[" * 99}{"]" * 99}}}'])
def test_arguments_that_every_server_reads_are_sent_as_they_came(provider: Provider, raw: str) -> None:
    assert "unreadable" not in json.dumps(
        conversation(provider, ToolCallBlock(call_id="a", name="look", arguments=raw))
    )
