"""The rules of budgets: what is done before something would exceed a card."""

from __future__ import annotations

from itertools import permutations
from typing import Any, get_args

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core import account as accounts
from flightlog.core import budget
from flightlog.core.account import DAY_US, EMPTY, Account
from flightlog.core.lending import allowance
from flightlog_hookspecs.events import (
    AssistantMessage,
    BudgetAlert,
    BudgetDegraded,
    BudgetGranted,
    CompactionEnd,
    CompactionStart,
    Degradation,
    Event,
    Move,
    RequestFailed,
    SessionRepaired,
    StepEnd,
    StepStart,
    SubagentSettled,
    SubagentSpawned,
    SubGoal,
    TaskState,
    TaskSubmitted,
)
from support.sample_events import BUILT, CALL, OPENED, SAID, SENT

NOON_US = 20_000 * DAY_US + DAY_US // 2
TASK = TaskSubmitted(
    goal="look", model="a:m", smaller_model="a:s", sub_goals=(SubGoal(text="sell"), SubGoal(text="paint", core=True))
)
SPOKE = evolve(SAID, input_tokens=100, output_tokens=20)
SUMMARISES = CompactionStart(level="summarise", from_seq=1, to_seq=2, tokens_before=70, compactor="c", model="b:m")


def account_of(*events: Event, **cards: int) -> Account:
    account = EMPTY
    for card, most in cards.items():
        account = accounts.counted(account, BudgetGranted(card=card.replace("__", ":"), most=most))
    for event in events:
        account = accounts.counted(account, event)
    return account


def asked(
    account: Account, tokens: int, *, model: str = "a:m", again: bool = False, task: TaskSubmitted | None = TASK
) -> Any:
    return budget.before_request(account, task, tokens, model, NOON_US, again=again)


# What counts


@pytest.mark.parametrize(
    ("card", "events", "used"),
    [
        ("tokens", (BUILT, SENT, SPOKE), 120),
        ("tokens", (BUILT, SENT, evolve(SPOKE, charge=150)), 150),
        ("tokens", (BUILT, SENT, evolve(SPOKE, input_tokens=-5, output_tokens=0, charge=3)), 3),
        ("tokens", (BUILT, SENT, evolve(SPOKE, input_tokens=2**62, output_tokens=2**62)), 2**40),
        ("tokens", (BUILT, SENT, RequestFailed(attempt=1, failure="cut", message="", retryable=True, charged=95)), 95),
        ("tokens", (SUMMARISES, CompactionEnd(outcome="done", input_tokens=70, output_tokens=5)), 75),
        ("tokens", (SUMMARISES, OPENED), 70),
        ("tokens", (SubagentSpawned(child="c", subagent="s", depth=1, invocation_id="i", task="t", tokens=50),), 0),
        ("tokens", (SubagentSettled(child="c", invocation_id="i", reason="completed", charged=33),), 33),
        ("step_tokens", (StepStart(), BUILT, SENT, SPOKE, StepEnd()), 120),
        ("step_tokens", (StepStart(), BUILT, SENT, SPOKE, StepEnd(), StepStart()), 0),
        ("summary_tokens", (SUMMARISES, CompactionEnd(outcome="done", input_tokens=70)), 70),
        ("summary_tokens", (BUILT, SENT, SPOKE), 0),
        ("requests", (BUILT, SENT, SPOKE, SUMMARISES), 2),
        ("requests:a", (BUILT, SENT, SPOKE, SUMMARISES), 1),
        ("requests:b", (BUILT, SENT, SPOKE, SUMMARISES), 1),
        ("calls", (CALL, evolve(CALL, resumed="repeatable"), evolve(CALL, name="sing")), 2),
        ("calls:look", (CALL, evolve(CALL, resumed="repeatable"), evolve(CALL, name="sing")), 1),
        ("retries", (RequestFailed(attempt=1, failure="cut", message="", retryable=True),), 1),
        ("retries", (RequestFailed(attempt=1, failure="interrupted", message="", retryable=True),), 0),
        ("subagents", (SubagentSpawned(child="c", subagent="s", depth=1, invocation_id="i", task="t"),), 1),
    ],
)  # fmt: skip
def test_a_card_counts_what_the_log_says(card: str, events: tuple[Event, ...], used: int) -> None:
    assert account_of(*events).used_of(card) == used


@pytest.mark.parametrize("kind", ["input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens"])
@pytest.mark.parametrize("answer", [SAID, CompactionEnd(outcome="done")])
def test_tokens_of_every_kind_count(answer: AssistantMessage | CompactionEnd, kind: str) -> None:
    more: Any = {kind: 7}
    assert answer.counted == 0
    assert evolve(answer, **more).counted == evolve(answer, **more).charged == 7


def test_what_children_were_given_is_not_left_until_they_settle() -> None:
    spawned = SubagentSpawned(child="c", subagent="s", depth=1, invocation_id="i", task="t", tokens=50)
    lending = account_of(spawned, tokens=100)
    assert (lending.left_of("tokens"), allowance(lending)) == (50, 25)
    settled = accounts.counted(lending, SubagentSettled(child="c", invocation_id="i", reason="completed", charged=10))
    assert settled.left_of("tokens") == 90


def test_time_counts_while_a_task_runs_and_its_worker_lives() -> None:
    account, at_us = account_of(active_s=3600, step_s=60), NOON_US
    for seconds, event in (
        (0, TaskState(state="running")),
        (10, StepStart()),
        (5, StepEnd()),
        (800, SessionRepaired(repair="r", rule="r", detail="d")),  # nobody was there
        (1000, OPENED),
        (2, TaskState(state="paused")),
        (500, TaskState(state="pending")),
        (7, TaskState(state="running")),
        (3, StepStart()),
        (4, CALL),
        (-90, CALL),  # a clock that is put back
        (0, CALL),
    ):
        at_us += seconds * 1_000_000
        account = accounts.counted(account, event, at_us)
    assert account.used_of("active_s") == 10 + 5 + 2 + 3 + 4
    assert account.used_of("step_s") == 4
    after_midnight = accounts.counted(account, CALL, (NOON_US // DAY_US + 1) * DAY_US + 2_000_000)
    assert after_midnight.used_of("active_s") == 2, "a new day begins anew, with what is worked on it"


@given(st.lists(st.tuples(st.integers(-5, 90_000), st.sampled_from(["running", "paused", "opened", "call"]))))
def test_no_day_has_more_work_than_seconds(moments: list[tuple[int, str]]) -> None:
    account, at_us = account_of(active_s=1), NOON_US
    for seconds, what in moments:
        at_us += seconds * 1_000_000
        event = {"opened": OPENED, "call": CALL}.get(what) or TaskState(state=what)  # type: ignore[arg-type]
        account = accounts.counted(account, event, at_us)
        assert 0 <= account.active_us <= DAY_US


def test_what_was_worked_yesterday_does_not_end_the_work_of_today() -> None:
    midnight_us = (NOON_US // DAY_US + 1) * DAY_US
    account = accounts.counted(account_of(TaskState(state="running"), active_s=3600), CALL, midnight_us - 60_000_000)
    account = evolve(account, active_us=3_590_000_000)
    assert budget.time_left_us(account, midnight_us - 55_000_000) == ("active_s", 5_000_000)
    assert budget.time_left_us(account, midnight_us + 7_000_000) == ("active_s", 3_593_000_000)


# Before a request


def test_who_has_no_card_is_let_through() -> None:
    assert asked(account_of(BUILT, SENT, SPOKE), 10**9) is None


@pytest.mark.parametrize(
    ("card", "account", "again"),
    [
        ("requests", account_of(BUILT, SENT, SPOKE, requests=1), False),
        ("requests:a", account_of(BUILT, SENT, SPOKE, requests__a=1), False),
        ("retries", account_of(RequestFailed(attempt=1, failure="cut", message="", retryable=True), retries=1), True),
        ("step_tokens", account_of(StepStart(), BUILT, SENT, SPOKE, step_tokens=200), False),
        ("tokens", account_of(BUILT, SENT, SPOKE, BudgetDegraded(move="compress", reason=""), tokens=200), False),
    ],
)
def test_a_card_that_is_used_up_pauses_the_session(card: str, account: Account, again: bool) -> None:
    alert = asked(account, 50, again=again)
    assert isinstance(alert, BudgetAlert)
    assert (alert.card, alert.level, alert.then) == (card, "exceeded", "pauses")
    assert card in alert.message


def test_a_request_that_failed_elsewhere_is_not_kept_from_its_first_attempt_by_retries() -> None:
    failed = RequestFailed(attempt=1, failure="cut", message="", retryable=True)
    assert asked(account_of(failed, retries=1), 50, again=False) is None


def test_a_day_that_is_used_up_goes_on_at_midnight() -> None:
    account = evolve(account_of(active_s=5), active_us=5_000_000, day=NOON_US // DAY_US, at_us=NOON_US)
    alert = asked(account, 5)
    assert isinstance(alert, BudgetAlert)
    assert alert.resume_at_us == (NOON_US // DAY_US + 1) * DAY_US
    assert asked(evolve(account, day=NOON_US // DAY_US - 1), 5) is None, "it was that of another day"


def test_what_fits_into_no_step_at_all_is_not_tried_again_each_minute() -> None:
    account = account_of(StepStart(), BUILT, SENT, SPOKE, step_tokens=200)
    assert asked(account, 200 - budget.ANSWER_MIN_TOKENS).resume_at_us == NOON_US + budget.STEP_FREEZE_US
    assert asked(account, 201 - budget.ANSWER_MIN_TOKENS).resume_at_us is None


def test_as_tokens_run_out_the_moves_come_in_their_order() -> None:
    seen = []
    account = account_of(tokens=10_000)
    for used in range(0, 9_800, 100):
        account = evolve(account, used={"tokens": used})
        while (found := asked(account, 100)) is not None:
            assert isinstance(found, BudgetDegraded), "a request of 100 fits until the last"
            seen.append((used, found.move))
            account = accounts.counted(account, found)
    assert seen == [(8000, "compress"), (8500, "shrink"), (9000, "smaller_model")]
    last = asked(evolve(account, used={"tokens": 9_900}), 100)
    assert isinstance(last, BudgetAlert)
    assert (
        last.message
        == "tokens: 9900 of 10000 are used, and the next request needs about 164 tokens, and 100 of 10000 are left"
    )


@pytest.mark.parametrize("count", range(len(get_args(Degradation)) + 1))
def test_whatever_is_done_in_whatever_order_the_pause_is_the_last(count: int) -> None:
    for order in permutations(get_args(Degradation), count):
        task, account = evolve(TASK, degradation=order), account_of(tokens=10_000)
        done: list[str] = []
        for used in range(0, 10_000, 100):
            account = evolve(account, used={"tokens": used})
            while isinstance(found := asked(account, 20, task=task), BudgetDegraded):
                done.append(found.move)
                account = accounts.counted(account, found)
            assert found is None, "a request of 20 fits until the last"
        account = evolve(account, used={"tokens": 9_990})
        last, alert = budget.pausing(asked(account, 20, task=task))
        assert isinstance(last, BudgetDegraded)
        assert (last.move, alert.kind) == ("pause", "budget/alert")
        assert tuple(done) == order
    assert get_args(Move) == (*get_args(Degradation), "pause")


def test_the_order_is_the_tasks_own_and_what_cannot_be_done_is_left_out() -> None:
    task = evolve(TASK, degradation=("smaller_model", "shrink"), smaller_model="")
    account = evolve(account_of(tokens=1000), used={"tokens": 800})
    found = asked(account, 5, task=task)
    assert (found.move, found.put_off) == ("shrink", ("sell",))
    (told,) = budget.told_of(found, "m1")
    assert "- sell" in told.text
    assert "paint" not in told.text


def test_a_request_that_does_not_fit_any_more_is_first_made_shorter() -> None:
    found = asked(account_of(tokens=1000), 2000)
    assert (found.move, found.context_tokens) == ("compress", 1000)
    account = accounts.counted(account_of(tokens=1000), found)
    assert isinstance(asked(account, 2000), BudgetAlert), "another model would not make it fit"


def test_a_grant_takes_back_what_was_done() -> None:
    account = account_of(
        BudgetAlert(card="tokens", used=9, most=10, level="warning"),
        BudgetDegraded(move="shrink", reason="", put_off=("sell",)),
        BudgetDegraded(move="smaller_model", reason="", model="a:s"),
        BudgetAlert(card="tokens", used=9, most=10, level="exceeded", then="pauses"),
        tokens=10,
    )
    assert budget.spillover(account).endswith("- sell")
    again = accounts.counted(account, BudgetGranted(card="tokens", most=100))
    assert (again.moves, again.smaller, again.put_off, again.halt, again.warned) == ((), "", (), None, frozenset())


def test_why_a_task_pauses_is_kept_until_it_begins_again() -> None:
    halt = BudgetAlert(card="calls", used=1, most=1, level="exceeded", then="pauses")
    running, recovering = TaskState(state="running"), TaskState(state="recovering")
    assert account_of(running, halt, TaskState(state="paused"), TaskState(state="pending")).halt == halt
    assert account_of(running, halt, TaskState(state="paused"), TaskState(state="pending"), running).halt is None
    assert account_of(running, OPENED, recovering, halt, StepEnd(), running).halt == halt, "its step has ended in it"


def test_whatever_is_granted_it_is_looked_again_at_what_a_session_pauses_for() -> None:
    halt = BudgetAlert(card="rate:adapter:a", used=1, most=1, level="exceeded", then="pauses")
    assert account_of(halt, BudgetGranted(card="tokens", most=9)).halt is None


# Other rules


def test_one_is_warned_once_at_four_fifths_and_again_after_a_grant() -> None:
    account = evolve(account_of(tokens=100, calls=10, tools_at_once=1), used={"tokens": 79, "calls": 8})
    (warning,) = budget.warnings(account)
    assert (warning.card, warning.used, warning.most, warning.level, warning.then) == (
        "calls",
        8,
        10,
        "warning",
        "goes_on",
    )
    assert not budget.warnings(accounts.counted(account, warning))
    granted = accounts.counted(accounts.counted(account, warning), BudgetGranted(card="calls", most=10))
    assert len(budget.warnings(granted)) == 1
    assert not budget.warnings(None)


def test_of_what_is_counted_anew_in_each_step_one_is_warned_once_in_each() -> None:
    account = account_of(StepStart(), BUILT, SENT, SPOKE, step_tokens=140)
    for _ in range(2):
        (warning,) = budget.warnings(account)
        assert (warning.card, warning.used, warning.most) == ("step_tokens", 120, 140)
        account = accounts.counted(accounts.counted(account, warning), StepEnd())
        assert not budget.warnings(account)
        for event in (StepStart(), BUILT, SENT):
            account = accounts.counted(account, event)
            assert not budget.warnings(account)
        account = accounts.counted(account, SPOKE)


@given(st.lists(st.tuples(st.integers(0, 50_000), st.sampled_from(["step", "end", "call", "paused"])), max_size=40))
def test_each_day_one_is_warned_once_as_soon_as_four_fifths_of_its_time_are_used(
    moments: list[tuple[int, str]],
) -> None:
    most, at_us, warned = 20_000, NOON_US, list[int]()
    account = accounts.counted(account_of(active_s=most), TaskState(state="running"), at_us)
    for seconds, what in moments:
        at_us += seconds * 1_000_000
        works, day = account.counts_time, at_us // DAY_US
        for alert in budget.warnings_of_time(account, at_us):
            warned.append(day)
            account = accounts.counted(account, alert, at_us)
            assert alert.used == account.used_of("active_s") >= 0.8 * most
        account = accounts.passed(account, at_us, works=works)
        assert not works or (account.used_of("active_s") >= 0.8 * most) == (day in warned)
        waits = TaskState(state="paused" if works else "running")
        event = {"step": StepStart(), "end": StepEnd(), "call": CALL, "paused": waits}[what]
        account = accounts.counted(account, event, at_us)
    assert len(warned) == len(set(warned))


def test_that_time_is_used_up_is_said_as_of_now_and_not_once_there_is_more() -> None:
    account = accounts.counted(account_of(step_s=60, active_s=90), TaskState(state="running"), NOON_US)
    account = accounts.counted(account, StepStart(), NOON_US)
    (alert,) = budget.alert_of_time(account, "step_s", NOON_US + 61_000_000)
    assert (alert.used, alert.message) == (61, "step_s: 61 of 60 are used")
    assert [each.card for each in budget.warnings_of_time(account, NOON_US + 72_000_000)] == ["step_s", "active_s"]
    more = accounts.counted(account, BudgetGranted(card="step_s", most=70), NOON_US)
    assert not budget.alert_of_time(more, "step_s", NOON_US + 61_000_000)
    between = accounts.counted(account, StepEnd(), NOON_US)
    assert not budget.warnings_of_time(between, NOON_US + 60_000_000), "no step is open"


@pytest.mark.parametrize(
    ("cards", "may"),
    [
        ({}, True),
        ({"tokens": 1000}, False),
        ({"tokens": 2000}, True),
        ({"summary_tokens": 900}, False),
        ({"step_tokens": 900}, False),
        ({"requests": 1}, False),
        ({"requests": 2}, True),
        ({"requests__a": 1}, False),
        ({"requests__a": 2}, True),
        ({"requests__b": 1}, True),
    ],
)
def test_a_summary_is_asked_for_only_where_enough_is_left_after_it(cards: dict[str, int], may: bool) -> None:
    assert (budget.short_for_summary(account_of(**cards), 1000, "a:m") == "") is may


@pytest.mark.parametrize(
    ("cards", "room"),
    [({}, None), ({"tokens": 500}, 400), ({"tokens": 500, "step_tokens": 150}, 50), ({"tokens": 9}, 0)],
)
def test_an_answer_may_have_what_is_left_beside_its_request(cards: dict[str, int], room: int | None) -> None:
    assert budget.answer_room(account_of(**cards), 100) == room


def test_calls_are_counted_with_those_that_are_about_to_start() -> None:
    account = account_of(CALL, calls=3, calls__look=2)
    assert budget.calls_left(account, "look", {}) == ("calls:look", 1)
    assert budget.calls_left(account, "sing", {}) == ("calls", 2)
    assert budget.calls_left(account, "sing", {"calls": 2}) == ("calls", 0)
    assert budget.calls_left(account_of(), "look", {}) is None
    assert budget.shed(account, "calls", core=False).then == "shed"


@pytest.mark.parametrize(
    ("asked", "answer", "counted", "least"), [(100, 20, 0, 120), (100, 20, 5, 60), (100, 20, 999, 60)]
)
def test_who_counts_nothing_or_too_little_is_not_believed(asked: int, answer: int, counted: int, least: int) -> None:
    assert budget.charge(asked, answer, counted) == least


@pytest.mark.parametrize("name", ["tokens", "calls:look", "requests:a", "active_s", "tools_at_once"])
def test_these_are_cards(name: str) -> None:
    assert budget.is_card(name)


@pytest.mark.parametrize("name", ["", "money", "calls:", "tokens:look", ":look"])
def test_these_are_none(name: str) -> None:
    assert not budget.is_card(name)
