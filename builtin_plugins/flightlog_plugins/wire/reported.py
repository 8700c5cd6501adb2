"""Failures that a provider reports, in whatever shape: in place of an answer, or in the middle of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flightlog_hookspecs.errors import ProviderError
from flightlog_plugins.wire.failures import failure


def refuse_errors(event: Mapping[str, Any]) -> None:
    """Raise the failure in `event`, if it is an error. Gateways forget to say that it is one."""
    if event.get("type") == "error" or (event.get("error") and not event.get("type")):
        raise reported(event.get("error") or event)


def reported(
    body: object, *, otherwise: str = "", status: int | None = None, headers: Mapping[str, str] | None = None
) -> ProviderError:
    """The failure that `body` describes, in the words `otherwise` where it has none of its own."""
    message, types = said_in(body)
    if status is None:
        status = next((code for code in types if isinstance(code, int) and 400 <= code < 600), None)
    return failure(message or otherwise, types=types, status=status, headers=headers)


def said_in(body: object) -> tuple[str | None, tuple[object, ...]]:
    """What an error body says, and the code and the type it gives that, in the shapes that servers have for it."""
    while isinstance(body, list) and body:  # Gemini's, and what FastAPI says of fields
        body = body[0]
    if not isinstance(body, Mapping):
        return (body if isinstance(body, str) else None), ()
    for name in ("error", "detail"):
        if body.get(name):
            message, types = said_in(body[name])
            return message, (*types, body.get("code"), body.get("type"))
    said = [body[name] for name in ("message", "msg") if isinstance(body.get(name), str)]
    return (said[0] if said else None), (body.get("code"), body.get("type"))
