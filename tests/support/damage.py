"""Damage for tests: bits flipped in the bytes of a log, rows operated on by somebody who dropped the guards first."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import apsw
from hypothesis import strategies as st

from flightlog.store.store import Store
from flightlog_hookspecs.errors import StoreError
from flightlog_hookspecs.events import Record
from support.files import COMPANIONS, content, photograph, plain, replayed

PAGE_BYTES = 4096
Content = dict[str, list[Record]]
STRUCTURES = (
    "sqlite_schema",
    "session_keys",
    "sqlite_autoindex_session_keys_1",
    "events",
    "sqlite_autoindex_events_1",
    "delta_texts",
    "blobs",
    "sqlite_autoindex_blobs_1",
    "open_mark",
)


TABLES = ("events", "delta_texts", "blobs", "session_keys", "open_mark")


class Image:
    """The bytes of a log and its companions, to be put down again and again with some of them changed."""

    def __init__(self, path: Path, durable: dict[str, int]) -> None:
        self.folder = path.parent
        self.files = {s: Path(f"{path}{s}").read_bytes() for s in ("", "-wal", "-head") if os.path.exists(f"{path}{s}")}
        self.whole = content(self.put_down({}))
        self.durable = durable

    def put_down(self, changed: dict[str, bytes]) -> Path:
        """A new log with these bytes."""
        path = self.folder / "damaged.db"
        for suffix in COMPANIONS:
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        for suffix, data in {**self.files, **changed}.items():
            Path(f"{path}{suffix}").write_bytes(data)
        return path

    def check(self, changed: dict[str, bytes], *, to_write: bool = False) -> str:
        """Open the changed log: what came of it. Fails when it says anything else than the whole one."""
        path = self.put_down(changed)
        before = photograph(self.folder)
        try:
            store = Store.open(str(path)) if to_write else Store.open_to_read(str(path))
        except StoreError as error:
            after = photograph(self.folder)
            after.pop("damaged.db-shm", None)
            assert after == before, "the refusal itself changed the file"
            return type(error).__name__
        try:
            found = replayed(store)
        except StoreError as error:
            return type(error).__name__
        finally:
            store.close()
        assert found.keys() == self.whole.keys()
        for name, records in found.items():
            assert records == self.whole[name][: len(records)], name
            assert len(records) >= self.durable[name], name
        return "same" if found == self.whole else "shorter by what was never acknowledged"

    def pages(self) -> dict[str, list[int]]:
        """The pages of each table and index that are not merely the inside of a large text or blob."""
        connection = apsw.Connection(str(self.put_down({})))
        found: dict[str, list[int]] = {}
        try:
            for name, number in connection.execute("SELECT name, pageno FROM dbstat WHERE pagetype <> 'overflow'"):
                found.setdefault(name, []).append(number)
        finally:
            connection.close()
        return found


def flipped(data: bytes, *bits: tuple[int, int]) -> bytes:
    """`data` with these bits (byte, bit) flipped."""
    changed = bytearray(data)
    for byte, bit in bits:
        changed[byte] ^= 1 << bit
    return bytes(changed)


def cut_or_flipped(data: st.DataObject, whole: bytes) -> bytes:
    """`whole`, cut anywhere or with a bit of any byte flipped, as `data` draws it."""
    place = data.draw(st.integers(0, len(whole) - 1), label="byte")
    return whole[:place] if data.draw(st.booleans(), label="cut") else flipped(whole, (place, 3))


def unguarded(database: sqlite3.Connection) -> sqlite3.Connection:
    """`database` with every trigger dropped."""
    for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        database.execute(f"DROP TRIGGER {name}")
    return database


VALUES = st.one_of(
    st.integers(-2, 60), st.integers(-(2**63), 2**63 - 1), st.text(max_size=5), st.binary(max_size=4), st.none()
)


SURGERY = st.sampled_from(["delete", "change", "insert", "move"])
PLACES = st.integers(0, 999)


def operate(
    database: sqlite3.Connection, table: str, surgery: str, places: tuple[int, int, int], value: object
) -> None:
    """Delete, change, insert or move one row of `table`; `places` choose the row, the column and another row."""
    columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    keys = [row[1] for row in database.execute(f"PRAGMA table_info({table})") if row[5]]
    rows = database.execute(f"SELECT * FROM {table}").fetchall()
    row, column = rows[places[0] % len(rows)], columns[places[1] % len(columns)]
    where = " AND ".join(f"{name} = ?" for name in keys)
    key = [row[columns.index(name)] for name in keys]
    match surgery:
        case "delete":
            database.execute(f"DELETE FROM {table} WHERE {where}", key)
        case "change":
            database.execute(f"UPDATE OR REPLACE {table} SET {column} = ? WHERE {where}", (value, *key))
        case "insert":
            forged = [value if name == column else old for name, old in zip(columns, row, strict=True)]
            database.execute(f"INSERT OR REPLACE INTO {table} VALUES({', '.join('?' * len(row))})", forged)
        case "move":
            stolen = rows[places[2] % len(rows)][columns.index(column)]
            database.execute(f"UPDATE OR REPLACE {table} SET {column} = ? WHERE {where}", (stolen, *key))


def hide_damage(path: Path, session: str) -> None:
    """Change a row of `session` that no model is shown and that stands before the newest snapshot."""
    with plain(path) as database:
        key, seq, kept = database.execute(
            "SELECT session, min(e.seq), s.seq FROM events e JOIN session_keys k USING(session) "
            "JOIN snapshots s USING(session) WHERE k.name = ? AND e.kind = 'step/end'",
            (session,),
        ).fetchone()
        assert seq < kept
        unguarded(database).execute("UPDATE events SET at = at + 1 WHERE session = ? AND seq = ?", (key, seq))
