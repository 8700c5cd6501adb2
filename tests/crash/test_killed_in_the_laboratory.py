"""The laboratory's scripts in processes that are really killed: its oracles find nothing, and its disk was right.

At every boundary, at random times and again during the recovery, in memory and on a disk. What was
acknowledged is what came through a pipe to this process before the kill; effects stand in a file.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
import trio
import trio.testing
from attrs import define, field, frozen

from flightlog.testing.faults import SCRIPTS, Broken, World, named, oracles
from flightlog.testing.faults.determinism import deterministic
from flightlog.testing.faults.disk import Disk, Files
from flightlog.testing.faults.judge import Judge, places_in, refused
from flightlog.testing.faults.life import (
    Bench,
    Found,
    Life,
    Log,
    bench,
    live,
    look,
    read_log,
    registry_of,
    watched_life,
)
from flightlog.testing.faults.recorder import Recorder, recording
from flightlog.testing.faults.world import Fact
from flightlog.testing.memory import memory_folder
from support.children import environment

from lab_child import EFFECTS, Order, facts_in, written  # isort: skip

pytestmark = pytest.mark.kill
T = TypeVar("T")

KILLED = -signal.SIGKILL
EFFORT = {"quick": 1, "pr": 20}.get(os.environ.get("HYPOTHESIS_PROFILE", "quick"), 200)
NAMES = [script.name for script in SCRIPTS]
NESTED_MAX = 3


@define
class Children:
    """Lets children live and die; keeps what they were told of."""

    server: subprocess.Popen[str]
    pipe: int
    kills: int = field(default=0, init=False)

    def run(self, order: Order) -> tuple[int, list[Fact]]:
        """The exit status, and the acknowledgements that came through before it."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(written(order))
        self.server.stdin.flush()
        status = int(json.loads(self.server.stdout.readline()))
        self.kills += status == KILLED
        told = b""
        while True:
            try:
                told += os.read(self.pipe, 1 << 20)
            except BlockingIOError:
                return status, facts_in(told)


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """A fork server and its pipe."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("lab_child.py")), str(write_end)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        pass_fds=[write_end],
    )
    os.close(write_end)
    yield Children(server, read_end)
    server.communicate()
    os.close(read_end)
    assert server.returncode == 0


@define
class _Counting(World):
    """Notes at each boundary its name and how many operations there were on the disk."""

    recorder: Recorder = field(kw_only=True)
    passed: list[tuple[str, int]] = field(factory=list, init=False)

    def boundary(self, name: str, session: str, seq: int) -> None:
        self.passed.append((name, len(self.recorder.ops)))
        super().boundary(name, session, seq)


@frozen
class Expected:
    """What the laboratory says of a script: its unbroken run from nothing, and its boundaries."""

    life: Life
    boundaries: Sequence[tuple[str, int]]

    @classmethod
    def of(cls, place: Bench, name: str) -> Expected:
        script = named(name)
        place.lay_out({})
        recorder = Recorder(place.path)
        world = _Counting(recorder=recorder)
        with recording(recorder):
            _simulated(lambda: live(place.path, script, world, seed=1, number=0))
        # In a loop of its own, as each child has: times that are the same from its start need not be so from another.
        return cls(_simulated(lambda: watched_life(place, Disk(), {}, [], script, seed=1, number=0)), world.passed)

    def image(self, boundary: int) -> Files:
        """The files that a SIGKILL at that boundary leaves."""
        disk = Disk()
        for op in self.life.ops[: self.boundaries[boundary][1]]:
            disk.feed(op)
        return disk.image("all", Random(0))


def _simulated(run: Callable[[], Awaitable[T]]) -> T:
    with deterministic():
        return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


@define
class Court:
    """Judges what real kills of one script leave behind."""

    place: Bench
    name: str
    expected: Expected
    judge: Judge

    @classmethod
    def of(cls, place: Bench, name: str) -> Court:
        expected = Expected.of(place, name)
        return cls(place, name, expected, Judge.by(place, named(name), 1, expected.life.log))

    def broken(self, folder: Path, told: Sequence[Fact], number: int, *, alone: bool) -> list[Broken]:
        """What is wrong with the log in `folder`, of which `told` is known, once `number` lives were lived on it.

        `alone`: it is of one life, of which the laboratory knows every row.
        """
        files = Bench(str(folder)).photograph()
        effects = folder / EFFECTS
        facts = [*told, *(facts_in(effects.read_bytes()) if effects.exists() else [])]

        async def judged() -> list[Broken]:
            self.place.lay_out(files)
            try:
                found = look(self.place.path)
                self.place.lay_out(files)
                log = (
                    read_log(self.place.path, registry_of(named(self.name)), verify=False)
                    if found.rows
                    else Log(records={}, messages={})
                )
            except BaseException as error:
                return [refused(error)]
            broken = list(oracles.prefix(found.rows, self.expected.life.found.rows)) if alone else []
            claimed = oracles.claims(facts, places_in(found, log), power=False)
            broken += oracles.durable(len(found.rows), found.letters, claimed, len(facts))
            digests = _digests(found)
            broken += oracles.tokens(facts, digests)
            ending = await self.judge.ending(files, found, number, facts)
            return broken + ending.with_earlier(facts)

        return _simulated(judged)


def _digests(found: Found) -> dict[tuple[str, int], str]:
    names = {key: name for name, key in found.keys.items()}
    return {(names[row[1]], row[2]): row[-1].hex() for row in found.rows}


@pytest.fixture(scope="module")
def courts() -> Iterator[dict[str, Court]]:
    """One per script, made when it is first asked for."""
    with bench() as place:

        class Made(dict[str, Court]):
            def __missing__(self, name: str) -> Court:
                self[name] = Court.of(place, name)
                return self[name]

        yield Made()


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty folder, in memory or on a disk."""
    with memory_folder() if request.param == "memory" else tempfile.TemporaryDirectory() as made:
        yield Path(made)


def spread(random: Random, total: int, count: int) -> list[int]:
    """`count` of `total` boundaries, all parts of the run among them."""
    return sorted({min(total - 1, int((i + random.random()) * total / count)) for i in range(count)})


@pytest.mark.parametrize("name", NAMES)
def test_killed_at_any_boundary_no_promise_is_broken_and_the_files_are_those_of_the_laboratory(
    children: Children, courts: dict[str, Court], folder: Path, name: str
) -> None:
    court = courts[name]
    total = len(court.expected.boundaries)
    for at in spread(Random(name), total, min(total, 3 * EFFORT)):
        here = folder / str(at)
        here.mkdir()
        status, told = children.run(Order(folder=str(here), script=name, die_at=at))
        assert status == KILLED
        assert Bench(str(here)).photograph() == court.expected.image(at), f"boundary {at} of {name}"
        assert not court.broken(here, told, 1, alone=True), f"killed at boundary {at} of {name}"
        shutil.rmtree(here)


@pytest.mark.parametrize("name", NAMES)
def test_killed_at_a_random_time_no_promise_is_broken(
    children: Children, courts: dict[str, Court], folder: Path, name: str
) -> None:
    court, random = courts[name], Random(f"{name} times")
    for number in range(EFFORT):
        here = folder / f"time{number}"
        here.mkdir()
        seconds = random.random() * 0.05
        status, told = children.run(Order(folder=str(here), script=name, kill_after_s=seconds))
        assert status in (KILLED, 0)
        assert not court.broken(here, told, 1, alone=True), f"killed after {seconds} s of {name}"
        shutil.rmtree(here)


@pytest.mark.parametrize("name", NAMES)
def test_killed_again_and_again_while_recovering_no_promise_is_broken(
    children: Children, courts: dict[str, Court], folder: Path, name: str
) -> None:
    court, random = courts[name], Random(f"{name} nested")
    total = len(court.expected.boundaries)
    for number in range(EFFORT):
        here = folder / f"nested{number}"
        here.mkdir()
        told: list[Fact] = []
        places = [random.randrange(total), *(random.randrange(6) for _ in range(NESTED_MAX))]
        for life, at in enumerate(places):
            status, more = children.run(Order(folder=str(here), script=name, number=life, die_at=at))
            told += more
            if status == 0:
                break
            assert status == KILLED
            assert not court.broken(here, told, life + 1, alone=False), f"killed at {places[: life + 1]} of {name}"
        shutil.rmtree(here)


def test_every_kind_of_boundary_is_among_them(courts: dict[str, Court]) -> None:
    kinds = Counter(name for script in NAMES for name, _ in courts[script].expected.boundaries)
    assert kinds.keys() == {"commit", "committed", "request", "delta", "tool", "tool-done"}
