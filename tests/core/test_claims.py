"""Which task comes next: orphans, then by class and by the order of submission."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core.claims import Candidate, in_order
from flightlog_hookspecs.events import TaskClass, TaskStateName

NOW_US = 1000
ONE = Candidate(number=1, name="t", task_class="normal", model="a:m", max_steps=3, state="pending")


@pytest.mark.parametrize(
    ("state", "due_us", "letters", "claimable"),
    [
        ("pending", None, False, True),
        ("pending", NOW_US, False, True),
        ("pending", NOW_US + 1, False, False),
        ("pending", NOW_US + 1, True, True),
        ("running", None, False, True),
        ("recovering", None, False, True),
        ("paused", None, False, False),
        ("paused", None, True, True),
        ("paused", NOW_US + 1, False, False),
        ("paused", NOW_US, False, True),
    ],
)
def test_a_task_may_be_taken_up_when_there_may_be_something_to_do(
    state: TaskStateName, due_us: int | None, letters: bool, claimable: bool
) -> None:
    assert evolve(ONE, state=state, due_us=due_us, letters=letters).claimable(NOW_US) is claimable


def test_orphans_come_first_then_core_normal_and_batch_then_the_older_ones() -> None:
    wishes: list[tuple[TaskClass, TaskStateName]] = [
        ("batch", "pending"),
        ("normal", "pending"),
        ("core", "pending"),
        ("normal", "pending"),
        ("batch", "running"),
        ("core", "recovering"),
        ("core", "paused"),
    ]
    tasks = [evolve(ONE, number=n, task_class=cls, state=state) for n, (cls, state) in enumerate(wishes, 1)]
    assert [task.number for task in in_order(tasks, NOW_US)] == [6, 5, 3, 2, 4, 1]


@given(st.permutations(range(1, 30)))
def test_the_order_does_not_depend_on_how_tasks_were_found(numbers: list[int]) -> None:
    assert [task.number for task in in_order([evolve(ONE, number=n) for n in numbers], NOW_US)] == sorted(numbers)
