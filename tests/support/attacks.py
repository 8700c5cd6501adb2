"""What other programs may try to do to the rows of a log."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

VERBS = ("", "OR REPLACE", "OR IGNORE", "OR FAIL", "OR ABORT", "OR ROLLBACK")

CACHES = {"snapshots", "snapshot_items"}
"""The tables that hold no facts: whoever likes may change and empty them."""

Statement = tuple[str, tuple[Any, ...]]
Tables = dict[str, list[tuple[Any, ...]]]


def tables_of(database: sqlite3.Connection) -> Tables:
    """All rows of all tables of facts."""
    names = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    facts = [name for (name,) in names.fetchall() if name not in CACHES]
    return {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in facts}


def _other(value: Any) -> Any:
    """A value of the same type that differs."""
    match value:
        case int():
            return value + 1
        case str():
            return value + "!"
        case bytes():
            return value + b"!"
    return value


def attacks(database: sqlite3.Connection, table: str) -> Iterator[Statement]:
    """Statements that would change, replace or delete rows of `table`, aimed at its first and its last row."""
    columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    keys = [row[1] for row in database.execute(f"PRAGMA table_info({table})") if row[5]]
    rows = database.execute(f"SELECT * FROM {table}").fetchall()
    listed, marks = ", ".join(columns), ", ".join("?" * len(columns))
    for row in dict.fromkeys((rows[0], rows[-1])) if rows else ():
        changed = tuple(value if name in keys else _other(value) for name, value in zip(columns, row, strict=True))
        moved = tuple(_other(value) if name in keys else value for name, value in zip(columns, row, strict=True))
        where = " AND ".join(f"{name} = ?" for name in keys)
        key = tuple(row[columns.index(name)] for name in keys)
        for verb in VERBS:
            for values in (row, changed, moved):
                yield f"INSERT {verb} INTO {table}({listed}) VALUES({marks})", values
            if table not in ("delta_texts", "snapshot_items"):  # WITHOUT ROWID
                others = [name for name in columns if name not in keys]
                chosen = f"rowid, {', '.join(others)}"
                yield f"INSERT {verb} INTO {table}({chosen}) SELECT {chosen} FROM {table} WHERE {where}", key
            for name in columns:
                value = row[columns.index(name)]
                yield f"UPDATE {verb} {table} SET {name} = ? WHERE {where}", (_other(value), *key)
                yield f"UPDATE {verb} {table} SET {name} = ?", (value,)
        for name in columns:
            one = tuple(_other(value) if name == column else value for column, value in zip(columns, row, strict=True))
            yield f"INSERT OR REPLACE INTO {table}({listed}) VALUES({marks})", one
            upsert = f"ON CONFLICT DO UPDATE SET {name} = ?"
            for values in (row, changed, moved):
                new = _other(row[columns.index(name)])
                yield f"INSERT INTO {table}({listed}) VALUES({marks}) {upsert}", (*values, new)
        yield f"INSERT INTO {table}({listed}) VALUES({marks}) ON CONFLICT DO NOTHING", changed
        yield f"REPLACE INTO {table} SELECT * FROM {table}", ()
        yield f"DELETE FROM {table} WHERE {where}", key
        yield f"DELETE FROM {table}", ()
