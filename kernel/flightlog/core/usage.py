"""How much of a rate is used: what happened in the last so many seconds, by name."""

from __future__ import annotations

import math
from collections import deque

from attrs import define, field, frozen

from flightlog.core.quotas import Rate


@frozen(kw_only=True)
class Demand:
    """The wish to use `amount` more of what is counted under `name`, within `rate`."""

    name: str
    rate: Rate
    amount: int = 1


@define
class Usage:
    """What was used, by name, in the order of the log. What is taken but not counted yet stands beside it."""

    _used: dict[str, deque[tuple[int, int]]] = field(factory=dict, init=False)
    _taken: dict[str, dict[int, int]] = field(factory=dict, init=False)

    def add(self, name: str, at_us: int, amount: int) -> None:
        """So much was used at `at_us`."""
        self._used.setdefault(name, deque()).append((at_us, amount))

    def take(self, name: str, who: int, amount: int) -> None:
        """So much is taken by `who`, until that is settled."""
        self._taken.setdefault(name, {})[who] = amount

    def settle(self, name: str, who: int) -> None:
        """What `who` has taken is counted now."""
        self._taken.get(name, {}).pop(who, None)

    def wait_us(self, demand: Demand, now_us: int) -> float:
        """In how many microseconds the demand fits, 0 for now; infinite where it never does by itself."""
        since_us = now_us - int(demand.rate.per_s * 1_000_000)
        entries = self._used.setdefault(demand.name, deque())
        while entries and entries[0][0] <= since_us:
            entries.popleft()
        taken = sum(self._taken.get(demand.name, {}).values())
        over = taken + sum(amount for _, amount in entries) + demand.amount - demand.rate.most
        if over <= 0:
            return 0
        for at_us, amount in entries:
            over -= amount
            if over <= 0:
                return max(1, at_us - since_us)
        return math.inf

    def used(self, demand: Demand, now_us: int) -> int:
        """How much is used and taken."""
        since_us = now_us - int(demand.rate.per_s * 1_000_000)
        entries = self._used.get(demand.name, ())
        return sum(self._taken.get(demand.name, {}).values()) + sum(n for at_us, n in entries if at_us > since_us)
