"""Timers: each due run fires once, or is one with others that were missed, whatever the clock and the process do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from flightlog import Kernel, Limits, Session
from flightlog.errors import StoreError, UsageError
from flightlog.events import (
    InboxSplice,
    LetterTaken,
    TimerCancelled,
    TimerFired,
    TimerSet,
    UserMessage,
)
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import Tool
from support.kernels import (
    committing,
    events_of,
    kinds_of,
    opened,
    plant,
    session_of,
    trio_clock,
    verified,
)
from support.wall import S_US, START_US, Wall

START = datetime.fromtimestamp(START_US / 1_000_000, UTC)
HOUR_S = 3600.0


def told(path: Path) -> list[str]:
    """What timers said to the model."""
    return [message.text for message in events_of(path, UserMessage) if message.source == "timer"]


def firings(path: Path) -> list[tuple[int, int]]:
    """(seconds after the start that a run was due, runs missed behind it)."""
    return [((fired.due_us - START_US) // S_US, fired.missed) for fired in events_of(path, TimerFired)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


async def test_a_timer_fires_once_it_is_due_and_never_again(path: Path) -> None:
    wall = Wall()
    async with session_of(path, FakeModel([]), clock=wall.clock) as session:
        name = await session.wake_after(60, "look")
        assert [(timer.name, timer.due, timer.text) for timer in session.timers()] == [
            (name, START + timedelta(seconds=60), "look")
        ]
        wall.forward(59.999)
        assert await session.run() is None
        wall.forward(0.001)
        assert await session.run() is not None
        assert session.timers() == ()
        wall.forward(HOUR_S)
        assert await session.run() is None
    assert told(path) == ["look"]
    verified(path, FakeModel([]))


async def test_a_timer_and_its_message_are_one_append(path: Path) -> None:
    wall = Wall()
    async with session_of(path, FakeModel([]), clock=wall.clock) as session:
        await session.wake_at(START, "first")
        await session.wake_at(START - timedelta(days=1), "past: at once, and before what was due later")
        await session.run()
    kinds = kinds_of(path)
    at = kinds.index("timer/fired")
    assert kinds[at : at + 5] == ["timer/fired", "inbox/splice", "timer/fired", "inbox/splice", "turn/start"]
    assert told(path) == ["past: at once, and before what was due later", "first"]


async def test_runs_that_were_missed_are_one(path: Path) -> None:
    wall = Wall()
    async with session_of(path, FakeModel([]), clock=wall.clock) as session:
        await session.wake_every(10, "look")
        wall.forward(57)
        await session.run()
        wall.forward(2)
        await session.run()
        wall.forward(1)
        await session.run()
    assert firings(path) == [(10, 4), (60, 0)]
    assert told(path) == ["look", "look"]


async def test_runs_that_come_due_during_a_turn_are_one_behind_it(path: Path) -> None:
    wall = Wall()
    slow = words("Busy.")

    async def takes_an_hour() -> None:
        wall.forward(3600)

    async with session_of(path, FakeModel([[takes_an_hour, *slow]]), clock=wall.clock) as session:
        await session.wake_every(60, "look")
        await session.followup("begin")
        await session.run()
    assert firings(path) == [(60, 59)]


async def test_no_timer_fires_between_the_steps_of_a_turn(path: Path) -> None:
    wall = Wall()

    async def work() -> str:
        """Work for a minute."""
        wall.forward(60)
        return "done"

    model = FakeModel([calls(("work", {})), calls(("work", {})), words("Busy.")])
    async with session_of(path, model, Tool(body=work), clock=wall.clock) as session:
        await session.wake_every(60, "look")
        await session.followup("begin")
        await session.run()
    assert firings(path) == [(60, 1)]


async def test_a_timer_is_not_kept_waiting_by_a_queue(path: Path) -> None:
    wall = Wall()
    async with session_of(path, FakeModel([]), clock=wall.clock) as session:
        await session.wake_after(0, "timer")
        for text in ("a", "b"):
            await session.followup(text)
        await session.run()
    assert [message.text for message in events_of(path, UserMessage)] == ["a", "b", "timer"]
    assert kinds_of(path).index("timer/fired") < kinds_of(path).index("turn/start")


async def test_a_timer_that_comes_due_during_a_turn_fires_before_the_next_one(path: Path) -> None:
    wall = Wall()

    async def takes_a_minute() -> None:
        wall.forward(60)

    async with session_of(path, FakeModel([[takes_a_minute, *words("Busy.")]]), clock=wall.clock) as session:
        await session.wake_after(30, "timer")
        for text in ("a", "b"):
            await session.followup(text)
        await session.run()
    kinds = kinds_of(path)
    assert kinds.index("turn/end") < kinds.index("timer/fired") < kinds.index("turn/start", kinds.index("turn/end"))
    assert [message.text for message in events_of(path, UserMessage)] == ["a", "b", "timer"]


async def test_a_clock_put_back_fires_nothing_twice(path: Path) -> None:
    wall = Wall()
    async with session_of(path, FakeModel([]), clock=wall.clock) as session:
        await session.wake_every(60, "look")
        wall.forward(60)
        await session.run()
        for _ in range(3):
            wall.forward(-60)
            await session.run()
            wall.forward(60)
            await session.run()
        wall.forward(60)
        await session.run()
    assert firings(path) == [(60, 0), (120, 0)]


async def test_a_timer_that_repeats_ends_by_times_and_by_time(path: Path) -> None:
    wall = Wall()
    async with session_of(path, FakeModel([]), clock=wall.clock) as session:
        await session.wake_every(10, "twice", times=2, first=START)
        await session.wake_every(10, "until", until=START + timedelta(seconds=25))
        for _ in range(9):
            await session.run()
            wall.forward(10)
        assert session.timers() == ()
    assert told(path) == ["twice", "twice", "until", "until"]


async def test_a_cancelled_timer_fires_no_more(path: Path) -> None:
    wall = Wall()
    async with session_of(path, FakeModel([]), clock=wall.clock) as session:
        name = await session.wake_after(5, "never")
        assert await session.cancel_timer(name, by="ada")
        assert not await session.cancel_timer(name)
        assert not await session.cancel_timer("nobody")
        wall.forward(60)
        assert await session.run() is None
    assert [event.by for event in events_of(path, TimerCancelled)] == ["ada"]


async def test_under_a_key_a_timer_is_set_once(path: Path) -> None:
    async with (
        opened(path, FakeModel([]), clock=Wall().clock) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        first = await session.wake_after(5, "look", key="k")
        assert await session.wake_after(7, "look", key="k") == first
        posted = await kernel.mailbox("s").wake_after(5, "look", key="k")
        assert posted.timer == first
        await session.take_letters()
    assert len(events_of(path, TimerSet)) == 1
    assert [letter.outcome for letter in events_of(path, LetterTaken)] == ["repeated"]


async def test_nonsense_is_refused_and_nothing_is_set(path: Path) -> None:
    async with session_of(path, FakeModel([]), clock=Wall().clock, limits=Limits(timers_open=1)) as session:
        nonsense: list[Callable[[], object]] = [
            lambda: session.wake_at(datetime(2030, 1, 1), "naive"),  # noqa: DTZ001  that is what is refused
            lambda: session.wake_at("tomorrow", "no time"),  # type: ignore[arg-type]
            lambda: session.wake_after(-1, "past"),
            lambda: session.wake_after(float("nan"), "never"),
            lambda: session.wake_after(1e15, "too far"),
            lambda: session.wake_every(0.5, "too often"),
            lambda: session.wake_every(60, "no times", times=0),
            lambda: session.wake_every(60, "over before", until=START),
            lambda: session.wake_after(1, 7),  # type: ignore[arg-type]
        ]
        for wrong in nonsense:
            with pytest.raises(UsageError):
                await wrong()  # type: ignore[misc]
        await session.wake_after(1, "one")
        with pytest.raises(UsageError, match="1 timers are open"):
            await session.wake_after(1, "two")
    assert len(events_of(path, TimerSet)) == 1


async def test_letters_set_and_cancel_timers_from_anywhere(path: Path) -> None:
    wall = Wall()
    async with opened(path, FakeModel([]), clock=wall.clock) as kernel:
        mailbox = kernel.mailbox("s")
        kept = await mailbox.wake_after(60, "kept", by="ada")
        gone = await mailbox.wake_every(60, "gone")
        await mailbox.cancel_timer(gone.timer, "bob")
        await mailbox.cancel_timer("nobody")
        await mailbox.wake_every(60, "over before", until=START)
        wall.forward(59)
        async with kernel.session("s", model="fake:m") as session:
            assert [(timer.name, timer.by) for timer in session.timers()] == [(kept.timer, "ada")]
            wall.forward(1)
            await session.run()
    assert told(path) == ["kept"]
    taken = [(letter.verb, letter.outcome) for letter in events_of(path, LetterTaken)]
    assert taken == [
        *(("set_timer", "obeyed"),) * 2,
        ("cancel_timer", "obeyed"),
        ("cancel_timer", "refused"),
        ("set_timer", "refused"),
    ]


async def test_serve_sleeps_until_the_next_timer_is_due(path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with session_of(path, FakeModel([]), clock=trio_clock()) as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.serve)
        await session.wake_every(HOUR_S, "hourly", times=3)
        await trio.sleep(HOUR_S / 2)
        assert firings(path) == []
        await session.wake_after(60, "soon: set while it sleeps")
        await trio.sleep(4 * HOUR_S)
        nursery.cancel_scope.cancel()
    assert firings(path) == [(HOUR_S / 2 + 60, 0), *((HOUR_S * hour, 0) for hour in (1, 2, 3))]


async def test_serve_wakes_for_a_letter_that_sets_a_timer(path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with (
        opened(path, FakeModel([]), clock=trio_clock()) as kernel,
        kernel.session("s", model="fake:m") as session,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(session.serve)
        await trio.sleep(5)
        await kernel.mailbox("s").wake_after(60, "soon")
        await trio.sleep(HOUR_S)
        nursery.cancel_scope.cancel()
    assert told(path) == ["soon"]


async def test_serve_sees_a_clock_that_is_put_forward(path: Path, autojump_clock: trio.testing.MockClock) -> None:
    wall = Wall()
    async with session_of(path, FakeModel([]), clock=wall.clock) as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.serve)
        await session.wake_every(HOUR_S, "hourly")
        await trio.sleep(60)
        assert firings(path) == []
        wall.forward(HOUR_S * 2.5)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert firings(path) == [(HOUR_S, 1)]


async def test_a_fork_has_no_timers(path: Path) -> None:
    async with opened(path, FakeModel([]), clock=Wall().clock) as kernel:
        async with kernel.session("s", model="fake:m") as session:
            await session.followup("begin")
            await session.wake_after(5, "look")
            await session.run()
        await kernel.fork("s", 1, "f")
        async with kernel.session("f") as fork:
            assert fork.timers() == ()


MOVES = st.one_of(
    st.tuples(st.just("set"), st.integers(-20, 40), st.none() | st.integers(1, 15)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("jump"), st.integers(-30, 60)),
    st.tuples(st.just("run")),
    st.tuples(st.just("fault"), st.sampled_from(["timer/fired", "turn/start", "timer/set"]), st.booleans()),
    st.tuples(st.just("reopen")),
)


@given(st.lists(MOVES, min_size=3, max_size=14))
def test_whatever_happens_each_due_run_fires_once_or_is_one_with_others(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[Any, ...]]
) -> None:
    path = tmp_path_factory.mktemp("timers") / "a.db"
    acknowledged = trio.run(_play, path, [*moves, ("reopen",), ("jump", 1000), ("run",)])
    runs: dict[str, list[TimerFired]] = {}
    for fired in events_of(path, TimerFired):
        runs.setdefault(fired.timer, []).append(fired)
    accepted = [splice for splice in events_of(path, InboxSplice) if splice.cause == "accepted"]
    assert len({splice.message_id for splice in accepted}) == sum(map(len, runs.values())), "one message for each"
    assert len(told(path)) == len(accepted), "and each reached the model, once"
    cancelled = {event.timer for event in events_of(path, TimerCancelled)}
    timers = {event.timer: event for event in events_of(path, TimerSet)}
    assert acknowledged <= set(timers)
    assert set(runs) <= set(timers)
    for name, timer in timers.items():
        due_us = timer.due_us
        for fired in runs.get(name, []):
            assert fired.due_us == due_us, "no run is left out, and none comes again"
            due_us += (fired.missed + 1) * (timer.every_us or 0)
        assert name in cancelled or name in runs, "in the end all were due"
        assert timer.every_us or len(runs.get(name, [])) <= 1


async def _play(path: Path, moves: list[tuple[Any, ...]]) -> set[str]:
    """Make the moves; the timers that were acknowledged. A fault is of the disk: the rows are lost, or they are not."""
    wall, acknowledged = Wall(), set[str]()
    while moves:
        with suppress(StoreError):
            async with (
                opened(path, FakeModel([]), clock=wall.clock) as kernel,
                kernel.session("s", model="fake:m") as session,
            ):
                await _play_open(kernel, session, wall, moves, acknowledged)
    return acknowledged


async def _play_open(
    kernel: Kernel, session: Session, wall: Wall, moves: list[tuple[Any, ...]], acknowledged: set[str]
) -> None:
    while moves:
        match moves.pop(0):
            case ("set", delay_s, every_s):
                at = datetime.fromtimestamp(wall.now_us // S_US, UTC) + timedelta(seconds=delay_s)
                wish = session.wake_every(every_s, "x", first=at) if every_s else session.wake_at(at, "x")
                acknowledged.add(await wish)
            case ("cancel", index) if open_timers := session.timers():
                assert await session.cancel_timer(open_timers[index % len(open_timers)].name)
            case ("jump", seconds):
                wall.forward(seconds)
            case ("run",):
                await session.run()
                now = datetime.fromtimestamp(wall.now_us // S_US, UTC)
                assert all(timer.due > now for timer in session.timers()), "all that were due have fired"
            case ("fault", kind, lost):
                plant(kernel, committing(kind), lost=lost)
            case ("reopen",):
                return
