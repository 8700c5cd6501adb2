"""A disk that fails, is full, or brings less than was asked for; memory that runs out; a file that is busy.

One operation of a run fails, or it and all after it. Whatever happens then, the kernel says so by one of
its own errors or goes on unharmed; the process ends, and the next one, on a disk that works again,
finds all that was acknowledged and comes to the same end.

A short read is not an error but a lie: SQLite takes zeros for the rest and may write on top of them. Then
the self-check may find it, by a second look where it was the only one, and the log may be refused as damaged; what
opens must still be right. Letters have no chain: one that was written over is missed by nobody, but SQLite's own check,
as `flightlog verify` makes it, says that the file is damaged. A host that is lied to may find unfinished what is not,
or not find what is there: so may a child, which then ends with a letter to it unread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from random import Random
from typing import Final

import trio
import trio.testing
from attrs import define, field, frozen

from flightlog.runtime.reader import LogReader
from flightlog.store.store import Store
from flightlog.testing.faults import oracles
from flightlog.testing.faults.determinism import deterministic
from flightlog.testing.faults.disk import Disk, Files
from flightlog.testing.faults.golden import Golden
from flightlog.testing.faults.judge import Judge, leaf, places_in, refused
from flightlog.testing.faults.life import Bench, bench, live, look, new_log, read_log, watched_life
from flightlog.testing.faults.oracles import Broken, Unheard
from flightlog.testing.faults.power_loss import Enough
from flightlog.testing.faults.recorder import FAULTS, Plan, Recorder, disk_of, recording
from flightlog.testing.faults.report import Report
from flightlog.testing.faults.workloads import Workload, watched
from flightlog.testing.faults.world import Fact, Stuck, World
from flightlog_hookspecs.errors import HeadMismatch, InvariantViolation, LogCorrupt, StoreError, UsageError

_NO_FAULT: Final = Plan(at=-1, fault="io")
_RECOVERIES: Final = 2
"""So many places of the run are killed to have recoveries that meet faults."""

_OF_A_LIE: Final = (InvariantViolation, Stuck, UsageError)
"""What a host may be told beside our storage errors when a read has brought less than was there, and no error."""


def run_io_errors(
    workload: Workload,
    *,
    seed: int = 0,
    points: int | None = None,
    first_only: bool = False,
    only: tuple[int | None, Plan] | None = None,
) -> Report:
    """Let every operation of `workload` fail in every way, or `points` of them drawn from `seed`.

    The faults meet the run itself, or a recovery from a SIGKILL at some place in it. With `first_only` the
    hunt ends at the first violation. `only` repeats one case, as a violation's reproducer names it:
    the operation it was killed at (None: it was not) and the plan.
    """
    with bench() as place, deterministic(), disk_of(seed):
        hunt = _Hunt(place, workload, seed, first_only)
        with suppress(Enough):
            trio.run(hunt.run, points, only, clock=trio.testing.MockClock(autojump_threshold=0))
    return hunt.report


@frozen
class _Start:
    """What a life begins with: files, what is known, and where an earlier life was killed."""

    files: Files
    facts: Sequence[Fact] = ()
    killed_at: int | None = None


@define
class _Hunt:
    bench: Bench
    workload: Workload
    seed: int
    first_only: bool
    report: Report = field(factory=Report, init=False)
    judge: Judge = field(init=False)

    async def run(self, points: int | None, only: tuple[int | None, Plan] | None) -> None:
        files = await new_log(self.bench)
        unbroken = await watched_life(
            self.bench, Disk.holding(files), files, [], self.workload, seed=self.seed, number=0
        )
        self.judge = Judge.by(self.bench, self.workload, self.seed, unbroken.log)
        ops, known = unbroken.ops, unbroken.facts

        def killed(at: int) -> _Start:
            disk = Disk.holding(files)
            for op in ops[:at]:
                disk.feed(op)
            return _Start(disk.image("all", Random(0)), known[: ops[at].known], at)

        if only:
            at, plan = only
            await self._fail(_Start(files) if at is None else killed(at), plan)
            return
        random = Random(f"{self.seed} faults")
        places = [None, *sorted(random.sample(range(len(ops)), _RECOVERIES))]
        starts = {at: _Start(files) if at is None else killed(at) for at in places}
        chances = {at: await self._lived(start, _NO_FAULT, World()) for at, start in starts.items()}
        drawn = (
            ((at, self._plan(random, chances[at])) for at in (random.choice([None, *places]) for _ in range(points)))
            if points is not None
            else ((at, plan) for at in places for plan in self._plans(chances[at]))
        )
        for at, plan in drawn:
            await self._fail(starts[at], plan)

    @staticmethod
    def _plans(chances: Recorder) -> Iterator[Plan]:
        """Every fault that a life with these chances can meet."""
        for fault, for_good in product(FAULTS, (False, True)):
            yield from (Plan(at=at, fault=fault, for_good=for_good) for at in range(chances.chances(fault)))

    @staticmethod
    def _plan(random: Random, chances: Recorder) -> Plan:
        fault = random.choice(FAULTS)
        return Plan(at=random.randrange(chances.chances(fault)), fault=fault, for_good=random.random() < 1 / 2)

    async def _lived(self, start: _Start, plan: Plan, world: World) -> Recorder:
        self.bench.lay_out(start.files)
        recorder = Recorder(self.bench.path, plan=plan)
        world.keep = recorder.keep
        with recording(recorder, watched(self.workload)):
            try:
                await live(
                    self.bench.path, self.workload, world, seed=self.seed, number=int(start.killed_at is not None)
                )
            finally:
                recorder.stopped = True
        return recorder

    async def _fail(self, start: _Start, plan: Plan) -> None:
        """Live with a fault, die of it or not, and live again without."""
        self.report.faults[f"{plan.fault}{' for good' if plan.for_good else ''}"] += 1
        world, lied = World(list(start.facts)), plan.fault == "short"
        told: BaseException | None = None
        try:
            await self._lived(start, plan, world)
        except BaseException as error:
            told = leaf(error)
            self.report.refusals[type(told).__name__] += 1
            if not isinstance(told, StoreError) and not (lied and isinstance(told, _OF_A_LIE)):
                self._add(start, plan, [refused(error)])
        self._add(start, plan, oracles.fail_stop(world.ledger[len(start.facts) :]))
        files = self.bench.photograph()
        if lied and self._is_damaged(files):
            return
        if isinstance(told, InvariantViolation) and not plan.for_good and not self._is_malformed(files):
            self._add(start, plan, [refused(told)])  # who looks twice finds a single lie out
        number = 1 + (start.killed_at is not None)
        broken = await self._judged(files, world.ledger, number)
        golden = Golden.of(self.workload.name, self.seed, number, files, world.ledger)
        self._add(start, plan, (one for one in broken if not lied or not self._is_excused(one, files)), golden)

    def _is_damaged(self, files: Files) -> bool:
        """Whether the log is refused by name."""
        try:
            self.bench.lay_out(files)
            read_log(self.bench.path, self.judge.registry)
        except (LogCorrupt, HeadMismatch) as error:
            self.report.refusals[f"{type(error).__name__} later"] += 1
            return True
        return False

    def _is_excused(self, one: Broken, files: Files) -> bool:
        """Whether a lie may bring it about: a refusal, a letter overlooked, a loss that SQLite finds in the file."""
        return isinstance(one, Unheard) or one.promise == "P3" or (one.promise == "P2" and self._is_malformed(files))

    def _is_malformed(self, files: Files) -> bool:
        self.bench.lay_out(files)
        try:
            with LogReader(Store.open_to_read(self.bench.path), self.judge.registry) as log:
                log.check_file()
        except LogCorrupt as error:
            self.report.refusals[f"{type(error).__name__} later"] += 1
            return True
        return False

    async def _judged(self, files: Files, facts: Sequence[Fact], number: int) -> list[Broken]:
        self.bench.lay_out(files)
        try:
            found = look(self.bench.path)
            self.bench.lay_out(files)
            log = read_log(self.bench.path, self.judge.registry, verify=False)
        except BaseException as error:
            return [refused(error)]
        claimed = oracles.claims(facts, places_in(found, log), power=False)
        broken = list(oracles.durable(len(found.rows), found.letters, claimed, len(facts)))
        if broken:
            return broken
        self.report.images += 1
        ending = await self.judge.ending(files, found, number, facts)
        self.report.drives = self.judge.drives
        return ending.with_earlier(facts)

    def _add(self, start: _Start, plan: Plan, broken: Iterable[Broken], golden: Golden | None = None) -> None:
        line = f"run_io_errors(named({self.workload.name!r}), seed={self.seed}, only=({start.killed_at}, {plan}))"
        for one in broken:
            self.report.add(one, line, golden)
            if self.first_only:
                raise Enough
