"""Workloads whose conversation becomes too long, again and again: a reader who takes notes on a book in a small window.

On a budget, it has to be granted more tokens, again and again.

The notes are the `World`'s, and none can be taken back: each is made once or, where nobody can know whether it was, is
reported as unknown. Whatever was left out to save room, the reader knows at each request of all notes that were made,
and is told of none of them twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio
from attrs import define, field, frozen

from flightlog.api import Kernel
from flightlog.core.fitting import cost, head_cost
from flightlog.core.limits import Limits
from flightlog.core.quotas import NO_BUDGET, Budget
from flightlog.runtime.recovery import OnCrash
from flightlog.testing import Bundle, Cue, FakeModel, calls, words
from flightlog.testing.faults.host import GO_ON, MAX_RECOVERIES, MAX_STEPS, NUDGES_MAX, pause, work_to_its_end
from flightlog.testing.faults.world import Done, Stuck, World
from flightlog_hookspecs import BlockEvent, Compactor, FailedRequest, Hook, Request, Retry, Tool, ToolContext
from flightlog_hookspecs.content import ToolCallBlock
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import AssistantMessage, Message, Record, ToolResult, UserMessage

_GOAL: Final = "Read the book and take a note of the word on each page."
_INSTRUCTION: Final = "Say which pages you have a note of."
_PAGES: Final = 10
_AT_ONCE: Final = 2
"""Pages that are read, or noted, in one step."""
_PAGE_CHARS: Final = 700
_TOKENS: Final = 900
"""The longest request: two pages fit, and a little more."""
_COMPACTOR: Final = Compactor(name="reader", instruction=_INSTRUCTION, keep_steps=1)
_LIMITS: Final = Limits(delta_flush_ms=10, cancel_grace_s=0.5, context_tokens=_TOKENS)
_BUDGET: Final = Budget(tokens=6_000, calls=400, requests=200)
_MORE: Final = Budget(tokens=6_000)
_BACK_OFF_S: Final = 1.0


@frozen
class Book:
    """A host that has the book read: by a task where turns go on after a crash, else in a session that it nudges."""

    name: str
    on_crash: OnCrash = "close"
    on_budget: bool = False
    model: str = field(default="reader:m", init=False)

    @property
    def steady(self) -> bool:
        """Whether its requests are the same whatever crashes: what is spent in one hastens the end of a budget."""
        return not self.on_budget

    def plugins(self, world: World) -> Sequence[object]:
        """The book, the notes, the reader, and what makes its context shorter."""

        async def read_page(context: ToolContext, page: int) -> str:
            await trio.lowlevel.checkpoint()
            world.done(context, "read_page", "read", {"page": page})
            return f"{_word(page)} " + "and so the story goes on " * (_PAGE_CHARS // 25)

        async def note(context: ToolContext, page: int, word: str) -> str:
            await trio.lowlevel.checkpoint()
            if word != _word(page):
                world.wrong(f"of page {page} {word!r} is noted")
            world.done(context, "note", "write", {"page": page})
            await pause()
            return f"noted page {page}"

        tools = [_tool(read_page, page="integer"), _tool(note, page="integer", word="string")]
        hook = Hook(point="on_request_error", name="again", body=_again)
        return [Bundle(tools=tools, adapters=[Reader(world)], compactors=[_COMPACTOR], hooks=[hook])]

    async def run(self, kernel: Kernel, world: World) -> None:
        """Have it read to its end."""
        await (self._as_task(kernel, world) if self.on_crash == "continue" else self._in_session(kernel, world))

    async def _as_task(self, kernel: Kernel, world: World) -> None:
        task = await kernel.tasks.submit(
            _GOAL,
            model=self.model,
            key="book",
            max_steps=MAX_STEPS,
            max_recoveries=MAX_RECOVERIES,
            max_input_tokens=_TOKENS,
            budget=_BUDGET if self.on_budget else NO_BUDGET,
        )
        world.entered(task)
        await work_to_its_end(kernel, world, task, more=_MORE if self.on_budget else NO_BUDGET)

    async def _in_session(self, kernel: Kernel, world: World) -> None:
        async with kernel.session("s", model=self.model, limits=_LIMITS, on_crash=self.on_crash) as session:
            world.held(session.token)
            await world.followup(session, _GOAL, key="book")
            for _ in range(NUDGES_MAX):
                if await session.run():
                    world.held(session.token)
                last = next(reversed(kernel.read("s").messages()), None)  # a read that lies finds none
                if not session.pending and isinstance(last, AssistantMessage) and _is_report(last):
                    return
                await world.followup(session, GO_ON)
            raise Stuck("the session does not get anywhere")

    def verdict(self, done: Sequence[Done], records: Sequence[Record]) -> Iterator[str]:
        """Each page is noted once, and reported."""
        answers = [record.event for record in records if isinstance(record.event, AssistantMessage)]
        reports = [answer.text for answer in answers if _is_report(answer)]
        if len(reports) != 1:
            yield f"there are {len(reports)} reports"
            return
        report: dict[str, list[int]] = json.loads(reports[0])
        noted, unknown = set(report["noted"]), set(report["unknown"])
        if sorted([*noted, *unknown]) != list(range(1, _PAGES + 1)):
            yield f"the report leaves something out, or says it twice: {report}"
        made = {json.loads(fact.arguments)["page"] for fact in done if fact.tool == "note"}
        if not noted <= made <= noted | unknown:
            yield f"noted are {sorted(made)}, and it is reported as {report}"


def _word(page: int) -> str:
    return f"word-{page * page}"


def _tool(body: Any, **parameters: str) -> Tool:
    properties = {name: {"type": kind} for name, kind in parameters.items()}
    return Tool(
        body=body,
        name=body.__name__,
        description="Work.",
        parameters={"type": "object", "properties": properties, "required": list(parameters)},
        effect="write" if body.__name__ == "note" else "read",
        mode="parallel",
    )


async def _again(failed: FailedRequest) -> Retry | None:
    return Retry(_BACK_OFF_S) if failed.retryable else None


def _is_report(message: AssistantMessage) -> bool:
    return not message.interrupted and message.text.startswith("{")


class Reader(FakeModel):
    """Reads and notes what is left, then reports. All of it follows from the conversation, or the summary before it.

    Every other time that it is asked for a summary it is too busy.
    """

    def __init__(self, world: World) -> None:
        super().__init__([], "reader")
        self._world = world
        self._asked = 0

    @asynccontextmanager
    async def stream(
        self,
        request: Request,
        attempt: int,  # noqa: ARG002
    ) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        """The next reply."""
        messages = list(request.messages)
        summing_up = isinstance(messages[-1], UserMessage) and messages[-1].text == _INSTRUCTION
        known = _Known.of(messages)
        # A summary is asked for with the beginning that it is to stand for, so it may not know of the last notes.
        lacking = () if summing_up else (*known.missing(self._world), *_too_long(request))
        for how in (*known.wrong, *lacking):
            self._world.wrong(how)
        yield self._play(self._summary(known) if summing_up else _reply(known))

    def _summary(self, known: _Known) -> list[Cue]:
        self._asked += 1
        if self._asked % 2:
            return [*words("I have")[:-1], pause, ProviderError("overloaded", "later", retryable=True)]
        said = words(known.report(), chunk=32)
        return [*said[:1], pause, *said[1:]]


def _reply(known: _Known) -> list[Cue]:
    wanted = known.next_calls()
    said = words("On I read.", chunk=8) if wanted else words(known.report(), chunk=32)
    return [*said[:1], pause, *said[1:], *calls(*wanted)]


def _too_long(request: Request) -> Iterator[str]:
    tokens = head_cost(request.head) + sum(map(cost, request.messages))
    if tokens > _TOKENS:
        yield f"a request has {tokens} tokens, and may have {_TOKENS}"


@define
class _Known:
    """What the conversation says of the pages: how their notes ended, and what is on those that were just read."""

    noted: dict[int, str] = field(factory=dict)
    words: dict[int, str] = field(factory=dict)
    wrong: list[str] = field(factory=list)

    @classmethod
    def of(cls, messages: Sequence[Message]) -> _Known:
        known, waiting = cls(), list[ToolCallBlock]()
        for number, message in enumerate(messages):
            match message:
                case ToolResult():
                    if not waiting or waiting[0].call_id != message.call_id:
                        known.wrong.append(f"the result of {message.call_id} does not stand behind its call")
                        continue
                    known._take(waiting.pop(0), message)
                    continue
                case UserMessage(source="summary"):
                    known._remember(message.text, first=number == 0)
                case _:
                    pass
            if waiting:
                known.wrong.append(f"call {waiting[0].call_id} has no result")
            waiting = []
            if isinstance(message, AssistantMessage):
                waiting = [block for block in message.content if isinstance(block, ToolCallBlock)]
        return known

    def _remember(self, text: str, *, first: bool) -> None:
        if not first:
            self.wrong.append("a summary stands behind what it may cover")
        said: Mapping[str, list[int]] = json.loads(text[text.index("{") :])
        self.noted = {page: outcome for name, outcome in _ENDS for page in said[name]}

    def _take(self, call: ToolCallBlock, result: ToolResult) -> None:
        page: int = json.loads(call.arguments)["page"]
        match call.name, result.outcome:
            case "read_page", "ok" if result.replaces is None:
                self.words[page] = result.text.split()[0]
            case "note", "ok" | "unknown":
                if page in self.noted:
                    self.wrong.append(f"the note of page {page} is told twice")
                self.noted[page] = result.outcome
            case _:
                pass

    def missing(self, world: World) -> Iterator[str]:
        """Notes that were made and are not known here."""
        made = [fact for fact in (*world.earlier, *world.ledger) if isinstance(fact, Done) and fact.tool == "note"]
        for page in Counter(json.loads(fact.arguments)["page"] for fact in made):
            if page not in self.noted:
                yield f"the conversation has forgotten the note of page {page}"

    def next_calls(self) -> list[tuple[str, object]]:
        """What to do now; nothing once all is done."""
        left = [page for page in range(1, _PAGES + 1) if page not in self.noted][:_AT_ONCE]
        if unread := [page for page in left if page not in self.words]:
            return [("read_page", {"page": page}) for page in unread]
        return [("note", {"page": page, "word": self.words[page]}) for page in left]

    def report(self) -> str:
        """What is known."""
        pages = {name: sorted(page for page, how in self.noted.items() if how == outcome) for name, outcome in _ENDS}
        return json.dumps(pages)


_ENDS: Final = (("noted", "ok"), ("unknown", "unknown"))
