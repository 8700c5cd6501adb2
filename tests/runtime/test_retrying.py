"""Failed attempts: what is retried with the plugin that retries, when, how often, and what stays of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import trio

from flightlog import Limits, Turn
from flightlog.testing import Attempts, Cue, FakeModel, words
from flightlog_hookspecs import Alive
from flightlog_hookspecs.errors import RETRYABLE, FailureKind, ProviderError
from flightlog_hookspecs.events import (
    AssistantDelta,
    AssistantMessage,
    RequestFailed,
    RequestRetry,
    RequestSent,
    StepStart,
    TurnEnd,
)
from flightlog_plugins.retry import Retry
from support.kernels import RETRY, events_of, kinds_of, records_of, session_of, trio_clock, verified

KINDS: tuple[FailureKind, ...] = FailureKind.__args__


async def test_an_attempt_that_dies_in_mid_stream_leaves_only_evidence(tmp_path: Path, autojump_clock: object) -> None:
    dying = [*words("x" * 20, chunk=1)[:-1], ProviderError("transport", "connection reset")]
    model = FakeModel([Attempts((dying, words("The answer.")))])
    async with session_of(tmp_path / "a.db", model, plugins=[RETRY], clock=trio_clock()) as session:
        await session.followup("hi")
        turn = await session.run()
    assert (turn.reason, turn.text) == ("completed", "The answer.")
    assert [m.text for m in events_of(tmp_path / "a.db", AssistantMessage)] == ["The answer."]
    assert len(events_of(tmp_path / "a.db", StepStart)) == 1
    streamed: dict[int, list[str]] = {}
    for record in records_of(tmp_path / "a.db", deltas=True):
        if isinstance(record.event, AssistantDelta):
            streamed.setdefault(record.event.attempt, []).extend(piece.text for piece in record.event.pieces)
    assert {attempt: "".join(texts) for attempt, texts in streamed.items()} == {1: "x" * 20, 2: "The answer."}
    assert len(streamed[1]) == 20
    assert model.requests[0] == model.requests[1]
    assert verified(tmp_path / "a.db", model)


async def test_a_retry_writes_failure_and_plan_in_one_append_then_the_next_attempt(
    tmp_path: Path, autojump_clock: object
) -> None:
    model = FakeModel([Attempts(([ProviderError("overloaded", "529")], words("Ok.")))])
    async with session_of(tmp_path / "a.db", model, plugins=[RETRY]) as session:
        await session.followup("hi")
        await session.run()
    kinds = kinds_of(tmp_path / "a.db")
    start = kinds.index("request/header")
    assert kinds[start : start + 6] == [
        "request/header",
        "request/sent",
        "request/failed",
        "request/retry",
        "request/sent",
        "assistant/message",
    ]
    assert [event.attempt for event in events_of(tmp_path / "a.db", RequestSent)] == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
async def test_each_failure_kind_is_retried_or_ends_the_turn_by_the_table(
    tmp_path: Path, autojump_clock: object, kind: FailureKind
) -> None:
    model = FakeModel([Attempts(([ProviderError(kind, "planted")], words("Ok.")))])
    async with session_of(tmp_path / "a.db", model, plugins=[RETRY]) as session:
        await session.followup("hi")
        turn = await session.run()
        (failed,) = events_of(tmp_path / "a.db", RequestFailed)
        assert (failed.failure, failed.message, failed.retryable) == (kind, "planted", kind in RETRYABLE)
        if kind in RETRYABLE:
            assert turn.reason == "completed"
            return
        assert turn.reason == ("max_tokens" if kind == "length" else "error")
        await session.followup("again")
        following = await session.run()
        assert following.number == 2


async def test_the_adapter_may_overrule_the_table(tmp_path: Path, autojump_clock: object) -> None:
    model = FakeModel([Attempts(([ProviderError("bad_request", "try again", retryable=True)], words("Ok.")))])
    async with session_of(tmp_path / "a.db", model, plugins=[RETRY]) as session:
        await session.followup("hi")
        assert (await session.run()).reason == "completed"


async def test_attempts_are_limited_and_the_last_failure_ends_the_turn(tmp_path: Path, autojump_clock: object) -> None:
    model = FakeModel([[ProviderError("server", "500")]])
    async with session_of(tmp_path / "a.db", model, plugins=[RETRY], limits=Limits(attempts_per_step=4)) as session:
        await session.followup("hi")
        turn = await session.run()
    assert (turn.reason, turn.code, turn.message) == ("error", "server", "500")
    assert len(model.requests) == 4
    assert [event.attempt for event in events_of(tmp_path / "a.db", RequestRetry)] == [2, 3, 4]


async def test_delays_double_up_to_the_limit_and_respect_what_the_provider_asks(
    tmp_path: Path, autojump_clock: object
) -> None:
    failing = [[ProviderError("server", "500")]] * 3
    asked = [ProviderError("rate_limit", "429", retry_after_s=7.5)]
    model = FakeModel([Attempts((*failing, asked, words("Ok.")))])
    retry, limits = Retry(base_s=0.1, max_s=0.3, random=lambda: 1.0), Limits(attempts_per_step=5)
    async with session_of(tmp_path / "a.db", model, plugins=[retry], limits=limits, clock=trio_clock()) as session:
        await session.followup("hi")
        await session.run()
    assert [event.delay_ms for event in events_of(tmp_path / "a.db", RequestRetry)] == [100, 200, 300, 7650]
    sent = [record.at_us for record in records_of(tmp_path / "a.db") if isinstance(record.event, RequestSent)]
    assert [(after - before) // 1000 for before, after in pairwise(sent)] == [100, 200, 300, 7650]


@pytest.mark.parametrize("wish", [float("nan"), float("inf"), -5.0, 0.0, "soon"])
async def test_a_senseless_wish_of_the_provider_neither_crashes_nor_stalls_the_loop(
    tmp_path: Path, autojump_clock: object, wish: float
) -> None:
    model = FakeModel([Attempts(([ProviderError("rate_limit", "429", retry_after_s=wish)], words("Ok.")))])
    async with session_of(tmp_path / "a.db", model, plugins=[RETRY], clock=trio_clock()) as session:
        await session.followup("hi")
        turn = await session.run()
    assert turn.text == "Ok."
    (retry,) = events_of(tmp_path / "a.db", RequestRetry)
    assert retry.delay_ms == 500


async def test_a_wish_beyond_all_patience_ends_the_turn_which_says_it(tmp_path: Path) -> None:
    model = FakeModel([[ProviderError("rate_limit", "429", retry_after_s=1e300)]])
    async with session_of(tmp_path / "a.db", model, plugins=[RETRY]) as session:
        await session.followup("hi")
        turn = await session.run()
    assert (turn.code, turn.message) == ("rate_limit", "429; the provider asks to wait 86400 s")
    assert len(model.requests) == 1


async def test_a_kernel_without_a_plugin_that_retries_does_not(tmp_path: Path) -> None:
    model = FakeModel([Attempts(([ProviderError("overloaded", "529")], words("Ok.")))])
    async with session_of(tmp_path / "a.db", model) as session:
        await session.followup("hi")
        turn = await session.run()
    assert (turn.reason, turn.code) == ("error", "overloaded")
    assert events_of(tmp_path / "a.db", RequestRetry) == []


async def test_a_cancel_during_the_back_off_ends_at_once(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """Virtual time stands still here: whoever waited out the delay would wait for ever."""
    model = FakeModel([[ProviderError("server", "500")]])
    async with session_of(tmp_path / "a.db", model, plugins=[RETRY], clock=trio_clock()) as session:
        await session.followup("hi")
        async with trio.open_nursery() as nursery:
            turns: list[object] = []

            async def run() -> None:
                turns.append(await session.run())

            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            assert events_of(tmp_path / "a.db", RequestRetry)
            session.cancel()
    assert [(turn.reason, turn.cause) for turn in turns] == [("aborted", "user")]
    assert len(model.requests) == 1
    assert events_of(tmp_path / "a.db", AssistantMessage) == []


async def test_after_a_failed_turn_the_session_lives(tmp_path: Path) -> None:
    model = FakeModel([Attempts(([ProviderError("auth", "no key")],))])
    async with session_of(tmp_path / "a.db", model, plugins=[RETRY]) as session:
        await session.followup("hi")
        turn = await session.run()
        assert (turn.reason, turn.code, turn.message) == ("error", "auth", "no key")
        model.replies = [words("Back.")]
        await session.followup("again")
        turn = await session.run()
    assert (turn.number, turn.reason, turn.text) == (2, "completed", "Back.")
    assert [end.reason for end in events_of(tmp_path / "a.db", TurnEnd)] == ["error", "completed"]
    assert verified(tmp_path / "a.db", model)


async def test_a_silent_model_times_out_and_is_retried(tmp_path: Path, autojump_clock: object) -> None:
    silent = [*words("Half"), trio.sleep_forever]
    model = FakeModel([Attempts((silent, words("Whole.")))])
    async with session_of(
        tmp_path / "a.db", model, plugins=[RETRY], limits=Limits(model_idle_s=30.0), clock=trio_clock()
    ) as session:
        await session.followup("hi")
        turn = await session.run()
    assert turn.text == "Whole."
    (failed,) = events_of(tmp_path / "a.db", RequestFailed)
    assert (failed.failure, failed.message) == ("timeout", "nothing arrived for 30 s")


async def pause() -> None:
    await trio.sleep(20)


async def turn_of(path: Path, slow: list[Cue]) -> Turn:
    """What comes of an answer that must not stand still for more than half a minute."""
    model, limits = FakeModel([slow]), Limits(model_idle_s=30.0)
    async with session_of(path, model, plugins=[RETRY], limits=limits, clock=trio_clock()) as session:
        await session.followup("hi")
        return await session.run()


async def test_a_model_that_thinks_for_long_does_not_time_out_while_it_shows_that_it_lives(
    tmp_path: Path, autojump_clock: object
) -> None:
    slow = [*(cue for _ in range(90) for cue in (pause, Alive())), *words("At last.")]
    turn = await turn_of(tmp_path / "a.db", slow)
    assert (turn.reason, turn.text) == ("completed", "At last.")


async def test_a_slow_model_that_keeps_talking_does_not_time_out(tmp_path: Path, autojump_clock: object) -> None:
    slow = [cue for delta in words("A long answer.", chunk=1) for cue in (pause, delta)]
    turn = await turn_of(tmp_path / "a.db", slow)
    assert (turn.reason, turn.text) == ("completed", "A long answer.")
