"""A shop's database, and the transactional tool that takes things out of stock."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from flightlog_hookspecs import Tool, ToolContext

SCHEMA = """
CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER NOT NULL CHECK (count >= 0));
CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL REFERENCES stock DEFERRABLE INITIALLY DEFERRED);
INSERT INTO stock VALUES ('apple', 100), ('pear', 100);
"""
JOURNALS = ("wal", "delete")


def new_shop(path: Path, journal: str = "wal") -> Path:
    """An empty shop at `path`."""
    with closing(sqlite3.connect(path)) as database:
        assert database.execute(f"PRAGMA journal_mode = {journal}").fetchone() == (journal,)
        database.executescript(SCHEMA)
    return path


def asked(path: Path, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """What stands in a database."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(sql, parameters).fetchall()
        database.commit()
        return rows


def left(path: Path, item: str = "apple") -> int:
    """How many there still are."""
    return int(asked(path, "SELECT count FROM stock WHERE item = ?", item)[0][0])


def done_rows(path: Path) -> list[tuple[str, str | None]]:
    """The calls that the shop knows of, and what came of each."""
    if not asked(path, "SELECT 1 FROM sqlite_schema WHERE name = 'flightlog_done'"):
        return []
    return asked(path, "SELECT invocation_id, result FROM flightlog_done ORDER BY invocation_id")


def take(context: ToolContext, item: str = "apple") -> str:
    """Take one out of stock."""
    ((count,),) = context.database.execute("SELECT count FROM stock WHERE item = ?", (item,))
    context.database.execute("UPDATE stock SET count = ? WHERE item = ?", (count - 1, item))
    return f"{count - 1} left"


def shop_tool(path: Path, body: Callable[..., object] = take, **options: Any) -> Tool:
    """A transactional tool named "take"; its calls may stand side by side, and wait for each other in the database."""
    options = {"mode": "parallel", **options}
    return Tool(body=body, name="take", description="Take.", effect="transactional", database=path, **options)
