"""All SQL stands in `sql/*.sql`, every statement fits the schema, and no view reads more than it must."""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flightlog
import flightlog_hookspecs
import flightlog_plugins
from flightlog.store.statements import schema_sql, statements, view_descriptions

SQL = re.compile(
    r"\b(SELECT\s.*\bFROM|INSERT\s+(OR\s+\w+\s+)?INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|"
    r"(CREATE|DROP|ALTER)\s+(TEMP\s+)?(TABLE|VIEW|INDEX|TRIGGER)|PRAGMA\s+\w|BEGIN\s+(IMMEDIATE|EXCLUSIVE)|"
    r"SAVEPOINT\s|VACUUM|ATTACH\s|REINDEX)",
    re.IGNORECASE | re.DOTALL,
)
PACKAGES = (flightlog, flightlog_hookspecs, flightlog_plugins)


@pytest.fixture(scope="module")
def database() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(schema_sql())
    return connection


def strings_of(source: str) -> Iterator[str]:
    """The string literals of a module, its docstrings left out."""
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or hasattr(node, "body"):
            body = node.body if isinstance(node.body, list) else []  # type: ignore[attr-defined]
            docstrings |= {id(line.value) for line in body if isinstance(line, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_no_python_source_holds_sql() -> None:
    found = [
        f"{path}: {text!r}"
        for package in PACKAGES
        for root in package.__path__
        for path in Path(root).rglob("*.py")
        for text in strings_of(path.read_text(encoding="utf-8"))
        if SQL.search(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    ['x = "SELECT a FROM b"', 'x = f"delete from {t}"', "run('pragma user_version')", 'x = """\n insert into t\n"""'],
)
def test_sql_in_a_python_source_would_be_found(source: str) -> None:
    assert any(SQL.search(text) for text in strings_of(source))


@pytest.mark.parametrize("name", statements())
def test_every_statement_fits_the_schema(database: apsw.Connection, name: str) -> None:
    for statement in filter(None, statements()[name].split(";")):
        if name not in {"begin", "commit", "rollback"}:
            database.execute(f"EXPLAIN {statement}", [None] * parameters_of(statement) or None)
        assert apsw.complete(f"{statement};")


def parameters_of(statement: str) -> int:
    """How many values a statement takes: a bare ? is one more than the highest so far."""
    highest = 0
    for number in re.findall(r"\?(\d*)", statement):
        highest = max(highest, int(number)) if number else highest + 1
    return highest


def test_a_statement_that_does_not_fit_would_be_found(database: apsw.Connection) -> None:
    with pytest.raises(apsw.SQLError, match="no such column: nowhere"):
        database.execute("EXPLAIN SELECT nowhere FROM events")


def test_every_statement_is_used_and_named_once() -> None:
    source = "".join(
        path.read_text(encoding="utf-8") for root in flightlog.__path__ for path in Path(root).rglob("*.py")
    )
    unused = [name for name in statements() if f'"{name}"' not in source]
    assert unused == []
    names = re.findall(
        r"^-- name: (\w+)$", files("flightlog.store").joinpath("sql/queries.sql").read_text(), re.MULTILINE
    )
    assert len(names) == len(set(names)) == len(statements())


def test_every_view_of_the_schema_is_described(database: apsw.Connection) -> None:
    views = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'view' ORDER BY rowid")]
    assert views == list(view_descriptions())


def test_views_show_plain_columns_only() -> None:
    assert not re.search(r"json|->", files("flightlog.store").joinpath("sql/views.sql").read_text(), re.IGNORECASE)


def connections() -> list[sqlite3.Connection | apsw.Connection]:
    theirs = sqlite3.connect(":memory:", isolation_level=None)
    theirs.executescript(schema_sql())
    ours = apsw.Connection(":memory:")
    ours.execute(schema_sql())
    return [theirs, ours]


@pytest.mark.parametrize("view", view_descriptions())
def test_no_view_reads_a_table_once_per_row(view: str) -> None:
    for connection in connections():
        for condition in ("", " WHERE session = 'x'"):
            plan = list(connection.execute(f"EXPLAIN QUERY PLAN SELECT * FROM {view}{condition}"))
            assert inner_scans(plan) == [], f"{view}{condition}: {plan}"
        connection.close()


def test_each_message_is_found_by_its_place_not_among_all_later_rows() -> None:
    for connection in connections():
        plan = list(connection.execute(f"EXPLAIN QUERY PLAN {statements()['messages_between']}", ("x", 0, None)))
        by_row = [step[3] for step in plan if "sqlite_autoindex_events_1" in step[3]]
        # One part of it looks through the rows since the summary, and each of those once.
        assert by_row == ["SEARCH e USING INDEX sqlite_autoindex_events_1 (session=? AND seq>?)"], plan
        connection.close()


PLACES = st.integers(1, 12)
SHOWN = st.tuples(PLACES, st.none() | st.integers(0, 2), st.none())
SUMMARY = st.tuples(PLACES, st.none(), PLACES)


@given(
    rows=st.lists(SHOWN | SUMMARY | st.none(), max_size=24),
    after=st.integers(0, 13),
    up_to=st.none() | st.integers(0, 13),
)
def test_the_messages_between_two_places_are_those_that_the_view_has_there(
    rows: list[tuple[int, int | None, int | None] | None], after: int, up_to: int | None
) -> None:
    """Whatever stands in the table, legal or not: what the self-check is to find must not be left out."""
    connection = apsw.Connection(":memory:")
    connection.execute(schema_sql())
    connection.execute("INSERT INTO session_keys VALUES(1, 's', 'u')")
    for seq, row in enumerate(rows, 1):
        place, position, ref_seq = row or (None, None, None)
        kind, role = ("user/message", "user") if position is None else ("tool/result", "tool")
        connection.execute(
            "INSERT INTO events(session, seq, kind, at, epoch, ignorable, place, position, ref_seq, role, text, data, "
            "digest) VALUES(1, ?, ?, 0, 1, 0, ?, ?, ?, ?, ?, '{}', x'')",
            (seq, kind if row else "step/end", place, position, ref_seq, role, f"row {seq}"),
        )
    view = connection.execute(
        "SELECT place, coalesce(position + 1, 0), seq, kind, text, data FROM messages "
        "WHERE session = 's' AND place > ? AND (?2 IS NULL OR place <= ?2) ORDER BY place, position, seq",
        (after, up_to),
    ).fetchall()
    found = connection.execute(statements()["messages_between"], ("s", after, up_to)).fetchall()
    assert sorted(found) == sorted(view)
    assert [place[:2] for place in found] == sorted(place[:2] for place in found)
    connection.close()


def inner_scans(plan: list[tuple[int, int, int, str]]) -> list[str]:
    """The steps of a query plan that go through a whole table, or index one, for every row of another."""
    loops: dict[int, list[str]] = {}
    correlated = set()
    for number, parent, _, detail in plan:
        if "CORRELATED" in detail or parent in correlated:
            correlated.add(number)
        if detail.startswith(("SCAN", "SEARCH")):
            loops.setdefault(parent, []).append(detail)
    found = [detail for parent, steps in loops.items() for detail in steps[0 if parent in correlated else 1 :]]
    return [detail for detail in found if detail.startswith("SCAN") or "AUTOMATIC" in detail]


def test_a_view_that_reads_a_table_once_per_row_would_be_found() -> None:
    connection = apsw.Connection(":memory:")
    connection.execute(schema_sql())
    for sql in (
        "SELECT * FROM events a JOIN events b ON a.text = b.text",
        "SELECT (SELECT count(*) FROM events b WHERE b.text = a.text) FROM events a",
    ):
        assert inner_scans(list(connection.execute(f"EXPLAIN QUERY PLAN {sql}"))) != [], sql
