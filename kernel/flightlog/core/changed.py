"""Frozen values with some fields replaced, cheaply: every append makes several."""

from __future__ import annotations

from typing import TypeVar

Changed = TypeVar("Changed")
_new, _set = object.__new__, object.__setattr__


def changed(old: Changed, **changes: object) -> Changed:
    """`old`, of a frozen class without slots, with some fields replaced. A twentieth of the price of `attrs.evolve`."""
    new = _new(type(old))
    _set(new, "__dict__", {**old.__dict__, **changes})  # at once: filling the one that is there takes twice as long
    return new
