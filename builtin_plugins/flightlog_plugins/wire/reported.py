"""Failures that a provider reports in the middle of its answer, in whatever shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flightlog_hookspecs.errors import ProviderError
from flightlog_plugins.wire.failures import failure


def refuse_errors(event: Mapping[str, Any]) -> None:
    """Raise the failure in `event`, if it is an error. Gateways forget to say that it is one."""
    if event.get("type") == "error" or (event.get("error") and not event.get("type")):
        raise reported(event.get("error") or event)


def reported(error: object) -> ProviderError:
    """The failure that `error` describes: an object, or what it has to say alone."""
    detail = error if isinstance(error, Mapping) else {"message": error}
    code = detail.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else None
    return failure(str(detail.get("message") or ""), types=(code, detail.get("type")), status=status)
