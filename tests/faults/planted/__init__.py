"""Bugs to plant in the real kernel: what its tests are there to find.

Each is a context manager that replaces a narrow point of the kernel and says in its docstring what goes wrong.
`saving`: commits, the witness, the disk. `acting`: tools, requests, cancels. `saying`: messages, letters,
streamed words. `shortening`: long contexts. `reading`: logs that were damaged. `owning`: who may write. `working`:
tasks. `deciding`: pure rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """`owner` has `value` under `name`."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
