"""Adapters that hold connections are told when they are needed no more."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import define, field

import flightlog
from flightlog.testing import Bundle, FakeModel, words


@define
class Connected(FakeModel):
    """Holds something that is to be closed, and may fail at that."""

    fault: BaseException | None = None
    hangs: bool = False
    closed: int = field(default=0, init=False)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed += 1
        if self.hangs:
            await trio.sleep_forever()
        if self.fault:
            raise self.fault


async def test_the_adapters_of_a_kernel_are_closed_once_when_it_is(tmp_path: Path) -> None:
    model = Connected([words("hello")])
    async with flightlog.open_kernel(tmp_path / "log.db", discover=False, plugins=[Bundle(adapters=[model])]) as kernel:
        async with kernel.session("s", model="fake:m") as session:
            await session.followup("hi")
            await session.run()
        assert not model.closed
    assert model.closed == 1


async def test_an_adapter_that_is_taken_back_is_closed_then(tmp_path: Path) -> None:
    model = Connected([])
    async with flightlog.open_kernel(tmp_path / "log.db", discover=False) as kernel:
        async with kernel.register(Bundle(adapters=[model])):
            pass
        assert model.closed == 1
    assert model.closed == 1


@pytest.mark.parametrize("how", [{"fault": OSError("planted")}, {"hangs": True}], ids=["fails", "hangs"])
async def test_one_that_cannot_be_closed_keeps_no_other_from_it(
    tmp_path: Path, how: dict[str, object], autojump_clock: trio.testing.MockClock
) -> None:
    broken, sound = Connected([], name="broken", **how), Connected([], name="sound")
    plugin = Bundle(adapters=[broken, sound])
    async with flightlog.open_kernel(tmp_path / "log.db", discover=False, plugins=[plugin]):
        pass
    assert (broken.closed, sound.closed) == (1, 1)


async def test_a_cancelled_host_closes_them_all_the_same(tmp_path: Path) -> None:
    model = Connected([])
    with trio.CancelScope() as scope:
        async with flightlog.open_kernel(tmp_path / "log.db", discover=False, plugins=[Bundle(adapters=[model])]):
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert model.closed == 1
