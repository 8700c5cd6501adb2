"""All benchmarks, one after the other, and their ratios at the end."""

from __future__ import annotations

import durable_turn
import footprint
import journal_append


def main() -> None:
    """Run them."""
    results: dict[str, float] = {}
    for benchmark in (journal_append, durable_turn, footprint):
        results |= benchmark.main()
    print("\nratios to the floor, or to the limit")
    for name, ratio in results.items():
        print(f"  {name:<28} {ratio:6.2f}x")


if __name__ == "__main__":
    main()
