"""A set that never changes, and of which a larger one can be made at little cost: states share their past."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from attrs import frozen

T = TypeVar("T", bound=Hashable)


@frozen
class GrowingSet(Generic[T]):
    """An immutable set in parts, each at least twice as large as the next: log n parts for n items."""

    parts: tuple[frozenset[T], ...] = ()

    def __contains__(self, item: object) -> bool:
        return any(item in part for part in self.parts)

    def __iter__(self) -> Iterator[T]:
        return (item for part in self.parts for item in part)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def with_item(self, item: T) -> GrowingSet[T]:
        """A set that holds `item` as well. Copies log n items on average, where a plain frozenset copies all."""
        parts, last = self.parts, frozenset((item,))
        while parts and len(parts[-1]) < 2 * len(last):
            parts, last = parts[:-1], parts[-1] | last
        return GrowingSet((*parts, last))
