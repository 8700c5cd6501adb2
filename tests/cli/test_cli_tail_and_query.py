"""`tail` follows a session that another process drives; `query` reads the log with SQL and nothing more."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from flightlog_process import Shell


def rows(out: str) -> list[int]:
    return [int(line.split()[0]) for line in out.splitlines()[1:]]


def test_tail_shows_the_last_rows_and_ends(counted: Shell) -> None:
    last = len(counted.kinds("c"))
    assert rows(counted.call("tail", "c").out) == list(range(last - 9, last + 1))
    assert rows(counted.call("tail", "c", "-n", "3").out) == [last - 2, last - 1, last]
    assert rows(counted.call("tail", "c", "-n", "0").out) == []
    assert rows(counted.call("tail", "c", "--after", "5").out) == list(range(6, last + 1))
    assert counted.call("tail", "c", "-n", "999", "--json").json_lines == counted.call("show", "c", "--json").json_lines


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("tail", "nobody"), "no session 'nobody'"),
        (("tail", "c", "-f", "--after", "9999"), "no record 9999"),
        (("query", "DELETE FROM events"), "only reading is allowed"),
        (("query", "SELEC"), "the SQL is wrong"),
    ],
)
def test_wrong_orders_are_usage_errors(counted: Shell, arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in counted.call(*arguments, code=2).complaint


@pytest.mark.parametrize("command", [("tail", "c"), ("query", "SELECT * FROM timeline")], ids=lambda c: c[0])
def test_neither_changes_a_byte_of_a_closed_log(counted: Shell, command: tuple[str, ...]) -> None:
    before = counted.files()
    counted.run(*command)
    assert counted.files() == before


@pytest.mark.kill
def test_tail_follows_what_another_process_writes_until_ctrl_c(shell: Shell) -> None:
    shell.run("run", "first", "--session", "s")
    before = len(shell.kinds("s"))
    with shell.held("tail", "s", "-f", "--json", "--after", str(before)) as followed:
        shell.run("run", "second", "--session", "s")
        lines = followed.lines_until("session/closed")
        followed.interrupt(signal.SIGINT)
        done = followed.finished()
    assert (done.code, done.out, done.err) == (0, "", "")
    whole = shell.call("tail", "s", "--json", "--after", str(before)).out
    assert "".join(lines) == whole


@pytest.mark.kill
def test_tail_shows_a_stream_while_it_runs(stubborn: Shell) -> None:
    with stubborn.held("run", "go", "--session", "c", "--model", "stall:stream", "--json") as owner:
        owner.lines_until("assistant/delta", "two")
        with stubborn.held("tail", "c", "-f", "--json", "--after", "0") as followed:
            seen = followed.lines_until("assistant/delta", "two")
            assert "session/created" in seen[0]
            owner.process.kill()
            followed.process.kill()


def test_query_prints_a_table_for_people(counted: Shell) -> None:
    out = counted.call("query", "SELECT turn, reason, NULL AS gap, x'00ff' AS raw FROM turns").out
    assert [line.split() for line in out.splitlines()] == [
        ["turn", "reason", "gap", "raw"],
        ["1", "completed", "00ff"],
    ]


def test_query_prints_json_for_programs(counted: Shell) -> None:
    found = counted.call("query", "SELECT 1 AS one, 'a' AS two, NULL, x'00ff', 9e999", "--json").json
    assert found == {
        "columns": ["one", "two", "NULL", "x'00ff'", "9e999"],
        "rows": [[1, "a", None, "00ff", "inf"]],
        "complete": True,
    }


def test_query_says_when_there_is_more_and_when_it_gave_up(counted: Shell) -> None:
    cut = counted.call("query", "SELECT seq FROM events", "--limit-rows", "2")
    assert len(cut.out.splitlines()) == 3
    assert "the first 2 rows" in cut.complaint
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    assert "took longer than" in counted.call("query", endless, "--limit-s", "0.01", code=1).complaint
