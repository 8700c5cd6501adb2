"""A turn that waits for people outlives its process: answers find their calls, and nothing runs twice."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog import Limits
from flightlog.errors import Fenced, UsageError
from flightlog.events import (
    ApprovalAsked,
    ApprovalDecided,
    InboxSplice,
    LetterTaken,
    SessionClosed,
    ToolCall,
    ToolResult,
    TurnEnd,
    UserMessage,
)
from flightlog_hookspecs import Arguments, ProposedCall, Tool, Verdict
from support.children import closing_process, gone, started, told_by
from support.conversation import assert_at_rest
from support.cutting import cut_log
from support.kernels import events_of, new_id, records_of
from support.memory_folder import subfolder
from support.paying import (
    ask_always,
    ask_unless_bob,
    asked_rows,
    at_till,
    check,
    decisions,
    ends,
    guard,
    outcomes,
    payments,
    suspended,
    till,
)

EVERYBODY = ("ada", "bob", "eve")


async def asked(session: flightlog.Session, number: int) -> list[int]:
    while len(session.questions()) < number:
        await trio.lowlevel.checkpoint()
    return [question.seq for question in session.questions()]


async def test_closing_a_session_leaves_its_questions_to_the_next_owner(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery, at_till(tmp_path) as (_, session):
        nursery.start_soon(session.run)
        await asked(session, 3)
    assert (ends(tmp_path), decisions(tmp_path), events_of(tmp_path / "a.db", SessionClosed)) == ([], [], [])
    check(tmp_path)
    async with at_till(tmp_path) as (_, session):
        assert [question.arguments for question in session.questions()] == [f'{{"to": "{to}"}}' for to in EVERYBODY]
        for question in session.questions():
            await session.approve(question.seq)
        turn = await session.run()
        assert turn is not None
        assert (turn.number, turn.reason, turn.text) == (1, "completed", "Fine.")
    assert (sorted(payments(tmp_path)), outcomes(tmp_path)) == (list(EVERYBODY), ["ok"] * 3)
    assert_at_rest(tmp_path / "a.db", *till(tmp_path, EVERYBODY).adapters)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
async def test_answers_in_any_order_across_restarts_reach_their_own_calls(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    seqs = await suspended(tmp_path)
    for position in order:
        async with at_till(tmp_path) as (_, session):
            await session.approve(seqs[position], allow=position != 1, by=f"p{position}", reason=f"r{position}")
            turn = await session.run(wait=False)
            assert turn is not None
            assert turn.reason == ("paused" if position != order[-1] else "completed")
    assert outcomes(tmp_path) == ["ok", "denied", "ok"]
    assert payments(tmp_path) == [EVERYBODY[position] for position in order if position != 1]
    texts = {event.position: event.text for event in events_of(tmp_path / "a.db", ToolResult)}
    assert texts == {0: "paid ada", 1: "Denied by p1. r1", 2: "paid eve"}
    assert len(asked_rows(tmp_path)) == 3
    assert_at_rest(tmp_path / "a.db", *till(tmp_path, EVERYBODY).adapters)


async def test_a_sibling_that_finished_does_not_run_again(tmp_path: Path) -> None:
    seqs = await suspended(tmp_path, EVERYBODY, guard(ask_unless_bob))
    assert (len(seqs), payments(tmp_path)) == (2, ["bob"])
    async with at_till(tmp_path, EVERYBODY, guard(ask_unless_bob)) as (_, session):
        await session.approve(seqs[1])
        await session.approve(seqs[0])
        await session.run()
    assert (payments(tmp_path)[0], sorted(payments(tmp_path))) == ("bob", ["ada", "bob", "eve"])
    assert outcomes(tmp_path) == ["ok"] * 3


@pytest.mark.kill
async def test_questions_survive_a_real_kill_and_an_answer_comes_from_another_process(tmp_path: Path) -> None:
    code = """
import json, sys, trio
from pathlib import Path
from flightlog.events import ToolResult
from support.kernels import events_of
from support.paying import ask_unless_bob, at_till, guard
async def main():
    folder = Path(sys.argv[1])
    async with at_till(folder, ("ada", "bob", "eve"), guard(ask_unless_bob)) as (_, session):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            while len(session.questions()) < 2 or not events_of(folder / "a.db", ToolResult):
                await trio.sleep(0.001)
            print(json.dumps([question.seq for question in session.questions()]), flush=True)
            await trio.sleep_forever()
trio.run(main)
"""
    process = started(code, str(tmp_path))
    with closing_process(process):
        assert process.stdout is not None
        ada, eve = json.loads(await trio.to_thread.run_sync(process.stdout.readline))
        process.kill()
        await gone(process.pid)
    answer = """
import json, sys, trio, flightlog
async def main():
    async with flightlog.open_kernel(sys.argv[1], discover=False) as kernel:
        await kernel.mailbox("s").approve(int(sys.argv[2]), by="other", key="k")
        await kernel.mailbox("s").approve(int(sys.argv[2]), by="other", key="k")
trio.run(main)
print("null")
"""
    await trio.to_thread.run_sync(told_by, answer, str(tmp_path / "a.db"), str(eve))
    async with at_till(tmp_path, EVERYBODY, guard(ask_unless_bob)) as (_, session):
        assert [question.seq for question in session.questions()] == [ada]
        await session.run(wait=False)
        assert payments(tmp_path) == ["bob", "eve"]
        await session.approve(ada)
        await session.run()
    assert (payments(tmp_path), ends(tmp_path)) == (["bob", "eve", "ada"], ["completed"])
    assert [event.outcome for event in events_of(tmp_path / "a.db", LetterTaken)] == ["obeyed"]
    assert_at_rest(tmp_path / "a.db", *till(tmp_path, EVERYBODY).adapters)


async def test_an_answer_from_another_kernel_reaches_the_call_that_waits(tmp_path: Path) -> None:
    async with at_till(tmp_path) as (_, session), trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        seqs = await asked(session, 3)
        async with flightlog.open_kernel(tmp_path / "a.db", discover=False) as other:
            for seq in reversed(seqs):
                await other.mailbox("s").approve(seq, allow=seq != seqs[0], by="other")
    assert (sorted(payments(tmp_path)), outcomes(tmp_path)) == (["bob", "eve"], ["denied", "ok", "ok"])


async def test_the_first_of_two_answers_counts_whoever_owns_the_session(tmp_path: Path) -> None:
    (seq,) = await suspended(tmp_path, ["ada"])
    async with flightlog.open_kernel(tmp_path / "a.db", discover=False) as other:
        await other.mailbox("s").approve(seq, allow=False, by="first")
        await other.mailbox("s").approve(seq, by="second")
    async with at_till(tmp_path, ["ada"]) as (_, session):
        assert session.questions() == []
        assert not await session.approve(seq, by="third")
        await session.run()
        assert not await session.approve(seq, by="fourth")
    assert (payments(tmp_path), outcomes(tmp_path)) == ([], ["denied"])
    assert decisions(tmp_path) == [(0, "denied"), (0, "allowed"), (0, "allowed"), (0, "allowed")]
    assert [event.outcome for event in events_of(tmp_path / "a.db", LetterTaken)] == ["obeyed", "refused"]
    check(tmp_path, ["ada"])


async def test_cancelling_the_host_while_a_question_is_open_closes_the_turn(tmp_path: Path) -> None:
    async with at_till(tmp_path, ["ada"]) as (_, session):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await asked(session, 1)
            nursery.cancel_scope.cancel()
        assert session.questions() == []
    assert (ends(tmp_path), decisions(tmp_path)) == (["aborted"], [(0, "cancelled")])


@pytest.mark.parametrize("by_letter", [False, True])
@pytest.mark.parametrize("runs", [False, True])
async def test_a_cancel_ends_a_suspended_turn_that_nobody_drives(tmp_path: Path, by_letter: bool, runs: bool) -> None:
    (seq,) = await suspended(tmp_path, ["ada"])
    async with at_till(tmp_path, ["ada"]) as (kernel, session):
        if by_letter:
            await kernel.mailbox("s").cancel("enough")
            await session.take_letters()
        else:
            assert session.cancel("enough")
        if runs:
            turn = await session.run()
            assert turn is not None
            assert (turn.number, turn.reason, turn.cause) == (1, "aborted", "enough")
            assert not await session.approve(seq)
    assert [(event.reason, event.cause) for event in events_of(tmp_path / "a.db", TurnEnd)] == [("aborted", "enough")]
    assert (payments(tmp_path), outcomes(tmp_path)) == ([], ["aborted"])
    async with at_till(tmp_path, ["ada"]) as (_, session):
        assert not session.cancel()
        await session.followup("again")
        turn = await session.run()
        assert turn is not None
        assert turn.reason == "completed"
    assert_at_rest(tmp_path / "a.db", *till(tmp_path, ["ada"]).adapters)


async def test_a_cancel_without_its_queue_drops_what_waits_behind_a_suspended_turn(tmp_path: Path) -> None:
    await suspended(tmp_path, ["ada"])
    async with at_till(tmp_path, ["ada"]) as (_, session):
        await session.followup("more")
        assert session.cancel(keep_queue=False)
        await session.run()
        assert session.pending == 0
    assert [event.cause for event in events_of(tmp_path / "a.db", InboxSplice)][-1] == "cancelled"
    assert len(events_of(tmp_path / "a.db", UserMessage)) == 1


async def test_a_cancel_letter_posted_to_a_suspended_session_waits_for_its_next_owner(tmp_path: Path) -> None:
    await suspended(tmp_path, ["ada"])
    async with flightlog.open_kernel(tmp_path / "a.db", discover=False) as other:
        await other.mailbox("s").cancel("enough")
    async with at_till(tmp_path, ["ada"]) as (_, session):
        turn = await session.run()
        assert turn is not None
        assert (turn.reason, turn.cause) == ("aborted", "enough")


async def test_a_cancel_that_was_taken_before_a_crash_is_not_forgotten(tmp_path: Path) -> None:
    await suspended(tmp_path, ["ada"])
    async with flightlog.open_kernel(tmp_path / "a.db", discover=False) as other:
        await other.mailbox("s").cancel("enough")
    async with at_till(tmp_path, ["ada"]) as (_, session):
        await session.run()
    taken = next(record.seq for record in records_of(tmp_path / "a.db") if isinstance(record.event, LetterTaken))
    folder = subfolder(tmp_path)
    cut_log(tmp_path / "a.db", folder / "a.db", taken)
    async with at_till(folder, ["ada"]) as (_, session):
        assert session.questions() == []
    assert (ends(folder), decisions(folder)) == (["interrupted"], [(0, "cancelled")])
    check(folder, ["ada"])


async def test_an_owner_that_waits_for_answers_notices_that_it_was_replaced(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery, at_till(tmp_path, ["ada"]) as (_, old):
        replaced = trio.Event()

        async def drive() -> None:
            with pytest.raises(Fenced):
                await old.run()
            replaced.set()

        nursery.start_soon(drive)
        (seq,) = await asked(old, 1)
        async with at_till(tmp_path, ["ada"], take_over=True) as (_, new):
            assert [question.seq for question in new.questions()] == [seq]
            with pytest.raises(Fenced):
                await old.approve(seq)
            await replaced.wait()
            assert await new.approve(seq)
            turn = await new.run()
            assert turn is not None
            assert turn.reason == "completed"
    assert payments(tmp_path) == ["ada"]
    check(tmp_path, ["ada"])


async def test_opened_without_an_approver_what_is_unanswered_is_denied_and_what_is_answered_counts(
    tmp_path: Path,
) -> None:
    seqs = await suspended(tmp_path)
    async with flightlog.open_kernel(tmp_path / "a.db", discover=False) as other:
        await other.mailbox("s").approve(seqs[2])
    async with at_till(tmp_path, approver=False) as (_, session):
        await session.run()
    assert (payments(tmp_path), outcomes(tmp_path)) == (["eve"], ["denied", "denied", "ok"])
    check(tmp_path)


async def change_to(call: ProposedCall) -> Verdict:
    return Arguments('{"to": "grace"}')


async def test_changed_arguments_survive_the_restart_and_are_what_is_asked_about(tmp_path: Path) -> None:
    (seq,) = await suspended(tmp_path, ["ada"], guard(change_to, "changer"), guard(ask_always))
    async with at_till(tmp_path, ["ada"]) as (_, session):
        (question,) = session.questions()
        assert question.arguments == '{"to": "grace"}'
        assert (question.question, question.guard) == ('may pay run with {"to": "ada"}?', "guard")
        await session.approve(seq)
        await session.run()
    assert payments(tmp_path) == ["grace"]
    (call,) = events_of(tmp_path / "a.db", ToolCall)
    assert call.arguments == '{"to": "grace"}'
    check(tmp_path, ["ada"])


async def test_an_exclusive_call_waits_behind_a_question_also_after_a_restart(tmp_path: Path) -> None:
    ran: list[str] = []

    async def pay(to: str) -> str:
        ran.append(to)
        return "paid"

    tools = [Tool(body=pay, description="Pay.", mode="exclusive", effect="write")]

    async with at_till(tmp_path, ["ada", "bob"], tools=tools) as (_, session):
        await session.run(wait=False)
        assert len(session.questions()) == 1
    async with at_till(tmp_path, ["ada", "bob"], tools=tools) as (_, session):
        await session.approve(session.questions()[0].seq)
        turn = await session.run(wait=False)
        assert turn is not None
        assert (turn.reason, ran) == ("paused", ["ada"])
        await session.approve(session.questions()[0].seq)
        await session.run()
    assert ran == ["ada", "bob"]
    check(tmp_path, ["ada", "bob"])


async def test_a_waiting_call_beside_one_in_doubt_is_closed_as_interrupted(
    tmp_path: Path, autojump_clock: object
) -> None:
    runs = trio.Event()

    async def pay(to: str) -> str:
        runs.set()
        await trio.sleep(3600)
        return f"paid {to}"

    tools = [Tool(body=pay, description="Pay.", mode="parallel", effect="write")]
    async with (
        trio.open_nursery() as nursery,
        at_till(tmp_path, EVERYBODY, guard(ask_unless_bob), tools=tools) as (_, session),
    ):
        nursery.start_soon(session.run)
        await asked(session, 2)
        await runs.wait()
        rows = len(records_of(tmp_path / "a.db"))
    folder = subfolder(tmp_path)
    cut_log(tmp_path / "a.db", folder / "a.db", rows)
    assert len(asked_rows(folder)) == 2
    async with at_till(folder) as (_, session):
        assert session.questions() == []
    assert (ends(folder), outcomes(folder)) == (["interrupted"], ["not_started", "unknown", "not_started"])
    assert [decision for _, decision in decisions(folder)] == ["cancelled"] * 2
    check(folder)


@pytest.mark.parametrize("allow", [None, True, False])
async def test_a_call_whose_tool_is_gone_takes_its_question_with_it(tmp_path: Path, allow: bool | None) -> None:
    (seq,) = await suspended(tmp_path, ["ada"])
    async with at_till(tmp_path, ["ada"], tools=[]) as (_, session):
        if allow is not None:
            await session.approve(seq, allow=allow)
        turn = await session.run()
        assert turn is not None
        assert (turn.reason, session.questions()) == ("completed", [])
    assert (payments(tmp_path), outcomes(tmp_path)) == ([], ["error"])
    wanted = {None: "cancelled", True: "allowed", False: "denied"}[allow]
    assert decisions(tmp_path) == [(0, wanted)]
    with sqlite3.connect(tmp_path / "a.db") as connection:
        assert connection.execute("SELECT decision FROM approvals").fetchall() == [(wanted,)]
    connection.close()
    check(tmp_path, ["ada"])


async def test_a_suspended_turn_can_be_carried_to_another_file_but_not_forked(tmp_path: Path) -> None:
    (seq,) = await suspended(tmp_path, ["ada"])
    elsewhere = subfolder(tmp_path)
    async with flightlog.open_kernel(tmp_path / "a.db", discover=False) as kernel:
        kernel.read("s").export(elsewhere / "s.jsonl")
        with pytest.raises(UsageError, match="0 completed turns"):
            await kernel.fork("s", 1, "t")
        await kernel.backup(elsewhere / "b.db")
    async with flightlog.open_kernel(elsewhere / "a.db", discover=False) as kernel:
        assert await kernel.import_session(elsewhere / "s.jsonl") == "s"
    async with at_till(elsewhere, ["ada"]) as (_, session):
        assert await session.approve(seq)
        await session.run()
    assert (payments(elsewhere), payments(tmp_path)) == (["ada"], [])
    check(elsewhere, ["ada"])
    copy = subfolder(tmp_path)
    (elsewhere / "b.db").rename(copy / "a.db")
    async with at_till(copy, ["ada"]) as (_, session):
        assert [question.seq for question in session.questions()] == [seq]


async def test_a_fork_of_an_earlier_turn_has_none_of_the_questions(tmp_path: Path) -> None:
    (seq,) = await suspended(tmp_path, ["ada"])
    async with at_till(tmp_path, ["ada"]) as (kernel, session):
        await session.approve(seq)
        await session.run()
        await session.followup("and again")
        await session.run()
        await kernel.fork("s", 1, "t")
        async with kernel.session("t", approver=True) as fork:
            assert fork.questions() == []
            with pytest.raises(UsageError, match="no question"):
                await fork.approve(seq)
        assert kernel.read("t").verify()


async def test_what_was_queued_behind_a_suspended_turn_comes_after_it(tmp_path: Path) -> None:
    (seq,) = await suspended(tmp_path, ["ada"])
    async with at_till(tmp_path, ["ada"]) as (_, session):
        await session.followup("next")
        turn = await session.run(wait=False)
        assert turn is not None
        assert (turn.reason, session.pending) == ("paused", 1)
        await session.approve(seq)
        turn = await session.run()
        assert turn is not None
        assert (turn.number, turn.reason) == (2, "completed")
    assert ends(tmp_path) == ["completed", "completed"]


async def test_a_run_that_waits_goes_on_where_one_that_does_not_has_paused(tmp_path: Path) -> None:
    release = trio.Event()

    async def slow(call: ProposedCall) -> Verdict:
        await release.wait()
        return ask_always(call)

    async with at_till(tmp_path, ["ada"], guard(slow)) as (_, session), trio.open_nursery() as nursery:
        reasons: dict[bool, str] = {}

        async def run(wait: bool) -> None:
            turn = await session.run(wait=wait)
            assert turn is not None
            reasons[wait] = turn.reason

        nursery.start_soon(run, False)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(run, True)
        await trio.testing.wait_all_tasks_blocked()
        release.set()
        (seq,) = await asked(session, 1)
        while reasons != {False: "paused"}:
            await trio.lowlevel.checkpoint()
        await session.approve(seq)
    assert reasons == {False: "paused", True: "completed"}


async def test_closing_right_after_an_answer_does_not_wait_for_the_rest_of_the_turn(
    tmp_path: Path, autojump_clock: object
) -> None:
    async def pay(to: str) -> str:
        await trio.sleep(50)
        return "paid"

    tools = [Tool(body=pay, description="Pay.", mode="parallel", effect="write")]
    async with trio.open_nursery() as nursery:
        async with at_till(tmp_path, ["ada", "bob"], tools=tools, limits=Limits(cancel_grace_s=1)) as (_, session):
            nursery.start_soon(session.run)
            ada, bob = await asked(session, 2)
            await session.approve(ada)
            before = trio.current_time()
        assert trio.current_time() - before <= 1
    assert ends(tmp_path) == []
    check(tmp_path, ["ada", "bob"])
    async with at_till(tmp_path, ["ada", "bob"]) as (_, session):
        assert [question.seq for question in session.questions()] == [bob]
        await session.approve(bob)
        await session.run()
    assert (sorted(payments(tmp_path)), ends(tmp_path)) == (["ada", "bob"], ["completed"])


async def test_closing_lets_a_running_sibling_end_and_keeps_the_question(
    tmp_path: Path, autojump_clock: object
) -> None:
    at_work = trio.Event()

    async def pay(to: str) -> str:
        at_work.set()
        await trio.sleep(1)
        return "paid"

    tools = [Tool(body=pay, description="Pay.", mode="parallel", effect="write")]
    async with (
        trio.open_nursery() as nursery,
        at_till(tmp_path, ["ada", "bob"], guard(ask_unless_bob), tools=tools) as (_, session),
    ):
        nursery.start_soon(session.run)
        await asked(session, 1)
        await at_work.wait()
    assert (ends(tmp_path), outcomes(tmp_path)) == ([], ["ok"])


async def test_a_cancel_just_before_closing_is_a_cancel(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery, at_till(tmp_path, ["ada"]) as (_, session):
        nursery.start_soon(session.run)
        await asked(session, 1)
        assert session.cancel("enough")
    assert [(event.reason, event.cause) for event in events_of(tmp_path / "a.db", TurnEnd)] == [("aborted", "enough")]


async def test_a_session_that_is_served_goes_on_when_its_answers_come(tmp_path: Path) -> None:
    (seq,) = await suspended(tmp_path, ["ada"])
    async with at_till(tmp_path, ["ada"]) as (_, session), trio.open_nursery() as nursery:
        nursery.start_soon(session.serve)
        await trio.testing.wait_all_tasks_blocked()
        await session.approve(seq)
        while ends(tmp_path) != ["completed"]:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert payments(tmp_path) == ["ada"]


Move = tuple[str, int, bool]
moves = st.lists(
    st.tuples(st.sampled_from(["answer", "letter", "restart", "crash", "run"]), st.integers(0, 99), st.booleans()),
    max_size=12,
)


@given(moves=moves, guarded=st.sampled_from([ask_always, ask_unless_bob]))
def test_however_answers_restarts_and_crashes_mix_each_allowed_call_runs_once_and_no_denied_one(
    tmp_path: Path, moves: list[Move], guarded: Callable[[ProposedCall], Verdict]
) -> None:
    folder = trio.run(played, subfolder(tmp_path), moves, guarded)
    assert_at_rest(folder / "a.db", *till(folder, EVERYBODY).adapters)
    records = records_of(folder / "a.db")
    first: dict[int, str] = {}
    for record in records:
        if isinstance(record.event, ApprovalDecided):
            first.setdefault(record.event.asked_seq, record.event.decision)
    decided = {r.event.position: first[r.seq] for r in records if isinstance(r.event, ApprovalAsked)}
    outcome = {r.event.position: r.event.outcome for r in records if isinstance(r.event, ToolResult)}
    paid = payments(folder)
    assert len(set(paid)) == len(paid)
    for position, name in enumerate(EVERYBODY):
        match outcome.get(position, "never called"):
            case "ok":
                assert paid.count(name) == 1
                assert decided.get(position, "allowed") == "allowed"
            case "denied":
                assert (name not in paid, decided[position]) == (True, "denied")
            case "not_started":
                assert name not in paid
                assert ends(folder)[0] == "interrupted"
            case "never called":
                assert (outcome, paid) == ({}, [])
                continue
            case other:
                assert (other, ends(folder)[0]) == ("unknown", "interrupted")
        if ends(folder)[0] == "completed" and decided.get(position, "allowed") == "allowed":
            assert paid.count(name) == 1


async def played(folder: Path, moves: list[Move], guarded: Callable[[ProposedCall], Verdict]) -> Path:
    """Play `moves`, then answer what is left and run; returns where the log ends up."""
    hooks = (guard(guarded),)
    remaining = list(moves)
    while True:
        async with at_till(folder, EVERYBODY, *hooks, clock=flightlog.Clock(new_id=new_id)) as (kernel, session):
            crash: int | None = None
            while remaining and crash is None:
                move, number, yes = remaining.pop(0)
                open_questions = session.questions()
                match move:
                    case "run":
                        await session.run(wait=False)
                    case "answer" if open_questions:
                        await session.approve(open_questions[number % len(open_questions)].seq, allow=yes)
                    case "letter" if open_questions:
                        seq = open_questions[number % len(open_questions)].seq
                        await kernel.mailbox("s").approve(seq, allow=yes)
                    case "restart":
                        break
                    case "crash":
                        crash = number
            if not remaining and crash is None:
                await finish(session)
                return folder
        if crash is not None:
            folder = crashed(folder, crash)


async def finish(session: flightlog.Session) -> None:
    turn: object = session
    while turn is not None:
        turn = await session.run(wait=False)
        for question in session.questions():
            await session.approve(question.seq)


def crashed(folder: Path, number: int) -> Path:
    """The log as a death at some row had left it, and the world with the payments that had begun by then."""
    records = records_of(folder / "a.db")
    rows = 1 + number % len(records)
    while rows < len(records) and claims_before(records[:rows]):
        rows += 1
    after = subfolder(folder)
    cut_log(folder / "a.db", after / "a.db", rows)
    begun = {record.event.invocation_id for record in records[:rows] if isinstance(record.event, ToolCall)}
    if (folder / "paid").exists():
        lines = (folder / "paid").read_text().splitlines(keepends=True)
        (after / "paid").write_text("".join(line for line in lines if line.split()[0] in begun))
    return after


def claims_before(records: list[flightlog.events.Record]) -> bool:
    claimed = sum(isinstance(r.event, InboxSplice) and r.event.cause == "claimed" for r in records)
    return claimed != sum(isinstance(r.event, UserMessage) for r in records)
