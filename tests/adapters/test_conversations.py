"""Whole conversations that every provider accepts: calls, crashes, other models in between."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

from flightlog.testing import Bundle
from flightlog_hookspecs import Head, ToolResult, tool
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import RequestHeader
from flightlog_plugins import scripted
from support import wire_anthropic
from support.cutting import cut_log
from support.kernels import events_of, records_of, verified
from support.wire_kernels import ONCE, answers_of, asked, look, messages_of, said, wired
from support.wire_providers import ANTHROPIC, CHAT, DEEPSEEK, PROVIDERS, RESPONSES, Provider
from support.wire_server import served

DEADLY = {"request/sent", "assistant/delta", "assistant/message", "tool/call", "tool/result", "turn/end"}
"""What may be the last that a dead process has written."""

providers = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)


@providers
async def test_calls_and_their_results_are_accepted_and_the_connection_is_used_again(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = provider.wire([provider.full, provider.full, provider.short])
    path = tmp_path / "log.db"
    async with (
        served(wire) as server,
        wired(path, provider.plugin) as kernel,
        kernel.session("s", model=provider.at(server.url), system="Be brief.", limits=ONCE) as session,
    ):
        first = await said(session, "look\n\taround")
        with monkeypatch.context() as earlier:  # versions that took empty messages left them in logs
            earlier.setattr("flightlog.runtime.inbox.checked_content", text_blocks)
            second = await said(session, "  ")
    assert (first.message, second.message, wire.refused) == ("", "", [])
    assert (first.text, second.text) == (provider.short_text, "done")
    assert server.connections == 1
    results = [message.text for message in messages_of(path) if isinstance(message, ToolResult)]
    assert results == ["I see up.", "I see here."] * 2
    assert first.usage.input_tokens == 11 * 3
    assert first.usage.cached_tokens == 7 * 3
    assert first.usage.cache_write_tokens == 5 * 3
    verified(path, *(registered.item for registered in kernel.registry.adapters.values()))


@providers
async def test_arguments_that_are_no_json_are_answered_and_never_sent_back_as_they_are(
    provider: Provider, tmp_path: Path
) -> None:
    pieces, stop = provider.full
    broken = [{**piece, "raw": '{"where": "u'} if "raw" in piece else piece for piece in pieces]
    wire = provider.wire([(broken, stop), provider.short])
    path = tmp_path / "log.db"
    async with served(wire) as server, wired(path, provider.plugin) as kernel:
        turn = await asked(kernel, provider.at(server.url), limits=ONCE)
    assert (turn.message, turn.text, wire.refused) == ("", provider.short_text, [])
    assert {message.outcome for message in messages_of(path) if isinstance(message, ToolResult)} == {"error"}
    (answer, _) = answers_of(path)
    assert '{"where": "u' in str(answer.content), "the log keeps what was received"


THINKS_AGAIN = [
    wire_anthropic.thinking("Hm."),
    wire_anthropic.text("I look."),
    wire_anthropic.thinking("Up."),
    wire_anthropic.redacted(),
    wire_anthropic.call("look", '{"whe'),
]


@pytest.mark.parametrize(
    ("provider", "capped"),
    [
        (ANTHROPIC, (THINKS_AGAIN, "max_tokens")),
        (CHAT, (CHAT.full[0], "length")),
        (DEEPSEEK, (DEEPSEEK.full[0], "length")),
        (RESPONSES, (RESPONSES.full[0], "max_output_tokens")),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
async def test_an_answer_that_was_capped_inside_a_call_is_accepted(
    provider: Provider, capped: Any, tmp_path: Path
) -> None:
    wire = provider.wire([capped, provider.short])
    async with served(wire) as server, wired(tmp_path / "log.db", provider.plugin) as kernel:
        await asked(kernel, provider.at(server.url), limits=ONCE)
        turn = await asked(kernel, provider.at(server.url), limits=ONCE)
    assert (turn.message, turn.text, wire.refused) == ("", provider.short_text, [])


@providers
async def test_wherever_a_death_falls_the_provider_accepts_how_the_session_goes_on(
    provider: Provider, tmp_path: Path
) -> None:
    wire = provider.wire([provider.full, provider.full])
    whole = tmp_path / "whole.db"
    async with served(wire) as server:
        model = provider.at(server.url)
        async with wired(whole, provider.plugin) as kernel:
            await asked(kernel, model, limits=ONCE)
        for rows in [record.seq for record in records_of(whole) if record.event.kind in DEADLY]:
            path = tmp_path / f"cut-{rows}.db"
            cut_log(whole, path, rows)
            async with wired(path, provider.plugin) as kernel:
                turn = await asked(kernel, model, limits=ONCE)
            assert (turn.message, turn.text, wire.refused) == ("", "done", []), f"cut behind row {rows}"


@pytest.mark.parametrize("second", PROVIDERS, ids=lambda provider: provider.name)
@pytest.mark.parametrize("first", PROVIDERS, ids=lambda provider: provider.name)
async def test_a_session_goes_from_provider_to_provider_and_back(
    first: Provider, second: Provider, tmp_path: Path
) -> None:
    wires = [first.wire([first.full, first.short] * 3), second.wire([second.full, second.short] * 3)]
    path = tmp_path / "log.db"
    plugins = {provider.name: provider.plugin for provider in (first, second)}
    async with served(wires[0]) as one, served(wires[1]) as two, wired(path, *plugins.values()) as kernel:
        for turn_number in range(4):
            model = (first.at(one.url), second.at(two.url))[turn_number % 2]
            turn = await asked(kernel, model, limits=ONCE)
            assert (turn.message, turn.reason) == ("", "completed")
    assert [wire.refused for wire in wires] == [[], []]
    reasons = [header.reason for header in events_of(path, RequestHeader)]
    assert all("model" in reason for reason in reasons[1:])
    assert len(reasons) == 4, "each switch is in the log"


@pytest.mark.parametrize(
    ("provider", "tag"),
    [(ANTHROPIC, b"anthropic-4d68f97c5c38f6e4"), (RESPONSES, b"openai-6e8dbb6fc4c6bd59")],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_usual_account_is_the_one_of_the_logs_that_there_are(provider: Provider, tag: bytes) -> None:
    head = Head(adapter=provider.name, model="m", system="Be brief.")
    assert provider.adapter().encode(head).startswith(tag + b"\n")


@pytest.mark.parametrize("provider", [ANTHROPIC, RESPONSES], ids=lambda provider: provider.name)
async def test_thinking_is_shown_to_no_other_account(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONE", "sk-one")
    monkeypatch.setenv("TWO", "sk-two")
    wire: Any = provider.wire([provider.full, provider.short] * 4)
    wire.keys = ("sk-one", "sk-two")
    async with served(wire) as server, wired(tmp_path / "log.db", provider.plugin) as kernel:
        for key_env in ("ONE", "TWO", "ONE", "TWO"):
            turn = await asked(kernel, provider.at(server.url, key_env=key_env), limits=ONCE)
            assert (turn.message, wire.refused) == ("", [])
    thoughts = b'"thinking"' if provider is ANTHROPIC else b'"reasoning"'
    assert thoughts in server.asked[-1].raw, "each has its own again"


@providers
async def test_other_tools_in_the_middle_of_a_session_are_accepted(provider: Provider, tmp_path: Path) -> None:
    wire = provider.wire([provider.full, provider.short] * 3)
    async with (
        served(wire) as server,
        wired(tmp_path / "log.db", provider.plugin) as kernel,
        kernel.session("s", model=provider.at(server.url), limits=ONCE) as session,
    ):
        await said(session, "one")
        async with session.register(Bundle(tools=[evolve(look, name="peek")])):
            assert not (await said(session, "two")).message
        assert not (await said(session, "three")).message
    assert wire.refused == []


@providers
async def test_many_sessions_share_one_client(provider: Provider, tmp_path: Path) -> None:
    wire = provider.wire([provider.short] * 20)
    async with (
        served(wire) as server,
        wired(tmp_path / "log.db", provider.plugin) as kernel,
        trio.open_nursery() as nursery,
    ):
        for number in range(20):
            nursery.start_soon(asked, kernel, provider.at(server.url), f"s{number}")
    assert wire.answered == 20
    gc.collect()


@providers
async def test_a_session_that_began_offline_goes_on_with_a_real_model(provider: Provider, tmp_path: Path) -> None:
    @tool(mode="parallel", effect="read")
    async def append_line(path: str, line: str) -> str:
        """Note a line."""
        await trio.lowlevel.checkpoint()
        return f"{line} in {path}"

    wire = provider.wire([provider.full, provider.short])
    plugins = (provider.plugin, scripted, Bundle(tools=[append_line]))
    async with served(wire) as server, wired(tmp_path / "log.db", *plugins) as kernel:
        await asked(kernel, "scripted:count?to=6&note_every=2")
        turn = await asked(kernel, provider.at(server.url), limits=ONCE)
    assert (turn.message, turn.text, wire.refused) == ("", provider.short_text, [])
