"""The layers in which bugs are found: each takes what to look at and a seed, and says what it found and when.

| layer | what it does | why it stays |
|---|---|---|
| power loss | crashes a script at every operation on its disk, in every mode | unsynced data, half-made appends |
| nested | crashes it again in the recovery | what recovery itself leaves behind |
| I/O errors | lets operations on the disk fail | what goes on after a fault |
| damage | changes a log at rest and reads it | rows that SQLite hands out though they are wrong |
| owners | lets another kernel take the session at each boundary | a second writer, which no crash brings about |
| cancel | cancels the turn at each boundary | a process that lives on with what was cut off |
| rule | runs the property test of a pure rule | decisions that no fault is needed to get wrong |
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from inspect import signature
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest
import trio
import trio.testing
from attrs import define, field, frozen
from hypothesis import Phase, settings
from planted import replaced

from flightlog.api import open_kernel
from flightlog.runtime.driver import Driver
from flightlog.testing.faults import (
    Judging,
    Report,
    Workload,
    World,
    named,
    oracles,
    run_io_errors,
    run_power_loss,
)
from flightlog.testing.faults.determinism import clock_of, deterministic, reseed
from flightlog.testing.faults.disk import Disk, Files
from flightlog.testing.faults.judge import leaf, refused
from flightlog.testing.faults.life import Bench, Life, bench, live, new_log, read_log, registry_of, watched_life
from flightlog.testing.faults.oracles import Broken
from flightlog.testing.faults.world import Done
from flightlog_hookspecs.errors import FlightlogError, SessionBusy, StoreError

TESTS = Path(__file__).parents[1]


@frozen
class Finding:
    """What a layer came to: after how many examples it found something (all of them, when it did not), and what."""

    examples: int
    promise: str = ""
    how: str = ""


Layer = Callable[[str, int], Finding]
Case = Callable[[], Iterable[Broken]]


def power_loss(script: str, seed: int) -> Finding:
    """Lose power, or be killed, at drawn operations."""
    return _in_rounds(partial(run_power_loss, named(script), points=60, first_only=True), seed, rounds=16)


def nested(script: str, seed: int) -> Finding:
    """Crash again in the recovery from a crash."""
    return _in_rounds(partial(run_power_loss, named(script), points=0, nested=48, first_only=True), seed, rounds=16)


def io_errors(script: str, seed: int) -> Finding:
    """Let drawn operations fail."""
    return _in_rounds(partial(run_io_errors, named(script), points=20, first_only=True), seed, rounds=10)


def _in_rounds(hunt: Callable[..., Report], seed: int, *, rounds: int) -> Finding:
    """Each round has another seed, so other places, another order of ready tasks and other checkpoints."""
    examples = 0
    for number in range(rounds):
        report = hunt(seed=100 * seed + number)
        examples += sum(report.faults.values())
        if report.violations:
            return Finding(examples, report.violations[0].promise, report.violations[0].how)
    return Finding(examples)


def damage(script: str, seed: int, points: int = 300) -> Finding:
    """Change the files that a death left behind; they are refused by name or say the same."""
    workload = named(script)

    async def cases(place: Bench) -> list[Case]:
        life = await _unbroken(place, workload, seed)
        disk = life.disk.copy()
        for op in life.ops[: len(life.ops) * 4 // 5]:
            disk.feed(op)
        files = disk.image("all", Random(seed))
        place.lay_out(files)
        return [partial(_read_damaged, place, workload, life, files, Random(f"{seed} {i}")) for i in range(points)]

    return _first(cases, seed)


def _read_damaged(place: Bench, workload: Workload, life: Life, files: Files, random: Random) -> Iterator[Broken]:
    place.lay_out(files)
    written = read_log(place.path, registry_of(workload))
    place.lay_out(_damaged(place, files, random))
    try:
        log = read_log(place.path, registry_of(workload))
    except FlightlogError:
        return
    except Exception as error:
        yield refused(error)
        return
    for name, records in written.records.items():
        found = log.records.get(name, [])
        if found != records[: len(found)]:
            yield Broken("P1", f"the damaged log of {name!r} says something else")
        if len(found) < len(records) - _UNWITNESSED:
            yield Broken("P2", f"of {len(records)} rows of {name!r} {len(found)} are left, and nobody says so")


_UNWITNESSED = 8
"""So many rows at the end are of the last transaction, or ordinary ones behind it, which no witness names."""


def _damaged(place: Bench, files: Files, random: Random) -> Files:
    way = random.choice(("flip", "flip", "wal", "rows", "rows"))
    if way == "rows":
        place.lay_out(files)
        _operate(place.path, random)
        return place.photograph()
    changed = dict(files)
    if way == "wal":
        changed["wal"] = files["wal"][: random.choice((0, len(files["wal"]) // 2))]
        return changed
    name = random.choice(("db", "wal"))
    content = bytearray(files[name])
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    changed[name] = bytes(content)
    return changed


def _operate(path: str, random: Random) -> None:
    """Change a row as somebody who dropped the guards first."""
    connection = apsw.Connection(path)
    for (trigger,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {trigger}")
    (last,) = connection.execute("SELECT max(id) FROM events").fetchone()
    row = random.randint(1, last)
    change = random.choice(("data = replace(data, 'done', 'gone')", "digest = zeroblob(32)", "at = at + 1"))
    connection.execute(f"UPDATE events SET {change} WHERE id = ?", (row,))
    connection.close()


def cancel(script: str, seed: int, points: int = 150) -> Finding:
    """Cancel whatever runs at a boundary; the host goes on. No order of the boundaries is better than another."""
    workload = named(script)

    async def cases(place: Bench) -> list[Case]:
        life = await _unbroken(place, workload, seed)
        total = sum(1 for _ in life.facts) * 2
        places = Random(seed).sample(range(1, total), min(points, total - 1))
        return [partial(_cancelled, place, workload, life, seed, at) for at in places]

    return _first(cases, seed)


@define
class _Interrupting(World):
    """At boundary number `at` something happens."""

    at: int = field(kw_only=True)
    happens: Callable[[], None] = field(kw_only=True)
    passed: int = field(default=0, init=False)

    def boundary(self, name: str, session: str, seq: int) -> None:
        super().boundary(name, session, seq)
        self.passed += 1
        if self.passed == self.at:
            self.happens()


async def _cancelled(place: Bench, workload: Workload, unbroken: Life, seed: int, at: int) -> list[Broken]:
    drivers: list[Driver] = []
    run = Driver.run

    async def noted(driver: Driver) -> None:
        drivers.append(driver)
        await run(driver)

    world = _Interrupting(at=at, happens=lambda: [driver.cancel("laboratory") for driver in drivers])
    place.lay_out(await new_log(place))
    try:
        with replaced(Driver, "run", noted):
            await live(place.path, workload, world, seed=seed, number=0)
        return _judged(place, workload, unbroken, world)
    except BaseException as error:
        return [refused(error)]


def _judged(place: Bench, workload: Workload, unbroken: Life, *worlds: World) -> list[Broken]:
    log, facts = read_log(place.path, registry_of(workload)), [fact for world in worlds for fact in world.ledger]
    broken = [*oracles.effects(facts), *oracles.intents(facts, log.all_records())]
    for name, records in log.records.items():
        broken += oracles.one_outcome(records)
        broken += oracles.shortened(records)
        broken += oracles.streamed(records)
        if not isinstance(workload, Judging):
            broken += oracles.conversation(log.messages[name], oracles.essence(unbroken.log.messages[name]))
    done = [fact for fact in facts if isinstance(fact, Done)]
    return [*broken, *oracles.verdict(workload, log.all_records(), done)]


def owners(script: str, seed: int, points: int = 120) -> Finding:
    """At a boundary another kernel wants the session: not without taking over, and then for good."""
    workload = named(script)

    async def cases(place: Bench) -> list[Case]:
        life = await _unbroken(place, workload, seed)
        total = sum(1 for _ in life.facts)
        places = Random(seed).sample(range(1, total), min(points, total - 1))
        return [partial(_taken_over, place, workload, life, seed, at) for at in places]

    return _first(cases, seed)


@frozen
class _TakingOver:
    """A kernel whose sessions are taken from their owners."""

    kernel: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def session(self, name: str, **options: Any) -> Any:
        return self.kernel.session(name, take_over=True, **options)


@define
class _Second(World):
    """Notes how much the first owner had done when it was fenced."""

    first: World = field(kw_only=True)
    fenced_at: int | None = field(default=None, init=False)

    def boundary(self, name: str, session: str, seq: int) -> None:
        super().boundary(name, session, seq)
        if name == "committed" and self.fenced_at is None:
            self.fenced_at = len(self.first.ledger)


async def _taken_over(place: Bench, workload: Workload, unbroken: Life, seed: int, at: int) -> list[Broken]:
    asked = trio.Event()
    first = _Interrupting(at=at, happens=asked.set)
    second = _Second(first=first)
    broken: list[Broken] = []
    place.lay_out(await new_log(place))
    reseed(seed)

    async def lead() -> None:
        with suppress(StoreError):
            try:
                async with open_kernel(
                    place.path,
                    discover=False,
                    plugins=workload.plugins(first),
                    clock=clock_of(0),
                    on_boundary=first.boundary,
                ) as kernel:
                    await workload.run(kernel, first)
            except BaseException as error:
                raise leaf(error) from None
        asked.set()
        ended.set()

    async def follow() -> None:
        await asked.wait()
        async with open_kernel(
            place.path, discover=False, plugins=workload.plugins(second), clock=clock_of(1), on_boundary=second.boundary
        ) as kernel:
            if first.ledger and not ended.is_set():
                with suppress(SessionBusy):
                    async with kernel.session("s", model=workload.model):
                        broken.extend([Broken("P1", "two own the session")] if not ended.is_set() else [])
            await workload.run(_TakingOver(kernel), second)

    ended = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lead)
            nursery.start_soon(follow)
        late = [fact for fact in first.ledger[second.fenced_at :] if isinstance(fact, oracles.Committed)]
        broken += [Broken("P1", f"the fenced owner has written {fact}") for fact in late]
        return [*broken, *_judged(place, workload, unbroken, first, second)]
    except BaseException as error:
        return [*broken, refused(error)]


async def _unbroken(place: Bench, workload: Workload, seed: int) -> Life:
    """The run that others are compared with. It is made before the bug is planted: see `_first`."""
    files = await new_log(place)
    return await watched_life(place, Disk.holding(files), files, [], workload, seed=seed, number=0)


def _first(cases: Callable[[Bench], Any], seed: int) -> Finding:
    """Try the cases one after the other, until one of them finds something."""

    async def hunt() -> Finding:
        tried = 0
        for tried, case in enumerate(await cases(place), 1):
            found = case()
            broken = list(await found if hasattr(found, "__await__") else found)
            if broken:
                return Finding(tried, broken[0].promise, broken[0].how)
        return Finding(tried)

    with bench() as place, deterministic():
        return trio.run(hunt, clock=trio.testing.MockClock(autojump_threshold=0))


def rule(test: str, seed: int) -> Finding:
    """Run the test of a rule: "core/test_plan.py::test_something". Its examples are Hypothesis's or its parameters."""
    file, name = test.split("::")
    spec = importlib.util.spec_from_file_location(f"rule_{seed}_{Path(file).stem}", TESTS / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # anew, so that it sees what was planted
    function, examples = getattr(module, name), 0
    if hasattr(function, "hypothesis"):
        inner = function.hypothesis.inner_test

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal examples
            examples += 1
            return inner(*arguments, **options)

        counted.__signature__ = signature(inner)  # type: ignore[attr-defined]
        function.hypothesis.inner_test = counted
        function = settings(phases=[Phase.generate], report_multiple_bugs=False, database=None)(function)
        cases: Iterable[dict[str, Any]] = [{}]
    else:
        cases = list(_parameters(function))
    for case in cases:
        examples += not hasattr(function, "hypothesis")
        try:
            function(**case)
        except (AssertionError, BaseExceptionGroup) as error:
            return Finding(examples, "rule", str(error).strip().split("\n")[0])
        except Exception as error:
            return Finding(examples, "rule", f"{type(error).__name__}: {error}")
    return Finding(examples)


def _parameters(function: Any) -> Iterator[dict[str, Any]]:
    choices = []
    for mark in getattr(function, "pytestmark", []):
        names, values = mark.args
        names = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
        rows = [value.values if isinstance(value, type(pytest.param())) else value for value in values]
        choices.append([dict(zip(names, row if len(names) > 1 else (row,), strict=True)) for row in rows])
    for chosen in product(*choices):
        yield {name: value for part in chosen for name, value in part.items()}


LAYERS = (power_loss, nested, io_errors, damage, owners, cancel, rule)
