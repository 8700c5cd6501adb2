"""Token counts of providers that count what came from a cache, or went to one, with all that was sent."""

from __future__ import annotations

from flightlog_hookspecs import Usage


def counted(sent: int, generated: int, cached: int, written: int) -> Usage:
    """The counts, each token once. Counts that contradict each other never make a negative one."""
    return Usage(
        input_tokens=max(0, sent - cached - written),
        output_tokens=generated,
        cached_tokens=cached,
        cache_write_tokens=written,
    )
