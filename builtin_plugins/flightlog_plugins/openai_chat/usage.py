"""The tokens that a server says it counted, in the shapes they come in."""

from __future__ import annotations

from flightlog_hookspecs import Usage
from flightlog_plugins.wire.json_text import inner
from flightlog_plugins.wire.tokens import counted


def usage_in(chunk: dict[str, object]) -> Usage | None:
    """What `chunk` counts; None for nothing, also where it holds something else in place of a number."""
    if not (totals := inner(chunk, "usage")):
        return None
    details = inner(totals, "prompt_tokens_details")
    cached = details.get("cached_tokens") or totals.get("prompt_cache_hit_tokens")
    return counted(
        totals.get("prompt_tokens"), totals.get("completion_tokens"), cached, details.get("cache_write_tokens")
    )
