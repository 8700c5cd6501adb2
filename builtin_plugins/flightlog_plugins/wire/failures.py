"""What went wrong on the wire, as one of the kinds the kernel knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

from flightlog_hookspecs.errors import FailureKind, ProviderError

MESSAGE_MAX_CHARS: Final = 1000

_KIND_OF_TYPE: Final[Mapping[str, FailureKind]] = {
    # Anthropic's error types
    "authentication_error": "auth",
    "permission_error": "auth",
    "billing_error": "auth",
    "invalid_request_error": "bad_request",
    "not_found_error": "bad_request",
    "request_too_large": "context_overflow",
    "rate_limit_error": "rate_limit",
    "overloaded_error": "overloaded",
    "timeout_error": "timeout",
    "api_error": "server",
    # OpenAI's types and codes
    "invalid_api_key": "auth",
    "context_length_exceeded": "context_overflow",
    "insufficient_quota": "rate_limit",
    "rate_limit_exceeded": "rate_limit",
    "tokens": "rate_limit",
    "requests": "rate_limit",
    "server_error": "server",
    "server_overloaded": "overloaded",
    "slow_down": "overloaded",
    "content_filter": "filter",
    "bio_policy": "filter",
    "invalid_prompt": "bad_request",
    "model_not_found": "bad_request",
}
_KIND_OF_STATUS: Final[Mapping[int, FailureKind]] = {
    401: "auth",
    402: "auth",
    403: "auth",
    408: "timeout",
    409: "server",
    413: "context_overflow",
    429: "rate_limit",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
_OVERFLOW: Final = re.compile(
    r"prompt is too long|context[ _](length|window)|maximum context|input is too long", re.IGNORECASE
)
_LASTING: Final = frozenset({"insufficient_quota"})
"""Codes of failures that look passing and are not."""


def failure(
    message: str,
    *,
    types: tuple[object, ...] = (),
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> ProviderError:
    """The failure that the provider reported with `types` (its type and code, most telling first)."""
    kind = _kind(types, status, message)
    headers = headers or {}
    wish = {"true": True, "false": False}.get(headers.get("x-should-retry", ""))
    lasting = any(name in _LASTING for name in types if isinstance(name, str))
    where = f" (HTTP {status})" if status is not None and status >= 400 else ""
    return ProviderError(
        kind,
        one_line(message or "the provider gave no reason") + where,
        retryable=False if lasting else wish,
        retry_after_s=retry_after_s(headers),
    )


def _kind(types: tuple[object, ...], status: int | None, message: str) -> FailureKind:
    known = [_KIND_OF_TYPE[name] for name in types if isinstance(name, str) and name in _KIND_OF_TYPE]
    kind: FailureKind | None = known[0] if known else None
    if kind is None and status is not None and status >= 400:
        kind = _KIND_OF_STATUS.get(status, "server" if status >= 500 else "bad_request")
    if kind in (None, "bad_request") and _OVERFLOW.search(message):
        return "context_overflow"
    # OpenAI says invalid_request_error also of keys and limits; the status knows better.
    if kind == "bad_request" and status in (401, 403, 429):
        return _KIND_OF_STATUS[status]
    return kind or "server"


def one_line(message: str) -> str:
    """`message` without line breaks and not too long."""
    return " ".join(message.split())[:MESSAGE_MAX_CHARS]


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long the provider wants us to wait, in seconds. A date counts from the response's own."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit_s)
        except (KeyError, ValueError):
            pass
    try:
        until, now = parsedate_to_datetime(headers["retry-after"]), parsedate_to_datetime(headers["date"])
        return max(0.0, (until - now).total_seconds())
    except (KeyError, ValueError, TypeError):
        return None
