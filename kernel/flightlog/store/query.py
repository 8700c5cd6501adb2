"""Read-only SQL for hosts and people: one statement, guarded, bounded in time and rows.

Each query has a connection of its own, so that a slow one never holds up the writer and is gone
with its snapshot when it ends; through SQLite's own library, so that closing it drops no locks.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any, Final

import apsw
from attrs import frozen

from flightlog.store.connection import immutable_name, is_immutable, translated
from flightlog_hookspecs.errors import LimitExceeded, UsageError

Parameter = int | float | str | bytes | None

_ALLOWED: Final = frozenset({apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE})
_FORBIDDEN_FUNCTIONS: Final = frozenset({"load_extension", "writefile", "edit", "fts3_tokenizer"})
_STEPS_BETWEEN_LOOKS: Final = 10_000
_VALUE_MAX_BYTES: Final = 256 * 1024 * 1024
"""One value is at most this long: making a longer one is a single step, which no limit could end."""
_LOCKED_POLL_S: Final = 0.001


@frozen(kw_only=True)
class QueryResult:
    """What a query found. `complete` is False when there were more rows than the limit allowed."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    complete: bool


def _never() -> bool:
    return False


def run_query(
    path: str,
    sql: str,
    parameters: tuple[Parameter, ...],
    *,
    limit_rows: int,
    limit_s: float,
    stopped: Callable[[], bool] = _never,
) -> QueryResult:
    """Run one SELECT over the views and tables of the log at `path`.

    `stopped` is asked now and then, from any thread that this runs in; True ends it. Raises `UsageError`
    for SQL that is wrong or does more than read, `LimitExceeded` when it takes longer than `limit_s`
    seconds or was stopped.
    """
    _check(sql, limit_rows, limit_s)
    deadline = time.monotonic() + limit_s

    def is_over() -> bool:
        return stopped() or time.monotonic() > deadline

    immutable = is_immutable(path)
    try:
        result = _run(path, sql, parameters, limit_rows, is_over, immutable=immutable)
    except apsw.InterruptError as error:
        raise LimitExceeded(
            f"the query took longer than {limit_s:g} s; narrow it down, for example by session"
        ) from error
    except apsw.AuthError as error:
        raise UsageError(f"only reading is allowed: {error}") from error
    except apsw.BusyError as error:
        raise LimitExceeded(f"another process kept the file locked for {limit_s:g} s; try again") from error
    except (apsw.SQLError, apsw.BindingsError, apsw.ExecutionCompleteError, apsw.TooBigError) as error:
        raise UsageError(f"the SQL is wrong: {error}") from error
    except UnicodeDecodeError as error:
        raise UsageError("the result holds text that is not UTF-8; select it with CAST(... AS BLOB)") from error
    except (TypeError, OverflowError, ValueError) as error:
        raise UsageError(
            f"the SQL holds no NUL, a parameter is an int of 64 bits, a float, a str, bytes or None: {error}"
        ) from error
    except apsw.Error as error:
        raise translated(error, path) from error
    if immutable and not is_immutable(path):
        return run_query(
            path, sql, parameters, limit_rows=limit_rows, limit_s=deadline - time.monotonic(), stopped=stopped
        )
    return result


def _check(sql: str, limit_rows: int, limit_s: float) -> None:
    if not isinstance(sql, str) or not sql.strip():
        raise UsageError(f"the SQL is wrong: one SELECT as a string is wanted, not {sql!r}")
    if isinstance(limit_rows, bool) or not isinstance(limit_rows, int) or limit_rows < 0:
        raise UsageError(f"limit_rows is a whole number of rows, not {limit_rows!r}")
    if not isinstance(limit_s, (int, float)) or math.isnan(limit_s):
        raise UsageError(f"limit_s is a number of seconds, not {limit_s!r}")


def _run(
    path: str,
    sql: str,
    parameters: tuple[Parameter, ...],
    limit_rows: int,
    is_over: Callable[[], bool],
    *,
    immutable: bool,
) -> QueryResult:
    name, flags = (immutable_name(path), apsw.SQLITE_OPEN_URI) if immutable else (os.path.abspath(path), 0)
    connection = apsw.Connection(name, flags=flags | apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_handler(lambda _: _patient(is_over))
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, _VALUE_MAX_BYTES)
        connection.authorizer = _authorize
        connection.set_progress_handler(is_over, _STEPS_BETWEEN_LOOKS)
        return _fetched(connection, sql, parameters, limit_rows, is_over)
    finally:
        connection.close(True)


def _patient(is_over: Callable[[], bool]) -> bool:
    time.sleep(_LOCKED_POLL_S)
    return not is_over()


def _fetched(
    connection: apsw.Connection,
    sql: str,
    parameters: tuple[Parameter, ...],
    limit_rows: int,
    is_over: Callable[[], bool],
) -> QueryResult:
    import apsw.ext  # it takes longer to load than all of the kernel

    described = apsw.ext.query_info(connection, sql)
    if described.query_remaining:
        raise UsageError("the SQL is wrong: one statement at a time")
    if not described.description:
        raise UsageError("the SQL is wrong: it selects nothing")
    columns = tuple(name for name, _ in described.description)
    rows: list[tuple[Any, ...]] = []
    for row in connection.execute(sql, parameters):
        if len(rows) == limit_rows:
            return QueryResult(columns=columns, rows=tuple(rows), complete=False)
        rows.append(tuple(row))
        if is_over():
            raise apsw.InterruptError
    return QueryResult(columns=columns, rows=tuple(rows), complete=True)


def _authorize(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    if action == apsw.SQLITE_FUNCTION and second in _FORBIDDEN_FUNCTIONS:
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK if action in _ALLOWED else apsw.SQLITE_DENY
