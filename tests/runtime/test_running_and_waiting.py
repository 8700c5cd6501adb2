"""run(), serve() and the queue: who drives, in which order, and what a second caller gets."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing

from flightlog import Session, Turn, tool
from flightlog.testing import Attempts, FakeModel, calls, words
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import SessionClosed, TurnEnd, UserMessage
from support.kernels import events_of, kinds_of, opened, session_of, verified


def said(path: Path) -> list[str]:
    """The user messages that entered the conversation, in order."""
    return [message.text for message in events_of(path, UserMessage)]


async def test_run_with_nothing_to_do_returns_none_and_writes_nothing(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([])) as session:
        before = session.token
        assert await session.run() is None
        assert session.token == before


async def test_a_followup_starts_nothing_by_itself(tmp_path: Path) -> None:
    model = FakeModel([])
    async with session_of(tmp_path / "a.db", model) as session:
        await session.followup("hi")
        await trio.testing.wait_all_tasks_blocked()
        assert session.pending == 1
    assert model.requests == []


async def test_two_followups_while_idle_become_two_turns_in_order(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([words("one"), words("two")])) as session:
        await session.followup("first")
        await session.followup("second")
        last = await session.run()
        assert (last.number, last.text) == (2, "two")
        assert await session.run() is None
    assert said(tmp_path / "a.db") == ["first", "second"]


async def test_followups_sent_at_once_while_another_process_holds_the_file_keep_their_order(tmp_path: Path) -> None:
    """Both wait for the same lock; each must find its place when it is its turn, not before."""
    path = tmp_path / "a.db"
    async with session_of(path, FakeModel([])) as session, opened(path, FakeModel([])) as other:
        other._store.database.begin(barrier=False)
        async with trio.open_nursery() as nursery:
            for text in ("first", "second", "third"):
                nursery.start_soon(session.followup, text)
                await trio.testing.wait_all_tasks_blocked()
            other._store.database.rollback()
        await session.run()
    assert said(path) == ["first", "second", "third"]


async def test_a_followup_sent_while_a_claim_waits_for_the_file_is_queued_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with session_of(path, FakeModel([])) as session, opened(path, FakeModel([])) as other:
        await session.followup("first")
        other._store.database.begin(barrier=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(session.followup, "second")
            await trio.testing.wait_all_tasks_blocked()
            other._store.database.rollback()
        await session.run()
    assert said(path) == ["first", "second"]
    assert verified(path) > 0


async def test_a_followup_sent_while_the_model_answers_runs_in_the_next_turn(tmp_path: Path) -> None:
    session: Session

    async def send() -> None:
        await session.followup("second")

    async with session_of(tmp_path / "a.db", FakeModel([[send, *words("one")], words("two")])) as session:
        await session.followup("first")
        turn = await session.run()
    assert (turn.number, turn.text) == (2, "two")
    assert [kind for kind in kinds_of(tmp_path / "a.db") if kind.startswith("turn/")] == ["turn/start", "turn/end"] * 2


async def test_a_second_run_joins_the_first_and_gets_the_same_turn(tmp_path: Path) -> None:
    begun, go_on = trio.Event(), trio.Event()

    async def pause() -> None:
        begun.set()
        await go_on.wait()

    turns: list[Turn | None] = []
    model = FakeModel([[*words("one"), pause]])
    async with session_of(tmp_path / "a.db", model) as session, trio.open_nursery() as nursery:

        async def run() -> None:
            turns.append(await session.run())

        await session.followup("first")
        nursery.start_soon(run)
        await begun.wait()
        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
    assert [turn and (turn.number, turn.text) for turn in turns] == [(1, "one"), (1, "one")]
    assert len(model.requests) == 1


async def test_two_runs_started_in_the_same_tick_both_return_the_turn(tmp_path: Path) -> None:
    turns: list[Turn | None] = []
    async with session_of(tmp_path / "a.db", FakeModel([words("one")])) as session:

        async def run() -> None:
            turns.append(await session.run())

        await session.followup("first")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            nursery.start_soon(run)
    assert [turn and turn.number for turn in turns] == [1, 1]


async def test_a_run_that_joined_a_cancelled_one_drives_in_its_place(tmp_path: Path) -> None:
    begun = trio.Event()

    async def hang() -> None:
        begun.set()
        await trio.sleep_forever()

    turns: list[Turn | None] = []
    model = FakeModel([[*words("one"), hang], words("two")])
    async with session_of(tmp_path / "a.db", model) as session:

        async def run() -> None:
            turns.append(await session.run())

        await session.followup("first")
        await session.followup("second")
        async with trio.open_nursery() as nursery:
            host = trio.CancelScope()

            async def cancelled_run() -> None:
                with host:
                    await session.run()

            nursery.start_soon(cancelled_run)
            await begun.wait()
            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            host.cancel()
    assert [turn and (turn.number, turn.text) for turn in turns] == [(2, "two")]
    assert [end.reason for end in events_of(tmp_path / "a.db", TurnEnd)] == ["aborted", "completed"]


async def test_a_followup_that_arrives_while_a_cancelled_turn_winds_down_runs_in_a_new_turn(tmp_path: Path) -> None:
    session: Session

    @tool(mode="exclusive", effect="write")
    async def slow() -> str:
        """Go on for a while after the cancel."""
        session.cancel()
        await session.followup("second")
        return "done"

    model = FakeModel([calls(("slow", {})), words("two")])
    async with session_of(tmp_path / "a.db", model, slow) as session:
        await session.followup("first")
        first = await session.run()
        assert (first.number, first.reason, session.pending) == (1, "aborted", 1)
        second = await session.run()
        assert (second.number, second.reason, second.text) == (2, "completed", "two")
    assert said(tmp_path / "a.db") == ["first", "second"]


async def test_cancelling_keeps_the_queue(tmp_path: Path) -> None:
    session: Session

    async def cancel() -> None:
        session.cancel()
        await trio.lowlevel.checkpoint()

    model = FakeModel([[*words("one"), cancel], words("two"), words("three"), words("four")])
    async with session_of(tmp_path / "a.db", model) as session:
        for text in ("a", "b", "c"):
            await session.followup(text)
        assert (await session.run()).reason == "aborted"
        assert session.pending == 2
        assert (await session.run()).number == 3
    assert said(tmp_path / "a.db") == ["a", "b", "c"]


async def test_cancel_while_idle_says_so_and_does_not_hit_the_next_turn(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([words("one")])) as session:
        assert session.cancel() is False
        await session.followup("first")
        assert (await session.run()).reason == "completed"


async def test_a_failed_turn_does_not_hold_up_the_queue(tmp_path: Path) -> None:
    model = FakeModel([Attempts((words("one"), words("one"))), words("two")])
    broken = FakeModel([[ProviderError("auth", "no key")], words("two")])
    for path, adapter, reasons in (
        (tmp_path / "a.db", model, ["completed", "completed"]),
        (tmp_path / "b.db", broken, ["error", "error"]),
    ):
        async with session_of(path, adapter) as session:
            await session.followup("first")
            await session.followup("second")
            last = await session.run()
            assert (last.number, session.pending) == (2, 0)
        assert [end.reason for end in events_of(path, TurnEnd)] == reasons


async def test_serve_runs_what_waits_and_whatever_comes_in_until_cancelled(tmp_path: Path) -> None:
    answered = [trio.Event(), trio.Event(), trio.Event()]

    def answer(number: int) -> list[object]:
        async def tell() -> None:
            answered[number].set()

        return [*words(f"{number}"), tell]

    model = FakeModel([answer(0), answer(1), answer(2)])
    async with session_of(tmp_path / "a.db", model) as session, trio.open_nursery() as nursery:
        await session.followup("a")
        nursery.start_soon(session.serve)
        await answered[0].wait()
        await session.followup("b")
        await answered[1].wait()
        await trio.testing.wait_all_tasks_blocked()
        await session.followup("c")
        await answered[2].wait()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert said(tmp_path / "a.db") == ["a", "b", "c"]
    assert [end.reason for end in events_of(tmp_path / "a.db", TurnEnd)] == ["completed"] * 3
    assert events_of(tmp_path / "a.db", SessionClosed)


async def test_serve_goes_on_with_the_queue_after_a_cancelled_turn(tmp_path: Path) -> None:
    served = trio.Event()
    session: Session

    async def cancel() -> None:
        session.cancel()
        await trio.lowlevel.checkpoint()

    async def tell() -> None:
        served.set()

    model = FakeModel([[*words("one"), cancel], [*words("two"), tell]])
    async with session_of(tmp_path / "a.db", model) as session, trio.open_nursery() as nursery:
        await session.followup("a")
        await session.followup("b")
        nursery.start_soon(session.serve)
        await trio.testing.wait_all_tasks_blocked()
        assert served.is_set()
        nursery.cancel_scope.cancel()


async def test_leaving_serve_in_mid_turn_closes_the_turn(tmp_path: Path) -> None:
    begun = trio.Event()

    async def hang() -> None:
        begun.set()
        await trio.sleep_forever()

    async with session_of(tmp_path / "a.db", FakeModel([[*words("one"), hang]])) as session:
        await session.followup("a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.serve)
            await begun.wait()
            nursery.cancel_scope.cancel()
    assert [(end.reason, end.cause) for end in events_of(tmp_path / "a.db", TurnEnd)] == [("aborted", "host")]
    assert kinds_of(tmp_path / "a.db")[-1] == "session/closed"


async def test_closing_the_session_while_a_run_is_under_way_ends_its_turn(tmp_path: Path) -> None:
    begun = trio.Event()

    async def hang() -> None:
        begun.set()
        await trio.sleep_forever()

    turns: list[Turn | None] = []
    model = FakeModel([[*words("one"), hang]])
    async with trio.open_nursery() as nursery, session_of(tmp_path / "a.db", model) as session:

        async def run() -> None:
            turns.append(await session.run())

        await session.followup("a")
        nursery.start_soon(run)
        await begun.wait()
    assert [(turn.reason, turn.cause) for turn in turns if turn] == [("aborted", "session closed")]
    assert kinds_of(tmp_path / "a.db")[-1] == "session/closed"
