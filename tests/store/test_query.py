"""SQL from hosts and people: it can read, nothing else, and only for so long and so much."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import trio
import trio.testing

import flightlog
from flightlog import Kernel
from flightlog.store.query import run_query
from flightlog.testing import FakeModel, words
from flightlog_hookspecs.errors import LimitExceeded, NotAFlightlog, StoreError, UsageError
from support.children import closing_process, started, until
from support.files import photograph, plain, rich, written
from support.kernels import opened, verified

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
ONE_LONG_STEP = "SELECT length(replace(hex(zeroblob(20000000)), '0', 'abc'))"
"""SQLite asks nobody before it is through with it."""
COUNTING = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT ?) SELECT i FROM n"

MORE_THAN_READING = [
    "DELETE FROM events",
    "UPDATE events SET text = 'forged'",
    "INSERT INTO open_mark VALUES(1, 1)",
    "REPLACE INTO session_keys VALUES(1, 's', 'x')",
    "INSERT INTO events SELECT * FROM events",
    "WITH gone AS (SELECT 1) DELETE FROM events WHERE seq IN gone",
    "WITH new AS (SELECT 1) INSERT INTO open_mark SELECT 1, 1 FROM new RETURNING one",
    "UPDATE open_mark SET is_open = 0 RETURNING is_open",
    "DROP TABLE events",
    "DROP TRIGGER events_delete",
    "CREATE TABLE mine(x)",
    "CREATE TEMP TABLE mine(x)",
    "CREATE TEMP VIEW mine AS SELECT 1",
    "CREATE VIRTUAL TABLE mine USING fts5(x)",
    "ALTER TABLE events ADD COLUMN x",
    "REINDEX",
    "ANALYZE",
    "VACUUM",
    "VACUUM INTO 'copy.db'",
    "ATTACH 'other.db' AS other",
    "DETACH main",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA writable_schema = ON",
    "PRAGMA user_version",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "SELECT * FROM pragma_journal_mode",
    "SELECT * FROM pragma_wal_checkpoint",
    "BEGIN IMMEDIATE",
    "BEGIN",
    "SAVEPOINT here",
    "COMMIT",
    "SELECT load_extension('evil.so')",
    "SELECT load_extension('evil.so', 'entry')",
    "SELECT fts3_tokenizer('simple')",
    "UPDATE sqlite_schema SET sql = ''",
    "UPDATE sqlite_dbpage SET data = zeroblob(4096)",
]
WRONG = [
    "SELECT 1; SELECT 2",
    "SELECT 1; DELETE FROM events",
    "SELEC 1",
    "SELECT no_such_column FROM events",
    "SELECT * FROM no_such_table",
    "SELECT ?",
    "SELECT 1 -- \0",
    "",
    "   ",
    "-- nothing but a comment",
    "SELECT writefile('x', 'y')",
    "SELECT readfile('/etc/passwd')",
    "SELECT edit('x')",
    "SELECT zeroblob(1000000000)",
]


def query(path: Path, sql: str, *parameters: object, limit_rows: int = 100, limit_s: float = 60.0) -> list[tuple]:
    return list(run_query(str(path), sql, parameters, limit_rows=limit_rows, limit_s=limit_s).rows)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    written(path, "one", "two")
    return path


@pytest.mark.parametrize("sql", MORE_THAN_READING)
async def test_only_reading_is_possible(log: Path, sql: str) -> None:
    before = None
    async with opened(log, FakeModel([])) as kernel:
        before = photograph(log.parent)
        with pytest.raises(UsageError):
            await kernel.query(sql)
        assert {name: told for name, told in photograph(log.parent).items() if not name.endswith("-shm")} == {
            name: told for name, told in before.items() if not name.endswith("-shm")
        }
        assert (await kernel.query("SELECT count(*) FROM events")).rows[0][0] > 2
    assert set(os.listdir(log.parent)) <= {"a.db", "a.db-head", "a.db-wal", "a.db-shm"}


@pytest.mark.parametrize("sql", WRONG)
def test_sql_that_is_wrong_is_the_callers_fault(log: Path, sql: str) -> None:
    with pytest.raises(UsageError):
        query(log, sql)


@pytest.mark.parametrize(
    "parameter", [2**63, -(2**63) - 1, object(), [1], {"a": 1}, "\ud800"], ids=lambda value: type(value).__name__
)
def test_parameters_that_sqlite_has_no_value_for_are_the_callers_fault(log: Path, parameter: object) -> None:
    with pytest.raises(UsageError):
        query(log, "SELECT ?", parameter)


@pytest.mark.parametrize("limits", [{"limit_rows": -1}, {"limit_rows": 1.5}, {"limit_rows": True}, {"limit_s": "5"}])
def test_limits_that_are_none_are_the_callers_fault(log: Path, limits: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="limit_"):
        query(log, "SELECT 1", **limits)


def test_views_and_tables_can_be_read_with_parameters(log: Path) -> None:
    found = run_query(
        str(log), "SELECT seq, text AS said FROM events WHERE text = ?", ("two",), limit_rows=9, limit_s=60.0
    )
    assert (found.columns, [row[1] for row in found.rows], found.complete) == (("seq", "said"), ["two"], True)
    assert query(log, "SELECT name FROM session_keys") == [("s",)]
    assert query(log, "SELECT ?, ?, ?, ?, ?", None, 1, 1.5, "\u00e9\0x", b"\0\xff") == [
        (None, 1, 1.5, "\u00e9\0x", b"\0\xff")
    ]
    assert query(log, "EXPLAIN QUERY PLAN SELECT * FROM events")
    views = [name for (name,) in query(log, "SELECT name FROM sqlite_schema WHERE type = 'view'")]
    assert views
    for view in views:
        run_query(str(log), f"SELECT * FROM {view}", (), limit_rows=5, limit_s=60.0)


def test_no_columns_and_no_rows_is_an_answer(log: Path) -> None:
    found = run_query(str(log), "SELECT seq FROM events WHERE 0", (), limit_rows=9, limit_s=60.0)
    assert (found.columns, found.rows, found.complete) == (("seq",), (), True)


@pytest.mark.parametrize(("there", "limit", "complete"), [(5, 6, True), (5, 5, True), (5, 4, False), (5, 0, False)])
def test_rows_over_the_limit_are_cut_off_and_said_to_be(log: Path, there: int, limit: int, complete: bool) -> None:
    found = run_query(str(log), COUNTING, (there,), limit_rows=limit, limit_s=60.0)
    assert [row[0] for row in found.rows] == list(range(1, min(there, limit) + 1))
    assert found.complete is complete


@pytest.mark.parametrize("sql", [ENDLESS, ENDLESS.replace("max(i)", "i")], ids=["one row", "endless rows"])
def test_a_query_that_takes_too_long_is_ended(log: Path, sql: str) -> None:
    with pytest.raises(LimitExceeded, match=r"took longer than 0\.01 s"):
        query(log, sql, limit_s=0.01, limit_rows=10**9)


def test_text_that_is_not_utf8_is_refused_with_advice(log: Path) -> None:
    with pytest.raises(UsageError, match="CAST"):
        query(log, "SELECT CAST(x'ff' AS TEXT)")
    assert query(log, "SELECT x'ff'") == [(b"\xff",)]


def test_nul_and_surrogates_in_the_log_can_be_read(tmp_path: Path) -> None:
    path, text = tmp_path / "a.db", "a\0b\ud800c"
    written(path, text, "plain")
    found = query(
        path, "SELECT text, data FROM events WHERE kind = 'user/message' OR kind = 'inbox/splice' ORDER BY seq"
    )
    assert found[0][0] == "a\ufffdb\ufffdc"
    assert r"a\u0000b\ud800c" in found[0][1]
    assert query(path, "SELECT count(*) FROM timeline")[0][0] == query(path, "SELECT count(*) FROM events")[0][0]


def test_every_view_of_a_rich_log_can_be_queried(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    rich(path)
    for (view,) in query(path, "SELECT name FROM sqlite_schema WHERE type = 'view'"):
        run_query(str(path), f"SELECT * FROM {view}", (), limit_rows=10_000, limit_s=60.0)


def test_a_file_that_is_gone_or_not_a_database_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no\.db"):
        query(tmp_path / "no.db", "SELECT 1")
    (tmp_path / "text.db").write_text("not a database" * 1000)
    with pytest.raises(NotAFlightlog):
        query(tmp_path / "text.db", "SELECT * FROM events")


def test_a_reader_of_a_closed_log_queries_it_without_changing_a_byte(log: Path) -> None:
    with plain(log) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (log.parent / "a.db-wal").unlink(missing_ok=True)
    (log.parent / "a.db-shm").unlink(missing_ok=True)
    before = photograph(log.parent)
    with flightlog.open_log(log, discover=False) as reader:
        assert reader.query("SELECT count(*) FROM session_keys").rows == ((1,),)
        with pytest.raises(UsageError):
            reader.query("DELETE FROM events")
    assert photograph(log.parent) == before


async def test_the_owner_commits_while_a_query_reads_and_is_not_seen_by_it(tmp_path: Path) -> None:
    """One snapshot: a slow query must neither hold up a commit nor see half of what came in between."""
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([words("yes")])) as kernel, kernel.session("s", model="fake:m") as session:
        running = trio.Event()
        ended: list[str] = []

        async def slow() -> None:
            running.set()
            with pytest.raises(LimitExceeded):
                await kernel.query(f"SELECT (SELECT count(*) FROM events), ({ENDLESS})", limit_s=1.0)
            ended.append("query")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow)
            await running.wait()
            await session.followup("hi")
            await session.run()
            ended.append("turn")
        assert ended == ["turn", "query"]
        last = await kernel.query("SELECT reason FROM turns")
        assert last.rows == (("completed",),)
    assert verified(path, FakeModel([]))


def runs_in_a_thread(function: str) -> bool:
    """Whether any thread of this process is inside a function of that name."""
    return any(
        frame.f_code.co_name == function
        for bottom in sys._current_frames().values()
        for frame, _ in traceback.walk_stack(bottom)
    )


async def test_cancelling_ends_a_query_and_its_thread(log: Path) -> None:
    async with opened(log, FakeModel([])) as kernel:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: kernel.query(ONE_LONG_STEP, limit_s=3600.0))
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        assert not runs_in_a_thread("run_query"), "it was waited for"


async def test_closing_the_kernel_ends_what_still_runs(log: Path) -> None:
    async def endless(kernel: Kernel) -> None:
        with pytest.raises(UsageError, match="closed"):
            await kernel.query(ENDLESS, limit_s=3600.0)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, opened(log, FakeModel([])) as kernel:
            for _ in range(12):  # some of them still wait for a thread
                nursery.start_soon(endless, kernel)
            await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(UsageError, match="closed"):
        await kernel.query("SELECT 1")


async def test_a_stopped_kernel_can_still_be_asked(log: Path) -> None:
    async with opened(log, FakeModel([])) as kernel:
        kernel._store.stop(StoreError("planted"))
        assert (await kernel.query("SELECT 1")).rows == ((1,),)


HOLDER = """
import sys, sqlite3
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


async def test_another_programs_write_lock_does_not_hold_up_a_query(log: Path) -> None:
    async with opened(log, FakeModel([])) as kernel:
        holder: subprocess.Popen[str] = started(HOLDER, str(log))
        with closing_process(holder):
            assert holder.stdout
            holder.stdout.readline()
            assert (await kernel.query("SELECT count(*) FROM session_keys")).rows == ((1,),)


def test_queries_from_many_threads_at_once_each_get_their_answer(log: Path) -> None:
    async def main() -> None:
        answers: list[int] = []

        async def ask(kernel: Kernel, number: int) -> None:
            answers.append((await kernel.query("SELECT ? + 1", number)).rows[0][0])

        async with opened(log, FakeModel([])) as kernel, trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, kernel, number)
            await until(lambda: len(answers) == 50)
        assert sorted(answers) == list(range(1, 51))

    trio.run(main)
