"""Frozen values with some fields replaced, cheaply: every append makes several."""

from __future__ import annotations

from typing import TypeVar

Changed = TypeVar("Changed")


def changed(old: Changed, **changes: object) -> Changed:
    """`old`, of a frozen class without slots, with some fields replaced. An eighth of the price of `attrs.evolve`."""
    new = object.__new__(type(old))
    new.__dict__.update(old.__dict__, **changes)
    return new
