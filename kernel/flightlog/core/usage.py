"""How much of a rate is used: what happened in the last so many seconds, by name."""

from __future__ import annotations

import math
from typing import Final

from attrs import define, field, frozen

from flightlog.core.quotas import Rate

SETTLES_US: Final = 5_000_000
"""What is taken is counted any moment: it is looked again after so many microseconds."""

LONG_TAKEN_US: Final = 60_000_000
"""What was taken before that is not: whoever took it may be dead. It is looked again after as many."""


@frozen(kw_only=True)
class Demand:
    """The wish to use `amount` more of what is counted under `name`, within `rate`."""

    name: str
    rate: Rate
    amount: int = 1


@define
class Usage:
    """What was used, by name. What is taken but not counted yet stands beside it."""

    _used: dict[str, list[tuple[int, int]]] = field(factory=dict, init=False)
    _taken: dict[str, dict[int, tuple[int, int]]] = field(factory=dict, init=False)

    def add(self, name: str, at_us: int, amount: int) -> None:
        """So much was used at `at_us`."""
        self._used.setdefault(name, []).append((at_us, amount))

    def take(self, name: str, who: int, at_us: int, amount: int) -> None:
        """So much is taken by `who`, until that is settled."""
        self._taken.setdefault(name, {})[who] = (at_us, amount)

    def settle(self, name: str, who: int) -> None:
        """What `who` has taken is counted now."""
        self._taken.get(name, {}).pop(who, None)

    def wait_us(self, demand: Demand, now_us: int) -> float:
        """In how many microseconds the demand may fit, 0 for now; infinite where it never does."""
        if demand.amount > demand.rate.most:
            return math.inf
        used, taken = self._within(demand, now_us)
        over = sum(amount for _, amount in (*used, *taken)) + demand.amount - demand.rate.most
        if over <= 0:
            return 0
        at_us = now_us
        for at_us, amount in sorted((*used, *taken)):  # noqa: B007  the last one that has to go
            over -= amount
            if over <= 0:
                break
        free_us = max(1, at_us - _since_us(demand, now_us))
        if not taken:
            return free_us
        newest_us = max(at_us for at_us, _ in taken)
        return min(free_us, SETTLES_US if now_us - newest_us < LONG_TAKEN_US else LONG_TAKEN_US)

    def used(self, demand: Demand, now_us: int) -> int:
        """How much is used and taken."""
        used, taken = self._within(demand, now_us)
        return sum(amount for _, amount in (*used, *taken))

    def _within(self, demand: Demand, now_us: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """What was used and what was taken that still counts. A clock that was put back has it happen now."""
        since_us, used = _since_us(demand, now_us), self._used.get(demand.name, [])
        if any(not since_us < at_us <= now_us for at_us, _ in used):  # in any order: logs are brought in from elsewhere
            used = [(min(at_us, now_us), amount) for at_us, amount in used if at_us > since_us]
            self._used[demand.name] = used
        taken = self._taken.get(demand.name, {})
        taken |= {who: (now_us, amount) for who, (at_us, amount) in taken.items() if at_us > now_us}
        return used, [each for each in taken.values() if each[0] > since_us]


def _since_us(demand: Demand, now_us: int) -> int:
    return now_us - int(demand.rate.per_s * 1_000_000)
