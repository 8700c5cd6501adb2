"""Many processes at one file: creating it, opening it after a crash, coming and going at any moment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

import flightlog
from flightlog.store import log_file
from flightlog.store.connection import ApswDatabase
from flightlog.testing import Bundle, FakeModel
from flightlog_hookspecs.events import InboxSplice
from support.files import Child, Pen, content, copied, look, opened, plain, texts, written

PROCESSES = 8
POINTS_MAX = {"quick": 8, "pr": 40}.get(os.environ.get("HYPOTHESIS_PROFILE", "quick"), sys.maxsize)


def join(channel: Connection, path: Path, name: str) -> None:
    """Wait for the start, open, write a session of one's own, stay until told to leave."""
    channel.send("ready")
    channel.recv()
    trio.run(_join, channel, path, name)


async def _join(channel: Connection, path: Path, name: str) -> None:
    bundle = Bundle(adapters=[FakeModel([])])
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[bundle]) as kernel,
        kernel.session(name, model="fake:m") as session,
    ):
        for number in range(3):
            await session.followup(f"{name} {number}")
        channel.send("done")
        channel.recv()


def all_join(path: Path) -> None:
    """`PROCESSES` processes open `path` at once and hold it until all have written."""
    with ExitStack() as stack:
        children = [stack.enter_context(Child(join, path, f"s{number}")) for number in range(PROCESSES)]
        for child in children:
            assert child.receive() == "ready"
        for message, answer in (("go", "done"), ("leave", None)):
            for child in children:
                child.send(message)
            for child in children:
                assert answer is None or child.receive() == answer
        for child in children:
            child.wait()


def accepted(path: Path) -> dict[str, list[str]]:
    return {
        name: [r.event.content[0].text for r in records if isinstance(r.event, InboxSplice) and r.event.content]
        for name, records in content(path).items()
    }


def schema_of(path: Path) -> list[Any]:
    with plain(path) as database:
        return sorted(database.execute("SELECT type, name, sql FROM sqlite_schema").fetchall())


EVERYONE = {f"s{number}": [f"s{number} {message}" for message in range(3)] for number in range(PROCESSES)}


@pytest.mark.kill
@pytest.mark.parametrize("empty_file", [False, True], ids=["no file", "an empty file"])
def test_eight_processes_that_open_one_fresh_file_at_once_all_succeed(tmp_path: Path, empty_file: bool) -> None:
    written(tmp_path / "alone.db")
    if empty_file:
        (tmp_path / "log.db").touch()
    all_join(tmp_path / "log.db")
    assert accepted(tmp_path / "log.db") == EVERYONE
    assert schema_of(tmp_path / "log.db") == schema_of(tmp_path / "alone.db")


def crash(channel: Connection, path: Path, *told: str) -> None:
    """Write and be gone, leaving everything as it is."""
    store = log_file.open_log_file(str(path), create=True)
    from flightlog.store.store import Store

    pen = Pen(Store(store), "crashed")
    for text in told:
        pen.say(text)
    channel.send("written")
    os._exit(1)


def crashed(path: Path, *told: str) -> None:
    with Child(crash, path, *told) as child:
        assert child.rest() == ["written"]
        child.wait()


@pytest.mark.kill
def test_eight_processes_that_open_a_crashed_file_at_once_all_succeed(tmp_path: Path) -> None:
    crashed(tmp_path / "log.db", "before")
    all_join(tmp_path / "log.db")
    assert accepted(tmp_path / "log.db") == {"crashed": ["before"], **EVERYONE}


def test_opening_waits_for_whoever_recovers_the_file_and_nothing_waits_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_ms = []
    check_whole = log_file.check_whole

    def ask(database: ApswDatabase, path: str, witnessed: int | None) -> int:
        waits_ms.append(database._connection.pragma("busy_timeout"))
        return check_whole(database, path, witnessed)

    monkeypatch.setattr(log_file, "check_whole", ask)
    with opened(tmp_path / "log.db") as store:
        assert waits_ms[0] >= 5000
        assert store.database._connection.pragma("busy_timeout") == 0  # type: ignore[attr-defined]


# ---------------------------------------------------------------- another process, at any moment of our opening


class Interruption:
    """Runs `happen` once, when `open_log_file` arrives at the line number `at`; counts the lines."""

    # Not inside the one write transaction, where the other would have to wait for us.
    FUNCTIONS = ("open_log_file", "_check_whole", "_witness", "read_witness", "_inspect", "_check_mode", "_mark_open")

    def __init__(self, at: int | None, happen: Callable[[], object]) -> None:
        self.at, self.happen, self.passed = at, happen, 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_name in self.FUNCTIONS else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.passed += 1
            if self.passed == self.at:
                self.happen()
        return self._line


def come(channel: Connection, path: Path, end: str) -> None:
    """Open, write, and then stay, leave or die."""
    with opened(path) as store:
        pen = Pen(store, "other")
        pen.say("ordinary", barrier=False)
        pen.say("barrier")
        channel.send("written")
        if end == "stays":
            channel.recv()
        if end == "dies":
            os._exit(1)


STATES: dict[str, Callable[[Path], object]] = {
    "closed cleanly": lambda path: written(path, "before", name="crashed"),
    "crashed": lambda path: crashed(path, "before"),
    "crashed and looked at": lambda path: (crashed(path, "before"), look(path)),
}


@pytest.mark.kill
@pytest.mark.parametrize("end", ["stays", "leaves", "dies", "dies and is looked at"])
@pytest.mark.parametrize("state", STATES)
def test_opening_succeeds_whatever_another_process_does_in_the_middle_of_it(
    tmp_path: Path, state: str, end: str
) -> None:
    STATES[state](tmp_path / "master.db")
    counted = Interruption(None, lambda: None)
    with counted.watching(), opened(copied(tmp_path / "master.db", tmp_path / "counted.db")):
        pass
    for at in range(1, counted.passed + 1, -(-counted.passed // POINTS_MAX)):
        path = copied(tmp_path / "master.db", tmp_path / f"{at}.db")
        with ExitStack() as stack:

            def happen(path: Path = path, stack: ExitStack = stack) -> None:
                child = stack.enter_context(Child(come, path, end.split(maxsplit=1)[0]))
                assert child.receive() == "written"
                if end != "stays":
                    child.wait()
                if end == "dies and is looked at":
                    look(path)

            with Interruption(at, happen).watching(), opened(path) as store:
                Pen(store, "ours").say("after")
        assert accepted(path) == {"crashed": ["before"], "other": ["ordinary", "barrier"], "ours": ["after"]}, at


def come_and_go(channel: Connection, path: Path, rounds: int) -> None:
    """Look, as other programs do: open, select, close, as often as told."""
    for _ in range(rounds):
        look(path)
    channel.send("gone")


@pytest.mark.kill
def test_a_log_survives_readers_of_another_program_that_come_and_go_all_the_time(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with opened(path) as store:
        pen = Pen(store)
        with Child(come_and_go, path, 150) as one, Child(come_and_go, path, 150) as two:
            said = 0
            while said < 150 or not (one.channel.poll() and two.channel.poll()):
                if said % 50 == 0:
                    look(path)  # inside the owner process, which drops SQLite's own locks
                pen.say(str(said), barrier=said % 4 == 0)
                said += 1
            assert one.receive() == two.receive() == "gone"
    assert texts(path) == [str(number) for number in range(said)]
