"""Who is taken up when there are more tasks than room, and who goes through the gate first: core, and nobody starves.

Simulated, without a clock.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from random import Random
from typing import Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core.claims import STRIDES, Candidate, Queue, Shares, crowded
from flightlog.core.line import Line, Waiter
from flightlog.core.quotas import Pool, Quotas, Rate
from flightlog.core.usage import Demand, Usage
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


@pytest.mark.parametrize("task_class", ["core", "normal"])
def test_a_task_that_arrives_in_a_flood_of_batch_begins_at_once(task_class: TaskClass) -> None:
    simulation = Simulation(4, Quotas(), seed=5)
    for _ in range(4000):
        simulation.submit("batch")
    for number in range(3000):
        if number % 20 == 0:  # seldom enough that the one before has ended
            simulation.submit(task_class)
        assert simulation.step()
    waited, batch = waits(simulation, task_class), waits(simulation, "batch")
    assert len(waited) == 150
    assert max(waited) == 0
    assert len(batch) > 2800, "the place that is kept costs no more than a quarter"
    assert simulation.most_at_once["batch"] == 3


def test_a_core_task_that_arrives_in_a_flood_of_all_waits_for_the_end_of_one_at_most() -> None:
    simulation = Simulation(4, Quotas(), seed=5)
    for number in range(4000):
        simulation.submit("batch" if number % 2 else "normal")
    for number in range(3000):
        if number % 20 == 0:
            simulation.submit("core")
        assert simulation.step()
    core, _, batch = (waits(simulation, each) for each in CLASSES)
    assert max(core) <= 20, "the longest that a task takes"
    assert len(batch) > 90, "one claim in thirty-three"


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


class Gate:
    """Requests and calls that wait at the gate of one process, looked at every tenth of a second.

    Who may go does so in an order that chance draws.
    """

    TICK_US = 100_000

    def __init__(self, rates: dict[str, Rate], seed: int) -> None:
        self.line, self._usage, self._random = Line(), Usage(rates), Random(seed)
        self.now_us = 0
        self._came: dict[Waiter, int] = {}
        self.waited: dict[TaskClass, list[int]] = {each: [] for each in CLASSES}
        """In microseconds, of those who have gone."""

    def come(self, task_class: TaskClass, *names: str) -> None:
        waiter = Waiter(task_class, [Demand(name=name) for name in names])
        self.line.join(waiter)
        self._came[waiter] = self.now_us

    def tick(self) -> None:
        self.now_us += self.TICK_US
        self._usage.forget(self.now_us)
        while free := self.line.free(self._usage, self.now_us):
            waiter = self._random.choice([each for each in self._came if each in free])
            self.line.went(waiter)
            self.line.leave(waiter)
            for name, amount in waiter.wishes.items():
                self._usage.add(name, self.now_us, amount)
            self.waited[waiter.task_class].append(self.now_us - self._came.pop(waiter))

    def gone(self) -> dict[TaskClass, int]:
        return {each: len(waited) for each, waited in self.waited.items()}


RATE: Final = {"rate:tool:look": Rate(2, per_s=1)}


def test_at_a_rate_core_calls_go_before_thousands_of_batch_calls_and_those_go_on() -> None:
    gate, chance = Gate(RATE, seed=6), Random(7)
    for _ in range(4000):
        gate.come("batch", "rate:tool:look")
    for _ in range(10_000):
        if chance.random() < 0.05:
            gate.come("core", "rate:tool:look")
        if chance.random() < 0.05:
            gate.come("normal", "rate:tool:look")
        gate.tick()
    assert sum(gate.gone().values()) == 2000, "nothing of the rate is wasted"
    assert max(gate.waited["core"]) <= 5_000_000
    assert sum(gate.waited["core"]) < sum(gate.waited["normal"])
    assert gate.gone()["batch"] > 900


def test_a_flood_of_core_calls_at_a_rate_does_not_starve_the_others() -> None:
    gate = Gate(RATE, seed=8)
    for task_class in CLASSES:
        for _ in range(2000):
            gate.come(task_class, "rate:tool:look")
    for _ in range(5000):
        gate.tick()
    assert gate.gone()["core"] > 800
    assert gate.gone()["normal"] >= 100
    assert gate.gone()["batch"] >= 25


def test_who_waits_for_a_pool_keeps_nobody_from_a_rate_that_is_free() -> None:
    gate = Gate({"pool:core:calls": Rate(1, per_s=60), **RATE}, seed=9)
    for _ in range(1000):
        gate.come("core", "rate:tool:look", "pool:core:calls")
        gate.come("batch", "rate:tool:look")
    for _ in range(1200):
        gate.tick()
    assert sum(gate.gone().values()) == 240
    assert gate.gone()["core"] == 2


def test_who_can_never_go_keeps_nobody_from_the_rest_of_what_it_wants() -> None:
    usage, line = Usage({"pool:batch:tokens": Rate(10), "pool:batch:calls": Rate(1)}), Line()
    calls = Demand(name="pool:batch:calls")
    never, other = Waiter("batch", [Demand(name="pool:batch:tokens", amount=11), calls]), Waiter("batch", [calls])
    line.join(never)
    line.join(other)
    assert line.free(usage, 0) == {other}


def test_of_one_class_who_came_first_goes_first_though_it_wants_more() -> None:
    usage, line = Usage({"pool:batch:tokens": Rate(10)}), Line()
    usage.add("pool:batch:tokens", 1, 4)
    much, little = (Waiter("batch", [Demand(name="pool:batch:tokens", amount=n)]) for n in (7, 1))
    line.join(much)
    line.join(little)
    assert line.free(usage, 1) == set()
    assert line.free(usage, 60_000_001) == {much, little}
    line.leave(much)
    assert line.free(usage, 1) == {little}


WISHES = st.sets(st.sampled_from(["pool:calls", "pool:tokens", "rate:a", "rate:b"]), min_size=1)


@given(st.lists(st.tuples(st.sampled_from(CLASSES), WISHES), min_size=1, max_size=40), st.integers(1, 3))
def test_whatever_is_wanted_together_somebody_may_go_and_all_go_in_the_end(
    wishes: list[tuple[TaskClass, set[str]]], most: int
) -> None:
    rates = {name: Rate(most, per_s=1) for name in ("pool:calls", "pool:tokens", "rate:a", "rate:b")}
    gate = Gate(rates, seed=0)
    for task_class, names in wishes:
        gate.come(task_class, *names)
    rounds = 0
    while sum(gate.gone().values()) < len(wishes):
        before = sum(gate.gone().values())
        for _ in range(10):  # a second, in which the rates are free again
            gate.tick()
        assert sum(gate.gone().values()) > before
        rounds += 1
    assert rounds <= len(wishes)


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
        ({"core": 0, "normal": 3, "batch": 1}, set()),
        ({"core": 0, "normal": 0, "batch": 4}, {"batch"}),
    ],
)
def test_a_class_is_full_at_its_bound_and_all_are_at_that_of_the_file(
    under_way: dict[TaskClass, int], full: set[str]
) -> None:
    quotas = Quotas(pools={"core": Pool(tasks_at_once=1)}, tasks_at_once=5)
    assert full_classes(quotas, under_way) == full
