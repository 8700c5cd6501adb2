"""What do a task's checkpoints cost? Its time with the heavy ones and without them, and how its log grows.

A step: streamed answer with one tool call (300 characters of arguments), tool run (2 KB result). Nobody waits for a
model or a tool, so all time is our own work and the disk's: in a real task the share of the checkpoints is smaller.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import trio

import flightlog
from agent import Model, look_up
from flightlog.core import checkpoints
from flightlog.testing import Bundle, calls
from flightlog.testing.memory import memory_folder
from flightlog_hookspecs import BlockEvent, Finish, Request
from measure import Answer, Ratio, show

STEPS, LONG_STEPS, ROUNDS = 100, 1_000, 7
SHARE_MAX, GROWTH_MAX = 5.0, 2.15


class Busy(Model):
    """Calls the tool in every step but the last of `steps`, each time for something else: the task has to go on."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:  # noqa: ARG002
        """Play the reply."""
        self.steps -= 1
        yield self._play(
            [*calls(("look_up", {"query": f"{self.steps:0>300}"})), Finish(reason="tool_calls")]
            if self.steps
            else self.tell
        )


async def carried_out(folder: Path, steps: int) -> tuple[float, float]:
    """Carry out a task of so many steps; the seconds that took by the clock, and of the processor's time."""
    plugin = Bundle(adapters=[Busy(steps)], tools=[look_up])
    async with flightlog.open_kernel(folder / "log.db", discover=False, plugins=[plugin]) as kernel:
        name = await kernel.tasks.submit("look it up", model="bench:m", max_steps=steps)
        start, start_cpu = time.perf_counter(), time.process_time()
        await kernel.work(until_idle=True)
        seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
        task = await kernel.tasks.show(name)
        assert (task.state, task.steps) == ("completed", steps), task
    return seconds, cpu


def with_them(folder: Path) -> tuple[float, float]:
    """As it is."""
    return trio.run(carried_out, folder, STEPS)


def without(folder: Path) -> tuple[float, float]:
    """The same loop, which writes no heavy ones."""
    with (
        mock.patch.object(checkpoints, "before_calls", return_value=()),
        mock.patch.object(checkpoints, "after_calls", return_value=()),
    ):
        return trio.run(carried_out, folder, STEPS)


def share() -> float:
    """Of the time of a task on this disk, how much the heavy checkpoints take: what they cost more than without them.

    They make no commit of their own, so what they cost is the processor's time; by the clock they would be lost in
    the disk's moods.
    """
    taken: dict[str, list[tuple[float, float]]] = {"with them": [], "without": []}
    for _ in range(ROUNDS):
        for name, contestant in (("with them", with_them), ("without", without)):
            with tempfile.TemporaryDirectory(prefix="flightlog-bench-") as folder:
                gc.collect()
                taken[name].append(contestant(Path(folder)))
    (step_s, cpu), (_, cpu_without) = (
        [statistics.median(values) / STEPS for values in zip(*rounds, strict=True)] for rounds in taken.values()
    )
    cost = max(0.0, cpu - cpu_without)
    print(f"\na task of {STEPS} steps with one tool call each, on this disk")
    print(f"  {'a step':<44} {step_s * 1e6:9.1f} us, {cpu * 1e6:.1f} us of them the processor's")
    print(f"  {'its two heavy checkpoints':<44} {cost * 1e6:9.1f} us   {cost / step_s:6.1%}")
    return cost / step_s


def log_bytes(steps: int) -> int:
    """How large the file of a task of so many steps is."""
    with memory_folder() as folder:
        trio.run(carried_out, folder, steps)
        return (folder / "log.db").stat().st_size


def main() -> Answer:
    """Measure."""
    taken = share() * 100
    small, large = log_bytes(LONG_STEPS), log_bytes(2 * LONG_STEPS)
    growth = large / small
    answer = Answer(
        [
            Ratio("heavy checkpoints, of a step's time", taken, taken, taken, SHARE_MAX, unit="%"),
            Ratio("bytes of a task of twice the steps", growth, growth, growth, GROWTH_MAX),
        ]
    )
    show(answer)
    return answer


if __name__ == "__main__":
    main()
