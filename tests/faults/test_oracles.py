"""Each oracle finds what it is there for, and nothing in a log that is right."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest
import trio
import trio.testing
from attrs import evolve

from flightlog.testing.faults import SCRIPTS, Broken, oracles
from flightlog.testing.faults.book import Reader
from flightlog.testing.faults.determinism import deterministic
from flightlog.testing.faults.disk import Disk
from flightlog.testing.faults.life import Life, bench, watched_life
from flightlog.testing.faults.world import Committed, Done, Ended, Entered, Failed, Reached, World, Wrong
from flightlog_hookspecs import Head, Request
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import (
    AssistantDelta,
    AssistantMessage,
    CompactionEnd,
    CompactionStart,
    Event,
    Message,
    Record,
    RequestFailed,
    RequestSent,
    SessionOpened,
    SubagentSettled,
    TaskState,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    UserMessage,
)

DONE = Done("id.1.1.0", "write", "write", '{"task": "a"}')


@pytest.fixture(scope="module")
def life() -> Life:
    """An unbroken run with tools."""
    return unbroken_life("tools")


@pytest.fixture(scope="module")
def family() -> Life:
    """An unbroken run with a child in the background."""
    return unbroken_life("beside")


@pytest.fixture(scope="module")
def work() -> Life:
    """An unbroken run of a task."""
    return unbroken_life("orders")


@pytest.fixture(scope="module")
def reading() -> Life:
    """An unbroken run whose context was made shorter."""
    return unbroken_life("a long book")


def unbroken_life(name: str) -> Life:
    """A life of a script."""
    script = next(script for script in SCRIPTS if script.name == name)
    with bench() as place, deterministic():
        return trio.run(
            lambda: watched_life(place, Disk(), {}, [], script, seed=0, number=0),
            clock=trio.testing.MockClock(autojump_threshold=0),
        )


def promises(broken: Iterable[Broken]) -> set[str]:
    return {one.promise for one in broken}


def records(life: Life) -> list[Record]:
    """Those of its session "s", or of its only one."""
    return life.log.records.get("s") or life.log.all_records()


def test_p1_a_row_that_differs_in_any_column_is_no_prefix(life: Life) -> None:
    rows = life.found.rows
    assert not promises(oracles.prefix(rows[:5], rows))
    for column in range(len(rows[4])):
        changed: list[tuple[Any, ...]] = [*rows[:4], (*rows[4][:column], "other", *rows[4][column + 1 :])]
        assert promises(oracles.prefix(changed, rows)) == {"P1"}
    assert promises(oracles.prefix([*rows, rows[-1]], rows)) == {"P1"}
    assert promises(oracles.prefix(rows[1:], rows)) == {"P1"}


def test_p4_recovery_that_says_anything_new_is_found(life: Life) -> None:
    all_of_it = records(life)
    cut = next(i for i, record in enumerate(all_of_it) if isinstance(record.event, RequestSent)) + 1
    opened = next(record for record in all_of_it if isinstance(record.event, SessionOpened))
    answer = next(record for record in all_of_it if isinstance(record.event, AssistantMessage))
    assert promises(oracles.recovery(all_of_it[:cut], cut)) == {"P4"}, "nothing was added"
    assert promises(oracles.recovery([*all_of_it[:cut], answer], cut)) == {"P4"}, "not by an owner"
    assert promises(oracles.recovery([*all_of_it[:cut], opened, answer], cut)) == {"P4"}, "a whole answer"
    assert promises(oracles.recovery([*all_of_it[:cut], opened], cut)) == {"P4"}, "the turn stays open"
    assert not promises(oracles.recovery([*all_of_it, opened], len(all_of_it)))
    assert promises(oracles.recovered_again(life.found.rows, life.found.rows[:-1])) == {"P4"}
    assert promises(oracles.recovered_again(life.found.rows[:-3], life.found.rows)) == {"P4"}


def test_p4_two_outcomes_of_a_call_are_found(life: Life) -> None:
    all_of_it = records(life)
    result = next(record for record in all_of_it if isinstance(record.event, ToolResult))
    assert not promises(oracles.one_outcome(all_of_it))
    assert promises(oracles.one_outcome([*all_of_it, result])) == {"P4"}


def test_p4_a_context_that_is_made_shorter_by_half_is_found(reading: Life) -> None:
    all_of_it = records(reading)
    assert not promises(oracles.shortened(all_of_it))
    assert not promises(oracles.one_outcome(all_of_it)), "said in fewer words is no other outcome"
    ends = [
        i for i, one in enumerate(all_of_it) if isinstance(one.event, CompactionEnd) and one.event.outcome == "done"
    ]
    for end in ends:
        assert promises(oracles.shortened(all_of_it[:end])) == {"P4"}
        assert promises(oracles.shortened(all_of_it[:end] + all_of_it[end + 1 :])) == {"P4"}


def test_the_book_is_so_long_that_results_are_left_out_and_all_is_summed_up_twice(reading: Life) -> None:
    starts = [record.event for record in records(reading) if isinstance(record.event, CompactionStart)]
    assert [start.level for start in starts] == [*["prune", "summarise", "summarise"] * 2]
    assert not [fact for fact in reading.facts if isinstance(fact, Wrong)]


def test_p7_a_reader_whose_notes_are_lost_or_doubled_is_found(reading: Life) -> None:
    book = next(script for script in SCRIPTS if script.name == "a long book")
    done, all_of_it = [fact for fact in reading.facts if isinstance(fact, Done)], records(reading)
    note = next(fact for fact in done if fact.tool == "note")
    report = next(record for record in reversed(all_of_it) if isinstance(record.event, AssistantMessage))
    assert not promises(oracles.verdict(book, all_of_it, done))
    for found, facts in (
        (all_of_it, [fact for fact in done if fact != note]),
        ([*all_of_it, report], done),
        (all_of_it[: all_of_it.index(report)], done),
    ):
        assert promises(oracles.verdict(book, found, facts)) == {"P7"}


def test_a_reader_says_what_is_wrong_with_its_conversation(reading: Life) -> None:
    messages = reading.log.messages["s"]
    summary = next(message for message in messages if isinstance(message, UserMessage) and message.source == "summary")
    noted = next(m for m in messages if isinstance(m, AssistantMessage) and "note" in str(m.content))
    result = messages[messages.index(noted) + 1]
    assert messages[0] is summary
    assert wrong_with(messages, []) == ""
    assert "forgotten" in wrong_with(messages[1:], [fact for fact in reading.facts if isinstance(fact, Done)])
    assert "stands behind" in wrong_with([*messages, summary], [])
    assert "has no result" in wrong_with([message for message in messages if message is not result], [])
    assert "behind its call" in wrong_with([*messages, result], [])
    all_of_it = text_blocks('{"noted": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "unknown": []}')
    assert "told twice" in wrong_with([evolve(summary, content=all_of_it), *messages[1:]], [])


def wrong_with(messages: list[Message], done: list[Done]) -> str:
    """What the reader tells the world when it is sent these messages after `done`."""
    world = World(earlier=done)
    request = Request(head=Head(adapter="reader", model="m"), messages=messages, fragments=())

    async def ask() -> None:
        async with Reader(world).stream(request, 1):
            pass

    trio.run(ask)
    return "; ".join(fact.how for fact in world.ledger if isinstance(fact, Wrong))


def test_p4_words_that_were_streamed_and_are_not_in_the_answer_are_found(life: Life) -> None:
    all_of_it = records(life)
    assert not promises(oracles.streamed(all_of_it))
    last_delta = max(i for i, record in enumerate(all_of_it) if isinstance(record.event, AssistantDelta))
    assert promises(oracles.streamed(all_of_it[:last_delta] + all_of_it[last_delta + 1 :])) == {"P4"}
    answer = next(i for i, record in enumerate(all_of_it) if isinstance(record.event, AssistantMessage))
    failed = RequestFailed(attempt=1, failure="interrupted", message="", retryable=True)
    dropped = evolve(all_of_it[answer], event=failed)
    assert promises(oracles.streamed([*all_of_it[:answer], dropped])) == {"P4"}


def test_p2_a_result_that_is_not_there_when_its_body_ended_before_is_found() -> None:
    places = oracles.Places({}, {}, {}, {("s", 7): 9})
    claimed = oracles.claims([DONE, Ended("s", 7)], evolve(places, calls={DONE.invocation_id: 8}), power=True)
    assert not promises(oracles.durable(8, 0, claimed, 1))
    assert promises(oracles.durable(8, 0, claimed, 2)) == {"P2"}
    assert not promises(oracles.durable(9, 0, claimed, 2))


def test_p9_whatever_is_written_or_reached_after_a_failure_is_found() -> None:
    written, reached = Committed("s", 1, barrier=True), Reached("s", 1, "tool")
    assert not promises(oracles.fail_stop([written, reached, Failed(), DONE, Failed()]))
    for late in (written, reached):
        assert promises(oracles.fail_stop([Failed(), DONE, late])) == {"P9"}


def test_p5_what_happens_twice_is_found_by_its_id_and_by_what_it_is_about() -> None:
    assert not promises(oracles.effects([DONE]))
    assert promises(oracles.effects([DONE, evolve(DONE, invocation_id="other")])) == {"P5"}
    assert promises(oracles.effects([evolve(DONE, effect="read")] * 2)) == {"P5"}
    assert not promises(oracles.effects([evolve(DONE, effect="read", invocation_id=name) for name in "ab"]))


def test_p5_and_p6_effects_and_calls_that_do_not_match_are_found(life: Life) -> None:
    assert not promises(oracles.intents(life.facts, records(life)))
    assert promises(oracles.intents([*life.facts, DONE], records(life))) == {"P6"}
    missing = [fact for fact in life.facts if not isinstance(fact, Done)]
    assert promises(oracles.intents(missing, records(life))) == {"P5"}


def test_p7_a_conversation_that_lacks_or_doubles_anything_is_found(life: Life) -> None:
    messages = life.log.messages["s"]
    unbroken = oracles.essence(messages)
    assert not promises(oracles.conversation(messages, unbroken))
    user = next(message for message in messages if isinstance(message, UserMessage))
    result = next(i for i, message in enumerate(messages) if isinstance(message, ToolResult))
    other = evolve(messages[result], content=user.content)
    for wrong in (messages[1:], [user, *messages], messages[:-1], [*messages[:result], other, *messages[result + 1 :]]):
        assert promises(oracles.conversation(wrong, unbroken)) == {"P7"}
    unknown = evolve(other, outcome="unknown")
    assert not promises(oracles.conversation([*messages[:result], unknown, *messages[result + 1 :]], unbroken))


def test_p4_and_p7_a_child_whose_task_is_lost_doubled_or_never_told_of_is_found(family: Life) -> None:
    all_of_it, log = records(family), family.log.messages
    (child,) = log.keys() - {"s"}
    assert not promises(oracles.tasks(all_of_it, log))
    settled = next(record for record in all_of_it if isinstance(record.event, SubagentSettled))
    assert promises(oracles.tasks([record for record in all_of_it if record != settled], log)) == {"P4"}
    assert promises(oracles.tasks([*all_of_it, settled], log)) == {"P4"}
    told = [message for message in log["s"] if isinstance(message, UserMessage) and message.source == "subagent"]
    sent = [message for message in log[child] if isinstance(message, UserMessage)]
    assert (len(told), [message.text for message in sent]) == (1, ["dig", "more"])
    for name, message in [("s", told[0]), *((child, message) for message in sent)]:
        without = [other for other in log[name] if other != message]
        for wrong in (without, [*log[name], message]):
            assert promises(oracles.tasks(all_of_it, {**log, name: wrong})) == {"P7"}
    assert promises(oracles.tasks(all_of_it, {"s": log["s"]})) == {"P7"}, "a call said that it had started"


def test_p7_what_children_in_the_background_are_called_and_when_they_end_makes_no_difference(family: Life) -> None:
    messages, background = family.log.messages["s"], oracles.in_background(records(family))
    assert background == {"helper"}
    unbroken = oracles.essence(messages, background)
    assert unbroken.said.keys() == {"share"}
    assert unbroken.calls["helper", '{"task": "more"}'] == "ok"
    (child,) = family.log.messages.keys() - {"s"}
    assert child not in str(unbroken)


def followed_by(before: list[Record], *events: Event) -> list[Record]:
    """Those records, and what another owner has added."""
    last = before[-1]
    return [*before, *(evolve(last, seq=last.seq + i, epoch=last.epoch + 1, event=e) for i, e in enumerate(events, 1))]


def test_p4_a_task_that_does_not_end_or_goes_on_after_its_end_is_found(work: Life) -> None:
    all_of_it = records(work)
    end = next(i for i, record in enumerate(all_of_it) if record.event == TaskState(state="completed"))
    assert not promises(oracles.worked(all_of_it))
    assert promises(oracles.worked(all_of_it[:end])) == {"P4"}
    assert promises(oracles.worked(followed_by(all_of_it, TurnStart()))) == {"P4"}


def test_p4_a_task_that_is_taken_up_without_a_word_or_though_it_is_over_is_found(work: Life) -> None:
    all_of_it = records(work)
    called = next(i for i, record in enumerate(all_of_it) if isinstance(record.event, ToolCall))
    turn = next(i for i, record in enumerate(all_of_it) if isinstance(record.event, TurnEnd))
    opened = next(record.event for record in all_of_it if isinstance(record.event, SessionOpened))
    says, ends = TaskState(state="recovering"), TaskState(state="completed")
    call = all_of_it[called].event

    def found(*added: Event, until: int) -> list[str]:
        return [one.how for one in oracles.worked(followed_by(all_of_it[:until], *added))]

    assert found(opened, says, call, ends, until=called) == []
    assert "nothing says that the task is recovering" in found(opened, call, says, ends, until=called)[0]
    assert found(opened, ends, until=turn + 1) == []
    assert "whose last turn has completed" in found(opened, says, ends, until=turn + 1)[0]


def test_p2_a_task_that_was_acknowledged_and_is_not_there_is_found() -> None:
    claimed = oracles.claims([Entered("t")], oracles.Places({("t", 2): 5}, {}, {}, {}), power=True)
    assert not promises(oracles.durable(5, 0, claimed, 1))
    assert promises(oracles.durable(4, 0, claimed, 1)) == {"P2"}


def test_p5_what_the_workload_itself_knows_to_be_wrong_is_found() -> None:
    assert promises(oracles.effects([Wrong("a stale mail")])) == {"P5"}


def test_what_a_task_reads_again_belongs_to_the_call_that_has_read_it() -> None:
    again = Done("id.1.1.0.2", "look", "read", "{}")
    assert oracles.call_of(again, {"id.1.1.0"}) == "id.1.1.0"
    assert oracles.call_of(evolve(again, effect="write"), {"id.1.1.0"}) == "id.1.1.0.2"


def test_p7_what_the_kernel_itself_says_to_the_model_makes_no_difference(life: Life) -> None:
    messages = life.log.messages["s"]
    unbroken = oracles.essence(messages)
    for source, doubled in (("kernel", False), ("resync", False), ("user", True)):
        said = UserMessage(message_id="m", content=text_blocks("one more thing"), source=source)
        assert bool(promises(oracles.conversation([*messages, said], unbroken))) is doubled


def test_p7_a_workload_that_judges_itself_finds_what_is_lost_or_doubled(work: Life) -> None:
    orders = next(script for script in SCRIPTS if script.name == "orders")
    done, all_of_it = [fact for fact in work.facts if isinstance(fact, Done)], records(work)
    mail = next(fact for fact in done if fact.tool == "send_mail")
    stock = next(fact for fact in done if fact.tool == "take_stock")
    assert not promises(oracles.verdict(orders, all_of_it, done))
    assert not promises(oracles.verdict(orders, all_of_it, [*done, stock])), "the same invocation"
    for wrong in (
        [fact for fact in done if fact != mail],
        [fact for fact in done if fact != stock],
        [*done, evolve(stock, invocation_id="other")],
    ):
        assert promises(oracles.verdict(orders, all_of_it, wrong)) == {"P7"}
    reports = [record for record in all_of_it if isinstance(record.event, AssistantMessage)]
    assert promises(oracles.verdict(orders, [*all_of_it, reports[-1]], done)) == {"P7"}


def test_p8_a_request_that_was_never_sent_is_found_unless_something_was_cut_off(life: Life) -> None:
    all_of_it = records(life)
    sent = frozenset(record.event.sha256 for record in all_of_it if isinstance(record.event, RequestSent))
    assert len(sent) > 1
    assert not promises(oracles.requests(all_of_it, sent))
    assert promises(oracles.requests(all_of_it, sent - {max(sent)})) == {"P8"}
    cut_off = [
        evolve(record, event=evolve(record.event, outcome="unknown"))
        if isinstance(record.event, ToolResult)
        else record
        for record in all_of_it
    ]
    first = next(record.event.sha256 for record in all_of_it if isinstance(record.event, RequestSent))
    assert not promises(oracles.requests(cut_off, frozenset({first})))


def test_the_page_about_the_laboratory_lists_the_promises_as_the_oracles_do() -> None:
    page = (Path(__file__).parents[2] / "docs" / "faults.md").read_text()
    rows = [line for line in (oracles.__doc__ or "").splitlines() if line.startswith("| P") and line[3].isdigit()]
    assert [row.split()[1] for row in rows] == sorted(get_args(oracles.Promise))
    assert all(row in page for row in rows)
