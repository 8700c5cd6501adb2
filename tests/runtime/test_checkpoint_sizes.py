"""The log of a task grows with its steps and no faster; a checkpoint is as large late in a task as early."""

from __future__ import annotations

from pathlib import Path

from flightlog.store.rows import EventRow
from flightlog.store.store import Store
from flightlog.testing import calls
from support.shop import REPLIES, TASK, Shop, whole_run

FEW = 40


async def rows(path: Path, steps: int) -> list[EventRow]:
    """The rows of a task of so many steps."""
    looks = [calls(("order", {"id": f"{number:04}"})) for number in range(steps - 1)]
    await whole_run(path, *Shop().tools(), replies=[*looks, REPLIES[-1]], max_steps=steps)
    store = Store.open_to_read(str(path))
    try:
        key = store.key_of(TASK)
        assert key is not None
        return list(store.rows(key.key))
    finally:
        store.close()


def size(row: EventRow) -> int:
    """The bytes of all that a row holds."""
    return sum(len(value.encode()) if isinstance(value, str) else len(value or b"") for value in _texts(row))


def _texts(row: EventRow) -> list[str | bytes | None]:
    return [value for value in row if isinstance(value, (str, bytes))]


async def test_twice_the_steps_are_at_most_twice_the_bytes_and_a_little(tmp_path: Path) -> None:
    few, many = await rows(tmp_path / "few.db", FEW), await rows(tmp_path / "many.db", 2 * FEW)
    for kinds in (("checkpoint/written",), tuple({row.kind for row in many})):
        small, large = (sum(size(row) for row in log if row.kind in kinds) for log in (few, many))
        assert small < large <= 2.15 * small, kinds


async def test_a_checkpoint_does_not_grow_with_the_task(tmp_path: Path) -> None:
    log = await rows(tmp_path / "a.db", FEW)
    for level, most in (("light", 400), ("heavy", 900)):
        sizes = [size(row) for row in log if row.kind == "checkpoint/written" and row.status == level]
        assert len(sizes) >= FEW
        assert max(sizes) <= most, level
        assert max(sizes) - max(sizes[:4]) <= 20, "only the counters have more digits"
