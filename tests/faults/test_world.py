"""What the world takes for owed: the result of a body that has ended, as long as the file could be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
import trio
from planted import replaced
from trio.testing import MockClock

from flightlog.store.connection import ApswDatabase, Busy
from flightlog.store.log_file import LogFile
from flightlog.store.store import Store
from flightlog.testing.faults import World
from flightlog.testing.faults.world import Ended, Failed
from flightlog_hookspecs.errors import DiskFull, Fenced, StoreError
from support.files import Pen

FIRST, SECOND = Ended("s", 1), Ended("s", 2)
WRITING = [(ApswDatabase, "begin"), (ApswDatabase, "write"), (ApswDatabase, "commit"), (LogFile, "record_durable")]


def ends(world: World, body: Ended) -> None:
    world.boundary("tool-done", body.session, body.call_seq)


def owed(world: World) -> list[Ended]:
    return [fact for fact in world.ledger if isinstance(fact, Ended)]


@contextmanager
def failing(owner: type, method: str, error: Exception) -> Iterator[None]:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    with replaced(owner, method, fail):
        yield


@pytest.fixture
def pen(tmp_path: Path) -> Iterator[Pen]:
    store = Store.open(str(tmp_path / "log.db"))
    pen = Pen(store)
    pen.say()
    yield pen
    store.close()


async def test_a_body_that_has_ended_owes_its_result_once_time_has_passed(pen: Pen, autojump_clock: MockClock) -> None:
    world = World()
    with world.watching():
        ends(world, FIRST)
        pen.say()
        assert not owed(world), "it may be about to be saved"
        await trio.sleep(1)
        ends(world, SECOND)
        assert owed(world) == [FIRST]
        await trio.sleep(1)
        pen.say()
    assert owed(world) == [FIRST, SECOND]


@pytest.mark.parametrize(("owner", "method"), WRITING)
async def test_nothing_is_owed_that_was_not_due_when_the_file_failed(
    pen: Pen, autojump_clock: MockClock, owner: type, method: str
) -> None:
    world = World()
    ends(world, FIRST)
    await trio.sleep(1)
    ends(world, SECOND)
    with failing(owner, method, DiskFull("planted")), world.watching(), pytest.raises(DiskFull):
        pen.say()
    ends(world, Ended("s", 3))
    await trio.sleep(1)
    world.boundary("commit", "s", 4)
    assert world.ledger == [FIRST, Failed()], "one was due before, the others could not be saved any more"


async def test_nothing_is_owed_once_the_kernel_has_given_up_waiting_for_the_file(
    pen: Pen, autojump_clock: MockClock
) -> None:
    world = World()
    with world.watching():
        ends(world, FIRST)
        pen.store.stop(StoreError("planted"))
        ends(world, SECOND)
        await trio.sleep(1)
        world.boundary("commit", "s", 4)
    assert world.ledger == [Failed()]


@pytest.mark.parametrize(("owner", "method"), WRITING)
async def test_a_fault_is_known_though_the_kernel_does_not_stop_at_it(
    pen: Pen, autojump_clock: MockClock, owner: type, method: str
) -> None:
    world = World()
    with (
        failing(owner, method, DiskFull("planted")),
        world.watching(),
        replaced(Store, "stop", lambda store, fault: fault),
        pytest.raises(DiskFull),
    ):
        pen.say()
    assert world.ledger == [Failed()]


async def test_a_session_that_was_taken_over_is_no_fault_of_the_file(pen: Pen, autojump_clock: MockClock) -> None:
    world = World()
    with failing(ApswDatabase, "write", Fenced("planted")), world.watching(), pytest.raises(Fenced):
        pen.say()
    assert not world.ledger


async def test_while_another_process_writes_nothing_is_owed_and_then_again(pen: Pen, autojump_clock: MockClock) -> None:
    world, other = World(), apsw.Connection(pen.store.path)
    with world.watching():
        ends(world, FIRST)
        other.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            with pytest.raises(Busy):
                pen.store.commit([pen.message("hello")], barrier=True)
            await trio.sleep(1)
        ends(world, SECOND)
        await trio.sleep(1)
        other.execute("ROLLBACK")
        pen.say()
        assert not owed(world), "they may be about to be saved"
        await trio.sleep(1)
        pen.say()
    assert owed(world) == [FIRST, SECOND]
    other.close()
