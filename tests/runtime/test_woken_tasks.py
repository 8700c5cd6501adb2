"""Paused tasks that may go on, although nobody has written that they do: the next look of any worker finds them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import trio

from flightlog import Budget, Kernel, Session
from flightlog.errors import SessionBusy
from flightlog.events import BudgetGranted, SessionOpened, TaskState
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Ask, Hook, tool
from support.children import until
from support.kernels import events_of, opened


@tool(effect="write")
async def sweep() -> str:
    """Sweep."""
    return "swept"


def model() -> FakeModel:
    return FakeModel([calls(("sweep", {})), words("All is swept.")])


@asynccontextmanager
async def left_by_the_worker(kernel: Kernel, task: str) -> AsyncIterator[Session]:
    """The session of `task`, once the worker that has just brought it to rest has let go of it."""
    async with AsyncExitStack() as stack:
        while True:
            with suppress(SessionBusy):
                session = await stack.enter_async_context(kernel.session(task))
                break
            await trio.lowlevel.checkpoint()
        yield session


async def test_what_was_answered_by_whoever_had_it_open_is_seen_by_the_next_worker(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    asks = Bundle(hooks=[Hook(point="before_tool", body=lambda call: Ask("may I?"), name="guard")])
    async with opened(path, model(), sweep, plugins=[asks]) as kernel:
        await kernel.tasks.submit("sweep", model="fake:m", id="t")
        await kernel.work(until_idle=True)
        assert (await kernel.tasks.show("t")).cause == "question"
        async with kernel.session("t", approver=True) as session:
            (question,) = session.questions()
            await session.approve(question.seq)
    async with opened(path, model(), sweep, plugins=[asks]) as kernel:  # a worker that was not there
        await kernel.work(until_idle=True)
        assert (await kernel.tasks.show("t")).state == "completed"


async def test_what_was_granted_while_somebody_had_it_open_is_seen_by_a_worker_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, model(), sweep) as kernel:
        await kernel.tasks.submit("sweep", model="fake:m", id="t", budget=Budget(requests=1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kernel.work)
            assert (await kernel.tasks.wait("t")).cause == "quota"
            async with left_by_the_worker(kernel, "t"):
                await kernel.tasks.grant("t", Budget(requests=5))
                await until(lambda: events_of(path, BudgetGranted, "t")[1:])
            await until(lambda: events_of(path, TaskState, "t")[-1].state == "completed")
            kernel.leave_work()


async def test_what_wakes_nothing_has_it_opened_once_and_not_again(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, model(), sweep) as kernel:
        await kernel.tasks.submit("sweep", model="fake:m", id="t", budget=Budget(requests=1, calls=9))
        await kernel.work(until_idle=True)
        async with kernel.session("t") as session:
            await session.followup("And then rest.")
        before = len(events_of(path, SessionOpened, "t"))
        for _ in range(3):
            await kernel.work(until_idle=True)
        assert (await kernel.tasks.show("t")).state == "paused"
        assert len(events_of(path, SessionOpened, "t")) <= before + 3
