"""The whole kernel against a server that enforces Anthropic's rules."""

from __future__ import annotations

from pathlib import Path

from flightlog_hookspecs import ToolResult
from flightlog_plugins import anthropic
from support.kernels import verified
from support.wire_anthropic import AnthropicWire, call, redacted, text, thinking
from support.wire_kernels import ONCE, asked, messages_of, said, wired
from support.wire_server import served


async def test_an_answer_arrives_with_its_tokens(tmp_path: Path) -> None:
    wire = AnthropicWire([([text("Hello, wörld 🌍.")], "end_turn")])
    async with served(wire) as server, wired(tmp_path / "log.db", anthropic) as kernel:
        turn = await asked(kernel, f"anthropic:claude-test?base_url={server.url}", limits=ONCE)
    assert (turn.reason, turn.text, turn.message) == ("completed", "Hello, wörld 🌍.", "")
    assert (turn.usage.input_tokens, turn.usage.cached_tokens, turn.usage.output_tokens) == (23, 7, 23)


async def test_thinking_calls_and_results_go_back_as_the_provider_wants_them(tmp_path: Path) -> None:
    wire = AnthropicWire(
        [
            (
                [
                    thinking("Where to look?"),
                    redacted(),
                    text(""),
                    text("I will look."),
                    call("look", '{"where": "up"}'),
                    thinking(""),
                    call("look", ""),
                ],
                "tool_use",
            ),
            ([thinking("Once more."), call("look", '{"where":')], "tool_use"),
            ([thinking("Enough."), text("Nothing.")], "end_turn"),
            ([text("Still nothing.")], "end_turn"),
        ]
    )
    path = tmp_path / "log.db"
    async with served(wire) as server, wired(path, anthropic) as kernel:
        model = f"anthropic:claude-test?base_url={server.url}&thinking=adaptive&effort=low"
        async with kernel.session("s", model=model, system="Be brief.", limits=ONCE) as session:
            first, second = await said(session, "look"), await said(session, "  ")
    assert (first.message, second.message, wire.refused) == ("", "", [])
    assert (first.text, second.text, wire.answered) == ("Nothing.", "Still nothing.", 4)
    assert server.connections == 1, "a connection is used again"
    outcomes = [message.outcome for message in messages_of(path) if isinstance(message, ToolResult)]
    assert outcomes == ["ok", "ok", "error"]
    verified(path)
