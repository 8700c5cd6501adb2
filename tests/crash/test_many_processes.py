"""Many sessions, kernels and processes on one file, all at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import trio

import flightlog
from flightlog.testing import Bundle, FakeModel, calls
from flightlog_hookspecs.errors import FileReplaced, SessionBusy, StoreStopped
from flightlog_hookspecs.events import LetterTaken, UserMessage
from support.agents import Looker, driven, look, turn_of
from support.children import until
from support.conversation import assert_at_rest
from support.files import Child, photograph, plain
from support.kernels import events_of, opened, records_of, verified

pytestmark = pytest.mark.kill

PROCESSES = 8


def names_of(path: Path) -> list[str]:
    with flightlog.open_log(path, discover=False) as log:
        log.check_file()
        return log.names()


# ---------------------------------------------------------------- everybody at once


def create_and_work(channel: Connection[Any, Any], path: Path, number: int) -> None:
    """At the signal, open the file, run turns of two sessions of one's own and try for one that all want."""

    async def work() -> None:
        async with flightlog.open_kernel(
            path, discover=False, plugins=[Bundle(adapters=[Looker([])], tools=[look])]
        ) as kernel:

            async def drive(name: str) -> None:
                async with kernel.session(name, model="fake:m") as session:
                    for _ in range(2):
                        await turn_of(session)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(drive, f"a{number}")
                nursery.start_soon(drive, f"b{number}")
            try:
                await drive("everybody's")
                channel.send("had it")
            except SessionBusy:
                channel.send("was refused")

    channel.send("ready")
    channel.recv()
    trio.run(work)
    channel.send("left")


def test_eight_processes_create_sessions_in_one_fresh_file_at_once_and_run_turns(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with ExitStack() as stack:
        children = [stack.enter_context(Child(create_and_work, path, number)) for number in range(PROCESSES)]
        for child in children:
            assert child.receive() == "ready"
        for child in children:
            child.send("go")
        told = [child.rest() for child in children]
    assert {tuple(answer[1:]) for answer in told} == {("left",)}, told
    had_it = sum(answer[0] == "had it" for answer in told)
    own = {f"{letter}{number}" for letter in "ab" for number in range(PROCESSES)}
    assert set(names_of(path)) == {*own, "everybody's"}
    for name in own:
        assert len(events_of(path, UserMessage, name)) == 2
        assert_at_rest(path, Looker([]), name=name)
    assert had_it >= 1
    assert len(events_of(path, UserMessage, "everybody's")) == 2 * had_it
    assert_at_rest(path, Looker([]), name="everybody's")


# ---------------------------------------------------------------- kernels of one process, processes, and letters

ROUNDS = 5


def correspond(channel: Connection[Any, Any], path: Path, names: list[str], everybody: list[str]) -> None:
    """Two kernels in this process, each driving sessions of its own; everybody writes to everybody."""
    trio.run(_correspond, channel, path, names, everybody)


async def _correspond(channel: Connection[Any, Any], path: Path, names: list[str], everybody: list[str]) -> None:
    async def serve(kernel: flightlog.Kernel, name: str, task_status: trio.TaskStatus[None]) -> None:
        async with kernel.session(name, model="fake:m") as session:
            task_status.started()
            await session.serve()

    async def write(kernel: flightlog.Kernel, name: str) -> None:
        for number in range(ROUNDS):
            for to in everybody:
                posted = await kernel.mailbox(to).followup(f"{name} {number}", key=f"{name} {number}")
                assert posted == await kernel.mailbox(to).followup(f"{name} {number}", key=f"{name} {number}")

    plugins = [Bundle(adapters=[FakeModel([])])]
    async with (
        flightlog.open_kernel(path, discover=False, plugins=plugins) as one,
        flightlog.open_kernel(path, discover=False, plugins=plugins) as other,
        trio.open_nursery() as owners,
    ):
        for name, kernel in zip(names, (one, other), strict=True):
            await owners.start(serve, kernel, name)
        async with trio.open_nursery() as writers:
            for name, kernel in zip(names, (one, other), strict=True):
                writers.start_soon(write, kernel, name)
        channel.send("posted")
        await trio.to_thread.run_sync(channel.recv)
        owners.cancel_scope.cancel()


def test_kernels_of_several_processes_drive_their_sessions_while_everybody_writes_to_everybody(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    pairs = [["a", "b"], ["c", "d"], ["e", "f"]]
    everybody = [name for pair in pairs for name in pair]
    said = sorted(f"{name} {number}" for name in everybody for number in range(ROUNDS))
    with ExitStack() as stack:
        children = [stack.enter_context(Child(correspond, path, pair, everybody)) for pair in pairs]
        for child in children:
            assert child.receive() == "posted"
        trio.run(until, lambda: all(len(events_of(path, UserMessage, name)) == len(said) for name in everybody))
        for child in children:
            child.send("leave")
        for child in children:
            assert child.rest() == []
    assert set(names_of(path)) == set(everybody)
    for name in everybody:
        records = assert_at_rest(path, FakeModel([]), name=name)
        assert sorted(r.event.text for r in records if isinstance(r.event, UserMessage)) == said
        taken = [r.event for r in records if isinstance(r.event, LetterTaken)]
        assert [event.outcome for event in taken] == ["obeyed"] * len(said)


# ---------------------------------------------------------------- somebody else holds the write lock


def hold(channel: Connection[Any, Any], path: Path) -> None:
    """Hold the write lock of the file from one signal to the next, over and over."""
    with plain(path) as database:
        while channel.recv():
            database.execute("PRAGMA busy_timeout = 60000")
            database.execute("BEGIN IMMEDIATE")
            channel.send("held")
            channel.recv()
            database.execute("ROLLBACK")
            channel.send("free")


Work = Callable[[flightlog.Kernel, flightlog.Session], Any]


async def create(kernel: flightlog.Kernel, session: flightlog.Session) -> None:
    async with kernel.session("new", model="fake:m"):
        pass


async def follow_up(kernel: flightlog.Kernel, session: flightlog.Session) -> None:
    await session.followup("hello")


async def write_a_letter(kernel: flightlog.Kernel, session: flightlog.Session) -> None:
    await kernel.mailbox("s").inject("hello")


async def run_a_turn(kernel: flightlog.Kernel, session: flightlog.Session) -> None:
    await session.run()


WORK = [create, follow_up, write_a_letter, run_a_turn]


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
async def test_while_another_process_holds_the_write_lock_only_what_must_write_waits(
    tmp_path: Path, work: Work
) -> None:
    path, done = tmp_path / "log.db", []
    async with opened(path, FakeModel([])) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup("first")

        async def to_be_done() -> None:
            await work(kernel, session)
            done.append(work)

        with Child(hold, path) as holder:
            holder.send(True)
            assert await trio.to_thread.run_sync(holder.receive) == "held"
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(to_be_done)
                    for _ in range(1000):
                        await trio.lowlevel.checkpoint()  # the loop goes round
                        assert not done
                    assert kernel.read("s").messages() == []
                    assert (await kernel.query("SELECT count(*) FROM inbox")).rows == ((1,),)
                    assert not done
                    holder.send("let go")
            assert done
            assert await trio.to_thread.run_sync(holder.receive) == "free"
        await session.run()
    assert_at_rest(path, FakeModel([]))


# ---------------------------------------------------------------- the file goes away under a kernel


def delete(name: str) -> None:
    os.unlink(name)


def replace(name: str) -> None:
    with open(name, "rb") as file:
        content = file.read()
    with open(f"{name}.new", "wb") as file:
        file.write(content)
    os.replace(f"{name}.new", name)


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("how", [delete, replace], ids=lambda how: how.__name__)
async def test_a_file_that_goes_away_under_a_kernel_is_noticed_before_anything_is_acknowledged(
    tmp_path: Path, suffix: str, how: Callable[[str], None], work: Work
) -> None:
    path, model = tmp_path / "log.db", FakeModel([])
    before: list[object] = []

    async def lose_the_file() -> None:
        async with opened(path, model) as kernel, kernel.session("s", model="fake:m") as session:
            await session.followup("first")
            how(f"{path}{suffix}")
            before.append(photograph(tmp_path))
            await work(kernel, session)

    with pytest.raises((FileReplaced, StoreStopped)):
        await lose_the_file()
    assert model.requests == []
    assert [photograph(tmp_path)] == before


# ---------------------------------------------------------------- a healthy owner in the middle of a tool


def open_and_leave(channel: Connection[Any, Any], path: Path) -> None:
    """Open the file to write, try for the session, run one of one's own, and leave."""

    async def visit() -> None:
        async with driven(path, "own") as session:
            await turn_of(session)
        try:
            async with driven(path, "s"):
                channel.send("owned it")
        except SessionBusy:
            channel.send("was refused")

    trio.run(visit)


async def test_processes_that_come_and_go_in_the_middle_of_a_tool_recover_and_repeat_nothing(tmp_path: Path) -> None:
    path, told = tmp_path / "log.db", []

    @flightlog.tool(effect="write")
    async def work(what: str) -> str:
        """Work while others come and go."""
        for _ in range(2):
            with Child(open_and_leave, path) as visitor:
                told.append(await trio.to_thread.run_sync(visitor.receive))
                visitor.wait()
        return "done"

    model = FakeModel([calls(("work", {"what": "this"}))])
    async with opened(path, model, work) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup("go")
        turn = await session.run()
    assert turn is not None
    assert turn.reason == "completed"
    assert told == ["was refused"] * 2
    assert [record.epoch for record in records_of(path)][-1] == 1
    assert verified(path, model)
    assert verified(path, Looker([]), name="own")
