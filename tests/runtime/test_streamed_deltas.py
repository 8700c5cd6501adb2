"""Streamed deltas: every one in the log, with its own time, soon after it arrived."""

from __future__ import annotations

from itertools import count, pairwise
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog import Clock, Limits
from flightlog.testing import FakeModel, words
from flightlog_hookspecs import BlockEnd, BlockStart, Finish, TextBlock, TextDelta, ThinkingBlock, ThinkingDelta
from flightlog_hookspecs.events import AssistantDelta, AssistantMessage
from support.kernels import records_of, session_of, trio_clock, verified
from support.memory_folder import subfolder

START_US = 1_700_000_000_000_000


def deltas_of(path: Path) -> list[tuple[int, int, str]]:
    """(time in microseconds, block, text) of each delta as it arrived."""
    return [
        (record.at_us + piece.at_ms * 1000, record.event.block, piece.text)
        for record in records_of(path, deltas=True)
        if isinstance(record.event, AssistantDelta)
        for piece in record.event.pieces
    ]


def in_the_log(path: Path) -> str:
    """What has been streamed so far, as another process would see it."""
    return "".join(text for _, _, text in deltas_of(path))


async def test_each_delta_keeps_its_own_time_and_text(tmp_path: Path, autojump_clock: object) -> None:
    pauses_ms = [0, 5, 1, 40, 40, 3, 0, 250, 7]

    def pause(ms: int) -> object:
        async def wait() -> None:
            await trio.sleep(ms / 1000)

        return wait

    deltas = [TextDelta(index=0, text=f"<{number}>") for number in range(len(pauses_ms))]
    cues = [cue for ms, delta in zip(pauses_ms, deltas, strict=True) for cue in (pause(ms), delta)]
    text = "".join(delta.text for delta in deltas)
    model = FakeModel([[BlockStart(index=0, type="text"), *cues, BlockEnd(index=0, block=TextBlock(text=text))]])
    async with session_of(tmp_path / "a.db", model, clock=trio_clock(START_US)) as session:
        await session.followup("hi")
        began_us = round(trio.current_time() * 1e6)
        await session.run()
    found = deltas_of(tmp_path / "a.db")
    assert [text for _, _, text in found] == [delta.text for delta in deltas]
    expected, at_ms = [], 0
    for ms in pauses_ms:
        at_ms += ms
        expected.append(START_US + began_us + at_ms * 1000)
    # A delta's time is kept in milliseconds after its row's, so it is exact to the millisecond.
    assert [(at_us - wanted) // 1000 for (at_us, _, _), wanted in zip(found, expected, strict=True)] == [0] * 9


async def test_times_never_go_backwards_within_an_attempt(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([words("x" * 400, chunk=1)])) as session:
        await session.followup("hi")
        await session.run()
    found = deltas_of(tmp_path / "a.db")
    assert len(found) == 400
    assert all(after[0] >= before[0] for before, after in pairwise(found))
    assert found[0][0] < found[-1][0]


async def test_a_delta_is_in_the_log_when_the_flush_limit_has_passed_and_not_much_before(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """Virtual time moves only here, so the limit is met exactly."""
    path = tmp_path / "a.db"
    model = FakeModel([[*words("early ")[:-1], trio.sleep_forever]])
    async with (
        session_of(path, model, limits=Limits(delta_flush_ms=30), clock=trio_clock()) as session,
        trio.open_nursery() as nursery,
    ):
        await session.followup("hi")
        nursery.start_soon(session.run)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(0.029)
        await trio.testing.wait_all_tasks_blocked()
        assert in_the_log(path) == ""
        mock_clock.jump(0.0011)
        await trio.testing.wait_all_tasks_blocked()
        assert in_the_log(path) == "early "
        session.cancel()


async def test_a_steady_stream_is_never_more_than_the_limit_behind(tmp_path: Path, autojump_clock: object) -> None:
    path = tmp_path / "a.db"
    behind: list[int] = []
    said = 0

    async def look() -> None:
        nonlocal said
        await trio.sleep(0.010)
        behind.append(said - len(in_the_log(path)))
        said += 1

    stream = [cue for number in range(60) for cue in (look, TextDelta(index=0, text=str(number % 10)))]
    text = "".join(str(number % 10) for number in range(60))
    model = FakeModel([[BlockStart(index=0, type="text"), *stream, BlockEnd(index=0, block=TextBlock(text=text))]])
    async with session_of(path, model, limits=Limits(delta_flush_ms=30), clock=trio_clock()) as session:
        await session.followup("hi")
        await session.run()
    assert max(behind) <= 4  # one every 10 ms, at most 30 ms late
    assert in_the_log(path) == text


async def test_a_stream_may_end_at_the_very_moment_when_its_deltas_are_due(
    tmp_path: Path, autojump_clock: object
) -> None:
    """Which of the two comes first is trio's choice, so there are many streams."""

    async def due() -> None:
        await trio.sleep(0.030)

    path = tmp_path / "a.db"
    model = FakeModel([[*words("just in time"), due]] * 20)
    async with session_of(path, model, limits=Limits(delta_flush_ms=30)) as session:
        for _ in range(20):
            await session.followup("hi")
            with trio.fail_after(60):
                await session.run()
    assert in_the_log(path) == "just in time" * 20


async def test_deltas_of_one_flush_become_one_row_per_run_of_a_block(tmp_path: Path) -> None:
    stream = [
        BlockStart(index=0, type="thinking"),
        BlockStart(index=1, type="text"),
        ThinkingDelta(index=0, text="a"),
        ThinkingDelta(index=0, text="b"),
        TextDelta(index=1, text="c"),
        ThinkingDelta(index=0, text="d"),
        BlockEnd(index=0, block=ThinkingBlock(text="abd")),
        BlockEnd(index=1, block=TextBlock(text="c")),
    ]
    async with session_of(tmp_path / "a.db", FakeModel([stream]), limits=Limits(delta_flush_ms=60_000)) as session:
        await session.followup("hi")
        await session.run()
    rows = [r.event for r in records_of(tmp_path / "a.db", deltas=True) if isinstance(r.event, AssistantDelta)]
    assert [(row.block, row.type, "".join(piece.text for piece in row.pieces)) for row in rows] == [
        (0, "thinking", "ab"),
        (1, "text", "c"),
        (0, "thinking", "d"),
    ]


async def test_all_deltas_are_in_the_log_before_the_message_they_make_up(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with session_of(path, FakeModel([words("a long answer " * 20)])) as session:
        await session.followup("hi")
        await session.run()
    records = records_of(path)
    answer = next(record.seq for record in records if isinstance(record.event, AssistantMessage))
    assert all(record.seq < answer for record in records if isinstance(record.event, AssistantDelta))
    assert in_the_log(path) == "a long answer " * 20


@pytest.mark.parametrize("jump_s", [-3600, -1, -0.001, 0.5, 86_400])
async def test_a_wall_clock_that_jumps_breaks_nothing(tmp_path: Path, jump_s: float) -> None:
    path = tmp_path / "a.db"
    ticks, ids, now_us = count(0, 1000), count(1), START_US

    def now() -> int:
        nonlocal now_us
        now_us += 700
        return now_us

    async def jump() -> None:
        nonlocal now_us
        now_us += round(jump_s * 1e6)

    text = words("some words that arrive piece by piece", chunk=2)
    clock = Clock(now_us=now, monotonic_us=lambda: next(ticks), new_id=lambda: f"{next(ids):032x}")
    model = FakeModel([[*text[:8], jump, *text[8:12], jump, *text[12:]], words("and on")])
    async with session_of(path, model, clock=clock) as session:
        await session.followup("hi")
        await session.followup("on")
        turn = await session.run()
    assert (turn.reason, turn.text) == ("completed", "and on")
    assert in_the_log(path) == "some words that arrive piece by piece" + "and on"
    for record in records_of(path, deltas=True):
        if isinstance(record.event, AssistantDelta):
            assert all(piece.at_ms >= 0 for piece in record.event.pieces)
    assert verified(path, model)
    async with session_of(path, model, clock=clock) as session:
        assert await session.run() is None


async def test_a_cancelled_stream_has_every_delta_that_arrived(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    begun = trio.Event()

    async def hang() -> None:
        begun.set()
        await trio.sleep_forever()

    model = FakeModel([[*words("to the last letter", chunk=1)[:-1], hang]])
    limits = Limits(delta_flush_ms=60_000)
    async with session_of(path, model, limits=limits) as session, trio.open_nursery() as nursery:
        await session.followup("hi")
        nursery.start_soon(session.run)
        await begun.wait()
        session.cancel()
    assert in_the_log(path) == "to the last letter"
    (message,) = [r.event for r in records_of(path) if isinstance(r.event, AssistantMessage)]
    assert message.text == "to the last letter"


@given(texts=st.lists(st.text(st.characters(codec=None), min_size=1), min_size=1, max_size=12))
async def test_any_text_streams_through_unaltered(texts: list[str], tmp_path: Path) -> None:
    path = subfolder(tmp_path) / "a.db"
    whole = "".join(texts)
    stream = [
        BlockStart(index=0, type="text"),
        *(TextDelta(index=0, text=text) for text in texts),
        BlockEnd(index=0, block=TextBlock(text=whole)),
        Finish(reason="stop"),
    ]
    model = FakeModel([stream])
    async with session_of(path, model, limits=Limits(attempts_per_step=1)) as session:
        await session.followup("hi")
        turn = await session.run()
    assert in_the_log(path) == whole
    if whole.strip():
        # Two halves of a surrogate pair that meet are one character, as everywhere in Python's codecs.
        assert turn.text == whole.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    with flightlog.open_log(path, discover=False) as log:
        assert log.session("s").verify()
