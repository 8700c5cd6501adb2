"""A file without its own triggers, views or tables guards nothing: it is refused, not used."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import flightlog
from flightlog.errors import LogCorrupt
from flightlog.testing import FakeModel
from support.kernels import session_of

DAMAGE = {
    "trigger events_insert": "DROP TRIGGER events_insert",
    "view messages": "DROP VIEW messages",
    "view timeline": "DROP VIEW timeline",
    "index events_bracket": "DROP INDEX events_bracket",
    "table letters": "DROP TABLE letters",
    "trigger events_update": "DROP TRIGGER events_update;"
    "CREATE TRIGGER events_update BEFORE UPDATE ON events BEGIN SELECT 1; END",
}


async def written(path: Path) -> None:
    async with session_of(path, FakeModel([])) as session:
        await session.followup("hello")
        await session.run()


def altered(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(sql)


@pytest.mark.parametrize("what", DAMAGE)
async def test_what_is_missing_or_changed_is_named_at_opening(tmp_path: Path, what: str) -> None:
    path = tmp_path / "a.db"
    await written(path)
    altered(path, DAMAGE[what])
    with pytest.raises(LogCorrupt, match=rf"the {what} (is missing|was changed).*schema-whole"):
        async with flightlog.open_kernel(path, discover=False):
            pass
    with pytest.raises(LogCorrupt, match=what):
        flightlog.open_log(path, discover=False)


async def test_what_somebody_added_of_their_own_is_theirs(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await written(path)
    altered(path, "CREATE VIEW mine AS SELECT * FROM turns; CREATE INDEX my_index ON events(kind)")
    async with session_of(path, FakeModel([])) as session:
        await session.followup("still fine")
        turn = await session.run()
    assert turn is not None
    assert turn.reason == "completed"
