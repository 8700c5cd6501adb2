"""The log is append-only from outside, too: whatever program writes to it, what was there stays as it was."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flightlog_hookspecs.errors import LogCorrupt
from support.files import content, copied, opened, plain, replayed, rich

VERBS = ("", "OR REPLACE", "OR IGNORE", "OR FAIL", "OR ABORT", "OR ROLLBACK")

Tables = dict[str, list[tuple[Any, ...]]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with something in every table."""
    rich(tmp_path / "log.db")
    return tmp_path / "log.db"


def tables_of(database: sqlite3.Connection) -> Tables:
    """All rows of all tables."""
    names = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return {name: database.execute(f"SELECT * FROM {name}").fetchall() for (name,) in names.fetchall()}


def test_the_log_under_attack_has_rows_in_every_table(log: Path) -> None:
    with plain(log) as database:
        tables = tables_of(database)
    assert set(tables) == {"events", "delta_texts", "blobs", "letters", "session_keys", "open_mark"}
    assert all(tables.values())


def other(value: Any) -> Any:
    """A value of the same type that differs."""
    match value:
        case int():
            return value + 1
        case str():
            return value + "!"
        case bytes():
            return value + b"!"
    return value


Statement = tuple[str, tuple[Any, ...]]


def attacks(database: sqlite3.Connection, table: str) -> Iterator[Statement]:
    """Statements that would change, replace or delete rows of `table`, aimed at its first and its last row."""
    columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    keys = [row[1] for row in database.execute(f"PRAGMA table_info({table})") if row[5]]
    rows = database.execute(f"SELECT * FROM {table}").fetchall()
    listed, marks = ", ".join(columns), ", ".join("?" * len(columns))
    for row in dict.fromkeys((rows[0], rows[-1])) if rows else ():
        changed = tuple(value if name in keys else other(value) for name, value in zip(columns, row, strict=True))
        moved = tuple(other(value) if name in keys else value for name, value in zip(columns, row, strict=True))
        where = " AND ".join(f"{name} = ?" for name in keys)
        key = tuple(row[columns.index(name)] for name in keys)
        for verb in VERBS:
            for values in (row, changed, moved):
                yield f"INSERT {verb} INTO {table}({listed}) VALUES({marks})", values
            if table != "delta_texts":  # WITHOUT ROWID
                others = [name for name in columns if name not in keys]
                chosen = f"rowid, {', '.join(others)}"
                yield f"INSERT {verb} INTO {table}({chosen}) SELECT {chosen} FROM {table} WHERE {where}", key
            for name in columns:
                value = row[columns.index(name)]
                yield f"UPDATE {verb} {table} SET {name} = ? WHERE {where}", (other(value), *key)
                yield f"UPDATE {verb} {table} SET {name} = ?", (value,)
        for name in columns:
            one = tuple(other(value) if name == column else value for column, value in zip(columns, row, strict=True))
            yield f"INSERT OR REPLACE INTO {table}({listed}) VALUES({marks})", one
            upsert = f"ON CONFLICT DO UPDATE SET {name} = ?"
            for values in (row, changed, moved):
                new = other(row[columns.index(name)])
                yield f"INSERT INTO {table}({listed}) VALUES({marks}) {upsert}", (*values, new)
        yield f"INSERT INTO {table}({listed}) VALUES({marks}) ON CONFLICT DO NOTHING", changed
        yield f"REPLACE INTO {table} SELECT * FROM {table}", ()
        yield f"DELETE FROM {table} WHERE {where}", key
        yield f"DELETE FROM {table}", ()


@pytest.mark.parametrize("pragma", ["recursive_triggers = OFF", "recursive_triggers = ON", "foreign_keys = ON"])
def test_no_statement_from_outside_changes_or_removes_a_row(log: Path, pragma: str) -> None:
    tried = 0
    with plain(log) as database:
        database.execute(f"PRAGMA {pragma}")
        before = tables_of(database)
        for table in before:
            for statement, values in attacks(database, table):
                tried += 1
                database.execute("BEGIN")
                with suppress(sqlite3.Error):
                    database.execute(statement, values)
                after = tables_of(database)
                if table == "open_mark":
                    assert [row[0] for row in after[table]] == [1], (statement, values)
                    assert after[table][0][1] in {0, 1}
                    after[table] = before[table]
                for name, rows in before.items():
                    assert set(rows) <= set(after[name]), (statement, values)
                if database.in_transaction:  # OR ROLLBACK has ended it
                    database.execute("ROLLBACK")
        assert tables_of(database) == before
    assert tried > 500


def test_the_attacks_would_succeed_without_the_guards(log: Path) -> None:
    """The attack itself: with the triggers dropped, it does change and remove rows of every table."""
    with plain(log) as database:
        for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            database.execute(f"DROP TRIGGER {name}")
        before = tables_of(database)
        for table in before:
            harmed = 0
            for statement, values in attacks(database, table):
                database.execute("BEGIN")
                try:
                    database.execute(statement, values)
                    harmed += not set(before[table]) <= set(tables_of(database)[table])
                except sqlite3.Error:
                    pass
                if database.in_transaction:
                    database.execute("ROLLBACK")
            assert harmed or not before[table], table


def test_an_attack_with_the_sqlite3_shell_on_a_live_log_changes_nothing(log: Path) -> None:
    shell = shutil.which("sqlite3")
    if shell is None:
        pytest.skip("there is no sqlite3 shell")
    with opened(log) as store:
        before = replayed(store)
        script = "\n".join(
            f"{attack};"
            for attack in (
                "DELETE FROM events",
                "UPDATE events SET text = 'forged'",
                "INSERT OR REPLACE INTO events SELECT * FROM events",
                "REPLACE INTO blobs SELECT * FROM blobs",
                "UPDATE OR REPLACE delta_texts SET text = 'forged'",
                "INSERT OR REPLACE INTO session_keys SELECT session, 'forged', uid FROM session_keys",
                "INSERT INTO session_keys VALUES(1, 's', 'forged') ON CONFLICT DO UPDATE SET uid = 'forged'",
                "UPDATE letters SET session = 'forged'",
                "REPLACE INTO letters SELECT * FROM letters",
                "DELETE FROM open_mark",
                "UPDATE open_mark SET is_open = 0",
            )
        )
        ran = subprocess.run([shell, str(log)], input=script, capture_output=True, text=True, check=False)
        assert ran.stderr.count("append-only") >= 9
        assert replayed(store) == before
    assert content(log) == before


def test_a_log_whose_open_mark_was_changed_from_outside_still_opens(log: Path) -> None:
    before = content(log)
    for value in (1, 0):
        path = copied(log, log.with_name(f"{value}.db"))
        with plain(path) as database:
            database.execute("UPDATE open_mark SET is_open = ?", (value,))
        with opened(path) as store:
            assert replayed(store) == before


def test_rows_appended_from_outside_are_refused_by_the_chain_and_never_taken_for_ours(log: Path) -> None:
    with plain(log) as database:
        names = [row[1] for row in database.execute("PRAGMA table_info(events)") if row[1] not in {"id", "seq"}]
        database.execute(
            f"INSERT INTO events(seq, {', '.join(names)}) "
            f"SELECT seq + 1, {', '.join(names)} FROM events WHERE session = 1 ORDER BY seq DESC LIMIT 1"
        )
    with pytest.raises(LogCorrupt) as caught:
        content(log)
    assert caught.value.rule == "hash-chain"
