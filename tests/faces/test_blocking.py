"""The blocking face: scripts, threads, notebooks, Ctrl-C, forks and the end of the interpreter."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio

from flightlog import sync, tool
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs.errors import LogCorrupt, SessionBusy, UsageError
from flightlog_hookspecs.events import SessionClosed, ToolResult, TurnEnd
from flightlog_plugins.structured_output import StructuredOutput
from support.children import run_python, told_by
from support.files import plain
from support.kernels import events_of, kinds_of, records_of, verified


def kernel_of(path: Path, *replies: Any, tools: Any = ()) -> Any:
    return sync.open_kernel(path, discover=False, plugins=[Bundle(adapters=[FakeModel(replies)], tools=tools)])


def test_a_conversation_from_a_script(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with kernel_of(path, words("one"), words("two")) as kernel, kernel.session("s", model="fake:m") as session:
        accepted = session.followup("hi")
        assert (session.id, session.pending, session.token) == ("s", 1, accepted.token)
        turn = session.run()
        assert (turn.reason, turn.text) == ("completed", "one")
        assert session.run() is None
        assert session.cancel() is False
        assert session.questions() == []
        assert kernel.query("SELECT reason FROM turns").rows == (("completed",),)
        reader = kernel.read("s")
        assert [message.text for message in reader.messages()] == ["hi", "one"]
        assert reader.request(1, 1).proven
        assert reader.verify() == len(list(reader.records())) == len(reader.timeline()) == session.token.seq
    assert verified(path)
    assert kinds_of(path)[-1] == "session/closed"


def test_an_answer_in_json_is_a_value(tmp_path: Path) -> None:
    with (
        kernel_of(tmp_path / "a.db", words("eight"), words('{"legs": 8}')) as kernel,
        kernel.session("s", model="fake:m") as session,
        session.register(StructuredOutput({"type": "object"})),
    ):
        session.followup("legs?")
        assert session.run().json() == {"legs": 8}


def test_events_are_followed_from_another_thread_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with ThreadPoolExecutor() as pool, kernel_of(path, words("one")) as kernel:
        with kernel.session("s", model="fake:m") as session:
            following = [pool.submit(list, session.events()) for _ in range(5)]
            session.followup("hi")
            session.run()
        whole = records_of(path, deltas=True)
        for found in following:
            assert found.result() == whole
        stream = kernel.read("s").events(after=3)
        old = [next(stream) for _ in whole[3:]]
        reader = pool.submit(list, stream)
        with kernel.session("s", model="fake:m"):
            pass
    assert old + reader.result() == records_of(path, deltas=True)[3:], "the kernel's close ended it"


@pytest.mark.parametrize("read", [1, 2])
def test_whoever_reads_on_after_the_close_gets_the_last_records(tmp_path: Path, read: int) -> None:
    path = tmp_path / "a.db"
    with kernel_of(path, words("one")) as kernel, kernel.session("s", model="fake:m") as session:
        stream = kernel.read("s").events()
        found = [next(stream) for _ in range(read)]
        session.followup("hi")
        session.run()
    assert found + list(stream) == records_of(path, deltas=True)


def test_whoever_stood_too_far_back_at_the_close_is_told_where_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with kernel_of(path, words("one")) as kernel:
        with kernel.session("s", model="fake:m") as session:
            session.followup("hi")
            session.run()
        stream = kernel.read("s").events()
        with kernel.session("s", model="fake:m"):
            pass
    whole = records_of(path, deltas=True)
    with pytest.raises(UsageError, match=f"stood at 0 of {len(whole)} records; go on with events\\(after=0\\)"):
        next(stream)


def test_many_threads_share_one_kernel(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with kernel_of(path) as kernel, ThreadPoolExecutor(16) as pool:

        def talk(name: str) -> str:
            with kernel.session(name, model="fake:m") as session:
                session.followup("hi")
                return session.run().reason

        assert list(pool.map(talk, [f"s{number}" for number in range(24)])) == ["completed"] * 24
        with kernel.session("shared", model="fake:m") as session:
            accepted = list(pool.map(session.followup, map(str, range(30))))
            session.run()
        assert len({one.message_id for one in accepted}) == 30
    assert len(events_of(path, TurnEnd, "shared")) == 30


def test_errors_arrive_as_they_are_in_the_thread_that_caused_them(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with pytest.raises(UsageError, match="not a folder"), sync.open_kernel(path, workspace="/no/such/folder"):
        pass
    with kernel_of(path) as kernel:
        with pytest.raises(UsageError, match="no session"):
            kernel.read("nobody")
        with pytest.raises(UsageError, match="seq of the last"), kernel.session("t", model="fake:m") as session:
            session.events(after=-1)
        with kernel.session("s", model="fake:m") as session:
            with pytest.raises(SessionBusy), kernel.session("s", model="fake:m"):
                pass
            with pytest.raises(UsageError, match="a message is"):
                session.followup(3)
        with pytest.raises(UsageError, match="session 's' is closed"):
            session.followup("late")
    for late in (session.run, lambda: kernel.read("s"), lambda: kernel.query("SELECT 1"), lambda: session.token):
        with pytest.raises(UsageError, match="the kernel is closed"):
            late()
    with plain(path) as connection:
        connection.execute("DROP TRIGGER events_update")
        connection.execute("UPDATE events SET at = at + 1 WHERE seq = 2")
    with kernel_of(path) as kernel, pytest.raises(LogCorrupt), kernel.session("s", model="fake:m"):
        pass


def test_an_error_in_the_hosts_block_closes_everything_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with pytest.raises(ZeroDivisionError), kernel_of(path) as kernel, kernel.session("s", model="fake:m"):
        1 / 0  # noqa: B018
    assert isinstance(records_of(path)[-1].event, SessionClosed)
    with kernel_of(path) as kernel, kernel.session("s", model="fake:m"):
        pass


def test_closing_the_kernel_leaves_the_sessions_that_other_threads_hold_first(tmp_path: Path) -> None:
    path, entered, closed = tmp_path / "a.db", threading.Event(), threading.Event()
    with ThreadPoolExecutor() as pool:
        with kernel_of(path) as kernel:

            def hold() -> None:
                with kernel.session("s", model="fake:m"):
                    entered.set()
                    assert closed.wait(60)

            holding = pool.submit(hold)
            assert entered.wait(60)
        assert isinstance(records_of(path)[-1].event, SessionClosed)
        closed.set()
        holding.result()


def to_the_process() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def to_this_thread() -> None:
    """As a system may deliver it: nothing wakes the thread that waits."""
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("send", [to_the_process, to_this_thread], ids=lambda send: send.__name__)
def test_ctrl_c_cancels_the_turn_that_is_waited_for_and_the_session_lives_on(
    tmp_path: Path, send: Any, times: int
) -> None:
    path = tmp_path / "a.db"

    async def interrupt() -> None:
        send()
        await trio.sleep_forever()

    with (
        kernel_of(path, [interrupt], *[words("again")] * 3) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        for _ in range(times):
            session.followup("hi")
            with pytest.raises(KeyboardInterrupt):
                session.run()
            assert [end.reason for end in events_of(path, TurnEnd)][-1] == "aborted", "it was waited for"
    assert verified(path)


def test_any_exception_of_a_signal_handler_cancels_what_is_waited_for(tmp_path: Path) -> None:
    class TooLate(Exception):
        pass

    def handler(*_: object) -> None:
        raise TooLate

    async def alarm() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        await trio.sleep_forever()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with kernel_of(tmp_path / "a.db", [alarm]) as kernel, kernel.session("s", model="fake:m") as session:
            session.followup("hi")
            with pytest.raises(TooLate):
                session.run()
            assert events_of(tmp_path / "a.db", TurnEnd)[-1].reason == "aborted"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_it_works_inside_a_running_event_loop(tmp_path: Path) -> None:
    """A notebook's cell: blocking code while an event loop runs in this very thread."""

    def cell() -> str:
        with kernel_of(tmp_path / "a.db", words("one")) as kernel, kernel.session("s", model="fake:m") as session:
            session.followup("hi")
            return session.run().text

    async def asyncio_main() -> str:
        return cell()

    assert asyncio.run(asyncio_main()) == "one"


def test_a_tool_may_use_the_kernel_from_its_thread_but_not_from_the_kernels(tmp_path: Path) -> None:
    kernels: list[sync.Kernel] = []

    def count() -> str:
        """Count."""
        return str(kernels[0].query("SELECT count(*) FROM session_keys").rows[0][0])

    async def inline() -> str:
        """Count on the wrong thread."""
        return count()

    tools = [tool(count), tool(inline)]
    replies = [calls(("count", {}), ("inline", {})), words("done")]
    with kernel_of(tmp_path / "a.db", *replies, tools=tools) as kernel, kernel.session("s", model="fake:m") as session:
        kernels.append(kernel)
        session.followup("count")
        session.run()
        results = [message for message in kernel.read("s").messages() if isinstance(message, ToolResult)]
    assert results[0].text == "1"
    assert "kernel's own thread" in results[1].text


def test_serve_ends_when_the_session_is_closed(tmp_path: Path) -> None:
    outcome: Future[Any]
    with ThreadPoolExecutor() as pool:
        with kernel_of(tmp_path / "a.db", words("one")) as kernel, kernel.session("s", model="fake:m") as session:
            outcome = pool.submit(session.serve)
            session.followup("hi")
            for record in session.events():
                if isinstance(record.event, TurnEnd):
                    break
        with pytest.raises(UsageError, match="closed"):
            outcome.result()


AT_EXIT = """
import sys, threading
from contextlib import ExitStack
import flightlog

held = ExitStack()
kernel = held.enter_context(flightlog.sync.open_kernel(sys.argv[1]))
session = held.enter_context(kernel.session("s", model="scripted:count?to=100000&pace_ms=5"))
session.followup("go")
threading.Thread(target=session.run, daemon=True).start()
next(record for record in session.events() if record.event.kind == "assistant/delta")
print("leaving", flush=True)
"""


@pytest.mark.kill
def test_an_interpreter_that_ends_with_an_open_kernel_closes_it(tmp_path: Path) -> None:
    done = run_python(AT_EXIT, str(tmp_path / "a.db"))
    assert (done.returncode, done.stdout) == (0, "leaving\n"), done.stderr
    assert kinds_of(tmp_path / "a.db")[-2:] == ["turn/end", "session/closed"]


FORK = """
import json, os, sys
import flightlog.sync
from flightlog.testing import Bundle, FakeModel
from flightlog_hookspecs.errors import ForkedProcess

def refused(function):
    try:
        function()
    except ForkedProcess:
        return True

with flightlog.sync.open_kernel(sys.argv[1], discover=False, plugins=[Bundle(adapters=[FakeModel([])])]) as kernel:
    with kernel.session("s", model="fake:m") as session:
        session.followup("before")
        child = os.fork()
        if child == 0:
            calls = [lambda: session.followup("x"), session.run, lambda: kernel.read("s"), lambda: session.token,
                     lambda: kernel.query("SELECT 1"), lambda: kernel.session("t").__enter__(), session.cancel]
            ok = all(refused(call) for call in calls)
            sys.exit(0 if ok else 7)  # leaves both contexts and runs the exit handlers
        _, status = os.waitpid(child, 0)
        session.followup("after")
        turn = session.run()
print(json.dumps([os.waitstatus_to_exitcode(status), turn.number, turn.reason]))
"""


@pytest.mark.kill
def test_a_forked_child_is_refused_at_once_and_its_end_does_the_parent_no_harm(tmp_path: Path) -> None:
    assert told_by(FORK, str(tmp_path / "a.db")) == [0, 2, "completed"]
    assert verified(tmp_path / "a.db")


def test_tasks_from_a_script_and_a_worker_in_another_thread(tmp_path: Path) -> None:
    with kernel_of(tmp_path / "a.db", words("swept")) as kernel, ThreadPoolExecutor(1) as pool:
        working = pool.submit(kernel.work)
        task = kernel.tasks.submit("sweep", model="fake:m")
        assert kernel.tasks.wait(task).state == "completed"
        assert [one.id for one in kernel.tasks.list("completed")] == [task]
        with pytest.raises(UsageError, match="completed"):
            kernel.tasks.pause(task)
        paused = kernel.tasks.submit("mop", model="fake:m", key="k")
        assert kernel.tasks.submit("mop", model="fake:m", key="k") == paused
        assert kernel.tasks.wait(paused).ended
        kernel.leave_work()
        assert working.result(60) is None
