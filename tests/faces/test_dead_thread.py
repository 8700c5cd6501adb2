"""A kernel whose thread has died tells whoever waits for it, and whoever comes later."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.children import run_python

DEADLY = """
import asyncio, os, sys, threading
import trio
from flightlog import aio, sync
from flightlog.testing import Bundle, FakeModel, calls
from flightlog_hookspecs import Tool
from flightlog_hookspecs.errors import InvariantViolation

class Unshown(Exception):
    def __repr__(self):
        raise RuntimeError("no repr")

async def kill() -> str:
    "Let a task of a nursery of one's own end by an error that trio cannot show."
    async def fail():
        raise Unshown
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)

models = [FakeModel([calls(("kill", {}))]), FakeModel([], name="idle")]
plugin = Bundle(adapters=models, tools=[Tool(body=kill, effect="write")])
path = sys.argv[1]

def say(error):
    os.write(1, f"{error}\\n".encode())  # in one piece: two threads do

def told(call):
    try:
        call()
    except InvariantViolation as error:
        say(error)
"""
BLOCKING = """
def use():
    with (
        sync.open_kernel(path, discover=False, plugins=[plugin]) as kernel,
        kernel.session("other", model="idle:m") as other,
        kernel.session("s", model="fake:m") as session,
    ):
        waiting = threading.Thread(target=told, args=(other.serve,))
        waiting.start()
        session.followup("go")
        told(session.run)
        waiting.join()
        told(lambda: session.followup("again"))

told(use)
"""
ASYNCIO = """
async def use():
    async with (
        aio.open_kernel(path, discover=False, plugins=[plugin]) as kernel,
        kernel.session("other", model="idle:m") as other,
        kernel.session("s", model="fake:m") as session,
    ):
        await session.followup("go")
        for each in await asyncio.gather(other.serve(), session.run(), return_exceptions=True):
            say(each)
        try:
            await session.followup("again")
        except InvariantViolation as error:
            say(error)

told(lambda: asyncio.run(use()))
"""


@pytest.mark.parametrize("code", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
def test_who_waits_for_a_dead_kernel_is_told_and_who_comes_later(tmp_path: Path, code: str) -> None:
    # Left at once: what trio leaves behind is not tidy.
    done = run_python(f"{DEADLY}{code}os._exit(0)", str(tmp_path / "a.db"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4, "each who waited, who came later, and who left the kernel"
    assert all("this kernel has died, by a bug of a plugin or of its own: RuntimeError: no repr." in o for o in lines)
