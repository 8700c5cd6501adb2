"""Processes around one session: its owner, and those who only write letters to it.

mail_child.py own FOLDER                drives the session until it is killed
mail_child.py write FOLDER NAME CANCELS writes letters of all kinds, cancels only if CANCELS is "yes"
mail_child.py forks                     a fork server: each line {"folder": ..., "die_at": n} is an owner that
                                        takes what waits, runs until idle and dies at its n-th boundary
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import trio

import flightlog
from flightlog import Mailbox, Posted
from flightlog.runtime.clock import Boundary, no_boundary
from flightlog.store.query import run_query
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Ask, BlockEvent, Hook, Request, Tool, ToolContext
from flightlog_hookspecs.content import ToolCallBlock
from flightlog_hookspecs.events import AssistantMessage, UserMessage

PAYS_EACH = 4


class Cashier(FakeModel):
    """Pays whatever it was told to pay and has not called for yet."""

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        told = [m.text for m in request.messages if isinstance(m, UserMessage) and m.text.startswith("pay ")]
        asked = [
            json.loads(block.arguments)["to"]
            for message in request.messages
            if isinstance(message, AssistantMessage)
            for block in message.content
            if isinstance(block, ToolCallBlock)
        ]
        wanted = [("pay", {"to": text}) for text in told if text not in asked]
        yield self._play(calls(*wanted) or words("done"))


def cashier(folder: Path) -> Bundle:
    """The model, its tool, which leaves a line in the world, and a guard that always asks."""

    async def body(context: ToolContext, to: str) -> str:
        await trio.lowlevel.checkpoint()
        descriptor = os.open(folder / "paid", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{to}\n".encode())
        os.close(descriptor)
        return "paid"

    schema = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
    pay = Tool(body=body, name="pay", description="Pay.", mode="parallel", effect="write", parameters=schema)
    guard = Hook(point="before_tool", body=lambda call: Ask("may it?"), name="guard")
    return Bundle(adapters=[Cashier([])], tools=[pay], hooks=[guard])


@asynccontextmanager
async def owning(folder: Path, on_boundary: Boundary = no_boundary) -> AsyncIterator[flightlog.Session]:
    """The session, owned."""
    async with (
        flightlog.open_kernel(
            folder / "a.db", discover=False, plugins=[cashier(folder)], on_boundary=on_boundary
        ) as kernel,
        kernel.session("s", model="fake:m", approver=True) as session,
    ):
        yield session


async def own(folder: Path) -> None:
    """Drive until killed."""
    async with owning(folder) as session:
        print("ready", flush=True)  # noqa: T201
        await session.serve()


async def write(folder: Path, name: str, cancels: bool) -> None:
    """Write, and tell what was posted. Each letter is sent twice, as a sender does that is not sure."""
    posted: dict[str, str] = {}
    async with flightlog.open_kernel(folder / "a.db", discover=False) as kernel:
        mailbox = kernel.mailbox("s")

        async def twice(key: str) -> None:
            first = await send(mailbox, key)
            assert await send(mailbox, key) == first, "the same letter"
            posted[key] = first.letter_id

        for number in range(PAYS_EACH):
            for way in ("inject", "followup", "steer", *(["cancel"] if cancels else [])):
                await twice(f"{way} {name} {number}")
            for seq in open_questions(folder / "a.db"):
                await twice(f"approve {seq}")
        await twice("approve 1")
    print(json.dumps(posted), flush=True)  # noqa: T201


def open_questions(path: Path) -> list[int]:
    """The questions that wait for an answer."""
    return [seq for (seq,) in query(path, "SELECT seq FROM approvals WHERE decision = 'open'")]


def query(path: Path, sql: str) -> list[tuple[int, ...]]:
    """The rows of a query over the views."""
    return list(run_query(str(path), sql, (), limit_rows=1000, limit_s=30).rows)


async def send(mailbox: Mailbox, key: str) -> Posted:
    """The letter that `key` stands for: what to pay is said in followups and steers."""
    verb, *rest = key.split()
    match verb:
        case "inject":
            return await mailbox.inject(key, key=key)
        case "followup":
            return await mailbox.followup(f"pay {key}", key=key)
        case "steer":
            return await mailbox.steer(f"pay {key}", key=key)
        case "cancel":
            return await mailbox.cancel(key, key=key)
        case _:
            return await mailbox.approve(int(rest[0]), by="grace", key=key)


async def take_and_run(folder: Path, die_at: int) -> None:
    """An owner that takes what waits and runs until idle; dies by SIGKILL at its `die_at`-th boundary."""
    passed = count()

    def boundary(name: str, session: str, seq: int) -> None:
        if next(passed) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    async with owning(folder, boundary) as session, trio.open_nursery() as nursery:
        nursery.start_soon(allow_everything, session)
        await session.run()
        nursery.cancel_scope.cancel()
    (folder / "boundaries").write_text(str(next(passed)))


async def allow_everything(session: flightlog.Session) -> None:
    """Answer every question at once."""
    while True:
        for question in session.questions():
            await session.approve(question.seq)
        await trio.lowlevel.checkpoint()


def forks() -> None:
    """Fork an owner per line and say how it ended."""
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                trio.run(take_and_run, Path(order["folder"]), order["die_at"])
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)  # noqa: T201


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["own", folder]:
            trio.run(own, Path(folder))
        case ["write", folder, name, cancels]:
            trio.run(write, Path(folder), name, cancels == "yes")
        case _:
            forks()
