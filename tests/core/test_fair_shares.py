"""Who is taken up when there are more tasks than room: core first, and nobody starves. Simulated, without a clock."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core.claims import STRIDES, Candidate, Queue, Shares, crowded
from flightlog.core.quotas import Pool, Quotas
from flightlog.runtime.gate import full_classes
from flightlog_hookspecs.events import TaskClass

CLASSES: tuple[TaskClass, ...] = get_args(TaskClass)


class Simulation:
    """Workers with room for `room` tasks at once, under `quotas`; each task takes a while that chance draws."""

    def __init__(self, room: int, quotas: Quotas, seed: int) -> None:
        self._queue, self._shares, self._random = Queue(), Shares(), Random(seed)
        self._room, self._quotas = room, quotas
        self._running: list[tuple[int, int, TaskClass]] = []
        self._numbers = 0
        self.now = 0
        self.began: dict[int, tuple[TaskClass, int, int]] = {}
        """By number: the class, when it was submitted, when it began."""
        self._submitted: dict[int, int] = {}
        self.most_at_once: Counter[TaskClass] = Counter()

    def submit(self, task_class: TaskClass) -> int:
        self._numbers += 1
        self._submitted[self._numbers] = self.now
        self._queue.put(
            Candidate(number=self._numbers, name="t", task_class=task_class, model="a:m", max_steps=1, state="pending")
        )
        return self._numbers

    def step(self) -> bool:
        """Take up what there is room for, then let the next one end. False when nothing is left."""
        while True:
            under_way = {each: sum(c == each for _, _, c in self._running) for each in CLASSES}
            full, no_place = full_classes(self._quotas, under_way), crowded(self._room, under_way)
            found = self._queue.first(0, 1, self._shares, full, no_place)
            if not found:
                break
            (task,) = found
            self._shares.took(task.task_class)
            self._queue.drop(task.number)
            self.began[task.number] = (task.task_class, self._submitted[task.number], self.now)
            heappush(self._running, (self.now + self._random.randint(1, 20), task.number, task.task_class))
            counted = Counter(c for _, _, c in self._running)
            self.most_at_once |= counted
        if not self._running:
            return False
        self.now, _, _ = heappop(self._running)
        return True


def waits(simulation: Simulation, task_class: TaskClass) -> list[int]:
    return [began - submitted for each, submitted, began in simulation.began.values() if each == task_class]


def test_with_thousands_of_tasks_core_jumps_the_queue_and_batch_goes_on() -> None:
    quotas = Quotas(pools={"core": Pool(tasks_at_once=2), "batch": Pool(tasks_at_once=6)})
    simulation = Simulation(8, quotas, seed=1)
    for _ in range(4000):
        simulation.submit("batch")
    chance = Random(2)
    for _ in range(3000):
        if chance.random() < 0.05:
            simulation.submit("core")
        if chance.random() < 0.5:
            simulation.submit("normal")
        assert simulation.step()
    core, normal, batch = (waits(simulation, each) for each in CLASSES)
    assert max(core) <= 40, "a core task waits for the end of a task or two, whatever else there is"
    assert sum(normal) / len(normal) < sum(batch) / len(batch)
    assert len(batch) > 500, "and batch goes on all the time"
    assert simulation.most_at_once["core"] <= 2
    assert simulation.most_at_once["batch"] <= 6


def test_a_core_task_that_arrives_in_a_flood_begins_at_once_whatever_the_others_take() -> None:
    simulation = Simulation(4, Quotas(), seed=5)
    for number in range(4000):
        simulation.submit("batch" if number % 2 else "normal")
    for number in range(3000):
        if number % 20 == 0:  # seldom enough that the one before has ended
            simulation.submit("core")
        assert simulation.step()
    core, normal, batch = (waits(simulation, each) for each in CLASSES)
    assert len(core) == 150
    assert max(core) == 0
    assert len(normal) + len(batch) > 2800, "the place that is kept costs no more than a quarter"
    assert len(batch) > 500
    assert simulation.most_at_once["normal"] == simulation.most_at_once["batch"] == 3


def test_a_flood_of_core_tasks_does_not_starve_the_others() -> None:
    simulation = Simulation(4, Quotas(), seed=3)
    for task_class in CLASSES:
        for _ in range(2000):
            simulation.submit(task_class)
    for _ in range(1000):
        simulation.step()
    got = Counter(each for each, _, _ in simulation.began.values())
    assert got["core"] > 800
    assert got["normal"] >= 100
    assert got["batch"] >= 25


def test_in_the_end_everything_is_done() -> None:
    simulation = Simulation(3, Quotas(pools={each: Pool(tasks_at_once=1) for each in CLASSES}), seed=4)
    for number in range(1500):
        simulation.submit(CLASSES[number % 3])
    while simulation.step():
        pass
    assert len(simulation.began) == 1500
    assert set(simulation.most_at_once.values()) == {1}


@given(st.lists(st.sampled_from(CLASSES), min_size=1, max_size=300), st.integers(0, 2**16))
def test_whoever_waits_is_next_within_a_bounded_number_of_claims(arrivals: list[TaskClass], seed: int) -> None:
    """For any arrivals: a class in which somebody waits is passed over for less than two of its strides."""
    chance, shares = Random(seed), Shares()
    waiting: Counter[TaskClass] = Counter()
    since: Counter[TaskClass] = Counter()
    left = list(arrivals)
    while left or waiting.total():
        for _ in range(chance.randint(0, 3)):
            if left:
                waiting[left.pop()] += 1
        there = [each for each in CLASSES if waiting[each]]
        if not there:
            continue
        taken = shares.first(there)
        shares.took(taken)
        waiting[taken] -= 1
        for each in there:
            since[each] = 0 if each == taken or not waiting[each] else since[each] + 1
            assert since[each] < 2 * STRIDES[each] + len(CLASSES), f"{each} starves"


@pytest.mark.parametrize(
    ("under_way", "full"),
    [
        ({"core": 0, "normal": 0, "batch": 0}, set()),
        ({"core": 1, "normal": 0, "batch": 0}, {"core"}),
        ({"core": 1, "normal": 3, "batch": 1}, {"core", "normal", "batch"}),
        ({"core": 0, "normal": 3, "batch": 1}, {"normal", "batch"}),
    ],
)
def test_a_class_is_full_at_its_bound_and_all_are_at_that_of_the_file(
    under_way: dict[TaskClass, int], full: set[str]
) -> None:
    quotas = Quotas(pools={"core": Pool(tasks_at_once=1)}, tasks_at_once=5)
    assert full_classes(quotas, under_way) == full
