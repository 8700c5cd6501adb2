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
from flightlog.testing.faults.determinism import deterministic
from flightlog.testing.faults.disk import Disk
from flightlog.testing.faults.life import Life, bench, watched_life
from flightlog.testing.faults.world import Committed, Done, Ended, Failed, Reached
from flightlog_hookspecs.events import (
    AssistantDelta,
    AssistantMessage,
    Record,
    RequestFailed,
    RequestSent,
    SessionOpened,
    SubagentSettled,
    ToolResult,
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
    return life.log.records["s"]


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
