"""The asyncio face: nothing blocks the loop, cancelling is delivered and waited for, errors arrive alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from flightlog import aio
from flightlog.testing import Bundle, FakeModel, words
from flightlog_hookspecs.errors import SessionBusy, UsageError
from flightlog_hookspecs.events import SessionClosed, TurnEnd
from flightlog_plugins.structured_output import StructuredOutput
from support.children import told_by
from support.kernels import events_of, kinds_of, records_of, verified


def kernel_of(path: Path, *replies: Any) -> Any:
    return aio.open_kernel(path, discover=False, plugins=[Bundle(adapters=[FakeModel(replies)])])


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `main` under asyncio in debug mode, giving up on a test that hangs."""

    async def bounded() -> None:
        await asyncio.wait_for(main(), 60)

    asyncio.run(bounded(), debug=True)


class Gate:
    """A model's reply stops here: `reached` is for asyncio, `wait` for trio."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.ended: list[str] = []

    async def wait(self) -> None:
        self._loop.call_soon_threadsafe(self.reached.set)
        try:
            await trio.sleep_forever()
        finally:
            self.ended.append("cancelled")


def test_a_conversation_under_asyncio(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def main() -> None:
        async with kernel_of(path, words("one")) as kernel, kernel.session("s", model="fake:m") as session:
            accepted = await session.followup("hi")
            assert (session.id, session.pending, session.token) == ("s", 1, accepted.token)
            turn = await session.run()
            assert (turn.reason, turn.text) == ("completed", "one")
            assert await session.run() is None
            assert await session.cancel() is False
            assert await session.questions() == []
            assert (await kernel.query("SELECT reason FROM turns")).rows == (("completed",),)
            reader = kernel.read("s")
            assert [message.text for message in await reader.messages()] == ["hi", "one"]
            assert (await reader.request(1, 1)).proven
            records = [record async for record in reader.records()]
            assert await reader.verify() == len(records) == len(await reader.timeline()) == session.token.seq

    run(main)
    assert verified(path)
    assert kinds_of(path)[-1] == "session/closed"


def test_an_answer_in_json_is_a_value(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            kernel_of(tmp_path / "a.db", words("eight"), words('{"legs": 8}')) as kernel,
            kernel.session("s", model="fake:m") as session,
            await session.register(StructuredOutput({"type": "object"})),
        ):
            await session.followup("legs?")
            assert (await session.run()).json() == {"legs": 8}

    run(main)


def test_events_are_followed_by_many_tasks_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def main() -> None:
        async def all_of(stream: Any) -> list[Any]:
            return [record async for record in stream]

        async with kernel_of(path, words("one")) as kernel:
            async with kernel.session("s", model="fake:m") as session:
                following = [asyncio.create_task(all_of(session.events(after=number))) for number in range(3)]
                await session.followup("hi")
                await session.run()
            whole = records_of(path, deltas=True)
            assert [await task for task in following] == [whole[number:] for number in range(3)]
            stream = kernel.read("s").events()
            old = [await anext(stream) for _ in whole]
            reader = asyncio.create_task(all_of(stream))
            async with kernel.session("s", model="fake:m"):
                pass
        assert old + await reader == records_of(path, deltas=True)

    run(main)


def test_whoever_reads_on_after_the_close_gets_the_last_records(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def main() -> None:
        async with kernel_of(path, words("one")) as kernel, kernel.session("s", model="fake:m") as session:
            stream = session.events()
            found = [await anext(stream)]
            await session.followup("hi")
            await session.run()
        assert found + [record async for record in stream] == records_of(path, deltas=True)

    run(main)


@pytest.mark.parametrize("through", ["task", "timeout"])
def test_cancelling_ends_the_turn_and_waits_for_it(tmp_path: Path, through: str) -> None:
    path = tmp_path / "a.db"

    async def main() -> None:
        gate = Gate()
        async with kernel_of(path, [gate.wait]) as kernel, kernel.session("s", model="fake:m") as session:
            await session.followup("hi")
            if through == "task":
                running = asyncio.create_task(session.run())
                await gate.reached.wait()
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            else:
                with pytest.raises(TimeoutError):
                    await _timed_out(gate, session)
            assert gate.ended == ["cancelled"]
            assert events_of(path, TurnEnd)[-1].reason == "aborted", "it was waited for"
            await session.followup("again")
            assert session.pending == 1

    run(main)


async def _timed_out(gate: Gate, session: aio.Session) -> None:
    async with asyncio.timeout(None) as limit:
        expiring = asyncio.create_task(_expire(gate, limit))
        await session.run()
    await expiring


async def _expire(gate: Gate, limit: asyncio.Timeout) -> None:
    await gate.reached.wait()
    limit.reschedule(0)


def test_cancelling_twice_still_waits(tmp_path: Path) -> None:
    async def main() -> None:
        release, winding_down = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        gate = Gate()

        async def slow_end() -> None:
            try:
                await gate.wait()
            finally:
                with trio.CancelScope(shield=True):
                    loop.call_soon_threadsafe(winding_down.set)
                    await trio.to_thread.run_sync(release.wait, 60)

        path = tmp_path / "a.db"
        async with kernel_of(path, [slow_end]) as kernel, kernel.session("s", model="fake:m") as session:
            await session.followup("hi")
            running = asyncio.create_task(session.run())
            await gate.reached.wait()
            running.cancel()
            await winding_down.wait()
            running.cancel()
            await asyncio.wait([running], timeout=0)
            assert not running.done()
            release.set()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert events_of(path, TurnEnd)[-1].reason == "aborted"

    run(main)


def test_a_cancelled_wait_for_events_loses_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with kernel_of(tmp_path / "a.db") as kernel, kernel.session("s", model="fake:m") as session:
            stream = session.events()
            got = [await anext(stream) for _ in range(session.token.seq)]
            for number in range(20):
                waiting = asyncio.create_task(anext(stream))
                await asyncio.wait([waiting], timeout=0)
                accepted = asyncio.create_task(session.followup(f"{number}"))
                for _ in range(number % 4):  # cancelled at several moments of the delivery
                    await asyncio.wait([accepted], timeout=0)
                waiting.cancel()
                with suppress(asyncio.CancelledError):
                    got.append(await waiting)
                await accepted
            while len(got) < session.token.seq:
                got.append(await anext(stream))
            assert [record.seq for record in got] == list(range(1, session.token.seq + 1))

    run(main)


def test_a_session_whose_opening_is_cancelled_is_not_left_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with kernel_of(tmp_path / "a.db") as kernel:

            async def hold() -> None:
                async with kernel.session("s", model="fake:m"):
                    await asyncio.Event().wait()

            for rounds in range(12):
                holding = asyncio.create_task(hold())
                for _ in range(rounds):
                    await asyncio.wait([holding], timeout=0)
                holding.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await holding
            async with kernel.session("s", model="fake:m"):
                pass

    run(main)


def test_the_loop_goes_on_while_a_turn_runs_and_while_a_query_does(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        path = tmp_path / "a.db"
        async with kernel_of(path, [gate.wait]) as kernel, kernel.session("s", model="fake:m") as session:
            await session.followup("hi")
            running = asyncio.create_task(session.run())
            await gate.reached.wait()  # the loop turned while run() was waited for
            assert not running.done()
            assert (await kernel.query("SELECT count(*) FROM turns")).rows == ((1,),)
            assert await session.cancel("enough")
            assert (await running).cause == "enough"

    run(main)


def test_errors_arrive_alone_and_as_they_are(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="not a folder"):
            async with aio.open_kernel(tmp_path / "a.db", workspace="/no/such/folder"):
                pass
        async with kernel_of(tmp_path / "a.db") as kernel:
            with pytest.raises(UsageError, match="no session"):
                await kernel.read("nobody").messages()
            async with kernel.session("s", model="fake:m") as session:
                with pytest.raises(SessionBusy):
                    async with kernel.session("s", model="fake:m"):
                        pass
                with pytest.raises(UsageError, match="a message is"):
                    await session.followup(3)
        for late in (session.run, lambda: kernel.query("SELECT 1"), kernel.read("s").messages):
            with pytest.raises(UsageError, match="the kernel is closed"):
                await _awaited(late)

    run(main)


async def _awaited(function: Callable[[], Awaitable[object]]) -> None:
    await function()


def test_a_program_that_ends_in_the_middle_closes_its_turn_and_session(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def main() -> None:
        gate = Gate()
        async with kernel_of(path, [gate.wait]) as kernel, kernel.session("s", model="fake:m") as session:
            await session.followup("hi")
            running = asyncio.create_task(session.run())
            await gate.reached.wait()
        assert (await running).reason == "aborted"

    run(main)
    assert isinstance(records_of(path)[-1].event, SessionClosed)
    assert verified(path)


def test_several_loops_in_several_threads_share_one_kernel(tmp_path: Path) -> None:
    async def main() -> None:
        async with kernel_of(tmp_path / "a.db") as kernel, kernel.session("s", model="fake:m") as session:

            async def send(number: int) -> None:
                await session.followup(f"{number}")

            await asyncio.gather(*(asyncio.to_thread(lambda n=number: asyncio.run(send(n))) for number in range(6)))
            assert session.pending == 6

    run(main)


@pytest.mark.parametrize("way", ["leave", "cancel"])
def test_a_worker_is_a_task_of_the_loop_and_hands_over_what_it_works_on(tmp_path: Path, way: str) -> None:
    async def main() -> None:
        gate = Gate()
        async with kernel_of(tmp_path / "a.db", [gate.wait]) as kernel:
            working = asyncio.create_task(kernel.work())
            task = await kernel.tasks.submit("sweep", model="fake:m")
            await gate.reached.wait()
            if way == "cancel":
                working.cancel()
            else:
                await kernel.leave_work(grace_s=0)
            with suppress(asyncio.CancelledError):
                await working
            assert (gate.ended, working.cancelled()) == (["cancelled"], way == "cancel")
            assert (await kernel.tasks.show(task)).cause == "handed_over"

    run(main)


FORK = """
import asyncio, json, os, sys
from flightlog import aio
from flightlog.testing import Bundle, FakeModel
from flightlog_hookspecs.errors import ForkedProcess

def refused(call):
    try:
        coroutine = call()
        coroutine.send(None)
    except ForkedProcess:
        return True

async def main():
    async with aio.open_kernel(sys.argv[1], discover=False, plugins=[Bundle(adapters=[FakeModel([])])]) as kernel:
        async with kernel.session("s", model="fake:m") as session:
            await session.followup("before")
            child = os.fork()
            if child == 0:
                calls = [lambda: session.followup("x"), session.run, lambda: kernel.read("s").verify(),
                         lambda: kernel.query("SELECT 1"), lambda: kernel.mailbox("s").followup("x"), session.cancel,
                         lambda: kernel.session("t", model="fake:m").__aenter__()]
                os._exit(0 if all(refused(call) for call in calls) else 7)
            _, status = os.waitpid(child, 0)
            await session.followup("after")
            turn = await session.run()
    print(json.dumps([os.waitstatus_to_exitcode(status), turn.number, turn.reason]))

asyncio.run(main())
"""


@pytest.mark.kill
def test_a_forked_child_is_refused_at_once_and_its_end_does_the_parent_no_harm(tmp_path: Path) -> None:
    assert told_by(FORK, str(tmp_path / "a.db")) == [0, 2, "completed"]
    assert verified(tmp_path / "a.db", FakeModel([]))
