"""Logs to be damaged: one that was closed, and one whose owner died."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.damage import Image
from support.files import Pen, content, copied, in_memory, opened, rich


@pytest.fixture(scope="module")
def closed() -> Iterator[Image]:
    """A log that was closed cleanly: all of it is in the main file."""
    with in_memory() as folder:
        path = folder / "log.db"
        rich(path)
        yield Image(path, {name: len(records) for name, records in content(path).items()})


@pytest.fixture(scope="module")
def pages(closed: Image) -> dict[str, list[int]]:
    """Its pages, by table and index."""
    return closed.pages()


@pytest.fixture(scope="module")
def killed() -> Iterator[Image]:
    """A log whose owner died: its end is in the -wal, the last row of it was not acknowledged as durable."""
    with in_memory() as folder:
        path = folder / "log.db"
        rich(path)
        with opened(path) as store:
            pen = Pen(store, "u")
            for number in range(12):
                pen.say(f"number {number} " * 20, barrier=number % 3 != 1)
            acked = pen.acked
            pen.say("never acknowledged", barrier=False)
            copy = copied(path, folder / "copy.db")
        durable = {name: len(records) for name, records in content(path).items()}
        yield Image(copy, {**durable, "u": acked})
