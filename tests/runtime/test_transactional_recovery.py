"""A transactional call that a death cut off: its database says what happened, and it is never unknown."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from pathlib import Path

import pytest
import trio

from flightlog import Session
from flightlog.store import foreign
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import ToolContext
from flightlog_hookspecs.errors import Fenced
from flightlog_hookspecs.events import ToolCall, ToolResult
from support.cutting import cut_log
from support.kernels import events_of, opened, records_of, session_of, verified
from support.stock import JOURNALS, asked, done_rows, left, new_shop, shop_tool, take

MODEL = FakeModel([calls(("take", {})), words("Done.")])


@pytest.fixture(params=JOURNALS)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return new_shop(tmp_path / "shop.db", request.param)


async def run_once(log: Path, shop: Path) -> None:
    async with session_of(log, MODEL, shop_tool(shop)) as session:
        await session.followup("go")
        await session.run()


async def cut_after_start(tmp_path: Path, shop: Path) -> Path:
    """A log that ends with the call's start; the shop has sold."""
    await run_once(tmp_path / "whole.db", shop)
    (started,) = [r.seq for r in records_of(tmp_path / "whole.db") if isinstance(r.event, ToolCall)]
    cut_log(tmp_path / "whole.db", tmp_path / "a.db", started)
    return tmp_path / "a.db"


async def recovered(log: Path) -> ToolResult:
    """The call's result once the session is open again. No tool is registered: none is needed."""
    async with session_of(log, MODEL):
        (found,) = events_of(log, ToolResult)
    verified(log, MODEL)
    return found


async def test_a_call_that_was_committed_has_the_result_of_its_done_row(shop: Path, tmp_path: Path) -> None:
    found = await recovered(await cut_after_start(tmp_path, shop))
    (whole,) = events_of(tmp_path / "whole.db", ToolResult)
    assert (found.outcome, found.content, found.told_by) == ("ok", whole.content, "done_row")
    assert left(shop) == 99


async def test_a_large_result_is_whole_again(shop: Path, tmp_path: Path) -> None:
    def body(context: ToolContext) -> str:
        return take(context) + "!" * 40_000

    async with session_of(tmp_path / "whole.db", MODEL, shop_tool(shop, body)) as session:
        await session.followup("go")
        await session.run()
    (started,) = [r.seq for r in records_of(tmp_path / "whole.db") if isinstance(r.event, ToolCall)]
    cut_log(tmp_path / "whole.db", tmp_path / "a.db", started)
    found = await recovered(tmp_path / "a.db")
    assert found.spill is not None
    assert found.spill.bytes == 40_007
    assert found.content == events_of(tmp_path / "whole.db", ToolResult)[0].content


@pytest.mark.parametrize("knows", ["no table", "no row"])
async def test_a_call_that_was_not_committed_is_given_up_for_good(shop: Path, tmp_path: Path, knows: str) -> None:
    log = await cut_after_start(tmp_path, shop)
    asked(shop, "DROP TABLE flightlog_done" if knows == "no table" else "DELETE FROM flightlog_done")
    asked(shop, "UPDATE stock SET count = 100")
    found = await recovered(log)
    assert (found.outcome, found.told_by) == ("aborted", "done_row")
    assert "Nothing happened; it is safe to call again." in found.text
    (started,) = events_of(log, ToolCall)
    assert done_rows(shop) == [(started.invocation_id, None)]
    late = foreign.Transaction(str(shop), started.invocation_id, str(log))
    assert late.begin() == foreign.DoneRow(None), "whoever still runs it comes too late"
    late.close()


async def test_after_that_the_same_call_by_the_model_runs_without_a_question(shop: Path, tmp_path: Path) -> None:
    log = await cut_after_start(tmp_path, shop)
    asked(shop, "DELETE FROM flightlog_done")
    asked(shop, "UPDATE stock SET count = 100")
    model = FakeModel([calls(("take", {})), calls(("take", {})), words("Done.")])
    async with session_of(log, model, shop_tool(shop)) as session:
        await session.followup("again")
        await session.run()
    assert [found.outcome for found in events_of(log, ToolResult)] == ["aborted", "ok"]
    assert left(shop) == 99


@pytest.mark.parametrize("how", ["moved", "locked", "not ours"])
async def test_a_call_whose_database_does_not_say_is_unknown(
    shop: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await cut_after_start(tmp_path, shop)
    other = sqlite3.connect(shop, isolation_level=None)
    monkeypatch.setattr(foreign, "DATABASE_WAIT_MAX_S", 0.1)
    if how == "locked":
        other.execute("BEGIN IMMEDIATE")
    elif how == "not ours":
        other.execute("UPDATE flightlog_done SET result = '{}'")
    else:
        shutil.move(shop, tmp_path / "elsewhere.db")
    found = await recovered(log)
    other.close()
    assert (found.outcome, found.told_by) == ("unknown", "")
    assert "Do not repeat it" in found.text


async def test_recovering_twice_says_the_same(shop: Path, tmp_path: Path) -> None:
    log = await cut_after_start(tmp_path, shop)
    asked(shop, "DELETE FROM flightlog_done")
    shutil.copy(log, tmp_path / "again.db")
    assert (await recovered(log)).content == (await recovered(tmp_path / "again.db")).content
    assert len(done_rows(shop)) == 1


async def test_an_owner_that_was_taken_over_while_its_body_ran_can_commit_no_more(shop: Path, tmp_path: Path) -> None:
    at_work, go_on = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()
    begin, log = foreign.Transaction.begin, tmp_path / "a.db"

    def late(transaction: foreign.Transaction) -> foreign.DoneRow | None:
        """The old owner is on its way into the database, and slow."""
        token.run_sync_soon(at_work.set)
        go_on.wait()
        return begin(transaction)

    async def run(session: Session) -> None:
        with pytest.raises(Fenced):
            await session.run()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(foreign.Transaction, "begin", late)
        async with session_of(log, MODEL, shop_tool(shop)) as session, trio.open_nursery() as nursery:
            await session.followup("go")
            nursery.start_soon(run, session)
            await at_work.wait()
            async with opened(log, MODEL) as other, other.session("s", model="fake:m", take_over=True):
                go_on.set()
    (found,) = events_of(log, ToolResult)
    assert (found.outcome, found.told_by) == ("aborted", "done_row")
    assert left(shop) == 100
    assert [result for _, result in done_rows(shop)] == [None]


async def test_a_log_that_was_rolled_back_does_not_take_the_results_of_its_lost_future_for_its_own(
    shop: Path, tmp_path: Path
) -> None:
    await run_once(tmp_path / "whole.db", shop)
    cut_log(tmp_path / "whole.db", tmp_path / "a.db", 2)
    async with session_of(tmp_path / "a.db", MODEL, shop_tool(shop)) as session:
        await session.followup("go")
        await session.run()
    (found,) = events_of(tmp_path / "a.db", ToolResult)
    assert (found.outcome, left(shop)) == ("error", 99)
    assert "The log is an older copy of itself, or the session goes on in two places. Nothing happened." in found.text
