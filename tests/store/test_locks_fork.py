"""The host forks while the log is open: the child is refused at once, the parent is none the worse."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import trio

import flightlog
from flightlog.testing import Bundle, FakeModel
from flightlog_hookspecs.errors import ForkedProcess
from support.files import Child, Pen, opened, texts

pytestmark = pytest.mark.kill


def in_a_fork(function: Callable[[], Any]) -> None:
    """Run `function` in a forked child of this process and wait for its end."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def error_of(function: Callable[[], object]) -> str:
    try:
        function()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def fork_with_a_store(channel: Connection, path: Path) -> None:
    with opened(path) as store:
        pen = Pen(store)
        pen.say("before")

        def child() -> None:
            attempts: dict[str, Callable[[], object]] = {
                "check": store.check_alive,
                "commit": lambda: pen.say("forked"),
                "read": lambda: store.key_of("s"),
                "rows": lambda: list(store.rows(1)),
            }
            channel.send({name: error_of(attempt) for name, attempt in attempts.items()})
            store.close()  # does nothing, and must not

        in_a_fork(child)
        pen.say("after")
        channel.send("parent goes on")


def test_a_forked_child_is_refused_everything_and_its_end_does_the_parent_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with Child(fork_with_a_store, path) as parent:
        assert parent.receive() == dict.fromkeys(("check", "commit", "read", "rows"), "ForkedProcess")
        assert parent.receive() == "parent goes on"
        parent.wait()
    assert texts(path) == ["before", "after"]


def fork_with_a_kernel(channel: Connection, path: Path) -> None:
    trio.run(_fork_with_a_kernel, channel, path)


async def _fork_with_a_kernel(channel: Connection, path: Path) -> None:
    bundle = Bundle(adapters=[FakeModel([])])
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[bundle]) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await session.followup("before")

        def step(awaitable: Any) -> object:
            """What an async call does before it gives the loop a turn: here it must already refuse."""
            return awaitable.send(None)

        def child() -> None:
            attempts: dict[str, Callable[[], object]] = {
                "followup": lambda: step(session.followup("forked")),
                "run": lambda: step(session.run()),
                "read": lambda: kernel.read("s"),
                "leave": lambda: step(kernel.session("t", model="fake:m").__aenter__()),
            }
            channel.send({name: error_of(attempt) for name, attempt in attempts.items()})

        in_a_fork(child)
        await session.followup("after")
        await session.run()
        channel.send("parent goes on")


def test_a_forked_child_of_a_kernel_is_refused_before_it_touches_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with Child(fork_with_a_kernel, path) as parent:
        assert parent.receive() == dict.fromkeys(("followup", "run", "read", "leave"), "ForkedProcess")
        assert parent.receive() == "parent goes on"
        parent.wait()
    assert texts(path) == ["before", "after"]


def fork_and_be_killed(channel: Connection, path: Path) -> None:
    """Leave a child that outlives us, until the test lets it go."""
    with opened(path) as store:
        pen = Pen(store)
        pen.say("before")
        store.locks.own_session(pen.key)
        pid = os.fork()
        if pid == 0:
            channel.send(os.getpid())
            signal.pause()
        signal.pause()


def test_the_locks_are_free_when_the_parent_is_killed_though_a_child_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with Child(fork_and_be_killed, path) as parent:
        orphan = parent.receive()
        parent.kill()
        try:
            with opened(path) as store:
                assert store.locks.own_session(Pen(store).key)
                Pen(store).say("after")
                assert store.locks.alone()
        finally:
            os.kill(orphan, signal.SIGKILL)
    assert texts(path) == ["before", "after"]


def fork_and_open_again(channel: Connection, path: Path) -> None:
    """The child opens the log for itself, writes when told, and outlives us."""
    with opened(path) as store:
        Pen(store, "parent").say("before")
        if os.fork() == 0:
            with opened(path) as own:
                pen = Pen(own, "child")
                channel.send(os.getpid())
                while text := channel.recv():
                    pen.say(text)
                    channel.send(text)
            channel.send("left")
            os._exit(0)
        signal.pause()


def join(channel: Connection, path: Path, name: str) -> None:
    with opened(path) as store:
        Pen(store, name).say("hello")
    channel.send("left")


def test_a_child_may_open_the_log_for_itself_and_outlive_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with Child(fork_and_open_again, path) as parent:
        orphan = parent.receive()
        try:
            parent.send("one")
            assert parent.receive() == "one"
            parent.kill()
            for number in range(3):
                with Child(join, path, f"passer-by {number}") as other:
                    assert other.receive() == "left"
                    other.wait()
                parent.send(f"{number}")
                assert parent.receive() == f"{number}"
            parent.send("")
            assert parent.receive() == "left"
        finally:
            os.kill(orphan, signal.SIGKILL)
    assert texts(path, "child") == ["one", "0", "1", "2"]
    assert texts(path, "parent") == ["before"]
    assert all(texts(path, f"passer-by {number}") == ["hello"] for number in range(3))


FORKING_HOST = """
    import os, sys
    from pathlib import Path
    from support.files import Pen, opened

    with opened(Path(sys.argv[1])) as store:
        pen = Pen(store)
        pen.say("before")
        if os.fork() == 0:
            del store, pen
            sys.exit(0)  # the ordinary way out: everything inherited is collected
        os.wait()
        pen.say("between")
        if os.fork() == 0:
            raise SystemExit
        os.wait()
        pen.say("after")
"""


def test_a_child_that_ends_the_ordinary_way_does_the_parent_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    host = [sys.executable, "-W", "error", "-c", textwrap.dedent(FORKING_HOST), str(path)]
    folders = os.pathsep.join(folder for folder in sys.path if folder)
    ran = subprocess.run(host, env={**os.environ, "PYTHONPATH": folders}, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert texts(path) == ["before", "between", "after"]


def test_the_error_names_both_processes_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "log.db") as store:
        parent = os.getpid()
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(os, "getpid", lambda: 4242)
            with pytest.raises(ForkedProcess) as caught:
                store.check_alive()
        assert f"opened by process {parent}, this is its child 4242" in str(caught.value)
        assert "Open a kernel of your own" in str(caught.value)
        store.check_alive()
