"""The SQL statements by name, read from `sql/*.sql`. No other module holds SQL."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

APPLICATION_ID: Final = 0x464C4F47
SCHEMA_VERSION: Final = 1

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COLUMNS = re.compile(r"^-- columns: (\w+)$", re.MULTILINE)
_VIEW = re.compile(r"^-- view: (\w+)$\n((?:^-- .*$\n)+)", re.MULTILINE)


def _read(name: str) -> str:
    return files("flightlog.store").joinpath("sql", name).read_text(encoding="utf-8")


@cache
def statements() -> dict[str, str]:
    """Every statement of `queries.sql`."""
    beginning, *parts = _NAME.split(_read("queries.sql"))
    columns = _by_name(_COLUMNS.split(beginning)[1:])
    return {name: sql.format(**columns) if "{" in sql else sql for name, sql in _by_name(parts).items()}


@cache
def foreign_statements() -> dict[str, str]:
    """Every statement of `foreign.sql`: for the databases of transactional tools."""
    return _by_name(_NAME.split(_read("foreign.sql"))[1:])


def _by_name(parts: list[str]) -> dict[str, str]:
    return {name: "\n".join(_code_lines(body)) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def schema_sql() -> str:
    """The tables and triggers, then the views."""
    return _read("schema.sql") + snapshots_sql() + _read("views.sql")


def snapshots_sql() -> str:
    """The tables that older files lack, each unless it is there."""
    return _read("snapshots.sql")


def view_descriptions() -> dict[str, str]:
    """The public views and what each shows, in the order of the file."""
    return {
        match[1]: " ".join(line.removeprefix("-- ") for line in match[2].splitlines())
        for match in _VIEW.finditer(_read("views.sql"))
    }


def _code_lines(body: str) -> list[str]:
    return [line for line in body.strip().splitlines() if line and not line.startswith("--")]
