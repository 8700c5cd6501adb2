"""A process that works on two messages and kills itself at a given boundary.

Run as a script it is a fork server: each line on standard input, `{"folder": ..., "die_at": n}`, forks a
child that opens the log in that folder, does what is left to do, and dies by SIGKILL when it passes its
n-th boundary (never, for a negative n). The answer is a line with the child's exit status.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import trio.testing
from attrs import define, field

import flightlog
from flightlog import Limits, Session
from flightlog.testing import Bundle, Cue, FakeModel, calls, words
from flightlog_hookspecs import BlockEvent, FileBlock, Request, TextBlock, Tool, ToolContext, ToolOutput
from flightlog_hookspecs.content import ToolCallBlock
from flightlog_hookspecs.events import AssistantMessage, InboxSplice, Message, ToolResult, UserMessage

MESSAGES = ("do 1", "do 2")
TASKS = ("read", "idempotent", "write", "external")
LIMITS = Limits(delta_flush_ms=10)


GIVEN = FileBlock.of(b"\x89PNG given by the user", name="given.png")
MADE = FileBlock.of(b"%PDF made by a tool", name="made.pdf")


@define
class Clockwork:
    """Counts boundaries and dies at one of them; `folder` holds the log and what the world has seen."""

    folder: Path
    die_at: int
    passed: int = field(default=0, init=False)

    def boundary(self, name: str, session: str, seq: int) -> None:
        """Called around every commit and effect."""
        if self.passed == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.passed += 1

    def note(self, file: str, line: str) -> None:
        """Append a line to a file of the world, at once and whole."""
        descriptor = os.open(self.folder / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)

    def tools(self) -> list[Tool]:
        """One tool per effect; each leaves its invocation id and its task in the world."""

        def made(effect: str) -> Tool:
            async def body(context: ToolContext, task: str) -> str:
                await trio.lowlevel.checkpoint()
                self.note("effects", f"{context.invocation_id} {effect} {task}")
                self.boundary("effect", context.session, 0)
                await trio.lowlevel.checkpoint()
                return ToolOutput(content=(TextBlock(text=f"{effect} {task} done"), MADE))

            mode = "exclusive" if effect == "external" else "parallel"
            schema = {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]}
            return Tool(body=body, name=effect, description="Work.", mode=mode, effect=effect, parameters=schema)

        return [made(effect) for effect in TASKS]


def settled(messages: Sequence[Message]) -> set[tuple[str, str]]:
    """The (tool, task) pairs that are done, or must not be done again since nobody knows."""
    asked: list[ToolCallBlock] = []
    done = set()
    for message in messages:
        if isinstance(message, AssistantMessage):
            asked = [block for block in message.content if isinstance(block, ToolCallBlock)]
        elif isinstance(message, ToolResult):
            call = asked.pop(0)
            if message.outcome in ("ok", "unknown"):
                done.add((call.name, json.loads(call.arguments)["task"]))
    return done


def missing(messages: Sequence[Message]) -> list[tuple[str, object]]:
    """The calls still to be made for all that was asked, in order."""
    numbers = [m.text.removeprefix("do ") for m in messages if isinstance(m, UserMessage) and m.text.startswith("do ")]
    done = settled(messages)
    return [(task, {"task": number}) for number in numbers for task in TASKS if (task, number) not in done]


class Working(FakeModel):
    """Says what it does, calls what is still missing, and says when all is finished."""

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        async def pause() -> None:
            await trio.sleep(0.05)

        wanted = missing(request.messages)
        said = words("I am working on it." if wanted else "All is finished.", chunk=10)
        reply: list[Cue] = [cue for part in said for cue in (part, pause)]
        yield self._play([*reply, *calls(*wanted)])


async def work(clockwork: Clockwork) -> None:
    """Open the log, send what was not yet accepted, and drive until all is finished."""
    path = clockwork.folder / "a.db"
    bundle = Bundle(adapters=[Working([])], tools=clockwork.tools())
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[bundle], on_boundary=clockwork.boundary) as kernel,
        kernel.session("s", model="fake:m", limits=LIMITS) as session,
    ):
        reader = kernel.read("s")
        accepted = [
            record.event.content[0].text
            for record in reader.records()
            if isinstance(record.event, InboxSplice) and record.event.content
        ]
        for text in MESSAGES:
            if text not in accepted:
                await send(clockwork, session, text)
        await session.run()
        for _ in range(10):
            if not missing(reader.messages()) and finished(reader.messages()):
                return
            await send(clockwork, session, "go on")
            await session.run()
        raise AssertionError("it does not get anywhere")


async def send(clockwork: Clockwork, session: Session, text: str) -> None:
    """Send `text` and tell the world once it is acknowledged."""
    accepted = await session.followup((TextBlock(text=text), GIVEN))
    clockwork.note("acknowledged", accepted.message_id)


def finished(messages: Sequence[Message]) -> bool:
    """Whether the model has had the last word."""
    last = messages[-1] if messages else None
    return isinstance(last, AssistantMessage) and last.text == "All is finished."


def die_with_the_parent() -> None:
    """A test run that is stopped leaves no process behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def child(folder: Path, die_at: int) -> None:
    """What a forked child does; never returns."""
    code = 1
    die_with_the_parent()
    try:
        clockwork = Clockwork(folder, die_at)
        trio.run(work, clockwork, clock=trio.testing.MockClock(autojump_threshold=0))
        (folder / "boundaries").write_text(str(clockwork.passed))
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def serve() -> None:
    """Fork a child per line. What every child needs is imported and compiled once, by a run in here."""
    die_with_the_parent()
    with tempfile.TemporaryDirectory() as folder:
        trio.run(work, Clockwork(Path(folder), -1), clock=trio.testing.MockClock(autojump_threshold=0))
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            child(Path(order["folder"]), order["die_at"])
        _, status = os.waitpid(pid, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)  # noqa: T201


if __name__ == "__main__":
    serve()
