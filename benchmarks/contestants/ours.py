"""flightlog: the whole loop, once more with compaction on, once more as a task, and its journal alone.

In the loop a step is a request, a streamed answer with a call, and the tool, which lays the next question into the
inbox. All of that is in the log, so it can be resumed at more points than the three messages have.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

import trio

import flightlog
import flightlog.api  # in time: what it takes to import is not measured here, as of the others
from contestants.step import NAME, Contestant, Pace, Resume, arguments, question, result
from flightlog import Limits, Session
from flightlog.runtime import recovery
from flightlog.runtime.clock import no_boundary
from flightlog.runtime.group_commit import GroupCommit
from flightlog.runtime.recovery import open_session
from flightlog.store.store import Store
from flightlog.testing import Bundle, Cue, FakeModel, calls, words
from flightlog_hookspecs import BlockEvent, Compactor, Finish, Message, Request, Tool, ToolContext, ToolResult, tool
from flightlog_hookspecs.content import TextBlock, ToolCallBlock, text_blocks
from flightlog_hookspecs.events import (
    AssistantMessage,
    Head,
    InboxSplice,
    RequestHeader,
    RequestSent,
    SessionCreated,
    StepEnd,
    StepStart,
    ToolCall,
    TurnStart,
    UserMessage,
)

ENDLESS: Final = 10_000_000
CONTEXT_TOKENS: Final = 20_000
EVERY_CHECK_ON: Final = ", every check on"
COMPACTORS: Final = [Compactor(name="short", keep_steps=4, instruction="Summarise.")]
SUMMARY: Final = "So far the answers to some questions were looked up. "


class Model:
    """Calls the tool in each step there is to do; says the summary when it is asked for one."""

    name = "bench"
    encode = staticmethod(FakeModel([]).encode)

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.number = 0

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:  # noqa: ARG002
        """Play the reply."""
        last = request.messages[-1]
        cues: list[Cue] = [*words(SUMMARY), Finish(reason="stop")]
        if not (isinstance(last, UserMessage) and last.source == "kernel") and self._pace.more():
            cues = [*calls((NAME, arguments(self.number))), Finish(reason="tool_calls")]
        yield self._play(cues)

    async def _play(self, cues: list[Cue]) -> AsyncIterator[BlockEvent]:
        await trio.lowlevel.checkpoint()
        for cue in cues:
            yield cue


def look_up_of(model: Model, steer: Callable[[str], Awaitable[object]]) -> Tool:
    """The tool: gives the result, and lays the next question into the inbox."""

    @tool(mode="parallel", effect="read")
    async def look_up(context: ToolContext, query: str) -> str:
        """Look something up.

        Args:
            context: the call
            query: what to look for

        """
        number, model.number = model.number, model.number + 1
        await steer(question(model.number))
        return result(number)

    return look_up


async def loop(folder: Path, pace: Pace, *, compacting: bool) -> None:
    """One turn, as long as there are steps to do."""
    model, session = Model(pace), list[Session]()

    async def steer(words: str) -> None:
        await session[0].steer(words)

    look_up = look_up_of(model, steer)
    plugin = Bundle(adapters=[model], tools=[look_up], compactors=COMPACTORS if compacting else [])
    limits = Limits(steps_per_turn=ENDLESS, context_tokens=CONTEXT_TOKENS if compacting else None)
    async with (
        flightlog.open_kernel(folder / "log.db", discover=False, plugins=[plugin]) as kernel,
        kernel.session("s", model="bench:m", limits=limits) as opened,
    ):
        session.append(opened)
        await opened.followup(question(0))
        ended = await opened.run()
        assert ended.reason == "completed", ended


def run_loop(folder: Path, pace: Pace, *, compacting: bool = False) -> None:
    """Work."""
    trio.run(partial(loop, folder, pace, compacting=compacting))


class Narrow(Model):
    """The same with a window, so that a task is kept short."""

    def window(self, model: str) -> int:  # noqa: ARG002
        """How many tokens a request and its answer have."""
        return CONTEXT_TOKENS


async def task(folder: Path, pace: Pace, *, compacting: bool) -> None:
    """A task with all its checkpoints; its steps have no question each."""
    model = Narrow(pace) if compacting else Model(pace)

    async def nothing(_: str) -> None: ...

    look_up = look_up_of(model, nothing)
    plugin = Bundle(adapters=[model], tools=[look_up], compactors=COMPACTORS if compacting else [])
    async with flightlog.open_kernel(folder / "log.db", discover=False, plugins=[plugin]) as kernel:
        await kernel.tasks.submit(question(0), model="bench:m", max_steps=ENDLESS)
        await kernel.work(until_idle=True)


def run_task(folder: Path, pace: Pace, *, compacting: bool = False) -> None:
    """Work."""
    trio.run(partial(task, folder, pace, compacting=compacting))


async def journal(folder: Path, pace: Pace) -> None:
    """The same messages, each durable with what the law wants around it: three commits a step."""
    journal = await open_session(
        GroupCommit(Store.open(str(folder / "log.db"))),
        "s",
        created=SessionCreated,
        plugins=(),
        expect=None,
        clock=flightlog.Clock(),
        on_boundary=no_boundary,
    )
    await journal.append(TurnStart())
    header, number = RequestHeader(head=Head(adapter="bench", model="m"), reason="first"), 0
    while pace.more():
        content, message_id = text_blocks(question(number)), f"{number:032x}"
        waiting = InboxSplice(slot="next_step", start=0, message_id=message_id, cause="accepted", content=content)
        taken = InboxSplice(slot="next_step", start=0, message_id=message_id, cause="claimed", removed=1)
        sent = RequestSent(
            attempt=1,
            header_seq=journal.state.header_seq or journal.seq + 5,
            messages=3 * number + 1,
            sha256=sha256(message_id.encode()).hexdigest(),
        )
        entered = UserMessage(message_id=message_id, content=content, source="user")
        asked = (entered, sent) if number else (entered, header, sent)
        await journal.append(waiting, taken, StepStart(), *asked, barrier=True)
        call = ToolCallBlock(call_id=f"call-{number}", name=NAME, arguments=arguments(number))
        answer = AssistantMessage(attempt=1, content=(TextBlock(text=""), call), finish="tool_calls")
        about = {"position": 0, "call_id": call.call_id, "name": NAME, "message_seq": journal.seq + 1}
        started = ToolCall(
            **about,
            arguments=call.arguments,
            invocation_id=f"i-{number}",
            mode="parallel",
            effect="read",
            plugin="bench",
            plugin_version="1",
        )
        await journal.append(answer, started, barrier=True)
        ended = ToolResult(**about, outcome="ok", content=text_blocks(result(number)), call_seq=journal.seq)
        await journal.append(ended, StepEnd(), barrier=True)
        number += 1


def run_journal(folder: Path, pace: Pace) -> None:
    """Work."""
    trio.run(journal, folder, pace)


class Caller:
    """Is sent the first request after the death of the process."""

    name = "bench"
    encode = staticmethod(FakeModel([]).encode)

    def __init__(self, leave: trio.CancelScope) -> None:
        self._leave = leave
        self.sent: Sequence[Message] = ()

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:  # noqa: ARG002
        """Keep the request, and leave."""
        self.sent = request.messages
        self._leave.cancel()
        await trio.sleep_forever()
        yield


async def ready(folder: Path, *, as_task: bool) -> Sequence[Message]:
    """Open the log and go on with it; returns the first request, once all checks have passed."""
    with trio.CancelScope() as scope:
        model = Caller(scope)
        plugin = Bundle(adapters=[model])
        async with flightlog.open_kernel(folder / "log.db", discover=False, plugins=[plugin]) as kernel:
            if as_task:
                await kernel.work(until_idle=True)
            limits = Limits(steps_per_turn=ENDLESS)
            async with kernel.session("s", model="bench:m", limits=limits, on_crash="continue") as session:
                await session.run()
    return model.sent


def resume(folder: Path, *, as_task: bool = False) -> int:
    """Go on, up to the first request."""
    sent = trio.run(partial(ready, folder, as_task=as_task))
    said = [message.text for message in sent if isinstance(message, ToolResult)]
    assert said == [result(number) for number in range(len(said))]
    return len(said)


def resume_short(folder: Path, *, as_task: bool = False) -> Callable[[], int]:
    """Go on with what compaction has left; how many steps there were is in the log."""
    assert trio.run(partial(ready, folder, as_task=as_task))

    def counted() -> int:
        with flightlog.sync.open_kernel(folder / "log.db", discover=False) as kernel:
            return int(kernel.query("SELECT count(*) FROM events WHERE kind = 'tool/call'").rows[0][0])

    return counted


def every_check_on(resume: Resume) -> Resume:
    """`resume` of logs without snapshots: all rows are read."""

    def resumed(folder: Path) -> int | Callable[[], int]:
        recovery.restoring = lambda *_: ()
        return resume(folder)

    return resumed


CONTESTANTS = {
    "flightlog": Contestant(run_loop, resume),
    "flightlog, compacting": Contestant(partial(run_loop, compacting=True), resume_short),
    "flightlog, as a task": Contestant(run_task, partial(resume, as_task=True)),
    "flightlog, as a task, compacting": Contestant(
        partial(run_task, compacting=True), partial(resume_short, as_task=True)
    ),
    "flightlog, journal alone": Contestant(run_journal, resume),
}
CONTESTANTS |= {
    f"{name}{EVERY_CHECK_ON}": Contestant(ours.run, every_check_on(ours.resume)) for name, ours in CONTESTANTS.items()
}
