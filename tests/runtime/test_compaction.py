"""A conversation that becomes too long for its model: it is made shorter, or the turn ends without a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import event, given
from hypothesis import strategies as st

import flightlog
from flightlog import Limits
from flightlog.core.resync import reads
from flightlog.testing import Bundle, Cue, FakeModel, calls, words
from flightlog_hookspecs import (
    BlockEnd,
    BlockStart,
    Compactor,
    FailedRequest,
    FileBlock,
    Finish,
    Hook,
    PromptSection,
    RequestView,
    Retry,
    StepView,
    ThinkingBlock,
    Veto,
    hook,
)
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import (
    CheckpointWritten,
    CompactionEnd,
    CompactionStart,
    Message,
    RequestFailed,
    RequestSent,
    TaskState,
    ToolResult,
    TurnEnd,
    UserMessage,
)
from support.conversation import assert_at_rest
from support.kernels import SOON, events_of, opened, records_of, session_of
from support.long_work import INSTRUCTION, PRUNES, SUMMARISES, LongWork, looking
from support.memory_folder import subfolder


async def worked(
    path: Path,
    model: LongWork,
    *compactors: Compactor,
    chars: int = 600,
    sections: Sequence[PromptSection] = (),
    hooks: Sequence[Hook] = (),
    **options: Any,
) -> TurnEnd:
    """One turn of work; returns how it ended."""
    bundle = Bundle(compactors=compactors, sections=sections, hooks=hooks)
    async with session_of(path, model, looking(chars), plugins=[bundle], **options) as session:
        await session.followup("go")
        await session.run()
    return events_of(path, TurnEnd)[-1]


SUMMARIES: dict[str, Callable[[int], Sequence[Cue]]] = {
    "good": lambda answers: words(f"{answers} answers"),
    "empty": lambda _: words(" "),
    "long": lambda answers: words(f"{answers} answers " + "and much more " * 3000, chunk=10_000),
    "failing": lambda _: [ProviderError("auth", "no key")],
    "cut": lambda _: [*words("12 ans"), Finish(reason="length")],
    "calling": lambda _: calls(("look", {"at": 1})),
}


@given(
    steps=st.sampled_from([1, 8, 30]),
    chars=st.sampled_from([100, 300, 600, 1500]),
    window=st.sampled_from([150, 500, 700, 800, 1200]),
    compactor=st.none() | st.sampled_from([PRUNES, SUMMARISES]),
    summary=st.sampled_from(["good", *SUMMARIES]),
    counts=st.sampled_from([0.0, 0.01, 0.5, 1.0, 2.0]),
)
async def test_every_request_fits_or_the_turn_ends_without_it_whatever_the_provider_counts(
    steps: int, chars: int, window: int, compactor: Compactor | None, summary: str, counts: float, tmp_path: Path
) -> None:
    path = subfolder(tmp_path) / "a.db"
    model = LongWork(steps=steps, window_tokens=window, summary=SUMMARIES[summary], counts=counts)
    end = await worked(path, model, *([compactor] if compactor else []), chars=chars)
    assert all(size <= window * 0.75 for size in model.sizes)
    assert len(model.sizes) == len(events_of(path, RequestSent))
    assert (end.reason, end.code) in (("completed", ""), ("error", "context_overflow"))
    if end.code:
        assert len(model.sizes) <= steps
    event(f"{end.code or end.reason}, summaries: {model.asked > 0}")
    assert model.asked == sum(start.level == "summarise" for start in events_of(path, CompactionStart))
    assert_at_rest(path, model)
    assert_at_rest(path)


async def test_without_a_compactor_the_turn_ends_and_says_how_long_it_is(tmp_path: Path) -> None:
    end = await worked(tmp_path / "a.db", LongWork(window_tokens=600))
    assert (end.reason, end.code) == ("error", "context_overflow")
    assert end.message.endswith("tokens, and 450 fit: nothing can shorten it")


async def test_a_text_that_is_too_long_is_not_sent_as_a_file_either(tmp_path: Path) -> None:
    model = LongWork(window_tokens=10_000)
    async with session_of(tmp_path / "a.db", model) as session:
        await session.followup((FileBlock.of(b"word and so on " * 30_000, name="a.txt"),))
        turn = await session.run()
    assert (turn.code, model.requests) == ("context_overflow", [])


async def test_reasoning_that_is_sent_back_encrypted_counts_for_the_next_request(tmp_path: Path) -> None:
    sealed = ThinkingBlock(text="", replay='{"state":"' + "QkFzZTY0" * 5_000 + '"}')
    thought: list[Cue] = [BlockStart(index=0, type="thinking"), BlockEnd(index=0, block=sealed)]
    model = FakeModel([[*thought, *calls(("look", {"at": 1}))]], window_tokens=10_000)
    async with session_of(tmp_path / "a.db", model, looking(60)) as session:
        await session.followup("go")
        turn = await session.run()
    assert (turn.code, len(model.requests)) == ("context_overflow", 1)


async def test_without_a_window_and_a_limit_nothing_is_checked(tmp_path: Path) -> None:
    assert (await worked(tmp_path / "a.db", LongWork(), SUMMARISES)).reason == "completed"
    assert not events_of(tmp_path / "a.db", CompactionStart)


async def test_the_limit_of_the_host_counts_without_a_window(tmp_path: Path) -> None:
    model = LongWork()
    end = await worked(tmp_path / "a.db", model, SUMMARISES, limits=Limits(context_tokens=600))
    assert end.reason == "completed"
    assert max(model.sizes) <= 600


async def test_what_the_provider_counts_corrects_the_estimate(tmp_path: Path) -> None:
    model = LongWork(counts=2.0)
    assert (
        await worked(tmp_path / "a.db", model, SUMMARISES, limits=Limits(context_tokens=1200))
    ).reason == "completed"
    assert 300 < max(model.sizes) <= 600


async def test_a_summary_is_asked_for_behind_the_same_prefix_and_its_tokens_count(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(window_tokens=800, steps=8)
    await worked(path, model, SUMMARISES)
    asked = next(index for index, fragments in enumerate(model.requests) if b"Sum it all up." in fragments[-1])
    before, covered = model.requests[asked - 1], model.requests[asked][:-1]
    assert before[: len(covered)] == covered, "so that the provider knows it already"
    done = [end for end in events_of(path, CompactionEnd) if end.outcome == "done" and end.asked]
    assert model.asked == len(done) > 0
    with flightlog.open_log(path, discover=False) as log:
        (spent,) = log.session("s").usage()
    assert (spent.input_tokens, spent.output_tokens) == (70 * model.asked, 7 * model.asked)
    assert spent.answers == len(events_of(path, RequestSent)) + model.asked


async def test_a_section_that_a_summary_hides_is_told_again_before_the_request(tmp_path: Path) -> None:
    path, texts = tmp_path / "a.db", ["at first", *["later on"] * 100]

    async def render(view: StepView) -> str:
        return texts[min(view.step, 2) - 1]

    section = PromptSection(name="where", render=render, kind="runtime", rank=1)
    model = LongWork(window_tokens=800, steps=12)
    assert (await worked(path, model, SUMMARISES, sections=[section])).reason == "completed"
    told = [each for each in events_of(path, UserMessage) if each.section == "where"]
    covered = [each for each in events_of(path, UserMessage) if each.source == "summary"]
    assert covered
    assert len(told) > 2
    for fragments in model.requests[2:]:
        if b"Sum it all up." not in fragments[-1]:
            assert any(b"later on" in fragment for fragment in fragments)


async def test_a_provider_that_finds_it_too_long_is_asked_once_more_with_less(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(refuses_over=500)
    end = await worked(path, model, SUMMARISES)
    failed = events_of(path, RequestFailed)
    assert end.reason == "completed"
    assert failed
    assert {each.failure for each in failed} == {"context_overflow"}
    assert_at_rest(path, model)


async def test_no_hook_has_what_was_too_long_sent_again_as_it_is(tmp_path: Path) -> None:
    """Some adapters call it retryable, and a hook may retry whatever it likes: it would not fit that time either."""
    path, model = tmp_path / "a.db", LongWork(refuses_over=500, retryable=True)

    def summary(answers: int) -> Sequence[Cue]:
        model.refuses_over = 1
        return words(f"{answers} answers")

    @hook("on_request_error")
    async def again(failed: FailedRequest) -> Retry:
        return Retry(after_s=0)

    model.summary = summary
    shortens = Compactor(name="sums", instruction=INSTRUCTION, keep_steps=1)
    end = await worked(path, model, shortens, chars=100, hooks=[again])
    assert (end.reason, end.code) == ("error", "context_overflow")
    assert len(events_of(path, RequestFailed)) == 2
    assert all(before != after for before, after in pairwise(model.requests))


async def test_it_is_asked_once_more_only(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(refuses_over=1)
    end = await worked(path, model, SUMMARISES)
    assert (end.reason, end.code) == ("error", "context_overflow")
    assert len(events_of(path, RequestSent)) == 1  # nothing was to be shortened yet


async def test_a_context_that_was_made_shorter_and_is_refused_again_ends_the_turn(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(refuses_over=500)

    def summary(answers: int) -> Sequence[Cue]:
        model.refuses_over = 1
        return words(f"{answers} answers")

    model.summary = summary
    end = await worked(path, model, Compactor(name="sums", instruction=INSTRUCTION, keep_steps=1), chars=100)
    assert (end.reason, end.code) == ("error", "context_overflow")
    assert model.asked == 1
    assert len(events_of(path, RequestFailed)) == 2


async def test_a_cancel_while_a_summary_is_written_leaves_the_context_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    asked = trio.Event()

    async def hang() -> None:
        asked.set()
        await trio.sleep_forever()

    model = LongWork(window_tokens=700, summary=lambda _: [*words("so far")[:1], hang])
    async with session_of(path, model, looking(600), plugins=[Bundle(compactors=[SUMMARISES])]) as session:
        await session.followup("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await asked.wait()
            session.cancel()
    assert events_of(path, TurnEnd)[-1].reason == "aborted"
    assert [end.outcome for end in events_of(path, CompactionEnd)][-1] == "failed"
    assert not [each for each in events_of(path, UserMessage) if each.source == "summary"]
    assert_at_rest(path, model)


@pytest.mark.parametrize("compactor", [PRUNES, SUMMARISES], ids=["prune", "summarise"])
async def test_a_fork_sees_what_its_origin_sees(compactor: Compactor, tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(window_tokens=900)
    await worked(path, model, compactor)
    bundle = Bundle(adapters=[model], compactors=[compactor], tools=[looking(600)])
    async with flightlog.open_kernel(path, discover=False, plugins=[bundle]) as kernel:
        await kernel.fork("s", 1, "f")
        assert [m.text for m in kernel.read("f").messages()] == [m.text for m in kernel.read("s").messages()]
        async with kernel.session("f", model="fake:m") as session:
            await session.followup("and on")
            assert (await session.run()).reason == "completed"
        kernel.read("f").verify()


async def test_the_results_in_the_log_stay_what_they_were(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(window_tokens=900)
    await worked(path, model, PRUNES)
    records = {record.seq: record.event for record in records_of(path)}
    said = [seq for seq, each in records.items() if isinstance(each, Message) and not getattr(each, "replaces", None)]
    shortened = [each for each in records.values() if isinstance(each, ToolResult) and each.replaces]
    assert shortened
    for each in shortened:
        old = records[each.replaces or 0]
        assert isinstance(old, ToolResult)
        assert len(old.text) > 500
        assert f", message {said.index(each.replaces) + 1}." in each.text


async def test_a_task_whose_context_does_not_fit_is_paused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, LongWork(window_tokens=700), looking(600)) as kernel:
        task = await kernel.tasks.submit("sweep", model="fake:m")
        await kernel.work(until_idle=True)
    assert [(e.state, e.cause) for e in events_of(path, TaskState, task)][-1] == ("paused", "context")


async def test_a_task_s_requests_have_at_most_the_tokens_that_it_was_given(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork()
    async with opened(path, model, looking(600), plugins=[Bundle(compactors=[SUMMARISES])]) as kernel:
        fits = await kernel.tasks.submit("sweep", model="fake:m", max_input_tokens=600)
        await kernel.work(until_idle=True)
        assert 0 < max(model.sizes) <= 600
        model.sizes.clear()
        too_small = await kernel.tasks.submit("sweep", model="fake:m", max_input_tokens=1)
        await kernel.work(until_idle=True)
    assert not model.sizes
    states = [events_of(path, TaskState, task)[-1] for task in (fits, too_small)]
    assert [(each.state, each.cause) for each in states] == [("completed", ""), ("paused", "context")]


async def test_the_tokens_of_summaries_count_for_a_task(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(window_tokens=800)
    async with opened(path, model, looking(600), plugins=[Bundle(compactors=[SUMMARISES])]) as kernel:
        task = await kernel.tasks.submit("sweep", model="fake:m")
        await kernel.work(until_idle=True)
    assert model.asked
    assert [(e.state, e.cause) for e in events_of(path, TaskState, task)][-1] == ("completed", "")
    assert events_of(path, CheckpointWritten, task)[-1].tokens == 77 * model.asked


@pytest.mark.parametrize("broken", [0, -1, "many", True, 2.5])
async def test_a_window_that_is_no_number_of_tokens_is_the_adapter_s_fault(broken: object, tmp_path: Path) -> None:
    model = LongWork(window_tokens=broken)  # type: ignore[arg-type]
    end = await worked(tmp_path / "a.db", model)
    assert (end.reason, end.code) == ("error", "PluginError")
    assert "window" in end.message


async def test_a_summary_that_fails_is_asked_for_again_as_far_as_a_hook_wants_it(tmp_path: Path) -> None:
    path, left = tmp_path / "a.db", iter([ProviderError("overloaded", "busy"), ProviderError("overloaded", "busy")])
    model = LongWork(
        window_tokens=800,
        summary=lambda answers: [error] if (error := next(left, None)) else words(f"{answers} answers"),
    )
    plugins = [Bundle(compactors=[SUMMARISES]), SOON]
    async with session_of(path, model, looking(600), plugins=plugins) as session:
        await session.followup("go")
        assert (await session.run()).reason == "completed"
    outcomes = [end.outcome for end in events_of(path, CompactionEnd)]
    assert outcomes.count("failed") == 2
    first = outcomes.index("failed")
    assert outcomes[first : first + 3] == ["failed", "failed", "done"]
    assert_at_rest(path, model)


async def test_a_guard_also_keeps_the_conversation_from_being_summarised(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(window_tokens=800)

    def guard(view: RequestView) -> Veto | None:
        last = view.messages[-1]
        return Veto("not this") if isinstance(last, UserMessage) and last.source == "kernel" else None

    bundle = Bundle(compactors=[SUMMARISES], hooks=[Hook(point="before_request", body=guard, name="guard")])
    async with session_of(path, model, looking(600), plugins=[bundle]) as session:
        await session.followup("go")
        await session.run()
    end = events_of(path, TurnEnd)[-1]
    assert (end.code, model.asked) == ("context_overflow", 0)
    assert end.message.endswith("failed a guard forbids to ask for it: not this")


async def test_a_summary_that_is_longer_than_what_it_covers_is_not_taken(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(window_tokens=800, summary=SUMMARIES["long"])
    end = await worked(path, model, SUMMARISES)
    assert {each.outcome for each in events_of(path, CompactionEnd) if each.asked} == {"not_smaller"}
    assert not [each for each in events_of(path, UserMessage) if each.source == "summary"]
    assert end.message.endswith("the summary was not taken: not_smaller")


async def test_a_checkpoint_counts_a_shortened_result_once_and_names_the_compaction_in_force(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(window_tokens=1400)
    async with opened(path, model, looking(600), plugins=[Bundle(compactors=[PRUNES])]) as kernel:
        task = await kernel.tasks.submit("sweep", model="fake:m")
        await kernel.work(until_idle=True)
    last = events_of(path, CheckpointWritten, task)[-1]
    ends = [record.seq for record in records_of(path, task) if isinstance(record.event, CompactionEnd)]
    assert last.compaction == ends[-1]
    assert "(look 12)" in last.summary
    assert len(ends) > 1


async def test_a_result_that_was_left_out_is_not_asked_for_again_when_a_task_is_resumed(tmp_path: Path) -> None:
    path, model = tmp_path / "a.db", LongWork(window_tokens=1400)
    await worked(path, model, PRUNES)
    shortened = [each for each in events_of(path, ToolResult) if each.replaces]
    with flightlog.open_log(path, discover=False) as log:
        found = reads(log.session("s").messages(), {"look"})
    assert len(found) == 12 - len(shortened) > 0
