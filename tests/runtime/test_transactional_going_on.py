"""`on_crash="continue"`: a transactional call that a death cut off has its result, or runs, and is never in doubt."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from flightlog import Quotas, Rate
from flightlog.store import foreign
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import FinishedCall, Hook, Replace, Tool, ToolContext, ToolOutput
from flightlog_hookspecs.content import text_of
from flightlog_hookspecs.errors import Fenced, ToolError
from flightlog_hookspecs.events import ApprovalAsked, ToolCall, ToolResult
from support.conversation import assert_at_rest
from support.cutting import cut_log
from support.kernels import events_of, opened, records_of, session_of
from support.stock import JOURNALS, asked, done_rows, left, new_shop, shop_tool

TWO = [calls(("take", {}), ("take", {"item": "pear"})), words("Done.")]


@pytest.fixture(params=JOURNALS)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return new_shop(tmp_path / "shop.db", request.param)


async def cut_off(tmp_path: Path, shop: Path, *lost: str) -> Path:
    """A log that ends as both calls were started; the shop has sold both, but for the items that were `lost`."""
    whole = tmp_path / "whole.db"
    async with session_of(whole, FakeModel(TWO), shop_tool(shop)) as session:
        await session.followup("go")
        await session.run()
    started = [record for record in records_of(whole) if isinstance(record.event, ToolCall)]
    cut_log(whole, tmp_path / "a.db", started[-1].seq)
    for item, record in zip(("apple", "pear"), started, strict=True):
        if item in lost:
            asked(shop, "UPDATE stock SET count = 100 WHERE item = ?", item)
            asked(shop, "DELETE FROM flightlog_done WHERE invocation_id = ?", record.event.invocation_id)
    return tmp_path / "a.db"


async def go_on(log: Path, *tools: Tool, **options: Any) -> list[ToolResult]:
    """The results by position, once the turn has come to its end."""
    model = FakeModel(TWO)
    async with session_of(log, model, *tools, on_crash="continue", **options) as session:
        turn = await session.run()
        assert turn is not None
        assert (turn.number, turn.reason, turn.text) == (1, "completed", "Done.")
    assert_at_rest(log, model)
    return sorted(events_of(log, ToolResult), key=lambda result: result.position)


def starts(log: Path) -> list[tuple[int, str]]:
    return sorted((call.position, call.resumed) for call in events_of(log, ToolCall))


async def test_each_call_has_the_result_of_its_row_or_runs_as_the_same_invocation(shop: Path, tmp_path: Path) -> None:
    log = await cut_off(tmp_path, shop, "pear")
    found = await go_on(log, shop_tool(shop))
    assert [(each.outcome, each.text, each.told_by) for each in found] == [
        ("ok", "99 left", "done_row"),
        ("ok", "99 left", ""),
    ]
    assert starts(log) == [(0, ""), (1, ""), (1, "reconciled")]
    assert len({call.invocation_id for call in events_of(log, ToolCall)}) == 2
    assert (left(shop), left(shop, "pear")) == (99, 99)


async def test_hooks_see_the_result_of_a_done_row_as_any_other(shop: Path, tmp_path: Path) -> None:
    def after(call: FinishedCall) -> Replace:
        return Replace(ToolOutput(content=f"{text_of(call.content)}, says the hook"))

    hook = Bundle(hooks=[Hook(point="after_tool", body=after, name="after")])
    found = await go_on(await cut_off(tmp_path, shop), shop_tool(shop), plugins=[hook])
    assert [(each.text, each.told_by) for each in found] == [("99 left, says the hook", "done_row")] * 2


async def test_what_is_done_needs_no_tool_and_what_is_not_is_given_up_without_one(shop: Path, tmp_path: Path) -> None:
    log = await cut_off(tmp_path, shop, "pear")
    done, gone = await go_on(log)
    assert (done.outcome, done.told_by) == ("ok", "done_row")
    assert (gone.outcome, gone.told_by) == ("error", "")
    assert "There is no tool named 'take'" in gone.text
    assert [result is None for _, result in done_rows(shop)] == [False, True]
    assert left(shop, "pear") == 100


@pytest.mark.parametrize("now", ["another database", "another effect"])
async def test_a_call_that_now_goes_elsewhere_is_asked_for_where_it_went_and_given_up_there(
    shop: Path, tmp_path: Path, now: str
) -> None:
    log = await cut_off(tmp_path, shop, "apple")
    other = new_shop(tmp_path / "other.db")

    def plainly(item: str = "apple") -> str:
        """Take one."""
        asked(other, "UPDATE stock SET count = count - 1 WHERE item = ?", item)
        return "taken"

    tool = shop_tool(other) if now == "another database" else Tool(body=plainly, name="take", effect="write")
    found = await go_on(log, tool)
    assert [(each.outcome, each.told_by) for each in found] == [("ok", ""), ("ok", "done_row")]
    assert (left(shop), left(shop, "pear"), left(other), left(other, "pear")) == (100, 99, 99, 100)
    assert [result is None for _, result in done_rows(shop)] == [True, False]


@pytest.mark.parametrize("approver", [True, False])
async def test_a_database_that_does_not_answer_leaves_it_to_a_person_or_unknown(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approver: bool
) -> None:
    log = await cut_off(tmp_path, shop)
    shop.rename(tmp_path / "elsewhere.db")
    if not approver:
        found = await go_on(log, shop_tool(shop))
        assert [(each.outcome, each.told_by) for each in found] == [("unknown", "")] * 2
        return
    async with session_of(log, FakeModel(TWO), shop_tool(shop), on_crash="continue", approver=True) as session:
        assert await session.run(wait=False) is not None
        assert [question.about for question in events_of(log, ApprovalAsked)] == ["outcome"] * 2
        (tmp_path / "elsewhere.db").rename(shop)
        for question in session.questions():
            await session.answer(question.seq, "not_done", by="ada")
        await session.run()
    found = events_of(log, ToolResult)
    assert [each.outcome for each in found] == ["ok", "ok"], "the person was wrong, and the rows say so"
    assert (left(shop), left(shop, "pear")) == (99, 99)


async def test_a_call_whose_precheck_objects_is_given_up(shop: Path, tmp_path: Path) -> None:
    log = await cut_off(tmp_path, shop, "apple", "pear")
    found = await go_on(log, shop_tool(shop, precheck=lambda item="apple": f"no {item} today"))
    assert [each.outcome for each in found] == ["denied", "denied"]
    assert [result for _, result in done_rows(shop)] == [None, None]


async def test_a_call_that_a_full_rate_keeps_from_starting_again_is_given_up(shop: Path, tmp_path: Path) -> None:
    log, quotas = await cut_off(tmp_path, shop, "pear"), Quotas(rates={"tool:take": Rate(2)})
    _, full = await go_on(log, shop_tool(shop), quotas=quotas)
    assert full.outcome == "denied"
    assert full.text.startswith("Not run: rate:tool:take: 2 of 2 are used.")
    assert [result is None for _, result in done_rows(shop)] == [False, True], "its first start can do no more"


async def test_a_body_that_fails_the_second_time_is_given_up(shop: Path, tmp_path: Path) -> None:
    def body(context: ToolContext, item: str = "apple") -> str:
        raise ToolError("no more")

    log = await cut_off(tmp_path, shop, "apple", "pear")
    found = await go_on(log, shop_tool(shop, body))
    assert [(each.outcome, each.told_by) for each in found] == [("error", "")] * 2
    assert [result for _, result in done_rows(shop)] == [None, None]


@pytest.mark.parametrize("first", ["old", "new"])
async def test_an_owner_that_was_taken_over_and_the_new_one_have_one_effect_whoever_is_first(
    shop: Path, tmp_path: Path, first: str
) -> None:
    """The old owner is stuck on its way into the database; the new one runs the call, too."""
    token = trio.lowlevel.current_trio_token()
    at_work, old, old_ended = trio.Event(), threading.Event(), threading.Event()
    begin, close, log = foreign.Transaction.begin, foreign.Transaction.close, tmp_path / "a.db"
    order: list[foreign.Transaction] = []

    def late(transaction: foreign.Transaction) -> foreign.DoneRow | None:
        order.append(transaction)
        if len(order) == 1:
            token.run_sync_soon(at_work.set)
            old.wait()
        elif first == "old":
            old.set()
            old_ended.wait()
        return begin(transaction)

    def ended(transaction: foreign.Transaction) -> None:
        close(transaction)
        if order[0] is transaction:
            old_ended.set()

    async def run(session: Any) -> None:
        with pytest.raises(Fenced):
            await session.run()

    model = FakeModel([calls(("take", {})), words("Done.")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(foreign.Transaction, "begin", late)
        patch.setattr(foreign.Transaction, "close", ended)
        async with session_of(log, model, shop_tool(shop)) as session, trio.open_nursery() as nursery:
            await session.followup("go")
            nursery.start_soon(run, session)
            await at_work.wait()
            async with (
                opened(log, FakeModel([calls(("take", {})), words("Done.")]), shop_tool(shop)) as kernel,
                kernel.session("s", model="fake:m", take_over=True, on_crash="continue") as other,
            ):
                await other.run()
                old.set()
    (found,) = events_of(log, ToolResult)
    assert (found.outcome, found.text) == ("ok", "99 left")
    assert starts(log) == [(0, ""), (0, "reconciled")]
    assert (left(shop), len(done_rows(shop))) == (99, 1)
