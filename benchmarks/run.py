"""All benchmarks, one after the other, and their ratios at the end."""

from __future__ import annotations

import checkpoints
import durable_turn
import footprint
import heartbeat
import journal_append
import long_session
import many_sessions
import visibility


def main() -> None:
    """Run them."""
    results: dict[str, float] = {}
    for benchmark in (
        journal_append,
        durable_turn,
        many_sessions,
        long_session,
        checkpoints,
        visibility,
        heartbeat,
        footprint,
    ):
        results |= benchmark.main()
    print("\nratios to the floor, or to the limit")
    for name, ratio in results.items():
        print(f"  {name:<44} {ratio:6.2f}x")


if __name__ == "__main__":
    main()
