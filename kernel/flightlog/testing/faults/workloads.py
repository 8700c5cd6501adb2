"""What the laboratory lets a kernel do while it crashes: a host, its plugins, and a model that goes on.

A workload is run from its beginning after every crash, as a host would be that starts again. So it
sends its messages under keys, and its model decides by the conversation what is still to be done.
Bring your own to try your plugins: anything with these members is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from random import Random
from types import ModuleType
from typing import Any, Final, Literal, Protocol, runtime_checkable

import trio
from attrs import define, field, frozen

from flightlog.api import Kernel
from flightlog.core.limits import Limits
from flightlog.runtime.approvals import Question
from flightlog.runtime.recovery import OnCrash
from flightlog.runtime.session import Session
from flightlog.testing import Bundle, Cue, FakeModel, calls, words
from flightlog.testing.faults.book import Book
from flightlog.testing.faults.host import GO_ON, NUDGES_MAX, PAUSE_S, pause
from flightlog.testing.faults.shop import Shop
from flightlog.testing.faults.world import Done, Stuck, World
from flightlog_hookspecs import (
    Ask,
    BlockEvent,
    FailedRequest,
    Hook,
    ProposedCall,
    Request,
    Retry,
    StepView,
    Subagent,
    Switch,
    Verdict,
)
from flightlog_hookspecs.content import ToolCallBlock
from flightlog_hookspecs.errors import ProviderError, UsageError
from flightlog_hookspecs.events import AssistantMessage, Message, Record, SubagentSpawned, Told, ToolResult, UserMessage
from flightlog_hookspecs.tools import Effect, Mode


class Workload(Protocol):
    """One thing a host does from start to end, again and again.

    `run` is called with a kernel on an empty log first, and after each crash with one on what survived:
    it must do what is left, and end. It says with keys what it says (`world.followup(..., key=...)`) and
    lets the world know of all it was promised: `world.held(token)`, `world.posted(letter_id)`, `world.entered(task)`.
    `plugins` are made for each life; their tools note each effect with `world.done(...)` and are async, for a
    thread has no order. Each call has arguments of its own, and no test sleeps but by `trio.sleep`.
    `model` is the sessions' "adapter:model". One whose sessions are opened with `on_crash="continue"` says so by an
    attribute of that name, and so does one whose tasks are carried out by `kernel.work`. `steady` says that each
    message comes at a place of the conversation that timing does not change: then requests after a crash must repeat
    those before it.
    """

    @property
    def name(self) -> str:
        """What reproducers call it."""

    @property
    def model(self) -> str:
        """The model of its sessions, also for opening them only to recover."""

    @property
    def steady(self) -> bool:
        """Whether what the model is sent depends on the conversation alone."""

    def plugins(self, world: World) -> Sequence[object]:
        """The plugins of one life."""

    async def run(self, kernel: Kernel, world: World) -> None:
        """Do what is left to do."""


def mode_of(workload: Workload) -> OnCrash:
    """What becomes of the turns of `workload` that a crash leaves open."""
    mode: OnCrash = getattr(workload, "on_crash", "close")
    return mode


@runtime_checkable
class Judging(Protocol):
    """A workload that knows what must have come of it: it is asked, in place of comparing with the unbroken run."""

    def verdict(self, done: Sequence[Done], records: Sequence[Record]) -> Iterable[str]:
        """What is wrong in the end, after all that took effect in any life, with the `records` of all sessions."""


@runtime_checkable
class Filing(Protocol):
    """A workload whose tools write files, in `context.workspace` or `world.workspace`.

    They are on the same disk as the log: what the modules `watched` do to them by their `os` is recorded, and a
    crash may come at any of it. An error of the disk meets the log only.
    """

    @property
    def watched(self) -> Sequence[ModuleType]:
        """Those modules. None of their operations may happen in a thread."""

    def look(self, files: Mapping[str, bytes], records: Sequence[Record] | None) -> Iterable[str]:
        """What is wrong with the files, by their paths in the workspace: right after a crash, or in the end.

        `records` are those of all sessions in the end, None after a crash.
        """


def watched(workload: Workload) -> Sequence[ModuleType]:
    """The modules whose files matter."""
    return workload.watched if isinstance(workload, Filing) else ()


Way = Literal["followup", "steer", "inject", "letter", "timer", "cancelled"]
Call = tuple[str, str]
"""A tool and its task."""


@frozen
class Order:
    """A message, and the calls it takes: one tuple a step. `beside` is sent while its turn runs.

    The turn of a "cancelled" one streams until it is cancelled; a "timer" is due at once, and its turn begins as it
    fires. With `waits`, nothing runs after it yet.
    """

    text: str
    steps: tuple[tuple[Call, ...], ...] = ()
    way: Way = "followup"
    beside: tuple[Order, ...] = ()
    waits: bool = False


TOOLS: Final[dict[str, tuple[Effect, Mode]]] = {
    "look": ("read", "parallel"),
    "mark": ("idempotent", "parallel"),
    "write": ("write", "parallel"),
    "send": ("external", "exclusive"),
    "dump": ("read", "parallel"),
    "ask": ("external", "exclusive"),
    "build": ("write", "parallel"),
    "pay": ("write", "parallel"),
    "wire": ("external", "exclusive"),
}
_RECONCILED: Final = ("pay", "wire")
_UNTRACEABLE: Final = "send"
"""A tool of which no person can say what became of a call; of others they can."""
_BUILD_S: Final = 1.0
"""So long a "build" goes on after it took effect: longer than a cancel waits for it."""
_DUMP_CHARS: Final = 90_000
_LIMITS: Final = Limits(delta_flush_ms=10, cancel_grace_s=0.5)
_STREAM_PAUSES: Final = 10
_FAILURES: Final = 2
_BACK_OFF_S: Final = 1.0
_OTHER_MODEL: Final = "diligent:other"
_WAITS_SHARE: Final = 0.2
_BESIDE_SHARE: Final = 0.5
_STARTED: Final = re.compile("Started as '([^']+)'")


@frozen
class Script:
    """A workload made of orders: some to each session, the sessions side by side in one kernel.

    A subclass may add plugins: an order can name their tools, which are given one argument, `task`.
    """

    name: str
    sessions: tuple[tuple[str, tuple[Order, ...]], ...]
    model: str = field(default="diligent:m", init=False)
    on_crash: OnCrash = field(default="close", kw_only=True)

    @property
    def orders(self) -> dict[str, Order]:
        """All of them by their texts, which must differ."""
        return {order.text: order for _, given in self.sessions for first in given for order in (first, *first.beside)}

    @property
    def steady(self) -> bool:
        """Whether nothing is said while a turn runs, and no letter may be overtaken."""
        return not any(order.beside or (order.way == "letter" and order.waits) for order in self.orders.values())

    def plugins(self, world: World) -> Sequence[object]:
        """The tools, the model and, where a person is to be asked, a guard."""
        used = {name for order in self.orders.values() for step in order.steps for name, _ in step}
        tools = [
            world.tool(
                name,
                *TOOLS[name],
                output=_long if name == "dump" else str,
                seconds=_BUILD_S if name == "build" else 0,
                reconciled=name in _RECONCILED,
            )
            for name in sorted(used & TOOLS.keys())
        ]
        guards = [Hook(point="before_tool", name="careful", body=_careful)] if "ask" in used else []
        return [Bundle(tools=tools, adapters=[self.adapter()], hooks=guards)]

    def adapter(self) -> FakeModel:
        """The model of one life."""
        return Diligent(self.orders)

    async def run(self, kernel: Kernel, world: World) -> None:
        """Let every session's host work through its orders."""
        async with trio.open_nursery() as nursery:
            for name, given in self.sessions:
                nursery.start_soon(_Host(self, kernel, world, name).work, given)


@frozen
class Failing(Script):
    """A script whose model fails twice before each answer. Then it answers or, with `moves`, another model does."""

    moves: bool = False

    def adapter(self) -> FakeModel:
        """One that fails."""
        return Fickle(self.orders)

    def plugins(self, world: World) -> Sequence[object]:
        """Those of the script, and who decides what follows a failure."""
        return [*super().plugins(world), *self.advisers()]

    def advisers(self) -> Sequence[object]:
        """They go by what they are shown, and so by the log."""
        if not self.moves:
            return [Bundle(hooks=[Hook(point="on_request_error", name="again", body=_again)])]
        back = Hook(point="before_step", name="back", body=_back)
        return [Bundle(hooks=[back, Hook(point="on_request_error", name="elsewhere", body=_elsewhere)])]


async def _again(failed: FailedRequest) -> Retry | None:
    return Retry(_BACK_OFF_S) if failed.retryable else None


async def _elsewhere(failed: FailedRequest) -> Retry | Switch:
    failures = sum(failure.model == failed.model for failure in failed.failures)
    return Retry(_BACK_OFF_S) if failures < _FAILURES else Switch(_OTHER_MODEL, _BACK_OFF_S)


async def _back(view: StepView) -> Switch | None:
    return Switch(view.session_model) if view.model != view.session_model else None


@frozen
class Delegated(Script):
    """A script whose steps may call a subagent "helper": each task of it is the text of an order `within`.

    With `background` it works beside them, for `limit_s` seconds of the clock at most, and a task that `sends` names
    is sent to the child of another task. A waiting one that a crash has cut off is resumed by the host on its own.
    """

    within: tuple[Order, ...] = ()
    background: bool = False
    limit_s: float | None = None
    sends: Mapping[str, str] = field(factory=dict)

    @property
    def orders(self) -> dict[str, Order]:
        """Those of the children, too."""
        return {**super().orders, **{order.text: order for order in self.within}}

    @property
    def steady(self) -> bool:
        """What comes of a child in the background is told at whatever step it has come to."""
        return super().steady and not self.background

    def plugins(self, world: World) -> Sequence[object]:
        """The subagent as well."""
        helper = Subagent(
            name="helper",
            description="Helps.",
            prompt="Help.",
            model=self.model,
            background=self.background,
            timeout_s=self.limit_s,
        )
        return [*super().plugins(world), Bundle(subagents=[helper])]

    def adapter(self) -> FakeModel:
        """One that knows which child it sends more to."""
        return Leader(self.orders, self.sends)

    async def run(self, kernel: Kernel, world: World) -> None:
        """Work through the orders, then see to it that the children come to their end, too."""
        await super().run(kernel, world)
        if self.background:
            return  # their parent's owner has seen to it
        reader = kernel.read(self.sessions[0][0])
        spawned = [record.event for record in reader.records() if isinstance(record.event, SubagentSpawned)]
        for child in spawned:
            await self._see_through(kernel, world, child.child)

    async def _see_through(self, kernel: Kernel, world: World, child: str) -> None:
        try:
            kernel.read(child)
        except UsageError:
            return  # a death came before it began
        async with kernel.session(child, model=self.model, limits=_LIMITS, on_crash=self.on_crash) as session:
            for _ in range(NUDGES_MAX):
                await session.run(children=True)
                if not session.pending and finished(self.orders, kernel.read(child).messages()):
                    return
                await world.followup(session, GO_ON)
        raise Stuck(f"child {child!r} does not get anywhere")


def _long(text: str) -> str:
    return text * (_DUMP_CHARS // len(text))


async def _careful(call: ProposedCall) -> Verdict:
    return Ask("Shall it?") if call.name == "ask" else None


@define
class _Host:
    """Who talks to one session."""

    script: Script
    kernel: Kernel
    world: World
    name: str

    async def work(self, orders: Sequence[Order]) -> None:
        """Send what was not yet accepted, and see to it that all of it is done."""
        async with self.kernel.session(
            self.name, model=self.script.model, limits=_LIMITS, approver=True, on_crash=self.script.on_crash
        ) as session:
            self.world.held(session.token)
            for order in orders:
                await self._say(session, order)
                if order.way == "cancelled":
                    if session.pending:
                        await self._run_and_cancel(session)
                elif not order.waits:
                    await self._finish(session, order.beside)

    async def _say(self, session: Session, order: Order) -> None:
        key = f"key of {order.text:.50}"
        match order.way:
            case "letter":
                posted = await self.kernel.mailbox(self.name).followup(order.text, key=key)
                self.world.posted(posted.letter_id)
            case "timer":
                await session.wake_after(0, order.text, key=key)
            case "steer" | "inject":
                accepted = await getattr(session, order.way)(order.text, key=key)
                self.world.accepted(accepted)
            case _:
                await self.world.followup(session, order.text, key=key)

    async def _run_and_cancel(self, session: Session) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await trio.sleep(_STREAM_PAUSES * PAUSE_S / 2)
            session.cancel()
        self.world.held(session.token)

    async def _finish(self, session: Session, beside: Sequence[Order]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run, session)
            for order in beside:
                await pause()
                await self._say(session, order)
        for _ in range(NUDGES_MAX):
            await self._run(session)
            if not session.pending and finished(self.script.orders, self.kernel.read(self.name).messages()):
                return
            if self.script.on_crash != "close":
                raise Stuck(f"session {self.name!r} does not go on by itself")
            await self.world.followup(session, GO_ON)
        raise Stuck(f"session {self.name!r} does not get anywhere")

    async def _run(self, session: Session) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._approve, session)
            if await session.run(children=True):
                self.world.held(session.token)
            nursery.cancel_scope.cancel()

    async def _approve(self, session: Session) -> None:
        while True:
            for question in session.questions():
                if question.about == "outcome":
                    await session.answer(question.seq, self._witnessed(question))
                else:
                    await session.approve(question.seq)
            await pause()

    def _witnessed(self, question: Question) -> Told:
        """What a person who looks has to say of how a call ended."""
        if question.name == _UNTRACEABLE:
            return "unknown"
        done = self.world.has_done(tool=question.name, arguments=json.loads(question.arguments))
        return "done" if done else "not_done"


class Diligent(FakeModel):
    """Calls what is still missing of all that was asked, step by step, then says that it is done.

    All of it follows from the conversation, so it goes on after a crash, and never repeats what may have
    taken effect.
    """

    def __init__(self, orders: Mapping[str, Order]) -> None:
        super().__init__([], "diligent")
        self._orders = orders

    @asynccontextmanager
    async def stream(
        self,
        request: Request,
        attempt: int,  # noqa: ARG002
    ) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        """The next reply."""
        yield self._play(self._reply(list(request.messages)))

    def _reply(self, messages: Sequence[Message]) -> list[Cue]:
        last = messages[-1]
        if isinstance(last, UserMessage) and self._is_cancelled(last.text):
            return [cue for _ in range(_STREAM_PAUSES) for cue in (*words("and on ")[:-1], pause)]
        for text in asked(self._orders, messages):
            for step in self._orders[text].steps:
                if missing := [call for call in step if call not in settled(messages)]:
                    said = words(f"I work on {text}.", chunk=8)
                    wanted = calls(*((name, self._arguments(name, task, messages)) for name, task in missing))
                    return [*said[:2], pause, *said[2:], *wanted]
        return words(last_words(self._orders, messages), chunk=8)

    def _arguments(self, name: str, task: str, messages: Sequence[Message]) -> dict[str, str]:  # noqa: ARG002
        return {"task": task}

    def _is_cancelled(self, text: str) -> bool:
        return text in self._orders and self._orders[text].way == "cancelled"


class Leader(Diligent):
    """Sends a child another task. When it is not known what the child is called, another one gets it."""

    def __init__(self, orders: Mapping[str, Order], sends: Mapping[str, str]) -> None:
        super().__init__(orders)
        self._sends = sends

    def _arguments(self, name: str, task: str, messages: Sequence[Message]) -> dict[str, str]:
        said = results(messages).get((name, self._sends.get(task, "")), "")
        started = _STARTED.search(said)
        return {"task": task} | ({"child": started[1]} if started else {})


class Fickle(Diligent):
    """Breaks off in mid-stream the first time, and refuses the second; asked as the other model, it never fails."""

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        """The next reply, or what comes instead of it."""
        reply = self._reply(list(request.messages))
        if attempt <= _FAILURES and not _OTHER_MODEL.endswith(f":{request.head.model}"):
            broken = [*words("I work on", chunk=4)[:-1], pause, ProviderError("transport", "broken off")]
            reply = broken if attempt == 1 else [ProviderError("overloaded", "later", retry_after_s=_BACK_OFF_S)]
        yield self._play(reply)


def asked(orders: Mapping[str, Order], messages: Sequence[Message]) -> list[str]:
    """The orders that were given and not cancelled."""
    texts = [message.text for message in messages if isinstance(message, UserMessage)]
    return [text for text in texts if text in orders and orders[text].way != "cancelled"]


def settled(messages: Sequence[Message]) -> set[Call]:
    """The calls that are done, or must not be repeated since nobody knows."""
    return set(results(messages))


def results(messages: Sequence[Message]) -> dict[Call, str]:
    """What came of those calls."""
    waiting: list[ToolCallBlock] = []
    found: dict[Call, str] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            waiting = [block for block in message.content if isinstance(block, ToolCallBlock)]
        elif isinstance(message, ToolResult):
            call = waiting.pop(0)
            if message.outcome not in ("not_started", "aborted"):
                found[call.name, json.loads(call.arguments)["task"]] = message.text
    return found


def last_words(orders: Mapping[str, Order], messages: Sequence[Message]) -> str:
    """What the model says when all is done."""
    return f"Done: {', '.join(f'{text:.20}' for text in sorted(asked(orders, messages)))}."


def finished(orders: Mapping[str, Order], messages: Sequence[Message]) -> bool:
    """Whether the model has had the last word on all that was asked."""
    last = messages[-1] if messages else None
    if not isinstance(last, AssistantMessage) or last.interrupted:
        return False
    return last.text == last_words(orders, messages)


def _one(name: str, *orders: Order, on_crash: OnCrash = "close") -> Script:
    return Script(name, (("s", orders),), on_crash=on_crash)


SCRIPTS: Final[tuple[Workload, ...]] = (
    _one("words", Order("hello"), Order("a longer talk"), Order("and the last")),
    _one("tools", Order("work", ((("look", "a"), ("mark", "b"), ("write", "c"), ("send", "d")), (("write", "e"),)))),
    _one("queued", Order("first", ((("write", "a"),),), waits=True), Order("second", ((("send", "b"),),))),
    _one("cancelled", Order("tell", ((("mark", "a"),),)), Order("stop", way="cancelled"), Order("after")),
    _one(
        "steered",
        Order(
            "build",
            ((("write", "a"),), (("look", "b"),)),
            beside=(Order("rather so", way="steer"), Order("by the way", way="inject")),
        ),
    ),
    _one("mailbox", Order("hello"), Order("a letter", ((("write", "a"),),), way="letter")),
    _one("woken", Order("tick", ((("write", "a"), ("send", "b")),), way="timer"), Order("after")),
    _one("approved", Order("may I", ((("ask", "a"), ("look", "b"), ("ask", "c")),))),
    _one("siblings", Order("both", ((("build", "a"), ("write", "b"), ("look", "c")),))),
    _one("large", Order("dump it", ((("dump", "a"), ("write", "b")),)), Order("x" * 70_000)),
    Failing("retried", (("s", (Order("try", ((("write", "a"),),)),)),)),
    Failing("moved", (("s", (Order("move", ((("send", "a"),),)),)),), moves=True),
    Delegated(
        "delegated",
        (("s", (Order("share", ((("write", "a"), ("helper", "dig")), (("send", "b"),))),)),),
        within=(Order("dig", ((("write", "c"), ("look", "d")),)),),
    ),
    _one(
        "continued",
        Order(
            "work on",
            (
                (("look", "a"), ("mark", "b"), ("write", "c"), ("pay", "d"), ("wire", "e")),
                (("send", "f"), ("pay", "g")),
            ),
        ),
        Order("and the last"),
        on_crash="continue",
    ),
    _one(
        "continued asking",
        Order("may I still", ((("ask", "a"), ("build", "b"), ("pay", "c"), ("ask", "d")),)),
        on_crash="continue",
    ),
    Failing(
        "continued retrying",
        (("s", (Order("try on", ((("pay", "a"),), (("mark", "b"),))),)),),
        on_crash="continue",
    ),
    Delegated(
        "continued delegated",
        (("s", (Order("share on", ((("pay", "a"), ("helper", "dig on")), (("mark", "b"),))),)),),
        within=(Order("dig on", ((("pay", "c"), ("look", "d")), (("wire", "e"),))),),
        on_crash="continue",
    ),
    Delegated(
        "beside",
        (("s", (Order("share", ((("write", "a"), ("helper", "dig")), (("helper", "more"),), (("send", "b"),))),)),),
        within=(Order("dig", ((("write", "c"), ("look", "d")),)), Order("more", ((("send", "e"),),))),
        background=True,
        sends={"more": "dig"},
    ),
    Delegated(
        "timed",  # the clock of the next life is an hour later
        (("s", (Order("share", ((("helper", "dig"), ("write", "a")), (("send", "b"),))),)),),
        within=(Order("dig", ((("build", "c"),), (("build", "d"), ("look", "e")))),),
        background=True,
        limit_s=1800.0,
    ),
    Script(
        "interleaved",
        (
            ("one", (Order("left", ((("write", "a"), ("mark", "b")),)), Order("more left"))),
            ("two", (Order("right", ((("send", "c"),), (("look", "d"),))), Order("more right"))),
        ),
    ),
    Shop("orders"),
    Shop("orders in a changing world", changing=True),
    Book("a long book"),
    Book("a long book as a task", on_crash="continue"),
    Book("a long book on a budget", on_crash="continue", on_budget=True),
)
"""The scripts that every promise is tried on."""


def random_script(seed: int) -> Script:
    """A script drawn from `seed`."""
    random = Random(seed)
    numbers = iter(range(1000))
    names = [name for name in TOOLS if name != "dump"]

    def step() -> tuple[Call, ...]:
        return tuple((random.choice(names), str(next(numbers))) for _ in range(random.randint(1, 2)))

    def order(ways: Sequence[Way], *, alone: bool) -> Order:
        way = random.choice(ways)
        steps = () if way == "cancelled" else tuple(step() for _ in range(random.randint(0, 2)))
        beside = alone and way != "cancelled" and random.random() < _BESIDE_SHARE
        return Order(
            f"order {next(numbers)}",
            steps,
            way,
            (order(("steer", "inject", "followup", "letter"), alone=False),) if beside else (),
            waits=not beside and random.random() < _WAITS_SHARE,
        )

    ways: tuple[Way, ...] = ("followup", "followup", "steer", "letter", "cancelled")
    sessions = tuple(
        (name, (order(ways, alone=True), Order(f"the last of {name}")))
        for name in ("one", "two")[: random.randint(1, 2)]
    )
    return Script(f"random_script({seed})", sessions)


def named(name: str) -> Workload:
    """The workload that a reproducer names: a script here, one of a tool, or "module:name" for one of your own.

    Raises `UsageError` when there is none.
    """
    if number := re.fullmatch(r"random_script\((\d+)\)", name):
        return random_script(int(number[1]))
    if known := [script for script in SCRIPTS if script.name == name]:
        return known[0]
    from flightlog.testing.faults.of_tool import script_again  # which needs the scripts here

    if again := script_again(name):
        return again
    module, colon, own = name.partition(":")
    try:
        found: Any = getattr(import_module(module), own) if colon else None
    except (ImportError, AttributeError) as error:
        raise UsageError(f"there is no workload {name!r}: {error}") from error
    if not all(hasattr(found, member) for member in ("name", "model", "steady", "plugins", "run")):
        scripts = ", ".join(script.name for script in SCRIPTS)
        raise UsageError(f"{name!r} is no workload; give MODULE:NAME of one, or one of {scripts}, random_script(N)")
    workload: Workload = found
    return workload
