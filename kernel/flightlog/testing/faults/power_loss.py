"""Power loss and SIGKILL at any operation on the disk, and again in the recovery from it.

One run is recorded; the disk after a crash at operation k is computed from that, opened by the real
kernel, checked, and driven to the end by the same workload. Death itself is never simulated: code
that cleans up on its way out would run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby, product
from math import isqrt
from random import Random
from typing import Final

import trio
import trio.testing
from attrs import define, field, frozen

from flightlog.runtime.recovery import OnCrash
from flightlog.testing.faults import oracles
from flightlog.testing.faults.determinism import deterministic
from flightlog.testing.faults.disk import CERTAIN, MODES, Disk, Files, Mode, digest_of
from flightlog.testing.faults.golden import Golden
from flightlog.testing.faults.judge import Ending, Judge, places_in, refused
from flightlog.testing.faults.life import Bench, Found, Life, bench, look, new_log, watched_life
from flightlog.testing.faults.oracles import Broken, Claims
from flightlog.testing.faults.recorder import disk_of
from flightlog.testing.faults.report import Report
from flightlog.testing.faults.workloads import Workload, mode_of
from flightlog.testing.faults.world import Fact, surviving

_CRASHES_A_RECOVERY: Final = 8
"""At least so many second crashes are tried in each recovery that is recorded: early ones mostly, later it is a run."""


@frozen(order=True)
class Crash:
    """Just before operation number `at`, with what `mode` says of the unsynced on the disk.

    `draw` tells apart what chance may choose where the mode leaves something open.
    """

    at: int
    mode: Mode
    draw: int = field(default=0, repr=False)

    def __str__(self) -> str:
        return f"Crash({self.at}, {self.mode!r}{f', {self.draw}' if self.draw else ''})"


Trail = tuple[Crash, ...]
"""Crashes, each in the recovery from the one before."""


def run_power_loss(
    workload: Workload,
    *,
    seed: int = 0,
    points: int | None = None,
    draws: int = 1,
    nested: int = 0,
    depth: int = 2,
    from_nothing: bool = False,
    memo: bool = True,
    first_only: bool = False,
    after: Trail = (),
    only: Trail = (),
) -> Report:
    """Crash `workload` everywhere in every mode, or at `points` places and modes drawn from `seed`.

    Where a mode leaves something to chance, `draws` images are made. About `nested` more crashes happen during
    recoveries, up to `depth` in a row. `from_nothing` records the
    creation of the file, too. Without `memo` every image is driven to the end itself. With `first_only`
    the hunt ends at the first violation. All of it happens in the run, or in the recovery from the crashes
    of `after`. `only` repeats one case, as a violation's reproducer names it.
    `seed` also decides the order of ready tasks.
    """
    with bench() as place, deterministic(), disk_of(seed):
        hunt = _Hunt(place, workload, seed, from_nothing, memo, first_only)
        clock = trio.testing.MockClock(autojump_threshold=0)
        with suppress(Enough):
            trio.run(hunt.run, points, draws, nested, depth, after, only, clock=clock)
    return hunt.report


class Enough(BaseException):
    """A violation was found, and one was wanted."""


@define
class _Hunt:
    bench: Bench
    workload: Workload
    seed: int
    from_nothing: bool
    memo: bool
    first_only: bool
    report: Report = field(factory=Report, init=False)
    judge: Judge = field(init=False)
    _images: dict[bytes, Found | Broken] = field(factory=dict, init=False)
    _states: dict[object, Found] = field(factory=dict, init=False)

    async def run(self, points: int | None, draws: int, nested: int, depth: int, after: Trail, only: Trail) -> None:
        files: Files = {} if self.from_nothing else await new_log(self.bench)
        life = await watched_life(self.bench, Disk.holding(files), files, [], self.workload, seed=self.seed, number=0)
        self.judge = Judge.by(self.bench, self.workload, self.seed, life.log, memo=self.memo)
        trail: Trail = ()
        for crash in only[:-1] or after:
            recovered = await self._recovery(life, trail, crash)
            if recovered is None:
                return
            life, trail = recovered, (*trail, crash)
        if only:
            await self._crash(life, trail, only[-1:])
            return
        random = Random(f"{self.seed} points")
        crashes = everywhere(life, draws)
        await self._crash(life, trail, crashes if points is None else _drawn(random, crashes, points))
        each = max(_CRASHES_A_RECOVERY, isqrt(nested))
        for _ in range(-(-nested // each)):
            await self._crash_again(life, trail, random, each, depth)

    async def _crash_again(self, life: Life, trail: Trail, random: Random, each: int, depth: int) -> None:
        """Crash somewhere, and at `each` places of the recovery from that."""
        crash = Crash(random.randint(0, len(life.ops)), random.choice(("all", *MODES)))
        recovered = await self._recovery(life, trail, crash)
        if recovered is None:
            return
        ops = len(recovered.ops) + 1
        early = {Crash(int(ops * random.random() ** 4), random.choice(MODES)) for _ in range(each)}
        await self._crash(recovered, (*trail, crash), early)
        if len(trail) + 2 < depth:
            await self._crash_again(recovered, (*trail, crash), random, each, depth)

    async def _recovery(self, life: Life, trail: Trail, crash: Crash) -> Life | None:
        """The recorded life after `crash`; None, and a violation noted, when there is none."""
        disk = life.disk.copy()
        for op in life.ops[: crash.at]:
            disk.feed(op)
        files = disk.image(crash.mode, self._random(trail, crash))
        killed = crash.mode == "all"
        facts = surviving(life.facts[: _known(life, crash.at)], power_lost=not killed)
        try:
            return await watched_life(
                self.bench,
                disk if killed else Disk.holding(files),  # the system that lives on may still lose what it has cached
                files,
                facts,
                self.workload,
                seed=self.seed,
                number=len(trail) + 1,
            )
        except BaseException as error:
            self._add((*trail, crash), [refused(error)])
            return None

    async def _crash(self, life: Life, trail: Trail, crashes: Iterable[Crash]) -> None:
        """Crash `life` at each of these, check what opens, and drive it on."""
        checks = _Checks.of(life, mode_of(self.workload))
        for broken in checks.own:
            self._add(trail, [broken])
        disk, fed = life.disk.copy(), 0
        seen: set[object] = set()
        for at, group in groupby(sorted(crashes), key=lambda crash: crash.at):
            for op in life.ops[fed:at]:
                disk.feed(op)
            fed, known = at, _known(life, at)
            for crash in group:
                self.report.faults["again " * len(trail) + crash.mode] += 1
                killed = crash.mode == "all"
                early = (disk.version, known, killed) if crash.mode == "lost" or not disk.pending else None
                if early in seen:
                    continue
                files = disk.image(crash.mode, self._random(trail, crash))
                digest = digest_of(files)
                same = (digest, known, killed)
                if same not in seen:
                    seen |= {early, same} if early else {same}
                    await self._judge(life, checks, files, digest, known, (*trail, crash))

    async def _judge(self, life: Life, checks: _Checks, files: Files, digest: bytes, known: int, trail: Trail) -> None:
        opened, killed = self._opened(files, digest), trail[-1].mode == "all"
        if isinstance(opened, Broken):
            broken: Sequence[Broken] = [opened]
        else:
            broken = [*checks.of_image(opened, known, killed=killed), *oracles.files(files, self.workload)]
            if not broken:
                ending = await self.judge.ending(files, opened, len(trail), life.facts[:known])
                self.report.drives = self.judge.drives
                broken = checks.of_ending(ending, life.facts[:known])
        if broken:
            claims = checks.claims(killed=killed)
            least = claims.rows[known], claims.letters[known]
            facts = life.facts[:known]
            golden = Golden.of(
                self.workload.name, self.seed, len(trail), files, facts, written=checks.rows, least=least
            )
            self._add(trail, broken, golden)

    def _opened(self, files: Files, digest: bytes) -> Found | Broken:
        """What a kernel finds in `files`. Files that are the same to the byte are opened once."""
        if digest not in self._images:
            self.report.images += 1
            self.bench.lay_out(files)
            try:
                found = look(self.bench.path)
            except BaseException as error:
                self._images[digest] = refused(error)
            else:
                known = self._states.setdefault(found.state, found)
                self._images[digest] = known if known == found else found  # thousands of images hold the same rows
        return self._images[digest]

    def _random(self, trail: Trail, crash: Crash) -> Random:
        return Random(f"{self.seed} {trail} {crash!r}{f' {crash.draw}' if crash.draw else ''}")

    def _add(self, trail: Trail, broken: Iterable[Broken], golden: Golden | None = None) -> None:
        fresh = ", from_nothing=True" if self.from_nothing else ""
        which = f"only=({_said(trail)},)" if trail else "points=0"
        line = f"run_power_loss(named({self.workload.name!r}), seed={self.seed}{fresh}, {which})"
        for one in broken:
            if one.promise == "P3":
                self.report.refusals[one.how.split(":")[0]] += 1
            self.report.add(one, line, golden)
            if self.first_only:
                raise Enough


@frozen
class _Checks:
    """What is checked of each image of one life, prepared once."""

    rows: Sequence[oracles.Row]
    power: Claims
    kill: Claims
    own: Sequence[Broken]
    _of_endings: dict[tuple[Ending, int], Sequence[Broken]] = field(factory=dict, init=False)

    @classmethod
    def of(cls, life: Life, on_crash: OnCrash) -> _Checks:
        names = {key: name for name, key in life.found.keys.items()}
        digests = {(names[row[1]], row[2]): row[-1].hex() for row in life.found.rows}
        places = places_in(life.found, life.log)
        return cls(
            rows=life.found.rows,
            power=oracles.claims(life.facts, places, power=True),
            kill=oracles.claims(life.facts, places, power=False),
            own=[*oracles.tokens(life.facts, digests), *oracles.effects(life.facts, on_crash)],
        )

    def of_image(self, found: Found, known: int, *, killed: bool) -> Iterator[Broken]:
        yield from oracles.prefix(found.rows, self.rows)
        yield from oracles.durable(len(found.rows), found.letters, self.claims(killed=killed), known)

    def claims(self, *, killed: bool) -> Claims:
        return self.kill if killed else self.power

    def of_ending(self, ending: Ending, facts: Sequence[Fact]) -> Sequence[Broken]:
        """What is wrong with a crash that came to this `ending`, when so many `facts` were known."""
        key = ending, len(facts)
        if key not in self._of_endings:
            self._of_endings[key] = ending.with_earlier(facts)
        return self._of_endings[key]


def _known(life: Life, at: int) -> int:
    return life.ops[at].known if at < len(life.ops) else len(life.facts)


def everywhere(life: Life, draws: int) -> list[Crash]:
    """Every crash of `life`, those that leave something to chance `draws` times."""
    return [
        Crash(at, mode, draw)
        for at, mode in product(range(len(life.ops) + 1), MODES)
        for draw in range(1 if mode in CERTAIN else draws)
    ]


def _said(trail: Trail) -> str:
    return ", ".join(map(str, trail))


def _drawn(random: Random, crashes: Sequence[Crash], count: int) -> list[Crash]:
    return random.sample(crashes, min(count, len(crashes)))
