"""A row that was changed behind our backs is refused by name: by the chain, or by what its columns derive from."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import pytest

from flightlog.store.codec import chained
from flightlog.store.derived import Derived
from flightlog.store.replay import replay
from flightlog.store.rows import EventRow
from flightlog.store.store import Store
from flightlog_hookspecs.errors import LogCorrupt, SchemaTooNew
from support import sample_log
from support.legal_logs import folded, write

COLUMNS = EventRow._fields


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A log of one of nearly everything, without the guards, to do harm to and to heal again."""
    folded(sample_log.RECORDS)
    folded(sample_log.TASK_RECORDS)
    path = tmp_path_factory.mktemp("log") / "s.db"
    write(str(path), [[record] for record in sample_log.RECORDS])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
    opened = Store.open(str(path))
    yield opened
    opened.close()


def refusal(store: Store) -> tuple[int | None, str] | None:
    """Where and by which rule a reader that reads everything refuses the log; None when it does not."""
    try:
        key = store.key_of("s")
        assert key is not None
        replay(store, "s", key.key, key.uid, deltas=True)
    except LogCorrupt as error:
        return error.seq, error.rule
    except SchemaTooNew as error:
        found = re.search(r"seq (\d+)", str(error))
        return int(found[1]) if found else None, "kind-known"
    return None


@contextmanager
def harmed(store: Store, sql: str, rows: Iterable[tuple[object, ...]] = ((),)) -> Iterator[None]:
    """The log as `sql` leaves it, run once for each of `rows`, for as long as the context lasts."""
    connection = store.database._connection  # type: ignore[attr-defined]
    connection.execute("BEGIN")
    connection.executemany(sql, rows)
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def tampered(store: Store, rows: Iterable[EventRow]) -> AbstractContextManager[None]:
    """The log with `rows` in place of those of their seq."""
    assignments = ", ".join(f"{column} = ?" for column in COLUMNS)
    return harmed(store, f"UPDATE events SET {assignments} WHERE seq = ?", [(*row, row.seq) for row in rows])


def rechained(rows: Iterable[EventRow]) -> Iterator[EventRow]:
    """The rows as somebody leaves them who knows how digests are made."""
    digest = b""
    for row in rows:
        digest = chained(digest, sample_log.UID, row)
        yield row._replace(digest=digest)


def other_values(column: str, value: object) -> list[object]:
    """Values that the column's type takes and that differ from `value`."""
    if column in {"digest", "text_blob"}:
        candidates: list[object] = [b"\0" * 32]
    elif column in {"kind", "call_id", "message_id", "slot", "role", "name", "status", "text", "data"}:
        candidates = [f"{value}x", ""]
    else:
        candidates = [(value if isinstance(value, int) else 0) + 1]
    if column not in {"session", "seq", "kind", "at", "epoch", "ignorable", "data", "digest"}:
        candidates.append(None)
    return [other for other in candidates if other != value]


def test_the_log_itself_is_fine(store: Store) -> None:
    assert refusal(store) is None


@pytest.mark.parametrize("column", [column for column in COLUMNS if column not in {"session", "seq"}])
def test_a_changed_column_is_refused_in_every_row(store: Store, column: str) -> None:
    rule = "columns-derived" if column in Derived._fields else "hash-chain"
    for row in store.rows(1):
        if row.kind == "newer/thing" and column in Derived._fields and column != "place":
            continue  # what a newer version shows there is not for this one to judge
        for other in other_values(column, getattr(row, column)):
            with tampered(store, [row._replace(**{column: other})]):
                assert refusal(store) == (row.seq, rule), f"{column} of {row.kind} becomes {other!r}"


RULES_BEHIND_THE_CHAIN = {
    "turn": {"place"},
    "step": {"place"},
    "epoch": {"epoch"},
    "text": {"columns-derived", "text-length", "data-shape"},
    "text_blob": {"columns-derived", "text-length", "blob-hash"},
    "kind": {"kind-known", "data-shape", "columns-derived", "created-first"},
}


@pytest.mark.parametrize("column", [*RULES_BEHIND_THE_CHAIN, *Derived._fields])
def test_a_changed_column_is_refused_although_the_chain_was_made_anew(store: Store, column: str) -> None:
    rules = RULES_BEHIND_THE_CHAIN.get(column, {"columns-derived"})
    rows = list(store.rows(1))
    for index, row in enumerate(rows):
        if row.kind == "newer/thing" and column in {*Derived._fields, "text", "text_blob", "kind"}:
            continue
        for other in other_values(column, getattr(row, column)):
            if column == "text" and says_something_else(row, other):
                continue
            changed = row._replace(**{column: other})
            with tampered(store, rechained([*rows[:index], changed, *rows[index + 1 :]])):
                seq, rule = refusal(store) or (None, "")
                assert seq == row.seq, f"{column} of {row.kind} becomes {other!r}"
                assert rule in rules, f"{column} of {row.kind} becomes {other!r}"


LIFTED = {
    "tool/call": "arguments",
    "request/failed": "message",
    "turn/end": "message",
    "approval/asked": "question",
    "plugin/error": "error",
    "session/repaired": "detail",
}


def says_something_else(row: EventRow, other: object) -> bool:
    """Whether the row with this text is a log that simply says something else: there the text is the truth."""
    return row.kind in LIFTED and f'"{LIFTED[row.kind]}"' not in row.data and bool(other)


@pytest.mark.parametrize(
    ("sql", "seq"),
    [
        ("UPDATE delta_texts SET text = 'J' WHERE seq = 11 AND i = 0", 11),
        ("UPDATE delta_texts SET text = 'I' WHERE seq = 15 AND i = 0", 15),
        ("UPDATE delta_texts SET at_ms = at_ms + 1 WHERE seq = 11 AND i = 1", 11),
        ("UPDATE delta_texts SET at_ms = at_ms + 1 WHERE seq = 15 AND i = 1", 15),
        ("UPDATE delta_texts SET i = i + 2 WHERE seq = 11 AND i = 0", 11),
        ("DELETE FROM delta_texts WHERE seq = 11 AND i = 1", 11),
        ("DELETE FROM delta_texts WHERE seq = 15", 15),
        ("INSERT INTO delta_texts SELECT session, seq, 9, 0, 'more' FROM delta_texts WHERE seq = 11 AND i = 0", 11),
        ("INSERT INTO delta_texts SELECT session, seq, 9, 0, 'more' FROM delta_texts WHERE seq = 15 AND i = 0", 15),
    ],
)
def test_the_texts_of_a_stream_are_covered_by_their_event(store: Store, sql: str, seq: int) -> None:
    with harmed(store, sql):
        assert refusal(store) == (seq, "delta-hash")


@pytest.mark.parametrize(("number", "seq"), [(1, 9), (2, 22)])
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE blobs SET bytes = CAST(bytes || x'20' AS BLOB) WHERE id = ?",
        "UPDATE blobs SET bytes = substr(bytes, 2) WHERE id = ?",
        "UPDATE blobs SET bytes = x'' WHERE id = ?",
        "UPDATE blobs SET digest = x'00' WHERE id = ?",
        "DELETE FROM blobs WHERE id = ?",
    ],
)
def test_a_blob_is_checked_where_it_is_referred_to(store: Store, sql: str, number: int, seq: int) -> None:
    with harmed(store, sql, [(number,)]):
        assert refusal(store) == (seq, "blob-hash")


@pytest.mark.parametrize(
    ("sql", "refused"),
    [
        ("DELETE FROM events WHERE seq = 5", (6, "seq-dense")),
        ("UPDATE events SET seq = seq + 1000 WHERE seq = 5", (6, "seq-dense")),
        ("UPDATE events SET seq = seq + 1000 WHERE seq = 33", (1033, "seq-dense")),
        ("DELETE FROM events WHERE seq = 1", (2, "seq-dense")),
        ("DELETE FROM events", (1, "created-first")),
        ("UPDATE session_keys SET uid = 'other'", (1, "hash-chain")),
    ],
)
def test_a_row_that_is_gone_and_a_session_that_was_swapped_are_noticed(
    store: Store, sql: str, refused: tuple[int, str]
) -> None:
    with harmed(store, sql):
        assert refusal(store) == refused


def test_a_chain_made_anew_under_another_identity_is_noticed(store: Store) -> None:
    rows = list(store.rows(1))
    digest, changed = b"", []
    for row in rows:
        digest = chained(digest, "other", row)
        changed.append((digest, row.seq))
    connection = store.database._connection  # type: ignore[attr-defined]
    with harmed(store, "UPDATE events SET digest = ? WHERE seq = ?", changed):
        connection.execute("UPDATE session_keys SET uid = 'other'")
        assert refusal(store) == (1, "uid")


@pytest.mark.parametrize(
    ("seq", "data"),
    [
        (1, f'{{"uid":"{sample_log.UID}","tools":"read"}}'),
        (1, f'{{"uid":"{sample_log.UID}","tools":{{"read":1}}}}'),
        (2, "{}"),
        (2, ""),
        (2, "[]"),
        (2, "5"),
        (2, "not json"),
        (2, '{"pid":"1","host":"h","kernel_version":"0"}'),
        (2, '{"pid":true,"host":"h","kernel_version":"0"}'),
        (2, '{"pid":1.0,"host":"h","kernel_version":"0"}'),
        (2, '{"pid":1,"host":"h","kernel_version":"0","extra":1}'),
        (
            3,
            '{"slot":"elsewhere","start":0,"message_id":"m1","cause":"accepted","content":[{"type":"text","chars":15}]}',
        ),
        (
            3,
            '{"slot":"next_turn","start":0,"message_id":"m1","cause":"accepted","content":[{"type":"image","chars":15}]}',
        ),
        (
            3,
            '{"slot":["next_turn"],"start":0,"message_id":"m1","cause":"accepted","content":[{"type":"text","chars":15}]}',
        ),
        (3, '{"slot":"next_turn","start":0,"message_id":"m1","cause":"accepted","content":[{"chars":15}]}'),
        (9, '{"$blob":"zz"}'),
        (11, '{"attempt":1,"block":0,"type":"text"}'),
        (11, '{"attempt":1.0,"block":0,"type":"text","sha256":""}'),
        (11, '{"attempt":1,"block":0,"type":"words","sha256":""}'),
    ],
)
def test_data_that_no_codec_writes_is_refused(store: Store, seq: int, data: str) -> None:
    rows = list(store.rows(1))
    rows[seq - 1] = rows[seq - 1]._replace(data=data)
    with tampered(store, rechained(rows)):
        assert refusal(store) == (seq, "data-shape")
