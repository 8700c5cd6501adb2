"""Power loss and death anywhere in a run of transactional calls: the log and the database still agree on each call."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, get_args

import apsw
import pytest
import trio

from flightlog.runtime.recovery import OnCrash
from flightlog.store import foreign
from flightlog.testing import FakeModel, calls, words
from flightlog.testing.faults.disk import CERTAIN, MODES, Disk, Files, Op, digest_of
from flightlog.testing.faults.recorder import Recorder, checkpoints_every, recording
from flightlog_hookspecs.events import ToolCall, ToolResult
from support.files import in_memory
from support.kernels import records_of, session_of
from support.stock import JOURNALS, done_rows, left, new_shop, shop_tool

LOG = {"db": "", "wal": "-wal", "journal": "-journal", "head": "-head"}
SHOP = {f"shop-{name}": suffix for name, suffix in LOG.items() if name != "head"}
CALLS = 2


class Both(Recorder):
    """Records the operations on the log and on the shop, in one order."""

    def __init__(self, log: Path, shop: Path) -> None:
        super().__init__(str(log))
        self._shop = Recorder(str(shop))

    def name_of(self, path: object) -> str:
        """The shop's files have names of their own."""
        other = self._shop.name_of(path)
        return f"shop-{other}" if other else super().name_of(path)


class Watched:
    """In place of the module `sqlite3`: the same connections from apsw, which the recorder can watch."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sqlite3, name)

    def connect(self, name: str, **_: Any) -> apsw.Connection:
        return apsw.Connection(name, flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI)


@contextmanager
def recorded(log: Path, shop: Path) -> Iterator[Recorder]:
    recorder = Both(log, shop)
    with recording(recorder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(foreign, "sqlite3", Watched())
        yield recorder


def contents(path: Path, names: dict[str, str]) -> Files:
    return {n: Path(f"{path}{s}").read_bytes() for n, s in names.items() if Path(f"{path}{s}").exists()}


def lay_out(path: Path, names: dict[str, str], files: Files) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    for name, data in files.items():
        Path(f"{path}{names[name]}").write_bytes(data)


class Computer:
    """The folder of the log and that of the shop, on a disk each."""

    def __init__(self, folder: Path, journal: str, on_crash: OnCrash) -> None:
        self.on_crash = on_crash
        for name in ("log", "shop"):
            (folder / name).mkdir()
        self.log, self.shop = folder / "log" / "a.db", folder / "shop" / "shop.db"
        new_shop(self.shop, journal)
        trio.run(self.live)
        self.disks = Disk.holding(contents(self.log, LOG)), Disk.holding(contents(self.shop, SHOP))

    async def live(self, turns: int = 0) -> None:
        """Open the session, which recovers it, let it go on if it is to, and take so many turns of calls."""
        model = FakeModel([calls(*[("take", {})] * CALLS), words("Done.")])
        tool = shop_tool(self.shop, mode="exclusive")
        async with session_of(self.log, model, tool, on_crash=self.on_crash) as session:
            if self.on_crash == "continue":
                await session.run()
            for _ in range(turns):
                await session.followup("go")
                await session.run()

    def recorded(self, turns: int) -> list[Op]:
        """The operations of a life in which the host has the shop open, too: closing it does not sync it."""
        with recorded(self.log, self.shop) as recorder, checkpoints_every(12):
            host = apsw.Connection(str(self.shop))
            host.execute("SELECT count(*) FROM stock").fetchall()
            trio.run(partial(self.live, turns))
            recorder.stopped = True
            host.close()
        return recorder.ops

    def agree(self, where: str) -> int:
        """Recover, and compare what each of the two knows; the number of effects."""
        trio.run(self.live)
        events = [record.event for record in records_of(self.log)]
        started = [event for event in events if isinstance(event, ToolCall)]
        ended = {event.call_seq: event for event in events if isinstance(event, ToolResult) and event.call_seq}
        outcomes = [ended[seq].outcome for seq in sorted(ended)]
        kept = dict(done_rows(self.shop))
        assert len(ended) == len({call.invocation_id for call in started}), where
        assert set(outcomes) <= {"ok", "aborted"}, where
        assert self.on_crash == "close" or outcomes in ([], ["ok"] * CALLS), where
        assert outcomes.count("ok") == 100 - left(self.shop), f"{where}: {outcomes}, {left(self.shop)} left"
        assert outcomes.count("ok") == sum(result is not None for result in kept.values()), where
        assert kept.keys() <= {call.invocation_id for call in started}, where
        return outcomes.count("ok")

    def put_back(self, files: tuple[Files, Files]) -> None:
        lay_out(self.log, LOG, files[0])
        lay_out(self.shop, SHOP, files[1])


def fed(disks: tuple[Disk, Disk], op: Op) -> None:
    disks[op.file.startswith("shop-")].feed(op)


def images(disks: tuple[Disk, Disk], journal: str, at: int) -> Iterator[tuple[Files, Files]]:
    """What the two disks may hold at operation `at`: each in its own state; at some, what else chance may leave."""
    chance = [(mode, mode) for mode in MODES if mode not in CERTAIN] if at % 6 == 0 else []
    for mode, other in (*product(sorted(CERTAIN), repeat=2), *chance):
        random = Random(f"{journal} {at} {mode}")
        yield disks[0].image(mode, random), disks[1].image(other, random)


@pytest.fixture
def memory() -> Iterator[Path]:
    with in_memory() as folder:
        yield folder


@pytest.mark.parametrize("on_crash", get_args(OnCrash))
@pytest.mark.parametrize("journal", JOURNALS)
def test_after_a_power_loss_anywhere_each_call_happened_exactly_as_its_result_says(
    memory: Path, journal: str, on_crash: OnCrash
) -> None:
    computer, seen, effects = Computer(memory, journal, on_crash), set(), set()
    disks, ops = computer.disks, computer.recorded(turns=1)
    first = next(at for at, op in enumerate(ops) if op.file.startswith("shop-") and op.kind == "write")
    for at in range(len(ops) + 1):
        for files in images(disks, journal, at) if at >= first - 2 else ():
            if (digest := digest_of(files[0]) + digest_of(files[1])) not in seen:
                seen.add(digest)
                computer.put_back(files)
                effects.add(computer.agree(f"operation {at} of {len(ops)}"))
        if at < len(ops):
            fed(disks, ops[at])
    assert effects >= ({0, 1, 2} if on_crash == "close" else {2}), "every number of effects was met"


@pytest.mark.parametrize("on_crash", get_args(OnCrash))
@pytest.mark.parametrize("journal", JOURNALS)
def test_after_a_death_and_a_power_loss_right_after_the_recovery_they_still_agree(
    memory: Path, journal: str, on_crash: OnCrash
) -> None:
    computer = Computer(memory, journal, on_crash)
    disks, ops = computer.disks, computer.recorded(turns=1)
    shop = [at for at, op in enumerate(ops) if op.file.startswith("shop-")]
    done = 0
    for at, op in enumerate(ops):
        if at in shop:
            after = disks[0].copy(), disks[1].copy()
            killed = tuple(disk.image("all", Random(0)) for disk in after)
            computer.put_back(killed)
            for again in computer.recorded(turns=0):
                fed(after, again)
            for files in images(after, journal, at):
                computer.put_back(files)
                done += computer.agree(f"killed at operation {at} of {len(ops)}, recovered, power lost")
        fed(disks, op)
    assert done
