"""The time of each delta in the log is the time it arrived, to the millisecond, however they are spaced."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio
from attrs import define, field

import flightlog
from flightlog.runtime.clock import Clock
from flightlog.testing import fixed_clock
from flightlog.testing.conformance.bench import told
from flightlog.testing.conformance.server import served
from support.wire_kernels import asked
from support.wire_providers import PROVIDERS, Provider
from support.wire_recordings import CASES

RECORDINGS = {case.name: case.recordings[0] for case in CASES}


@define
class Wall:
    """A clock that stands still until the test moves it, and counts the deltas that the kernel has stamped."""

    now_us: int = 1_700_000_000_000_000
    deltas: int = 0
    _one_more: trio.Event = field(factory=trio.Event, init=False)

    def clock(self) -> Clock:
        ids = fixed_clock()
        return Clock(now_us=lambda: self.now_us, monotonic_us=lambda: self.now_us, new_id=ids.new_id)

    def boundary(self, name: str, session: str, seq: int) -> None:
        if name == "delta":
            self.deltas += 1
            self._one_more.set()
            self._one_more = trio.Event()

    async def stamped(self, deltas: int) -> None:
        while self.deltas < deltas:
            await self._one_more.wait()


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
async def test_frames_that_come_5_to_117_ms_apart_stand_in_the_log_with_that_spacing(
    provider: Provider, tmp_path: Path
) -> None:
    recording, path, wall = RECORDINGS[provider.name], tmp_path / "log.db", Wall()
    gaps_ms = Random(provider.name).choices(range(5, 118), k=len(recording.frames) + 1)
    sent_us: list[int] = []

    async def pace(frame: int) -> None:
        await wall.stamped(len(sent_us))
        wall.now_us += gaps_ms[frame] * 1000
        if frame < len(recording.frames) and recording.frames[frame].delta:
            sent_us.append(wall.now_us)

    async with (
        served(lambda request: told(recording, pace=pace)) as server,
        flightlog.open_kernel(
            path, discover=False, plugins=[provider.plugin], clock=wall.clock(), on_boundary=wall.boundary
        ) as kernel,
    ):
        limits = flightlog.Limits(attempts_per_step=1, steps_per_turn=1)
        await asked(kernel, provider.at(server.url), limits=limits)
        deltas = await kernel.query("SELECT at, text FROM deltas ORDER BY seq, i")
    assert "".join(text for _, text in deltas.rows) == "".join(frame.delta for frame in recording.frames)
    assert [at for at, _ in deltas.rows] == sent_us
    assert len(set(sent_us)) == len(sent_us) > 5
