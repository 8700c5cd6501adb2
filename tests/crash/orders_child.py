"""A fork server of workers on the orders: each line {"folder": ..., "seconds": s or null, "die_at": [name, n] or null}.

A worker dies by SIGKILL after so many seconds of work, whatever it is doing, or at its n-th boundary of that name.
Questions are answered as by a person who cannot know either.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "orders"))

import orders  # type: ignore[import-not-found]  # the program that the documentation shows

import flightlog


async def work(folder: Path, seconds: float | None, die_at: tuple[str, int] | None) -> None:
    """Work on the task until it is at rest, or until killed."""
    left = die_at[1] if die_at else 0

    def boundary(name: str, session: str, seq: int) -> None:
        nonlocal left
        if die_at and name == die_at[0]:
            left -= 1
            if left == 0:
                die()

    plugins = [orders.plugin(orders.Shop(folder / "shop.db"))]
    async with flightlog.open_kernel(
        folder / "agent.db", discover=False, plugins=plugins, on_boundary=boundary
    ) as kernel:
        if seconds is not None:
            threading.Thread(target=die_after, args=(seconds,), daemon=True).start()
        task = await orders.submit(kernel)
        while True:
            await kernel.work(until_idle=True)
            asked = await kernel.query("SELECT seq FROM approvals WHERE session = ? AND decision = 'open'", task)
            for (seq,) in asked.rows:
                await kernel.tasks.answer(task, seq, "unknown", by="night shift")
            if not asked.rows:
                return


def die() -> None:
    """End as if the power had failed, as far as this process is concerned."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(seconds: float) -> None:
    """Die in the middle of whatever goes on then."""
    time.sleep(seconds)
    die()


def main() -> None:
    """Fork a worker per line and say how it ended."""
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                die_at = order.get("die_at")
                trio.run(work, Path(order["folder"]), order.get("seconds"), tuple(die_at) if die_at else None)
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
