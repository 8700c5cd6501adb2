"""What may go wrong while a context is made shorter: it stays as it was, or becomes shorter another way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio

import flightlog
from flightlog import Limits
from flightlog.testing import Bundle, Cue, FakeModel, calls, words
from flightlog_hookspecs import Compactor, Finish, Head, Hook, Message, StepView, Switch, UserMessage
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import (
    CompactionEnd,
    CompactionStart,
    RequestFailed,
    RequestRetry,
    RequestSent,
    TaskState,
    TurnEnd,
)
from support.conversation import assert_at_rest
from support.cutting import cut_log
from support.kernels import events_of, opened, records_of, session_of
from support.long_work import INSTRUCTION, PRUNES, SUMMARISES, LongWork, looking


async def worked(path: Path, model: LongWork, *compactors: Compactor, limits: Limits | None = None) -> TurnEnd:
    """One turn of work with results of 600 characters; returns how it ended."""
    async with session_of(path, model, looking(600), plugins=[Bundle(compactors=compactors)], limits=limits) as session:
        await session.followup("go")
        await session.run()
    return events_of(path, TurnEnd)[-1]


NO_SUMMARIES: dict[str, Callable[[int], Sequence[Cue]]] = {
    "failing": lambda _: [ProviderError("auth", "no key")],
    "too long": lambda _: [ProviderError("context_overflow", "too long")],
    "empty": lambda _: words(" "),
    "cut off": lambda _: [*words("12 ans"), Finish(reason="length")],
    "refused": lambda _: [*words("I would rather not."), Finish(reason="refusal")],
    "calling": lambda _: [*words("On I go."), *calls(("look", {"at": 1}))],
    "calling and done": lambda _: [*words("On I go."), *calls(("look", {"at": 1})), Finish(reason="stop")],
    "ten times as long": lambda _: words("and much more " * 3000, chunk=10_000),
    "hanging": lambda _: [*words("I think")[:1], trio.sleep_forever],
}


@pytest.mark.parametrize("summary", NO_SUMMARIES.values(), ids=NO_SUMMARIES)
async def test_where_no_summary_is_to_be_had_shorter_results_are_enough(
    summary: Callable[[int], Sequence[Cue]], tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path, model = tmp_path / "a.db", LongWork(window_tokens=1100, summary=summary)
    assert (await worked(path, model, SUMMARISES)).reason == "completed"
    assert max(model.sizes) <= 1100 * 0.75
    assert {start.level for start in events_of(path, CompactionStart)} == {"prune", "summarise"}
    assert not [each for each in events_of(path, UserMessage) if each.source == "summary"]
    assert_at_rest(path, model)


async def test_a_long_talk_that_its_provider_refuses_is_summed_up_from_its_beginning(tmp_path: Path) -> None:
    """Nobody knows the window, no result can be shortened, and as a whole it can be read by nobody."""
    path, model = tmp_path / "a.db", LongWork(steps=0, refuses_over=1500)
    async with session_of(path, model, plugins=[Bundle(compactors=[SUMMARISES])]) as session:
        for number in range(12):
            await session.followup(f"story {number}: " + "and so it went on " * 60)
            assert (await session.run()).reason == "completed"
    assert model.asked
    assert {failed.failure for failed in events_of(path, RequestFailed)} == {"context_overflow"}
    assert {end.outcome for end in events_of(path, CompactionEnd)} == {"done"}
    assert_at_rest(path, model)


async def test_nothing_is_replaced_where_the_head_and_the_open_step_alone_are_too_long(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(steps=6)
    await worked(path, model, SUMMARISES)
    before, model.steps = len(model.requests), 12
    end = await worked(path, model, SUMMARISES, limits=Limits(context_tokens=3))
    assert (end.reason, end.code, len(model.requests)) == ("error", "context_overflow", before)
    assert "its head and the open step alone have" in end.message
    assert not events_of(path, CompactionStart)
    assert (await worked(path, model, SUMMARISES, limits=Limits(context_tokens=700))).reason == "completed"
    assert max(model.sizes[before:]) <= 700
    assert_at_rest(path, model)


async def test_a_session_that_is_resumed_with_less_room_is_made_shorter(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(steps=12)
    for room in (None, 900, 450, 2000):
        model.sizes.clear()
        assert (await worked(path, model, SUMMARISES, limits=Limits(context_tokens=room))).reason == "completed"
        assert max(model.sizes) <= (room or 10**6)
        model.steps += 12
    assert_at_rest(path, model)


async def test_a_task_that_is_paused_for_its_context_goes_on_where_there_is_room(tmp_path: Path) -> None:
    path, small, large = tmp_path / "a.db", LongWork(window_tokens=700), LongWork(window_tokens=7000)
    async with opened(path, small, looking(600)) as kernel:
        task = await kernel.tasks.submit("sweep", model="fake:m")
        for _ in range(2):
            await kernel.work(until_idle=True)
            asked = len(small.requests)
            assert (await kernel.tasks.show(task)).state == "paused"
            await kernel.tasks.resume(task)
        await kernel.work(until_idle=True)
        assert len(small.requests) == asked, "nothing has changed, so nobody was asked"
        await kernel.tasks.resume(task)
    async with opened(path, large, looking(600)) as kernel:
        await kernel.work(until_idle=True)
    causes = [each.cause for each in events_of(path, TaskState, task) if each.state == "paused"]
    assert causes == ["context"] * 3
    assert events_of(path, TaskState, task)[-1].state == "completed"
    assert_at_rest(path, large, name=task)


@pytest.mark.parametrize("how", ["pause", "cancel"])
async def test_a_task_that_is_stopped_while_a_summary_is_written_keeps_its_context(how: str, tmp_path: Path) -> None:
    path, asked, stopped = tmp_path / "a.db", trio.Event(), False

    async def hang() -> None:
        asked.set()
        await trio.sleep_forever()

    model = LongWork(
        window_tokens=800, summary=lambda answers: words(f"{answers} answers") if stopped else [*words("s")[:1], hang]
    )
    async with opened(path, model, looking(600), plugins=[Bundle(compactors=[SUMMARISES])]) as kernel:
        task = await kernel.tasks.submit("sweep", model="fake:m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: kernel.work(until_idle=True))
            await asked.wait()
            if how == "pause":
                await kernel.tasks.pause(task)
            else:
                await kernel.tasks.cancel(task)
        stopped = True
        assert [end.outcome for end in events_of(path, CompactionEnd, task)] == ["failed"]
        if how == "pause":
            await kernel.tasks.resume(task)
            await kernel.work(until_idle=True)
            assert (await kernel.tasks.show(task)).state == "completed"
            assert max(model.sizes) <= 600
        else:
            assert (await kernel.tasks.show(task)).state == "cancelled"
    assert_at_rest(path, model, name=task)


async def test_another_model_with_a_smaller_window_is_sent_what_it_can_read(tmp_path: Path) -> None:
    class Windows(LongWork):
        def window(self, model: str) -> int:
            return 700 if model == "small" else 20_000

    def moves(view: StepView) -> Switch | None:
        return Switch("fake:small") if view.step == 10 else None

    path, model = tmp_path / "a.db", Windows()
    plugin = Bundle(compactors=[SUMMARISES], hooks=[Hook(point="before_step", body=moves, name="moves")])
    async with session_of(path, model, looking(600), plugins=[plugin]) as session:
        await session.followup("go")
        assert (await session.run()).reason == "completed"
    assert max(model.sizes[:9]) > 1000
    assert max(model.sizes[9:]) <= 700 * 0.75
    assert_at_rest(path, model)


async def test_a_compactor_that_is_taken_back_in_the_middle_has_the_last_word_on_what_it_began(tmp_path: Path) -> None:
    path, asked, go_on = tmp_path / "a.db", trio.Event(), trio.Event()

    async def wait() -> None:
        asked.set()
        await go_on.wait()

    model = LongWork(window_tokens=800, summary=lambda answers: [wait, *words(f"{answers} answers")])
    async with opened(path, model, looking(600)) as kernel, kernel.session("s", model="fake:m") as session:
        guard = session.register(Bundle(compactors=[SUMMARISES]))
        await session.followup("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await asked.wait()
            await guard.aclose()
            go_on.set()
    assert [end.outcome for end in events_of(path, CompactionEnd)] == ["done"]
    end = events_of(path, TurnEnd)[-1]
    assert (end.code, end.message.endswith("nothing can shorten it")) == ("context_overflow", True)
    assert_at_rest(path, model)


async def test_of_two_compactors_the_session_s_own_counts_and_then_the_last(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(window_tokens=1400)
    kernels = [Bundle(compactors=[Compactor(name=name, keep_steps=2)]) for name in ("first", "second")]
    async with opened(path, model, looking(600), plugins=kernels) as kernel:
        async with kernel.session("s", model="fake:m") as session:
            await session.followup("go")
            await session.run()
        async with kernel.session("own", model="fake:m") as session, session.register(Bundle(compactors=[PRUNES])):
            await session.followup("go")
            await session.run()
    assert {start.compactor for start in events_of(path, CompactionStart)} == {"second"}
    assert {start.compactor for start in events_of(path, CompactionStart, "own")} == {"prunes"}


async def test_an_adapter_that_cannot_encode_the_instruction_ends_the_turn_and_nothing_is_begun(tmp_path: Path) -> None:
    class Picky(LongWork):
        def encode(self, part: Head | Message) -> bytes:
            if isinstance(part, UserMessage) and part.text == INSTRUCTION:
                raise ValueError("what is that")
            return FakeModel.encode(self, part)

    path, model = tmp_path / "a.db", Picky(window_tokens=800)
    end = await worked(path, model, SUMMARISES)
    assert (end.reason, end.code) == ("error", "PluginError")
    assert "what is that" in end.message
    assert not events_of(path, CompactionStart)
    assert_at_rest(path, model, verify=False)


async def test_a_request_that_was_too_long_is_not_made_again_where_there_is_less_room_by_then(tmp_path: Path) -> None:
    whole, path, compactor = tmp_path / "a.db", tmp_path / "b.db", Compactor(name="prunes", keep_steps=0)
    await worked(whole, LongWork(refuses_over=900), compactor)
    retried = next(record.seq for record in records_of(whole) if isinstance(record.event, RequestRetry))
    cut_log(whole, path, retried)
    model, limits = LongWork(), Limits(context_tokens=200)
    plugins = [Bundle(compactors=[compactor])]
    async with session_of(path, model, looking(600), plugins=plugins, limits=limits, on_crash="continue") as session:
        await session.run()
    end = events_of(path, TurnEnd)[-1]
    assert (end.code, model.sizes) == ("context_overflow", [])
    before, after = next((r.tokens_before, e.tokens_after) for r, e in zip(*both(path), strict=True))
    assert 200 < after < before
    assert_at_rest(path, model)


def both(path: Path) -> tuple[list[CompactionStart], list[CompactionEnd]]:
    """How each compaction began, and ended."""
    return events_of(path, CompactionStart), events_of(path, CompactionEnd)


async def test_what_is_said_while_a_summary_is_written_comes_after_it(tmp_path: Path) -> None:
    path, said = tmp_path / "a.db", False

    async def say() -> None:
        nonlocal said
        if not said:
            said = True
            await session.steer("rather so")
            await session.followup("and then?")
            await kernel.mailbox("s").inject("by the way")

    model = LongWork(window_tokens=800, summary=lambda answers: [say, *words(f"{answers} answers")])
    plugins = [Bundle(compactors=[SUMMARISES])]
    async with (
        opened(path, model, looking(600), plugins=plugins) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await session.followup("go")
        assert (await session.run()).reason == "completed"
    texts = [message.text for message in events_of(path, UserMessage)]
    assert {"rather so", "and then?", "by the way"} <= set(texts)
    assert {end.outcome for end in events_of(path, CompactionEnd)} == {"done"}
    assert_at_rest(path, model)


async def test_the_answer_to_a_summary_runs_no_tool(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(window_tokens=1100, summary=NO_SUMMARIES["calling"])
    looked: list[int] = []
    async with session_of(path, model, looking(600, looked), plugins=[Bundle(compactors=[SUMMARISES])]) as session:
        await session.followup("go")
        await session.run()
    assert model.asked
    assert looked == list(range(12))


async def test_a_request_that_was_too_long_is_not_made_again_as_long_as_it_was(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(steps=1, refuses_over=1)
    end = await worked(path, model, SUMMARISES)
    assert (end.reason, end.code) == ("error", "context_overflow")
    assert len(events_of(path, RequestSent)) == 1
    with flightlog.open_log(path, discover=False) as log:
        assert log.session("s").verify()
