"""The schema as SQLite keeps it, to compare a file's with."""

from __future__ import annotations

from functools import cache

import apsw

from flightlog.store.statements import schema_sql, statements


@cache
def schema_objects() -> dict[tuple[str, str], str]:
    """Every table, index, trigger and view of a flightlog file: (kind, name) to its SQL."""
    connection = apsw.Connection(":memory:")
    try:
        connection.execute(schema_sql())
        return {(kind, name): sql for kind, name, sql in connection.execute(statements()["schema_objects"])}
    finally:
        connection.close()
