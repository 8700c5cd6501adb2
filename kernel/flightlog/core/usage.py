"""How much of a rate is used: what happened in the last so many seconds, by name."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from attrs import define, field, frozen

from flightlog.core.quotas import Rate

SETTLES_US: Final = 5_000_000
"""What is taken is counted any moment: it is looked again after so many microseconds."""

LONG_TAKEN_US: Final = 60_000_000
"""What was taken before that is not: whoever took it may be dead. It is looked again after as many."""


@frozen(kw_only=True)
class Demand:
    """The wish to use `amount` more of what is counted under `name`."""

    name: str
    amount: int = 1


@define
class Usage:
    """What was used of what `rates` bounds, by name; of all else nothing is kept, whatever is said of it.

    What is taken but not counted yet stands beside it.
    """

    rates: Mapping[str, Rate]
    _used: dict[str, deque[tuple[int, int]]] = field(factory=dict, init=False)
    _taken: dict[str, dict[int, tuple[int, int]]] = field(factory=dict, init=False)

    def add(self, name: str, at_us: int, amount: int) -> None:
        """So much was used at `at_us`."""
        if name in self.rates:
            self._used.setdefault(name, deque()).append((at_us, amount))

    def take(self, name: str, who: int, at_us: int, amount: int) -> None:
        """So much is taken by `who`, until that is settled."""
        if name in self.rates:
            self._taken.setdefault(name, {})[who] = (at_us, amount)

    def settle(self, name: str, who: int) -> None:
        """What `who` has taken is counted now."""
        self._taken.get(name, {}).pop(who, None)

    def forget(self, now_us: int) -> None:
        """Keep nothing to which no rate looks back any more, also of what others use and nobody asks for here."""
        for name, used in self._used.items():
            since_us = self._since_us(name, now_us)
            while used and used[0][0] <= since_us:  # what came in from long ago goes once it is the first
                used.popleft()
        for name, taken in self._taken.items():
            since_us = self._since_us(name, now_us)
            for who in [who for who, (at_us, _) in taken.items() if at_us <= since_us]:
                del taken[who]

    def wait_us(self, demand: Demand, now_us: int) -> float:
        """In how many microseconds the demand may fit, 0 for now; infinite where it never does."""
        most = self.rates[demand.name].most
        if demand.amount > most:
            return math.inf
        used, taken = self._within(demand.name, now_us)
        over = sum(amount for _, amount in (*used, *taken)) + demand.amount - most
        if over <= 0:
            return 0
        at_us = now_us
        for at_us, amount in sorted((*used, *taken)):  # noqa: B007  the last one that has to go
            over -= amount
            if over <= 0:
                break
        free_us = max(1, at_us - self._since_us(demand.name, now_us))
        if not taken:
            return free_us
        newest_us = max(at_us for at_us, _ in taken)
        return min(free_us, SETTLES_US if now_us - newest_us < LONG_TAKEN_US else LONG_TAKEN_US)

    def used(self, name: str, now_us: int) -> int:
        """How much is used and taken."""
        used, taken = self._within(name, now_us)
        return sum(amount for _, amount in (*used, *taken))

    def _within(self, name: str, now_us: int) -> tuple[Iterable[tuple[int, int]], list[tuple[int, int]]]:
        """What was used and what was taken that still counts. A clock that was put back has it happen now."""
        since_us, used = self._since_us(name, now_us), self._used.get(name, deque())
        if any(not since_us < at_us <= now_us for at_us, _ in used):  # in any order: logs are brought in from elsewhere
            used = deque((min(at_us, now_us), amount) for at_us, amount in used if at_us > since_us)
            self._used[name] = used
        taken = self._taken.get(name, {})
        taken |= {who: (now_us, amount) for who, (at_us, amount) in taken.items() if at_us > now_us}
        return used, [each for each in taken.values() if each[0] > since_us]

    def _since_us(self, name: str, now_us: int) -> int:
        return now_us - int(self.rates[name].per_s * 1_000_000)
