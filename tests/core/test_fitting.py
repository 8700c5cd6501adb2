"""Whether a request fits, and where a conversation may be cut to make it shorter."""

from __future__ import annotations

from typing import get_args

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from flightlog import Limits
from flightlog.core.fitting import (
    FILE_TOKENS,
    Measure,
    Prune,
    Summarise,
    Wish,
    cost,
    head_cost,
    judged,
    least,
    room,
    shorter,
)
from flightlog.core.history import History
from flightlog_hookspecs import Block, FileBlock, FinishReason, Head, TextBlock, ThinkingBlock, ToolCallBlock
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import AssistantMessage, TaskSubmitted, ToolResult, UserMessage
from support.conversation import assert_conversation

HEAD = Head(adapter="a", model="m", system="You look at the sky.")
LONG = "many words are said here " * 100


def answer(said: str = "I look.", *wanted: str, tokens: int = 0) -> AssistantMessage:
    calls = [ToolCallBlock(call_id=name, name="look", arguments="{}") for name in wanted]
    return AssistantMessage(attempt=1, content=(TextBlock(text=said), *calls), finish="stop", input_tokens=tokens)


def result(row: int, position: int, call_id: str, text: str = LONG) -> ToolResult:
    content = text_blocks(text)
    return ToolResult(
        position=position,
        call_id=call_id,
        name="look",
        message_seq=row,
        outcome="ok",
        content=content,
        call_seq=row + 1,
    )


def conversation(steps: list[list[int]]) -> tuple[History, int]:
    """Steps with one result a number, each of so many characters; and the row of a step that is still open."""
    history, row = History(), 10
    for step in steps:
        history.add(UserMessage(message_id=f"m{row}", content=text_blocks("more")), row)
        names = [f"c{row}.{number}" for number in range(len(step))]
        history.add(answer("ok", *names), at := row + 1)
        for position, (name, size) in enumerate(zip(names, step, strict=True)):
            history.add(result(at, position, name, "x " * (size // 2)), row + 2 + position)
        row += 10
    history.add(UserMessage(message_id="open", content=text_blocks("now")), row + 1)
    return history, row


def measured(history: History) -> Measure:
    measure = Measure()
    measure.take(HEAD, history, bound_thinking=False)
    return measure


STEPS = st.lists(st.lists(st.integers(0, 4000), max_size=3), min_size=1, max_size=8)
WISHES = st.builds(Wish, keep_steps=st.integers(0, 4), summarises=st.booleans())


@given(steps=STEPS, wish=WISHES, most=st.integers(1, 3000))
def test_what_is_replaced_is_whole_steps_outside_of_the_open_one_and_of_those_to_keep(
    steps: list[list[int]], wish: Wish, most: int
) -> None:
    history, open_row = conversation(steps)
    kept_from = 10 * (len(steps) - wish.keep_steps + 1)
    match shorter(history, measured(history), open_row, most, wish):
        case Summarise(rows=(first, last), count=count):
            assert wish.summarises
            assert first == 10
            assert last < min(kept_from, open_row)
            assert [place for place, _ in history.since(0)[:count]][-1][0] == last
            summary = UserMessage(
                message_id="s", content=text_blocks("."), source="summary", replaces_from=first, replaces_to=last
            )
            history.add(summary, open_row + 5)
            left = [message for _, message in history.since(0)]
            assert left[0] is summary
            assert_conversation(left)
            assert sum(isinstance(message, AssistantMessage) for message in left) == min(len(steps), wish.keep_steps)
        case Prune(results=results):
            for row, shortened in results:
                place = shortened.message_seq, shortened.position + 1
                old = history.at(place)
                assert isinstance(old, ToolResult)
                assert (history.row(place), row) == (shortened.replaces, row)
                assert shortened.message_seq < min(kept_from, open_row)
                assert cost(shortened) < cost(old)
        case None:
            assert wish.keep_steps >= len(steps) or not wish.summarises


def test_what_was_said_behind_the_last_step_is_not_kept_in_its_place() -> None:
    """A model that was told that it goes on would else read again what it has just read."""
    history, open_row = History(), 30
    for step, row in ((1, 10), (2, 20)):
        history.add(UserMessage(message_id=f"m{step}", content=text_blocks("more")), row)
        history.add(answer("ok", f"c{step}"), row + 1)
        history.add(result(row + 1, 0, f"c{step}"), row + 3)
    history.add(UserMessage(message_id="goes on", content=text_blocks("This task goes on now.")), 28)
    pruned = shorter(history, measured(history), open_row, 1000, Wish(keep_steps=1, summarises=False))
    assert isinstance(pruned, Prune)
    assert pruned.rows == (11, 11)


def test_results_are_shortened_where_that_is_enough_and_else_all_is_summarised() -> None:
    history, open_row = conversation([[3000], [3000], [20], [20]])
    measure, wish = measured(history), Wish(keep_steps=1, summarises=True, note="Look back.")
    pruned = shorter(history, measure, open_row, measure.total - 100, wish)
    assert isinstance(pruned, Prune)
    assert pruned.rows == (11, 21)
    assert pruned.results[0][1].text == (
        "[Left out here to save room: the result of look, 3000 characters, message 3. Look back.]"
    )
    assert isinstance(shorter(history, measure, open_row, 60, wish), Summarise)
    assert isinstance(shorter(history, measure, open_row, 60, evolve(wish, window=measure.total // 2)), Prune)


def test_no_more_is_summarised_than_the_model_can_read() -> None:
    history, open_row = conversation([[100]] * 6)
    measure, wish = measured(history), Wish(keep_steps=1, summarises=True)
    sizes = [measure.head + measure.of(0, 3 * steps) for steps in range(7)]
    for window in range(sizes[-1] + 10):
        steps = min(5, sum(size <= window for size in sizes[1:]))
        cut = shorter(history, measure, open_row, 1, evolve(wish, window=window))
        assert cut == (Summarise((10, 10 * steps + 1), 3 * steps, 3 * steps) if steps else None)


def test_a_request_has_its_head_and_the_open_step_at_least() -> None:
    history, open_row = conversation([[3000], []])
    measure = measured(history)
    assert least(history, measure, open_row) == measure.head + measure.of(len(history) - 1, len(history))
    history.add(UserMessage(message_id="more", content=text_blocks(LONG)), open_row + 2)
    assert least(history, measured(history), open_row) > cost(UserMessage(message_id="", content=text_blocks(LONG)))


@given(
    text=st.sampled_from(["", " \n", "so far so good"]),
    finish=st.sampled_from(get_args(FinishReason)),
    wanted=st.lists(st.sampled_from("ab"), max_size=1),
    saved=st.integers(-5, 5),
)
def test_only_a_whole_answer_that_says_something_calls_nothing_and_saves_tokens_is_a_summary(
    text: str, finish: FinishReason, wanted: list[str], saved: int
) -> None:
    outcome, _ = judged(evolve(answer(text, *wanted), finish=finish), saved)
    whole = finish in ("stop", "stop_sequence") and not wanted
    assert (outcome == "done") == (whole and text.strip() != "" and saved > 0)
    assert (outcome == "failed") == (not whole)


def test_what_was_shortened_is_not_shortened_again_and_a_lone_summary_is_not_summarised() -> None:
    history, open_row = conversation([[3000]])
    wish = Wish(keep_steps=0, summarises=False)
    pruned = shorter(history, measured(history), open_row, 1, wish)
    assert isinstance(pruned, Prune)
    history.add(pruned.results[0][1], 50)
    assert shorter(history, measured(history), open_row, 1, wish) is None
    wish = Wish(keep_steps=0, summarises=True)
    assert isinstance(shorter(history, measured(history), open_row, 1, wish), Summarise)
    summary = UserMessage(message_id="s", content=text_blocks("."), source="summary", replaces_from=10, replaces_to=11)
    history.add(summary, 51)
    assert shorter(history, measured(history), open_row, 1, wish) is None


@pytest.mark.parametrize(("reported", "ratio"), [(0, 1.0), (2, 2.0), (0.1, 1.0), (9, 3.0)])
def test_an_estimate_is_corrected_by_what_the_newest_answer_reports_upwards_and_within_bounds(
    reported: float, ratio: float
) -> None:
    history = History()
    history.add(UserMessage(message_id="m", content=text_blocks(LONG)), 7)
    before = measured(history).total
    history.add(answer(tokens=int(before * reported)), 9)
    uncorrected = before + cost(answer())
    assert measured(history).total == pytest.approx(uncorrected * ratio, abs=2)


def test_thinking_that_is_not_sent_does_not_count() -> None:
    history = History()
    history.add(UserMessage(message_id="m", content=text_blocks(LONG)), 5)
    thought = AssistantMessage(attempt=1, content=(ThinkingBlock(text=LONG), TextBlock(text="so")), finish="stop")
    history.add(thought, 7)
    summary = UserMessage(message_id="s", content=text_blocks("."), source="summary", replaces_from=5, replaces_to=5)
    history.add(summary, 9)
    measure = Measure()
    bound = measure.take(HEAD, history, bound_thinking=True)
    assert measured(history).total - bound == cost(thought) - cost(thought, thinking=False) > 100
    assert head_cost(HEAD) < bound


def of_file(media_type: str, size_bytes: int) -> int:
    return beside(FileBlock(media_type=media_type, sha256="0" * 64, size_bytes=size_bytes))


def beside(block: Block, replay: str = "") -> int:
    """What an answer costs more with that block, and with that state."""
    bare = AssistantMessage(attempt=1, content=(TextBlock(text="so"),), finish="stop")
    return cost(evolve(bare, content=(*bare.content, block), replay=replay)) - cost(bare)


TEXTS = ["text/plain", "text/csv", "application/json", "application/xml", "application/problem+json"]


@given(
    kind=st.sampled_from([*TEXTS, "image/png", "image/svg+xml", "application/pdf", "audio/mpeg", "application/zip"]),
    sizes=st.tuples(st.integers(1, 20_000_000), st.integers(1, 20_000_000)),
)
def test_a_file_costs_no_less_than_a_smaller_one_of_its_kind_and_all_of_its_words_if_it_is_text(
    kind: str, sizes: tuple[int, int]
) -> None:
    small, large = min(sizes), max(sizes)
    assert of_file(kind, small) <= of_file(kind, large)
    if kind in TEXTS:
        assert large / 3 <= of_file(kind, large) <= large / 3 + 40
    else:
        assert of_file(kind, small) >= FILE_TOKENS


def test_a_picture_costs_the_same_whatever_its_size_and_a_document_more_the_larger_it_is() -> None:
    assert of_file("image/png", 20_000_000) == of_file("image/png", 20) == FILE_TOKENS
    assert of_file("application/pdf", 20) == FILE_TOKENS
    assert of_file("application/pdf", 10_000_000) > of_file("application/pdf", 1_000_000) > 2 * FILE_TOKENS


def test_what_a_provider_has_sent_back_to_it_costs_as_long_as_it_is_sent() -> None:
    sealed = ThinkingBlock(text="", replay="x" * 40_000)
    assert beside(sealed) == 8_000
    answer = AssistantMessage(attempt=1, content=(sealed, TextBlock(text="so")), finish="stop")
    assert cost(answer, thinking=False) == cost(evolve(answer, content=(TextBlock(text="so"),)))
    assert beside(TextBlock(text=""), replay="x" * 500) == 100


def test_thinking_that_its_state_repeats_costs_once() -> None:
    said = beside(ThinkingBlock(text=LONG))
    assert beside(ThinkingBlock(text=LONG, replay=LONG + "s" * 500)) == said + 100
    assert beside(ThinkingBlock(text=LONG, replay='{"field":"reasoning"}')) == said


@pytest.mark.parametrize(
    ("window", "limits", "own", "most"),
    [
        (None, Limits(), None, None),
        (1000, Limits(), None, 750),
        (1000, Limits(input_budget_ratio=0.5), None, 500),
        (1000, Limits(context_tokens=100), None, 100),
        (1000, Limits(context_tokens=900), None, 750),
        (None, Limits(context_tokens=900), None, 900),
        (None, Limits(), 80, 80),
        (1000, Limits(context_tokens=900), 80, 80),
        (1000, Limits(context_tokens=100), 120, 100),
    ],
)
def test_a_request_may_have_a_part_of_the_window_and_what_the_host_and_the_task_allow(
    window: int | None, limits: Limits, own: int | None, most: int | None
) -> None:
    assert room(window, limits, TaskSubmitted(goal="look", model="a:m", max_input_tokens=own)) == most
    if own is None:
        assert room(window, limits, None) == most
