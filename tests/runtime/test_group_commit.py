"""Appends of several sessions in one transaction: shared when they come together, and each refused on its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flightlog import Kernel, Session
from flightlog.store.connection import Busy
from flightlog.testing import FakeModel, words
from flightlog_hookspecs.errors import DiskFull, Fenced, InvariantViolation, StoreError, StoreStopped
from flightlog_hookspecs.events import StepEnd
from support.kernels import FaultyDatabase, opened, plant, records_of, verified
from support.memory_folder import subfolder


@asynccontextmanager
async def sessions_of(path: Path, number: int) -> AsyncIterator[tuple[Kernel, list[Session], FaultyDatabase]]:
    """That many sessions of one kernel, and its database, which counts commits."""
    async with opened(path, FakeModel([])) as kernel, AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(kernel.session(f"s{index}", model="fake:m")) for index in range(number)
        ]
        yield kernel, sessions, plant(kernel, lambda barrier, rows: False)


async def all_at_once(sessions: list[Session], text: str = "hi") -> list[BaseException | None]:
    """Send `text` to each in the same round of the loop; what each of them was told."""
    told: list[BaseException | None] = [None] * len(sessions)

    async def send(index: int) -> None:
        try:
            await sessions[index].followup(text)
        except StoreError as error:
            told[index] = error

    async with trio.open_nursery() as nursery:
        for index in range(len(sessions)):
            nursery.start_soon(send, index)
    return told


def fence(path: Path, name: str) -> None:
    """Let another owner take session `name` over."""

    async def take_over() -> None:
        async with opened(path, FakeModel([])) as kernel, kernel.session(name, model="fake:m", take_over=True):
            pass

    trio.run(take_over)


async def test_sessions_that_append_in_the_same_round_share_one_commit(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with sessions_of(path, 20) as (_, sessions, database):
        assert await all_at_once(sessions) == [None] * 20
        assert database.commits == 1
        assert [session.pending for session in sessions] == [1] * 20
    for index in range(20):
        assert verified(path, name=f"s{index}") == 4


async def test_one_session_alone_commits_without_waiting_a_round(tmp_path: Path) -> None:
    async with sessions_of(tmp_path / "a.db", 1) as (_, (session,), database):
        with trio.testing.assert_no_checkpoints():
            await session.followup("hi")
        assert database.commits == 1


async def test_a_session_whose_owner_was_replaced_is_refused_and_the_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with sessions_of(path, 3) as (_, sessions, _):
        await trio.to_thread.run_sync(fence, path, "s1")
        first, second, third = await all_at_once(sessions)
        assert first is None
        assert isinstance(second, Fenced)
        assert third is None
        again = await all_at_once(sessions, "again")
        assert [type(error) for error in again] == [type(None), Fenced, type(None)]
    assert [len(records_of(path, name)) for name in ("s0", "s1", "s2")] == [5, 4, 5]


async def test_an_illegal_append_costs_its_own_session_only(tmp_path: Path) -> None:
    async with sessions_of(tmp_path / "a.db", 2) as (_, sessions, database):
        good, bad = sessions
        refused: list[InvariantViolation] = []

        async def append_nonsense() -> None:
            try:
                await bad._journal.append(StepEnd())
            except InvariantViolation as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(append_nonsense)
            nursery.start_soon(good.followup, "hi")
        assert len(refused) == 1
        assert (good.pending, bad.pending, database.commits) == (1, 0, 1)
        await bad.followup("and on")


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "reported late"])
async def test_a_commit_that_fails_is_acknowledged_to_nobody_and_stops_them_all(tmp_path: Path, lost: bool) -> None:
    path = tmp_path / "a.db"
    async with sessions_of(path, 5) as (kernel, sessions, database):
        plant(kernel, lambda barrier, rows: True, lost=lost)
        told = await all_at_once(sessions)
        assert sorted(type(error).__name__ for error in told) == ["DiskFull"] + ["StoreStopped"] * 4
        assert [session.pending for session in sessions] == [0] * 5, "none of them believes it"
        with pytest.raises(StoreStopped):
            await sessions[0].followup("again")
        assert database.commits == 0 or not lost
    assert any(isinstance(error, DiskFull) for error in told)


async def test_appends_of_one_session_keep_their_order_while_the_file_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "a.db"
    async with sessions_of(path, 3) as (_, sessions, database):
        begin, refusals = database.begin, iter(range(4))

        def locked(*, barrier: bool) -> None:
            if next(refusals, None) is not None:
                raise Busy
            begin(barrier=barrier)

        monkeypatch.setattr(FaultyDatabase, "begin", lambda self, *, barrier: locked(barrier=barrier))
        async with trio.open_nursery() as nursery:
            for number in range(5):
                for session in sessions:
                    nursery.start_soon(session.followup, f"{number}")
                await trio.testing.wait_all_tasks_blocked()
        for session in sessions:
            texts = [pending.content[0].text for pending in session._journal.state.next_turn]
            assert texts == ["0", "1", "2", "3", "4"]


async def test_cancelling_who_waits_for_a_shared_commit_does_not_lose_what_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with sessions_of(path, 2) as (_, (first, second), _):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first.followup, "hi")
                nursery.start_soon(second.followup, "hi")
                scope.cancel()
        assert {first.pending, second.pending} <= {0, 1}
        at_hand = {session.id: session.pending for session in (first, second)}
    for name, pending in at_hand.items():
        assert sum(record.event.kind == "inbox/splice" for record in records_of(path, name)) == pending


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sends=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30), busy=st.sets(st.integers(0, 40)))
def test_whatever_comes_together_each_log_holds_its_own_messages_in_order(
    tmp_path: Path, sends: list[tuple[int, int]], busy: set[int]
) -> None:
    """`sends` are (session, rounds to wait before it); at the begins in `busy` the file is locked."""

    async def main(path: Path) -> None:
        async with sessions_of(path, 4) as (_, sessions, database):
            begins = 0
            inner = database.inner
            original = inner.begin

            def begin(*, barrier: bool) -> None:
                nonlocal begins
                begins += 1
                if begins in busy:
                    raise Busy
                original(barrier=barrier)

            inner.begin = begin  # type: ignore[method-assign]
            wanted: dict[int, list[str]] = {index: [] for index in range(4)}
            async with trio.open_nursery() as nursery:
                for number, (index, rounds) in enumerate(sends):
                    for _ in range(rounds):
                        await trio.lowlevel.checkpoint()
                    wanted[index].append(f"{number}")
                    nursery.start_soon(sessions[index].followup, f"{number}")
            inner.begin = original  # type: ignore[method-assign]
            for index, session in enumerate(sessions):
                texts = [pending.content[0].text for pending in session._journal.state.next_turn]
                assert sorted(texts) == sorted(wanted[index])
        for index in range(4):
            assert verified(path, name=f"s{index}") == 3 + len(wanted[index])

    trio.run(main, subfolder(tmp_path) / "a.db", clock=trio.testing.MockClock(autojump_threshold=0))


async def test_whole_turns_of_many_sessions_share_commits(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([words("done") for _ in range(12)])
    async with opened(path, model) as kernel, AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(kernel.session(f"s{i}", model="fake:m")) for i in range(12)]
        database = plant(kernel, lambda barrier, rows: False)

        async def turn(session: Session) -> None:
            await session.followup("hi")
            ended = await session.run()
            assert ended is not None
            assert ended.reason == "completed"

        async with trio.open_nursery() as nursery:
            for session in sessions:
                nursery.start_soon(turn, session)
        assert database.commits < 12 * 2, f"{database.commits} commits"
    for index in range(12):
        assert verified(path, model, name=f"s{index}") > 8
