"""What a person gets wrong, and what a provider refuses: one clear line each, and no key in the log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from attrs import evolve
from openai.types.responses import ResponseError

from flightlog_hookspecs.events import RequestFailed, RequestRetry
from flightlog_plugins.wire.failures import failure, retry_after_s
from flightlog_plugins.wire.reported import said_in
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
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf", "retry-after-ms": "-inf"}, None),
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
        ({"types": ("invalid_request_error",), "status": 408}, "timeout", True),
        ({"types": ("invalid_request_error",), "status": 409}, "server", True),
        ({"types": ("model_not_found",), "status": 503}, "overloaded", True),
        ({"types": ("authentication_error",), "status": 500}, "server", True),
        ({"types": ("rate_limit_error",), "status": 500}, "rate_limit", True),
        ({"types": ("content_filter",), "status": 500}, "filter", False),
        ({"types": ("context_length_exceeded",), "status": 500}, "context_overflow", False),
        ({"types": ("invalid_image",), "status": 200}, "bad_request", False),
        ({"types": ("exceed_context_size_error",), "status": 400}, "context_overflow", False),
    ],
    ids=str,
)
def test_a_failure_is_named_by_what_says_most(given: dict[str, Any], kind: str, retryable: bool) -> None:
    error = failure("planted", **given)
    assert (error.kind, error.retryable) == (kind, retryable)


def test_every_code_that_openai_gives_a_response_has_a_kind_of_its_own() -> None:
    for code in get_args(ResponseError.model_fields["code"].annotation):
        assert failure("planted", types=(code,)).kind != "server" or code == "server_error", code


@pytest.mark.parametrize(
    ("body", "message", "types"),
    [
        ({"error": {"message": "m", "code": "c", "type": "t"}}, "m", ("c", "t", None, None)),
        ({"type": "error", "error": {"type": "t", "message": "m"}}, "m", (None, "t", None, "error")),
        ([{"error": {"message": "m", "code": 400}}], "m", (400, None, None, None)),
        ({"error": "m"}, "m", (None, None)),
        ({"detail": "m"}, "m", (None, None)),
        ({"detail": [{"loc": ["body"], "msg": "m"}]}, "m", (None, None, None, None)),
        ({"message": "m", "type": "t"}, "m", (None, "t")),
        ({"error": {"message": {"no": "text"}}}, None, (None, None, None, None)),
        ({}, None, (None, None)),
        ([], None, ()),
        (None, None, ()),
        (7, None, ()),
        ("m", "m", ()),
    ],
    ids=str,
)
def test_what_an_error_body_says_is_found_in_whatever_shape(
    body: object, message: str | None, types: tuple[object, ...]
) -> None:
    assert said_in(body) == (message, types)


@providers
@pytest.mark.parametrize("in_list", [False, True], ids=["plain", "in a list"])
async def test_a_failure_that_comes_with_a_status_of_success_is_that_failure(
    provider: Provider, tmp_path: Path, in_list: bool
) -> None:
    path, wire = tmp_path / "log.db", provider.wire([provider.short])
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "too many of you"}}
    busy = [refusal(200, [body] if in_list else body)]
    served_late = served(lambda asked: busy.pop() if busy else wire(asked))
    async with served_late as server, wired(path, provider.plugin, SOON) as kernel:
        turn = await asked(kernel, provider.at(server.url))
    assert turn.text == provider.short_text
    (failed,) = events_of(path, RequestFailed)
    assert (failed.failure, failed.message) == ("overloaded", "too many of you")


@providers
@pytest.mark.parametrize("body", [{"error": None, "id": "resp_1"}, [], 7, "\ud800", {"choices": []}], ids=ascii)
async def test_an_answer_that_is_no_stream_says_what_to_look_at(
    provider: Provider, tmp_path: Path, body: object
) -> None:
    code, message = await ended(provider, tmp_path / "log.db", provider.at("URL"), lambda asked: refusal(200, body))
    assert (code, message) == ("protocol", "the address answers with application/json, not with a stream: is it right?")


@pytest.mark.parametrize(
    "message",
    [
        "prompt is too long: 208310 tokens > 200000 maximum",
        "This model's maximum context length is 65536 tokens.",
        "Your input exceeds the context window of this model.",
        "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input length",
        "the request exceeds the available context size. try increasing the context size or enable context shift",
    ],
)
def test_a_conversation_that_is_too_long_is_known_by_its_words(message: str) -> None:
    assert failure(message, types=("invalid_request_error",), status=400).kind == "context_overflow"
