"""Read-only SQL for hosts and people: one statement, guarded, bounded in time and rows.

Each query has a connection of its own, so that a slow one never holds up the writer and is gone
with its snapshot when it ends; through SQLite's own library, so that closing it drops no locks.
"""

from __future__ import annotations

import time
from typing import Any, Final

import apsw
import apsw.ext
from attrs import frozen

from flightlog.store.connection import translated
from flightlog_hookspecs.errors import LimitExceeded, UsageError

Parameters = tuple[int | float | str | bytes | None, ...]

_ALLOWED: Final = frozenset({apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE})
_FORBIDDEN_FUNCTIONS: Final = frozenset({"load_extension", "writefile", "edit", "fts3_tokenizer"})
_STEPS_BETWEEN_LOOKS: Final = 10_000


@frozen(kw_only=True)
class QueryResult:
    """What a query found. `complete` is False when there were more rows than the limit allowed."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    complete: bool


def run_query(path: str, sql: str, parameters: Parameters, *, limit_rows: int, limit_s: float) -> QueryResult:
    """Run one SELECT over the views and tables of the log at `path`.

    Raises `UsageError` for SQL that is wrong or does more than read, `LimitExceeded` when it takes
    longer than `limit_s` seconds.
    """
    try:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.Error as error:
        raise translated(error, path) from error
    deadline = time.monotonic() + limit_s
    try:
        connection.set_busy_timeout(int(limit_s * 1000))
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.authorizer = _authorize
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
        return _fetched(connection, sql, parameters, limit_rows)
    except apsw.InterruptError as error:
        raise LimitExceeded(
            f"the query took longer than {limit_s:g} s; narrow it down, for example by session"
        ) from error
    except apsw.AuthError as error:
        raise UsageError(f"only reading is allowed: {error}") from error
    except (apsw.SQLError, apsw.BindingsError, apsw.ExecutionCompleteError) as error:
        raise UsageError(f"the SQL is wrong: {error}") from error
    except apsw.Error as error:
        raise translated(error, path) from error
    finally:
        connection.close(True)


def _fetched(connection: apsw.Connection, sql: str, parameters: Parameters, limit_rows: int) -> QueryResult:
    described = apsw.ext.query_info(connection, sql)
    if described.query_remaining:
        raise UsageError("the SQL is wrong: one statement at a time")
    columns = tuple(name for name, _ in described.description)
    cursor = connection.execute(sql, parameters)
    rows: list[tuple[Any, ...]] = []
    for row in cursor:
        if len(rows) == limit_rows:
            return QueryResult(columns=columns, rows=tuple(rows), complete=False)
        rows.append(tuple(row))
    return QueryResult(columns=columns, rows=tuple(rows), complete=True)


def _authorize(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    if action == apsw.SQLITE_FUNCTION and second in _FORBIDDEN_FUNCTIONS:
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK if action in _ALLOWED else apsw.SQLITE_DENY
