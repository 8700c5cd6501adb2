"""What went wrong on the wire, as one of the kinds the kernel knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from math import isfinite
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
    "data_residency_mismatch": "bad_request",
    "misalignment_policy_violation": "filter",
    "vector_store_timeout": "timeout",
    "image_content_policy_violation": "filter",
    "invalid_image": "bad_request",
    "invalid_image_format": "bad_request",
    "invalid_image_mode": "bad_request",
    "invalid_image_url": "bad_request",
    "invalid_base64_image": "bad_request",
    "image_too_large": "bad_request",
    "image_too_small": "bad_request",
    "image_file_too_large": "bad_request",
    "image_file_not_found": "bad_request",
    "image_parse_error": "bad_request",
    "empty_image_file": "bad_request",
    "failed_to_download_image": "bad_request",
    "unsupported_image_media_type": "bad_request",
    # of llama.cpp
    "exceed_context_size_error": "context_overflow",
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
    r"prompt is too long|context[ _](length|window|limit|size)|maximum context|input is too long", re.IGNORECASE
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
    by_status = None if status is None or status < 400 else _kind_of(status)
    kind = known[0] if known else by_status
    if kind in (None, "bad_request") and _OVERFLOW.search(message):
        return "context_overflow"
    # OpenAI says invalid_request_error also of keys and limits, and proxies say it of whatever happens behind them.
    if by_status and kind == "bad_request" and status in (401, 403, 429):
        return by_status
    if by_status in ("timeout", "server", "overloaded") and kind in ("bad_request", "auth"):
        return by_status
    return kind or "server"


def _kind_of(status: int) -> FailureKind:
    return _KIND_OF_STATUS.get(status, "server" if status >= 500 else "bad_request")


def one_line(message: str) -> str:
    """`message` without line breaks and not too long."""
    return " ".join(message.split())[:MESSAGE_MAX_CHARS]


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long the provider wants us to wait, in seconds. A date counts from the response's own."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            if isfinite(seconds := float(headers[name]) * unit_s):
                return max(0.0, seconds)
        except (KeyError, ValueError):
            pass
    try:
        until, now = parsedate_to_datetime(headers["retry-after"]), parsedate_to_datetime(headers["date"])
        return max(0.0, (until - now).total_seconds())
    except (KeyError, ValueError, TypeError):
        return None
