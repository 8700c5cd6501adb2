"""The fault laboratory's scripts in processes that are really killed.

Run as a script it is a fork server, which holds no connection and no loop: each line on standard input is
an `Order`, as JSON; the answer is a line with the child's exit status. What the child is told of (effects
apart, which it appends to a file) goes through the pipe whose descriptor is the first argument, at the
moment it happens.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

import trio
import trio.testing
from attrs import asdict, define, field, frozen
from child import die_with_the_parent

from flightlog.testing.faults import named
from flightlog.testing.faults.determinism import deterministic
from flightlog.testing.faults.life import live, workspace_of
from flightlog.testing.faults.recorder import Recorder, recording
from flightlog.testing.faults.world import Done, Fact, World

EFFECTS = "effects"


@frozen(kw_only=True)
class Order:
    """A life to live in `folder`; number `number` of its log's.

    Killed when it passes its boundary number `die_at`, or `kill_after_s` seconds after its beginning.
    """

    folder: str
    script: str
    number: int = 0
    die_at: int | None = None
    kill_after_s: float | None = None


class _Told(list[Fact]):
    """A ledger that lets go of each fact at once."""

    def __init__(self, pipe: int, folder: Path) -> None:
        super().__init__()
        self._pipe = pipe
        self._effects = os.open(folder / EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def append(self, fact: Fact) -> None:
        super().append(fact)
        os.write(self._effects if isinstance(fact, Done) else self._pipe, base64.b64encode(pickle.dumps(fact)) + b"\n")


@define
class Doomed(World):
    """Kills its process at boundary number `die_at`, before anybody hears of it."""

    die_at: int | None = field(kw_only=True)
    passed: int = field(default=0, init=False)

    def boundary(self, name: str, session: str, seq: int) -> None:
        """The kernel's `on_boundary`."""
        if self.passed == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.passed += 1
        super().boundary(name, session, seq)


def facts_in(told: bytes) -> list[Fact]:
    """The facts in what a ledger let go of."""
    return [pickle.loads(base64.b64decode(line)) for line in told.split(b"\n")[:-1]]


def lived(order: Order, world: World) -> None:
    """Live as ordered, with the laboratory's clock, scheduler and salts."""
    path = f"{order.folder}/a.db"
    Path(order.folder, "files").mkdir(exist_ok=True)
    script = named(order.script)
    os.makedirs(workspace_of(path), exist_ok=True)
    with deterministic(), recording(Recorder(path)):
        trio.run(
            lambda: live(path, script, world, seed=1, number=order.number),
            clock=trio.testing.MockClock(autojump_threshold=0),
        )


def child(order: Order, pipe: int) -> None:
    """What a forked child does; never returns."""
    code = 1
    die_with_the_parent()
    try:
        effects = Path(order.folder) / EFFECTS
        earlier = facts_in(effects.read_bytes()) if effects.exists() else []
        lived(order, Doomed(_Told(pipe, Path(order.folder)), earlier, die_at=order.die_at))
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def serve(pipe: int) -> None:
    """Fork a child per line. What every child needs is imported and compiled once, by a run in here."""
    die_with_the_parent()
    with tempfile.TemporaryDirectory() as folder:
        lived(Order(folder=folder, script="mailbox"), World())
    for line in sys.stdin:
        order = Order(**json.loads(line))
        pid = os.fork()
        if pid == 0:
            child(order, pipe)
        if order.kill_after_s is not None:
            time.sleep(order.kill_after_s)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)  # noqa: T201


def written(order: Order) -> str:
    """An order as a line."""
    return json.dumps(asdict(order)) + "\n"


if __name__ == "__main__":
    serve(int(sys.argv[1]))
