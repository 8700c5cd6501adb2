"""Token counts as providers give them, in whatever shape: what is counted never costs an answer."""

from __future__ import annotations

from math import inf

from flightlog_hookspecs import Usage


def count(value: object) -> int | None:
    """`value` as a count, without the fraction that servers send which estimate; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        return None
    return int(value)


def counted(sent: object, generated: object, cached: object, written: object) -> Usage | None:
    """The counts of a provider that counts what came from a cache, or went to one, with all that was sent.

    What is missing is 0; None where one of them is no count: one that is not known is better than one that is wrong.
    Counts that contradict each other never make a negative one.
    """
    counts = [0 if given is None else count(given) for given in (sent, generated, cached, written)]
    match counts:
        case [int(all_sent), int(output), int(from_cache), int(to_cache)]:
            return Usage(
                input_tokens=max(0, all_sent - from_cache - to_cache),
                output_tokens=output,
                cached_tokens=from_cache,
                cache_write_tokens=to_cache,
            )
        case _:
            return None
