"""Which task comes next: orphans, then by class and by the order of submission."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core.claims import Candidate, Queue, Shares, crowded
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
    assert [task.number for task in queue_of(tasks).first(NOW_US, 9, Shares())] == [5, 6, 3, 2, 4, 1]


def queue_of(tasks: Iterable[Candidate]) -> Queue:
    queue = Queue()
    for task in tasks:
        queue.put(task)
    return queue


CANDIDATES = st.builds(
    Candidate,
    number=st.integers(1, 8),
    name=st.just("t"),
    model=st.just("a:m"),
    max_steps=st.just(3),
    task_class=st.sampled_from(["core", "normal", "batch"]),
    state=st.sampled_from(["pending", "running", "recovering", "paused"]),
    due_us=st.none() | st.integers(NOW_US - 2, NOW_US + 2),
    letters=st.booleans(),
)


@given(st.lists(CANDIDATES | st.integers(1, 8)), st.integers(0, 9))
def test_the_queue_holds_what_was_last_known_of_each_task_in_order(changes: list[Candidate | int], count: int) -> None:
    queue, known = Queue(), dict[int, Candidate]()
    for change in changes:
        if isinstance(change, int):
            queue.drop(change)
            known.pop(change, None)
        else:
            queue.put(change)
            known[change.number] = change
    ready = sorted((task for task in known.values() if task.claimable(NOW_US)), key=lambda task: task.number)
    classes: tuple[TaskClass, ...] = ("core", "normal", "batch")
    # Eight tasks are too few for another class to come before a core one.
    expected = [task for task in ready if task.orphan]
    expected += [task for each in classes for task in ready if not task.orphan and task.task_class == each]
    assert queue.first(NOW_US, count, Shares()) == expected[:count]
    assert {task.number: task for task in queue.all()} == known


CLASSES: tuple[TaskClass, ...] = ("core", "normal", "batch")


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(CLASSES)), min_size=30, max_size=90), st.integers(1, 9))
def test_whoever_comes_and_goes_the_last_place_is_not_for_batch_and_all_others_are_for_anybody(
    moves: list[tuple[bool, TaskClass]], places: int
) -> None:
    held = Counter[TaskClass]()
    for goes, each in moves:
        if goes:
            held[each] -= held[each] > 0
        elif each not in crowded(places, held):
            held[each] += 1
        assert held.total() <= places
        assert held["batch"] <= max(places - 1, 1)
        assert not {"core", "normal"} & crowded(places, held) or held.total() == places
    for each in CLASSES:
        alone = Counter[TaskClass]()
        while each not in crowded(places, alone):
            alone[each] += 1
        assert alone[each] == (max(1, places - 1) if each == "batch" else places)
