"""Event streams on the suite's loopback server."""

from __future__ import annotations

import json

from flightlog.testing.conformance.server import Answer, Asked, Ending, WireServer, at_once, refusal, served

__all__ = ["Answer", "Asked", "Ending", "WireServer", "at_once", "refusal", "served", "sse"]


def sse(data: object, event: str = "") -> bytes:
    """One frame."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    # Half of a surrogate pair is an escape in JSON.
    return (f"event: {event}\n" if event else "").encode() + f"data: {text}\n\n".encode(errors="backslashreplace")
