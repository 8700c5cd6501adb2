"""A process that sells from a shop until enough is sold, and one that has it killed at any moment.

Run as a script it is a fork server: each line on standard input,
`{"folder": ..., "on_crash": mode, "kill_after_s": x, "sales": n}`, forks a child that opens the log in that folder and
goes on selling; it is killed by SIGKILL after that long, and kills itself once it has committed its n-th sale (never,
for n = 0), unless it has ended before. The answer is a line with the child's exit status.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import trio

import flightlog
from flightlog.runtime.recovery import OnCrash
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import BlockEvent, Request, ToolResult
from support.kernels import session_of
from support.stock import new_shop, shop_tool

from child import die_with_the_parent  # isort: skip

SALES = 12


class Seller(FakeModel):
    """Takes one at a time, or two side by side, until enough are sold."""

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        sold = sum(isinstance(message, ToolResult) and message.outcome == "ok" for message in request.messages)
        wanted = min(1 + sold % 2, SALES - sold)
        yield self._play(calls(*[("take", {})] * wanted) if wanted else words("All is sold."))


async def sell(folder: Path, sales: int, on_crash: OnCrash) -> None:
    """Open the session, and sell what is still to be sold, or so much."""
    tool, sold = shop_tool(folder / "shop.db"), count(1)

    def boundary(name: str, session: str, seq: int) -> None:
        if name == "tool-done" and next(sold) == sales:  # committed in the shop, not yet in the log
            os.kill(os.getpid(), signal.SIGKILL)

    options: dict[str, Any] = {"on_crash": on_crash, "clock": flightlog.Clock(), "on_boundary": boundary}
    async with session_of(folder / "a.db", Seller([]), tool, **options) as session:
        await session.followup("go on")
        turn = await session.run()
    assert turn.text == "All is sold."


def child(folder: Path, sales: int, on_crash: OnCrash) -> None:
    """What a forked child does; never returns."""
    die_with_the_parent()
    code = 1
    try:
        trio.run(sell, folder, sales, on_crash)
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def serve() -> None:
    """Fork a child per line. What every child needs is imported once, by a run in here."""
    die_with_the_parent()
    with tempfile.TemporaryDirectory() as folder:
        new_shop(Path(folder) / "shop.db")
        trio.run(sell, Path(folder), 0, "close")
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            child(Path(order["folder"]), order["sales"], order["on_crash"])
        running = os.pidfd_open(pid)
        if not select.select([running], [], [], order["kill_after_s"])[0]:
            os.kill(pid, signal.SIGKILL)
        os.close(running)
        _, status = os.waitpid(pid, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)  # noqa: T201


if __name__ == "__main__":
    serve()
