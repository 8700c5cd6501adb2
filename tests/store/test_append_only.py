"""The log is append-only from outside, too: whatever program writes to it, what was there stays as it was."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from flightlog_hookspecs.errors import LogCorrupt
from support.attacks import CACHES, attacks, tables_of
from support.files import content, copied, keep_snapshot, opened, plain, replayed, rich


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with something in every table."""
    rich(tmp_path / "log.db")
    return tmp_path / "log.db"


def test_the_log_under_attack_has_rows_in_every_table(log: Path) -> None:
    with plain(log) as database:
        tables = tables_of(database)
    assert set(tables) == {"events", "delta_texts", "blobs", "letters", "session_keys", "open_mark"}
    assert all(tables.values())


def test_whatever_is_done_to_the_snapshots_the_log_says_the_same(log: Path) -> None:
    with opened(log) as store:
        for name in ("s", "t"):
            keep_snapshot(store, name)
    before = content(log)
    with plain(log) as database:
        tried = [attack for table in sorted(CACHES) for attack in attacks(database, table)]
    for statement, values in tried:
        with plain(log) as database, suppress(sqlite3.Error):
            database.execute(statement, values)
            database.commit()
        assert content(log) == before, (statement, values)
    with plain(log) as database:
        for table in CACHES:
            assert database.execute(f"SELECT * FROM {table}").fetchall() == [], "the last of them have emptied it"


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
