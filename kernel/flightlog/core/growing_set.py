"""A set that never changes, and of which a larger one can be made at little cost: states share their past."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from attrs import frozen

T = TypeVar("T", bound=Hashable)


@frozen(eq=False)
class GrowingSet(Generic[T]):
    """An immutable set in parts, each at least twice as large as the next: log n parts for n items.

    Two are equal that hold the same, however it came into them.
    """

    parts: tuple[frozenset[T], ...] = ()

    def __contains__(self, item: object) -> bool:
        return any(item in part for part in self.parts)

    def __iter__(self) -> Iterator[T]:
        return (item for part in self.parts for item in part)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GrowingSet) and frozenset(self) == frozenset(other)

    def __hash__(self) -> int:
        return hash(frozenset(self))

    @classmethod
    def of(cls, items: frozenset[T]) -> GrowingSet[T]:
        """The one that holds these."""
        return cls((items,) if items else ())

    def beyond(self, before: GrowingSet[T]) -> frozenset[T]:
        """What it holds that `before` does not, found at little cost when it has grown out of that."""
        shared = set(map(id, before.parts))
        return frozenset(item for part in self.parts if id(part) not in shared for item in part if item not in before)

    def with_item(self, item: T) -> GrowingSet[T]:
        """A set that holds `item` as well. Copies log n items on average, where a plain frozenset copies all."""
        parts, last = self.parts, frozenset((item,))
        while parts and len(parts[-1]) < 2 * len(last):
            parts, last = parts[:-1], parts[-1] | last
        return GrowingSet((*parts, last))
