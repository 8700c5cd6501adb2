"""One storage fault stops the kernel for good: no write, no model, no tool after it, until it is reopened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from flightlog import Kernel, Limits, Session
from flightlog.store.connection import Busy
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import Tool, tool
from flightlog_hookspecs.errors import DiskFull, Fenced, InvariantViolation, StoreError
from support import kernels
from support.faulty_database import FaultyDatabase, Method, under
from support.files import Pen, content, in_memory, opened


@pytest.fixture
def memory() -> Iterator[Path]:
    with in_memory() as folder:
        yield folder


def full() -> DiskFull:
    return DiskFull("planted: no space left")


@define
class World:
    """What happened outside of the log, and how far it had come when the fault struck."""

    effects: list[str] = field(factory=list)
    at_the_fault: tuple[int, int] | None = None
    model: FakeModel = field(
        factory=lambda: FakeModel(
            [
                [*words("To work."), *calls(("write", {"what": "a"}), ("look", {"at": "b"}), ("look", {"at": "c"}))],
                [*words("Again."), *calls(("write", {"what": "d"}))],
                words("Done."),
            ]
        )
    )

    def tools(self) -> tuple[Tool, Tool]:
        @tool(effect="write")
        async def write(what: str) -> str:
            """Write it down."""
            self.effects.append(what)
            await trio.lowlevel.checkpoint()
            return f"wrote {what}"

        @tool(mode="parallel", effect="read")
        async def look(at: str) -> str:
            """Look at it."""
            self.effects.append(at)
            await trio.lowlevel.checkpoint()
            return f"saw {at}"

        return write, look

    def fault(self) -> DiskFull:
        self.at_the_fault = self.now()
        return full()

    def now(self) -> tuple[int, int]:
        return len(self.effects), len(self.model.requests)


LIMITS = Limits(delta_flush_ms=60_000)  # all deltas of a stream at its end: the same log on every run


async def work(session: Session) -> None:
    await session.followup("work")
    await session.run()


async def disturbed(path: Path, world: World, method: Method | None, at: int, *, late: bool) -> FaultyDatabase:
    """Run the work with a fault at one call, then try everything again in the same kernel."""
    async with kernels.opened(path, world.model, *world.tools()) as kernel:
        faulty = under(kernel._store, world.fault)
        faulty.arm(method or "commit", at if method else -1, late=late)
        try:
            async with kernel.session("s", model="fake:m", limits=LIMITS) as session:
                try:
                    await work(session)
                except StoreError:
                    await refused(session, world)
                    raise
        except StoreError:
            assert world.at_the_fault is not None
            await refused_anew(kernel, world)
    return faulty


async def refused(session: Session, world: World) -> None:
    stopped = world.now()
    for _ in range(2):
        for attempt in (session.run, lambda: session.followup("more")):
            with pytest.raises(StoreError):
                await attempt()
    assert world.now() == stopped


async def refused_anew(kernel: Kernel, world: World) -> None:
    stopped = world.now()
    with pytest.raises(StoreError):
        await open_another(kernel)
    assert world.now() == stopped


async def open_another(kernel: Kernel) -> None:
    async with kernel.session("another", model="fake:m") as session:
        await session.run()


def counts(faulty: FaultyDatabase, method: Method) -> int:
    return sum(call.split()[0] == method for call in faulty.calls)


async def test_the_undisturbed_work_is_what_the_faults_are_compared_with(tmp_path: Path) -> None:
    world = World()
    faulty = await disturbed(tmp_path / "log.db", world, None, 0, late=False)
    assert world.effects in (["a", "b", "c", "d"], ["a", "c", "b", "d"])
    assert len(world.model.requests) == 3
    assert counts(faulty, "commit") > 10
    assert counts(faulty, "write") > 15


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("method", ["begin", "write", "commit"])
async def test_a_fault_at_any_call_stops_all_effects_and_reopening_finishes_the_work_without_repeating_any(
    memory: Path, method: Method, late: bool
) -> None:
    whole = World()
    faulty = await disturbed(memory / "whole.db", whole, None, 0, late=False)
    kinds = kernels.kinds_of(memory / "whole.db")
    for at in range(1, counts(faulty, method) + 1):
        path, world = memory / f"{at}.db", World()
        await disturbed(path, world, method, at, late=late)
        if world.at_the_fault is None:
            continue  # the fault struck the closing of the file, which has nothing left to lose
        effects, requests = world.at_the_fault
        assert len(world.model.requests) == requests, f"{method} {at}: the model was called after the fault"
        assert len(world.effects) == effects, f"{method} {at}: a tool ran after the fault"
        left = [] if "s" not in content(path) else kernels.kinds_of(path)
        without_end = [kind for kind in left if kind != "session/closed"]
        assert without_end == kinds[: len(without_end)], f"{method} {at}"
        await finished(path, world)


async def finished(path: Path, world: World) -> None:
    """Reopen and do the work that is left: nothing that was done is done again."""
    async with kernels.session_of(path, world.model, *world.tools()) as session:
        await session.run()
        await session.followup("anything left?")
        turn = await session.run()
        assert turn is not None
        assert turn.reason == "completed"
    writes = [effect for effect in world.effects if effect in "ad"]
    assert len(writes) == len(set(writes)), f"written twice: {world.effects}"
    kernels.verified(path, world.model)


async def test_a_failed_read_in_mid_turn_repeats_nothing_when_the_host_runs_again(memory: Path) -> None:
    whole = World()
    faulty = await disturbed(memory / "whole.db", whole, None, 0, late=False)
    for at in range(1, counts(faulty, "read") + 1):
        path, world = memory / f"{at}.db", World()
        # When it is the kernel's own look for letters that fails, the kernel itself ends with the fault.
        with suppress(StoreError):
            async with kernels.opened(path, world.model, *world.tools()) as kernel:
                under(kernel._store, world.fault).arm("read", at)
                for _ in range(3):
                    try:
                        async with kernel.session("s", model="fake:m", limits=LIMITS) as session:
                            await work(session)
                    except StoreError:
                        continue
        writes = [effect for effect in world.effects if effect in "ad"]
        assert len(writes) == len(set(writes)), f"read {at}: written twice: {world.effects}"


# ---------------------------------------------------------------- the moment between a commit and its effect


async def test_a_tool_whose_intent_is_durable_does_not_start_once_the_store_has_stopped(tmp_path: Path) -> None:
    """Two sessions: the fault of one strikes between the commit of the other's intent and its body."""
    world, path = World(), tmp_path / "log.db"
    plants: list[FaultyDatabase] = []

    def strike(name: str, session: str, seq: int) -> None:
        if name == "committed" and session == "s" and kernels.kinds_of(path)[-1] == "tool/call" and plants:
            plants.pop().arm("commit")
            with pytest.raises(DiskFull):
                Pen(kernel._store, "other").say("fails")

    async with kernels.opened(path, world.model, *world.tools(), on_boundary=strike) as kernel:
        plants.append(under(kernel._store, world.fault))
        Pen(kernel._store, "other").say("works")
        with pytest.raises(StoreError):
            await kernels_work(kernel)
    assert world.at_the_fault == (0, 1)
    assert world.now() == (0, 1)


async def test_a_request_that_is_durable_is_not_sent_once_the_store_has_stopped(tmp_path: Path) -> None:
    world, path = World(), tmp_path / "log.db"
    plants: list[FaultyDatabase] = []

    def strike(name: str, session: str, seq: int) -> None:
        if name == "committed" and session == "s" and kernels.kinds_of(path)[-1] == "request/sent" and plants:
            plants.pop().arm("commit")
            with pytest.raises(DiskFull):
                Pen(kernel._store, "other").say("fails")

    async with kernels.opened(path, world.model, *world.tools(), on_boundary=strike) as kernel:
        plants.append(under(kernel._store, world.fault))
        Pen(kernel._store, "other").say("works")
        with pytest.raises(StoreError):
            await kernels_work(kernel)
    assert world.now() == (0, 0)


async def kernels_work(kernel: Kernel) -> None:
    async with kernel.session("s", model="fake:m", limits=LIMITS) as session:
        await work(session)


# ---------------------------------------------------------------- a database that stays busy


@define
class LongBusy:
    """Under a store: `begin` finds the lock taken as long as `busy` is set."""

    inner: FaultyDatabase
    busy: bool = False

    def begin(self, *, barrier: bool) -> None:
        if self.busy:
            raise Busy
        self.inner.begin(barrier=barrier)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


async def test_a_write_lock_that_never_comes_free_stops_the_kernel_and_repeats_no_effect(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path, ran = tmp_path / "log.db", []

    @tool(effect="write", timeout_s=1e6)
    async def write(what: str) -> str:
        """Write it down."""
        ran.append(what)
        database.busy = True
        return "done"

    model = FakeModel([calls(("write", {"what": "a"})), words("Done.")])
    async with kernels.opened(path, model, write) as kernel:
        database = LongBusy(under(kernel._store, full))
        kernel._store.database = database  # type: ignore[assignment]
        with pytest.raises(StoreError, match="write lock"):
            await run_until_stopped(kernel, database)
    assert ran == ["a"]
    await check_in_doubt(path, model, write, ran)


async def test_a_session_is_not_waited_for_forever_when_the_write_lock_never_comes_free(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with kernels.opened(tmp_path / "log.db", FakeModel([])) as kernel:
        kernel._store.database = LongBusy(under(kernel._store, full), busy=True)  # type: ignore[assignment]
        with pytest.raises(StoreError, match="write lock"):
            await open_another(kernel)


async def run_until_stopped(kernel: Kernel, database: LongBusy) -> None:
    async with kernel.session("s", model="fake:m") as session:
        await session.followup("write")
        try:
            await session.run()
        except StoreError:
            database.busy = False
            with pytest.raises(StoreError):
                await session.run()
            raise


async def check_in_doubt(path: Path, model: FakeModel, write: Tool, ran: Iterable[str]) -> None:
    async with kernels.session_of(path, model, write) as session:
        await session.run()
    assert list(ran) == ["a"]
    assert kernels.outcomes_of(path) == ["unknown"]


async def test_a_session_fenced_while_its_tool_runs_does_not_run_it_again(tmp_path: Path) -> None:
    path, ran = tmp_path / "log.db", []

    @tool(effect="write")
    async def write(what: str) -> str:
        """Write it down."""
        ran.append(what)
        with opened(path) as other:
            Pen(other).take_over()
        return "done"

    model = FakeModel([calls(("write", {"what": "a"})), words("Done.")])
    async with kernels.opened(path, model, write) as kernel:
        with pytest.raises((Fenced, InvariantViolation)):
            await run_twice(kernel)
    assert ran == ["a"]


async def run_twice(kernel: Kernel) -> None:
    async with kernel.session("s", model="fake:m") as session:
        await session.followup("write")
        with pytest.raises(Fenced):
            await session.run()
        await session.run()
