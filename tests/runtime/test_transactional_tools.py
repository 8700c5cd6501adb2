"""A transactional tool takes effect once and says so in its own database, or nothing happens there."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from flightlog import Limits
from flightlog.core import limits
from flightlog.store import foreign
from flightlog.testing import FakeModel, calls
from flightlog_hookspecs import Redaction, Tool, ToolContext, ToolOutput
from flightlog_hookspecs.content import FileBlock, TextBlock
from flightlog_hookspecs.errors import ToolError
from flightlog_hookspecs.events import ToolCall, ToolResult
from support.kernels import events_of, session_of, verified
from support.stock import JOURNALS, asked, done_rows, left, new_shop, shop_tool, take


@pytest.fixture(params=JOURNALS)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return new_shop(tmp_path / "shop.db", request.param)


async def results(log: Path, tool: Tool, *arguments: dict[str, object], **options: Any) -> list[ToolResult]:
    """What came of calls of `tool` in one message."""
    model = FakeModel([calls(*((tool.name, each) for each in arguments or ({},)))])
    async with session_of(log, model, tool, **options) as session:
        await session.followup("go")
        assert (await session.run()).reason == "completed"
    assert verified(log, model)
    return sorted(events_of(log, ToolResult), key=lambda result: result.position)


async def result(log: Path, tool: Tool, **options: Any) -> ToolResult:
    (only,) = await results(log, tool, **options)
    return only


async def test_what_the_body_does_and_the_row_that_says_so_are_there_together(shop: Path, tmp_path: Path) -> None:
    found = await results(tmp_path / "a.db", shop_tool(shop), {"item": "apple"}, {"item": "pear"}, {"item": "apple"})
    assert [each.outcome for each in found] == ["ok"] * 3
    assert sorted(each.text for each in found) == ["98 left", "99 left", "99 left"]
    assert (left(shop), left(shop, "pear")) == (98, 99)
    started = events_of(tmp_path / "a.db", ToolCall)
    assert {row[0] for row in done_rows(shop)} == {call.invocation_id for call in started}
    assert {call.database for call in started} == {os.path.realpath(shop)}


async def test_the_journal_mode_and_every_other_table_stay_as_they_are(shop: Path, tmp_path: Path) -> None:
    ask = "SELECT type, name, sql FROM sqlite_schema WHERE tbl_name <> 'flightlog_done' ORDER BY name"
    before = asked(shop, ask), asked(shop, "PRAGMA journal_mode"), asked(shop, "PRAGMA user_version")
    await result(tmp_path / "a.db", shop_tool(shop))
    assert (asked(shop, ask), asked(shop, "PRAGMA journal_mode"), asked(shop, "PRAGMA user_version")) == before


def raising(error: Exception) -> Callable[..., object]:
    def body(context: ToolContext) -> str:
        take(context)
        raise error

    return body


def body_of(action: Callable[[ToolContext], object]) -> Callable[..., object]:
    """A body that takes one, does `action` and returns what it returns."""

    def body(context: ToolContext) -> object:
        take(context)
        return action(context)

    return body


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ToolError("no more of them."), "no more of them. Its transaction was rolled back: nothing happened."),
        (ValueError("odd"), "take failed: ValueError: odd Its transaction was rolled back: nothing happened."),
    ],
)
async def test_a_body_that_raises_has_done_nothing(shop: Path, tmp_path: Path, error: Exception, says: str) -> None:
    found = await result(tmp_path / "a.db", shop_tool(shop, raising(error)))
    assert (found.outcome, found.text) == ("error", says)
    assert (left(shop), done_rows(shop)) == (100, [])


@pytest.mark.parametrize(
    ("value", "says"),
    [(object(), "returned something that is not JSON"), ("x" * 1001, "larger than the 1000 that can be kept")],
)
async def test_a_body_whose_result_cannot_be_kept_has_done_nothing(
    shop: Path, tmp_path: Path, value: object, says: str
) -> None:
    tool = shop_tool(shop, body_of(lambda _: value))
    found = await result(tmp_path / "a.db", tool, limits=Limits(tool_output_max_bytes=1000))
    assert found.outcome == "error"
    assert says in found.text
    assert found.text.endswith("Its transaction was rolled back: nothing happened.")
    assert (left(shop), done_rows(shop)) == (100, [])


async def test_a_body_that_turns_out_to_be_async_has_done_nothing(shop: Path, tmp_path: Path) -> None:
    async def later() -> str:
        return "never"

    coroutine = later()
    found = await result(tmp_path / "a.db", shop_tool(shop, body_of(lambda _: coroutine)))
    coroutine.close()
    assert "a transactional body is a sync function" in found.text
    assert left(shop) == 100


async def test_an_error_result_that_is_returned_is_committed_like_any_other(shop: Path, tmp_path: Path) -> None:
    tool = shop_tool(shop, body_of(lambda _: ToolOutput(content="noted, but refused", is_error=True)))
    found = await result(tmp_path / "a.db", tool)
    assert (found.outcome, found.text, left(shop)) == ("error", "noted, but refused", 99)


ESCAPES = {
    "COMMIT": "COMMIT",
    "END": "COMMIT",
    "ROLLBACK": "ROLLBACK",
    "BEGIN": "BEGIN",
    "ATTACH ':memory:' AS other": "ATTACH",
    "DETACH main": "DETACH",
    "PRAGMA synchronous = OFF": "PRAGMA synchronous",
    "PRAGMA journal_mode = OFF": "PRAGMA journal_mode",
    "PRAGMA writable_schema = ON": "PRAGMA writable_schema",
    "DELETE FROM flightlog_done": "changing flightlog_done",
    "DROP TABLE FLIGHTLOG_DONE": "changing flightlog_done",
}


@pytest.mark.parametrize("sql", ESCAPES)
async def test_a_body_that_leaves_its_transaction_is_refused_and_has_done_nothing(
    shop: Path, tmp_path: Path, sql: str
) -> None:
    found = await result(tmp_path / "a.db", shop_tool(shop, body_of(lambda context: context.database.execute(sql))))
    assert found.outcome == "error"
    assert f"UsageError: {ESCAPES[sql]} is refused in a transactional tool: the kernel begins and ends" in found.text
    assert (left(shop), done_rows(shop)) == (100, [])


async def test_a_body_may_use_savepoints_read_its_done_rows_and_catch_what_the_database_refuses(
    shop: Path, tmp_path: Path
) -> None:
    def body(context: ToolContext) -> object:
        database = context.database
        database.execute("SAVEPOINT one")
        database.executemany("UPDATE stock SET count = ? WHERE item = ?", [(1, "apple"), (2, "pear")])
        database.execute("ROLLBACK TO one")
        database.execute("RELEASE one")
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            database.execute("UPDATE stock SET count = :count", {"count": -1})
        assert database.execute("SELECT count(*) FROM flightlog_done") == [(0,)]
        assert database.execute("PRAGMA table_info(stock)")[0][1] == "item"
        return database.execute("UPDATE stock SET count = count - 1 WHERE item = 'apple' RETURNING count")[0][0]

    found = await result(tmp_path / "a.db", shop_tool(shop, body))
    assert (found.outcome, found.text) == ("ok", "99")
    assert (left(shop), left(shop, "pear")) == (99, 100)


async def test_once_sqlite_itself_has_rolled_back_nothing_more_of_the_body_counts(shop: Path, tmp_path: Path) -> None:
    def body(context: ToolContext) -> str:
        take(context)
        with pytest.raises(sqlite3.IntegrityError):
            context.database.execute("INSERT OR ROLLBACK INTO stock VALUES ('apple', 1)")
        with pytest.raises(ToolError, match="rolled the transaction back"):
            take(context)  # it would be committed at once
        return "fine"

    found = await result(tmp_path / "a.db", shop_tool(shop, body))
    assert found.outcome == "error"
    assert "SQLite itself rolled the transaction back" in found.text
    assert (left(shop), done_rows(shop)) == (100, [])


async def test_a_deferred_constraint_that_does_not_hold_in_the_end_undoes_it(shop: Path, tmp_path: Path) -> None:
    insert = "INSERT INTO orders(item) VALUES ('plum')"
    found = await result(tmp_path / "a.db", shop_tool(shop, body_of(lambda context: context.database.execute(insert))))
    assert found.outcome == "error"
    assert "a constraint does not hold (FOREIGN KEY constraint failed). Nothing happened." in found.text
    assert (left(shop), done_rows(shop)) == (100, [])


async def test_the_database_is_gone_once_the_call_is_over(shop: Path, tmp_path: Path) -> None:
    kept: list[ToolContext] = []
    await result(tmp_path / "a.db", shop_tool(shop, body_of(kept.append)))
    with pytest.raises(Exception, match="only while its call runs"):
        kept[0].database.execute("SELECT 1")


async def test_a_tool_without_a_database_is_told_so(tmp_path: Path) -> None:
    def look(context: ToolContext) -> object:
        return context.database.execute("SELECT 1")

    found = await result(tmp_path / "a.db", Tool(body=look, description="Look.", effect="read"))
    assert "only a tool with effect='transactional' has a database" in found.text


def broken_databases(folder: Path) -> dict[str, tuple[Path, str]]:
    (folder / "text.db").write_text("this is no database at all, but long enough to be taken for one " * 20)
    (folder / "folder.db").mkdir()
    return {
        "missing": (folder / "none.db", "none.db: cannot be opened (No such file or directory)"),
        "no database": (folder / "text.db", "is not a SQLite database"),
        "a folder": (folder / "folder.db", "is not a file"),
        "the log": (folder / "a.db", "is the log itself, which only the kernel writes"),
        "the log's other name": (folder / "link.db", "is the log itself"),
        "another log": (folder / "other.db", "is a flightlog log, which only a kernel writes"),
    }


@pytest.mark.parametrize(
    "case", ["missing", "no database", "a folder", "the log", "the log's other name", "another log"]
)
async def test_a_database_that_cannot_be_used_is_an_error_before_the_body_runs(tmp_path: Path, case: str) -> None:
    path, says = broken_databases(tmp_path)[case]
    if case == "another log":
        async with session_of(path, FakeModel([])):
            pass
    if case == "the log's other name":
        async with session_of(tmp_path / "a.db", FakeModel([]), name="before"):
            os.link(tmp_path / "a.db", path)
    ran: list[object] = []
    before = path.read_bytes() if path.is_file() and "log" not in case else None
    found = await result(tmp_path / "a.db", shop_tool(path, body_of(ran.append)))
    assert (found.outcome, ran) == ("error", [])
    assert says in found.text
    assert "Nothing happened." in found.text
    assert before is None or path.read_bytes() == before
    assert not (tmp_path / "none.db").exists()


async def test_a_database_that_may_not_be_written_is_an_error(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def read_only(name: str, **options: Any) -> sqlite3.Connection:  # what SQLite falls back to; root may write all
        return connect(name.replace("mode=rw", "mode=ro"), **options)

    monkeypatch.setattr(foreign.sqlite3, "connect", read_only)
    found = await result(tmp_path / "a.db", shop_tool(shop))
    monkeypatch.undo()
    assert "cannot be written; check the permissions" in found.text
    assert left(shop) == 100


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "DATABASE_WAIT_MAX_S", 0.1)


@pytest.mark.usefixtures("impatient")
async def test_a_database_that_stays_locked_is_an_error_and_the_loop_never_waits(shop: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(shop, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        found = await result(tmp_path / "a.db", shop_tool(shop))
    assert "another connection has kept it locked for 0.1 s. Nothing happened." in found.text
    assert left(shop) == 100


async def test_a_call_waits_for_the_host_to_finish_its_own_transaction(shop: Path, tmp_path: Path) -> None:
    other = sqlite3.connect(shop, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    other.execute("UPDATE stock SET count = 50")
    waits = threading.Event()

    def told(seconds: float) -> None:
        if not waits.is_set():
            waits.set()
            other.execute("COMMIT")
        time.sleep(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(foreign, "time", type("", (), {"sleep": staticmethod(told), "monotonic": time.monotonic}))
        found = await result(tmp_path / "a.db", shop_tool(shop))
    other.close()
    assert waits.is_set()
    assert (found.text, left(shop)) == ("49 left", 49)


async def test_a_reader_in_the_way_of_the_commit_is_waited_for(tmp_path: Path) -> None:
    shop = new_shop(tmp_path / "shop.db", "delete")
    other = sqlite3.connect(shop, isolation_level=None, check_same_thread=False)

    def body(context: ToolContext) -> str:
        other.execute("BEGIN")
        other.execute("SELECT * FROM stock").fetchall()
        return take(context)

    def told(seconds: float) -> None:
        if other.in_transaction:
            other.execute("COMMIT")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(foreign, "time", type("", (), {"sleep": staticmethod(told), "monotonic": time.monotonic}))
        found = await result(tmp_path / "a.db", shop_tool(shop, body))
    other.close()
    assert (found.outcome, left(shop)) == ("ok", 99)


async def test_the_host_may_write_the_database_from_another_thread_all_the_while(shop: Path, tmp_path: Path) -> None:
    asked(shop, "UPDATE stock SET count = 1000000")
    over, sold = threading.Event(), []

    def host() -> None:
        while not over.is_set():
            with closing(sqlite3.connect(shop, timeout=30, isolation_level=None)) as database:
                database.execute("BEGIN IMMEDIATE")
                ((count,),) = database.execute("SELECT count FROM stock WHERE item = 'apple'").fetchall()
                database.execute("UPDATE stock SET count = ? WHERE item = 'apple'", (count - 1,))
                database.execute("COMMIT")
            sold.append(count)
            over.wait(0)

    thread = threading.Thread(target=host)
    thread.start()
    try:
        found = await results(tmp_path / "a.db", shop_tool(shop), *([{}] * 40))
    finally:
        over.set()
        thread.join()
    assert {each.outcome for each in found} == {"ok"}
    assert sold
    assert left(shop) == 1_000_000 - 40 - len(sold)


def endless(context: ToolContext) -> str:
    """Take one, then count for ever in SQL."""
    take(context)
    context.database.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")
    return "never"


async def test_a_call_that_is_too_late_is_undone_and_that_is_known(shop: Path, tmp_path: Path) -> None:
    found = await result(tmp_path / "a.db", shop_tool(shop, endless, timeout_s=0.2))
    assert found.outcome == "timeout"
    assert found.text.startswith("take did not finish within 0.2 s. Interrupted before it was committed")
    assert "Nothing happened; it is safe to call again." in found.text
    assert (left(shop), done_rows(shop)) == (100, [])


async def test_a_body_that_hangs_outside_of_sql_loses_its_transaction_at_once(shop: Path, tmp_path: Path) -> None:
    go_on, refused = threading.Event(), threading.Event()

    def body(context: ToolContext) -> str:
        take(context)
        go_on.wait()
        with pytest.raises(ToolError, match="was cut off"):
            take(context)
        refused.set()
        return "done"

    tool = shop_tool(shop, body, timeout_s=0.2)
    try:
        found = await result(tmp_path / "a.db", tool)
        assert found.outcome == "timeout"
        asked(shop, "UPDATE stock SET count = 7 WHERE item = 'apple'")  # nothing holds its lock any more
    finally:
        go_on.set()
    await trio.to_thread.run_sync(refused.wait)
    assert (left(shop), done_rows(shop)) == (7, [])


async def test_a_cancelled_call_is_undone_and_that_is_known(shop: Path, tmp_path: Path) -> None:
    at_work = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def body(context: ToolContext) -> str:
        take(context)
        token.run_sync_soon(at_work.set)
        return endless(context)

    log = tmp_path / "a.db"
    async with session_of(log, FakeModel([calls(("take", {}))]), shop_tool(shop, body)) as session:
        await session.followup("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await at_work.wait()
            session.cancel(now=True)
    (found,) = events_of(log, ToolResult)
    assert (found.outcome, left(shop), done_rows(shop)) == ("aborted", 100, [])
    assert "Nothing happened; it is safe to call again." in found.text


async def test_a_call_that_was_committed_just_before_it_was_cut_off_has_its_result(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, free = foreign.Transaction.commit, threading.Event()

    def and_hangs(transaction: foreign.Transaction, result: str, now_us: int) -> None:
        commit(transaction, result, now_us)
        free.wait()

    monkeypatch.setattr(foreign.Transaction, "commit", and_hangs)
    try:
        found = await result(tmp_path / "a.db", shop_tool(shop, timeout_s=0.5))
    finally:
        free.set()
    assert (found.outcome, found.text, left(shop)) == ("ok", "99 left", 99)


@pytest.mark.usefixtures("impatient")
async def test_a_call_whose_commit_hangs_is_unknown(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, free = foreign._tried, threading.Event()

    def hangs(connection: sqlite3.Connection, *names: str) -> bool:
        if "commit" in names:
            free.wait()
        return tried(connection, *names)

    monkeypatch.setattr(foreign, "_tried", hangs)
    try:
        found = await result(tmp_path / "a.db", shop_tool(shop, timeout_s=0.2))
    finally:
        free.set()
    assert found.outcome == "unknown"
    assert "Its commit did not come to an end. Outcome unknown" in found.text


class FailingCommit:
    """In place of `_tried`: a COMMIT fails with SQLite's `code`, after it took effect or before."""

    def __init__(self, code: int, *, lost: bool, times: int = 1) -> None:
        self.code, self.lost, self.times, self.tried = code, lost, times, foreign._tried

    def __call__(self, connection: sqlite3.Connection, *names: str) -> bool:
        if "commit" not in names or not self.times:
            return self.tried(connection, *names)
        self.times -= 1
        connection.execute("ROLLBACK" if self.lost else "COMMIT")
        error = sqlite3.OperationalError("planted")
        error.sqlite_errorcode = self.code
        raise error


async def test_a_disk_that_is_full_at_the_commit_has_not_committed(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "_tried", FailingCommit(sqlite3.SQLITE_FULL, lost=True))
    found = await result(tmp_path / "a.db", shop_tool(shop))
    assert (found.outcome, left(shop), done_rows(shop)) == ("error", 100, [])
    assert "the disk is full (planted). Nothing happened." in found.text


@pytest.mark.parametrize("lost", [True, False])
async def test_after_a_commit_that_failed_the_database_is_asked_whether_it_did(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    monkeypatch.setattr(foreign, "_tried", FailingCommit(sqlite3.SQLITE_IOERR_FSYNC, lost=lost))
    found = await result(tmp_path / "a.db", shop_tool(shop))
    assert (found.outcome, left(shop)) == (("error", 100) if lost else ("ok", 99))
    if lost:
        assert "the disk failed (planted). Nothing happened." in found.text
        ((_, given_up),) = done_rows(shop)
        assert given_up is None, "so that what may still lie in the -wal can never come back"


async def test_a_commit_that_failed_in_a_database_that_does_not_answer_is_unknown(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "_tried", FailingCommit(sqlite3.SQLITE_IOERR_FSYNC, lost=True, times=2))
    found = await result(tmp_path / "a.db", shop_tool(shop))
    assert found.outcome == "unknown"
    assert "Its commit failed, and so did looking for it afterwards." in found.text


async def test_a_full_disk_undoes_the_call(shop: Path, tmp_path: Path) -> None:
    pages = asked(shop, "PRAGMA page_count")[0][0]

    def body(context: ToolContext) -> str:
        take(context)
        context.database.execute("INSERT INTO orders(item) SELECT 'apple' FROM pragma_table_info('stock')")
        context.database.execute("UPDATE orders SET item = zeroblob(10000000)")
        return "never"

    connect = sqlite3.connect

    def small(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.execute(f"PRAGMA max_page_count = {pages + 20}")
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(foreign.sqlite3, "connect", small)
        found = await result(tmp_path / "a.db", shop_tool(shop, body))
    assert found.outcome == "error"
    assert "full" in found.text
    assert (left(shop), done_rows(shop)) == (100, [])


BIG = "".join(chr(ord("a") + i % 26) for i in range(5000))
RETURNS: dict[str, object] = {
    "words": "done",
    "nothing": None,
    "json": {"b": [1, 2.5, None], "a": "ü\0\ud800"},
    "long": BIG,
    "bytes": bytes(range(256)) * 3,
    "blocks": ToolOutput(
        content=(TextBlock(text="see"), FileBlock.of(b"\x89PNG", name="a.png"), TextBlock(text="there"))
    ),
    "an error with a long text": ToolOutput(content=BIG, is_error=True),
    "a secret": "the key is hunter2",
}


@pytest.mark.parametrize("value", RETURNS.values(), ids=RETURNS)
async def test_the_done_row_holds_all_that_the_result_in_the_log_is_made_of(tmp_path: Path, value: object) -> None:
    from flightlog.store.done_result import decode_done

    class Discreet:
        name = "discreet"

        def register_redactions(self, register: Callable[[Redaction], None]) -> None:
            register(Redaction(name="hunter", body=lambda text: text.replace("hunter2", "***")))

    shop = new_shop(tmp_path / "shop.db")
    tool = shop_tool(shop, body_of(lambda _: value))
    found = await result(tmp_path / "a.db", tool, limits=Limits(tool_output_max_chars=1000))
    ((_, kept),) = done_rows(shop)
    assert kept is not None
    done, blob = decode_done(kept)
    assert (done.outcome, done.content, done.spill) == (found.outcome, found.content, found.spill)
    assert (blob is None) == (found.spill is None)


def test_a_transactional_call_waits_at_least_as_long_as_the_log_does() -> None:
    assert limits.DATABASE_WAIT_MAX_S >= limits.BUSY_WAIT_MAX_S
