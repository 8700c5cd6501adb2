"""What a person gets wrong, and what a provider refuses: one clear line each, and no key in the log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from flightlog_hookspecs.events import RequestRetry
from flightlog_plugins.wire.failures import failure, retry_after_s
from support.kernels import SOON, events_of
from support.wire_kernels import ONCE, asked, wired
from support.wire_providers import PROVIDERS, Provider
from support.wire_server import Answer, refusal, served

providers = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)


async def ended(provider: Provider, path: Path, model: str, wire: Any = None) -> tuple[str, str]:
    """Code and message of a turn that is to fail."""
    async with served(wire or provider.wire([provider.short])) as server, wired(path, provider.plugin) as kernel:
        turn = await asked(kernel, model.replace("URL", server.url), limits=ONCE)
    assert turn.reason == "error"
    assert "\n" not in turn.message
    return turn.code, turn.message


@providers
async def test_a_missing_key_says_which_variable_to_set(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(provider.key_env)
    code, message = await ended(provider, tmp_path / "log.db", f"{provider.name}:{provider.model}")
    assert code == "auth"
    assert message == f"no API key for {provider.name}: set the environment variable {provider.key_env}"


@providers
async def test_a_wrong_key_says_which_variable_to_check_and_never_shows_it(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-wrong-secret-4711")
    path = tmp_path / "log.db"
    code, message = await ended(provider, path, provider.at("URL", key_env="MY_KEY"))
    assert code == "auth"
    assert message.endswith("(HTTP 401); check the environment variable MY_KEY")
    assert "[key]" in message
    for file in path.parent.iterdir():
        assert b"4711" not in file.read_bytes()


@providers
@pytest.mark.parametrize("key", ["sk-4711\x01", "sk-4711\nx", "sk-4711é"], ids=ascii)
async def test_a_key_that_can_be_none_is_refused_and_never_shown(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv(provider.key_env, key)
    code, message = await ended(provider, tmp_path / "log.db", provider.at("URL"))
    assert (code, message) == ("auth", f"{provider.key_env} holds characters that no API key has")


@providers
async def test_an_unknown_model_is_named(provider: Provider, tmp_path: Path) -> None:
    model = evolve(provider, model="made-up").at("URL")
    code, message = await ended(provider, tmp_path / "log.db", model)
    assert code == "bad_request"
    assert "is 'made-up' a model of this provider" in message


@providers
async def test_a_missing_package_says_what_to_install(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, provider.sdk, None)
    code, message = await ended(provider, tmp_path / "log.db", provider.at("URL"))
    assert code == "adapter"
    assert message.endswith(f"pip install 'flightlog[{provider.sdk}]'")


@providers
@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("colour=red", "there is no option 'colour' (there are base_url, "),
        ("max_tokens=many", "max_tokens must be a whole number above zero, not 'many'"),
        ("base_url=ftp://x", "base_url must be an http or https address"),
        ("base_url=http://x:99999", "base_url must be an http or https address"),
        ("base_url=http://me:secret@x", "base_url must be an http or https address"),
        ("key_env=no-name", "key_env must be the name of an environment variable"),
    ],
)
async def test_an_option_that_is_wrong_is_named_and_nothing_is_sent(
    provider: Provider, tmp_path: Path, option: str, says: str
) -> None:
    code, message = await ended(provider, tmp_path / "log.db", f"{provider.name}:{provider.model}?{option}")
    assert code == "bad_request"
    assert says in message


@providers
async def test_a_server_that_is_not_there_is_a_transport_failure(provider: Provider, tmp_path: Path) -> None:
    code, message = await ended(provider, tmp_path / "log.db", provider.at("http://127.0.0.1:9"))
    assert (code, message[:12]) == ("transport", "ConnectError")


STATUSES = {
    400: "bad_request",
    401: "auth",
    403: "auth",
    404: "bad_request",
    408: "timeout",
    413: "context_overflow",
    429: "rate_limit",
    500: "server",
    502: "server",
    503: "overloaded",
    529: "overloaded",
}


@pytest.mark.parametrize(("status", "kind"), STATUSES.items())
def test_every_status_has_one_kind(status: int, kind: str) -> None:
    error = failure("planted", status=status)
    assert (error.kind, error.message) == (kind, f"planted (HTTP {status})")


@providers
async def test_a_page_in_place_of_a_stream_says_what_to_look_at(provider: Provider, tmp_path: Path) -> None:
    page = Answer(chunks=[b"<html>\n\n<body>Log in first</body></html>"], headers={"content-type": "text/html"})
    code, message = await ended(provider, tmp_path / "log.db", provider.at("URL"), lambda asked: page)
    assert (code, message) == ("protocol", "the address answers with text/html, not with a stream: is it right?")


@providers
async def test_the_next_attempt_comes_when_the_provider_wants_it(provider: Provider, tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    wire = provider.wire([provider.short])
    busy = [refusal(429, {"error": {"message": "later"}}, retry_after_ms="20", x_should_retry="true")]
    served_late = served(lambda asked: busy.pop() if busy else wire(asked))
    async with served_late as server, wired(path, provider.plugin, SOON) as kernel:
        turn = await asked(kernel, provider.at(server.url))
    assert turn.text == provider.short_text
    assert [retry.delay_ms for retry in events_of(path, RequestRetry)] == [20]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "7", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "Sun, 29 Nov 2026 10:00:30 GMT", "date": "Sun, 29 Nov 2026 10:00:00 GMT"}, 30.0),
        ({"retry-after": "Sun, 29 Nov 2026 10:00:30 GMT"}, None),
        ({"retry-after": "soon", "date": "today"}, None),
    ],
    ids=str,
)
def test_the_provider_s_wish_is_read_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers) == seconds


@pytest.mark.parametrize(
    ("given", "kind", "retryable"),
    [
        ({"types": ("overloaded_error",), "status": 200}, "overloaded", True),
        ({"types": ("insufficient_quota",), "status": 429}, "rate_limit", False),
        ({"types": (None, "invalid_request_error"), "status": 401}, "auth", False),
        ({"types": ("something_new",)}, "server", True),
        ({"types": ([], 7), "status": 418}, "bad_request", False),
        ({"status": 400, "headers": {"x-should-retry": "true"}}, "bad_request", True),
        ({"status": 500, "headers": {"x-should-retry": "false"}}, "server", False),
    ],
    ids=str,
)
def test_a_failure_is_named_by_what_says_most(given: dict[str, Any], kind: str, retryable: bool) -> None:
    error = failure("planted", **given)
    assert (error.kind, error.retryable) == (kind, retryable)


@pytest.mark.parametrize(
    "message",
    [
        "prompt is too long: 208310 tokens > 200000 maximum",
        "This model's maximum context length is 65536 tokens.",
        "Your input exceeds the context window of this model.",
    ],
)
def test_a_conversation_that_is_too_long_is_known_by_its_words(message: str) -> None:
    assert failure(message, types=("invalid_request_error",), status=400).kind == "context_overflow"
