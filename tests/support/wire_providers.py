"""The providers side by side: what every adapter has to get right is tested once, for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Protocol

from attrs import evolve, frozen

from flightlog.core.assembler import Assembler
from flightlog_hookspecs import Adapter, AssistantMessage, BlockEvent
from flightlog_hookspecs.errors import ProviderError
from flightlog_plugins import anthropic, deepseek, openai, openai_chat
from flightlog_plugins.anthropic import decoding as anthropic_decoding
from flightlog_plugins.anthropic import encoding as anthropic_encoding
from flightlog_plugins.openai import decoding as responses_decoding
from flightlog_plugins.openai import encoding as responses_encoding
from flightlog_plugins.openai_chat import decoding as chat_decoding
from flightlog_plugins.wire.sse import Frame, SseReader
from support import wire_anthropic, wire_chat, wire_responses
from support.wire_server import Answer, Asked, Ending

After = Callable[[list[bytes]], tuple[list[bytes], Ending]]


class Wire(Protocol):
    """A provider's server: what it was asked in vain, and what becomes of its frames."""

    refused: list[str]
    answered: int
    after: After
    pace: Callable[[int], Awaitable[object]]
    bound: str

    def __call__(self, asked: Asked) -> Answer: ...


@frozen(kw_only=True)
class Provider:
    """An adapter and the server that it is tested with.

    `full` is a reply with all that there is, ending in two calls of `look`; `short` a few words, as `says` makes
    one of any words.
    """

    name: str
    plugin: ModuleType
    model: str
    key_env: str
    sdk: str
    wire: Callable[[Sequence[Any]], Wire]
    reading: Callable[[], Callable[[Frame | None], list[BlockEvent]]]
    full: Any
    short: Any
    short_text: str
    says: Callable[[str], Any]
    error_frame: bytes
    asked: Asked
    body: Callable[[Sequence[bytes]], bytes]

    def adapter(self) -> Adapter:
        """The adapter, as its plugin registers it."""
        made: list[Adapter] = []
        self.plugin.register_adapters(made.append)
        return made[0]

    def frames(self, reply: Any) -> list[bytes]:
        """The frames of `reply` to a plain request."""
        kept: list[list[bytes]] = []
        wire = self.wire([reply])
        wire.after = lambda frames: (kept.append(frames) or frames, "whole")  # type: ignore[func-returns-value]
        wire(self.asked)
        return kept[0]

    def at(self, url: str, **options: str) -> str:
        """The model's name for a server at `url`."""
        return f"{self.name}:{self.model}?base_url={url}" + "".join(f"&{key}={value}" for key, value in options.items())

    def outcome(self, chunks: Sequence[bytes]) -> AssistantMessage | str:
        """What comes of a stream of `chunks`: the message, or the kind of failure."""
        reader, read, assembler = SseReader(), self.reading(), Assembler()
        try:
            for chunk in chunks:
                for frame in reader.feed(chunk):
                    for event in read(frame):
                        assembler.push(event)
                if assembler.finished:
                    break
            else:
                for event in read(None):
                    assembler.push(event)
            return assembler.message(1)
        except ProviderError as error:
            return error.kind


ANTHROPIC = Provider(
    name="anthropic",
    plugin=anthropic,
    model="claude-test",
    key_env="ANTHROPIC_API_KEY",
    sdk="anthropic",
    wire=wire_anthropic.AnthropicWire,
    reading=lambda: anthropic_decoding.Reading("anthropic-tag").read,
    full=(
        [
            wire_anthropic.thinking("Where shall I look?"),
            wire_anthropic.redacted(),
            wire_anthropic.text("I will lök twice 🌍."),
            wire_anthropic.call("look", '{"where": "up"}'),
            wire_anthropic.call("look", ""),
        ],
        "tool_use",
    ),
    short=([wire_anthropic.text("Hi.")], "end_turn"),
    short_text="Hi.",
    says=lambda words: ([wire_anthropic.text(words)], "end_turn"),
    error_frame=wire_anthropic.error_frame("overloaded_error", "planted"),
    asked=Asked(
        path="/v1/messages",
        headers={"x-api-key": wire_anthropic.KEY, "anthropic-version": "2026-10-21"},
        raw=b'{"model":"claude-test","max_tokens":9,"stream":true,'
        b'"messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}]}',
    ),
    body=anthropic_encoding.body,
)

CHAT = Provider(
    name="openai-chat",
    plugin=openai_chat,
    model="gpt-test",
    key_env="OPENAI_API_KEY",
    sdk="openai",
    wire=wire_chat.ChatWire,
    reading=lambda: chat_decoding.Reading("openai-chat-tag", ()).read,
    full=(
        [
            wire_chat.text("I will lök twice 🌍."),
            wire_chat.call("look", '{"where": "up"}'),
            wire_chat.call("look", ""),
        ],
        "tool_calls",
    ),
    short=([wire_chat.text("Hi.")], "stop"),
    short_text="Hi.",
    says=lambda words: ([wire_chat.text(words)], "stop"),
    error_frame=wire_chat.error_frame("server_overloaded", "planted"),
    asked=Asked(
        path="/v1/chat/completions",
        headers={"authorization": f"Bearer {wire_chat.KEY}"},
        raw=b'{"model":"gpt-test","stream":true,"messages":[{"role":"user","content":"hello"}]}',
    ),
    body=openai_chat.DIALECT.body,
)
DEEPSEEK = evolve(
    CHAT,
    name="deepseek",
    plugin=deepseek,
    model="deepseek-test",
    key_env="DEEPSEEK_API_KEY",
    wire=partial(wire_chat.ChatWire, thinks=True),
    body=deepseek.DIALECT.body,
    full=([wire_chat.thinking("Where shall I look?"), *CHAT.full[0]], "tool_calls"),
)

RESPONSES = Provider(
    name="openai",
    plugin=openai,
    model="gpt-test",
    key_env="OPENAI_API_KEY",
    sdk="openai",
    wire=wire_responses.ResponsesWire,
    reading=lambda: responses_decoding.Reading("openai-tag").read,
    full=(
        [
            wire_responses.thinking("Where shall I look?", "Up, perhaps."),
            wire_responses.text("I will glance twîce 🌍.", "commentary"),
            wire_responses.thinking(),
            wire_responses.call("look", '{"where": "up"}'),
            wire_responses.call("look", ""),
        ],
        "",
    ),
    short=([wire_responses.text("Hi.")], ""),
    short_text="Hi.",
    says=lambda words: ([wire_responses.text(words)], ""),
    error_frame=wire_responses.error_frame("server_overloaded", "planted"),
    asked=Asked(
        path="/v1/responses",
        headers={"authorization": f"Bearer {wire_responses.KEY}"},
        raw=b'{"model":"gpt-test","stream":true,"store":false,"input":'
        b'[{"type":"message","role":"user","content":[{"type":"input_text","text":"hello"}]}]}',
    ),
    body=responses_encoding.body,
)

PROVIDERS = [ANTHROPIC, CHAT, DEEPSEEK, RESPONSES]
