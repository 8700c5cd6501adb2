"""Workloads that workers carry out: a task on the orders of a small shop, which each life takes up where it lies.

The shop is the `World`'s: what was mailed and taken from stock are the facts that tools left there. A mail cannot be
taken back, so it goes out once or, where nobody can know whether it did, is reported as unknown. Stock is taken under
the invocation id, so a second time under the same one is none.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import trio
from attrs import define, field, frozen

from flightlog.api import Kernel
from flightlog.core.task import ENDED
from flightlog.runtime.recovery import OnCrash
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog.testing.faults.host import MAX_RECOVERIES, MAX_STEPS, pause, work_to_its_end
from flightlog.testing.faults.world import Done, World
from flightlog_hookspecs import BlockEvent, Request, Tool, ToolContext
from flightlog_hookspecs.content import ToolCallBlock
from flightlog_hookspecs.events import (
    AssistantMessage,
    Message,
    Record,
    TaskState,
    ToolResult,
    UserMessage,
)

E = TypeVar("E")

_GOAL: Final = "Ship every open order: mail its customer once, take its items from stock, and report what you did."
_HINT: Final = "Be friendly."
_ORDERS: Final = (1, 2, 3, 4)
_AT_ONCE: Final = 2
"""Orders that the clerk handles in one step."""
_DEARER: Final = (1, 3)
"""Orders whose price is another one in each life."""
_CANCELLED: Final[Mapping[int, int]] = {2: 1, 4: 2}
"""Orders that are cancelled, and in which life."""


@frozen
class Shop:
    """A host that submits the task and works on it until it has ended.

    In a `changing` world orders become dearer, or are cancelled, between one life and the next.
    """

    name: str
    changing: bool = False
    model: str = field(default="clerk:m", init=False)
    on_crash: OnCrash = field(default="continue", init=False)

    @property
    def steady(self) -> bool:
        """Whether a later life reads what an earlier one would have read."""
        return not self.changing

    def order(self, number: int, life: int) -> dict[str, Any]:
        """An order as it is in that life."""
        hours = life if self.changing else 0
        return {
            "order": number,
            "cents": 1000 * number + (500 * hours if number in _DEARER else 0),
            "status": "cancelled" if hours >= _CANCELLED.get(number, hours + 1) else "open",
        }

    def plugins(self, world: World) -> Sequence[object]:
        """What the clerk can do, and the clerk."""

        async def read_order(context: ToolContext, order: int) -> dict[str, Any]:
            await trio.lowlevel.checkpoint()
            world.done(context, "read_order", "read", {"order": order})
            return self.order(order, world.life)

        async def still_true(order: int, cents: int) -> str | None:
            await trio.lowlevel.checkpoint()
            found = self.order(order, world.life)
            if found["status"] != "open":
                return f"order {order} is {found['status']} now"
            return None if found["cents"] == cents else f"order {order} costs {found['cents']} now"

        async def send_mail(context: ToolContext, order: int, cents: int) -> str:
            await trio.lowlevel.checkpoint()
            if why := await still_true(order, cents):
                world.wrong(f"a mail went out of {cents} cents, and {why}")
            world.done(context, "send_mail", "write", {"order": order})
            await pause()
            return f"mailed about order {order}"

        async def take_stock(context: ToolContext, order: int) -> str:
            await trio.lowlevel.checkpoint()
            world.done(context, "take_stock", "idempotent", {"order": order})
            return f"took the items of order {order}"

        tools = [
            _tool(read_order, "order", effect="read", mode="parallel", refreshable=True),
            _tool(send_mail, "order", "cents", effect="write", precheck=still_true),
            _tool(take_stock, "order", effect="idempotent", mode="parallel"),
        ]
        return [Bundle(tools=tools, adapters=[Clerk()])]

    async def run(self, kernel: Kernel, world: World) -> None:
        """Submit it, unless that was done; work, and answer questions, until the task has ended."""
        task = await kernel.tasks.submit(
            _GOAL, model=self.model, key="orders", max_steps=MAX_STEPS, max_recoveries=MAX_RECOVERIES
        )
        world.entered(task)
        if not (await kernel.tasks.show(task)).ended:
            world.posted((await kernel.tasks.steer(task, _HINT, key="hint")).letter_id)
        await work_to_its_end(kernel, world, task, by="night shift")

    def verdict(self, done: Sequence[Done], records: Sequence[Record]) -> Iterator[str]:
        """The task is completed, once; each mail went out at most once, and is reported; stock was taken once."""
        ends = [event.state for event in _events(records, TaskState) if event.state in ENDED]
        if ends != ["completed"]:
            yield f"the task has ended as {ends}"
        told = [event.text for event in _events(records, UserMessage)]
        if told.count(_HINT) != 1 or sum(text.startswith(_GOAL) for text in told) != 1:
            yield f"what was wanted was told {told.count(_HINT)} times, and the goal as often as {told}"
        reports = [event.text for event in _events(records, AssistantMessage) if not _calls(event)]
        if len(reports) != 1:
            yield f"there are {len(reports)} reports"
            return
        report: dict[str, list[int]] = json.loads(reports[0])
        sent, unknown, closed = (set(report[part]) for part in ("sent", "unknown", "not_shipped"))
        if sorted([*sent, *unknown, *closed]) != list(_ORDERS):
            yield f"the report leaves something out, or says it twice: {report}"
        if closed - (_CANCELLED.keys() if self.changing else set()):
            yield f"orders that nobody cancelled were not shipped: {sorted(closed)}"
        mailed = _about(done, "send_mail")
        if not sent <= mailed.keys() <= sent | unknown:
            yield f"sent are {sorted(mailed)}, and it is reported as {report}"
        if _about(done, "take_stock") != Counter(sent | unknown):
            yield f"stock was taken for {dict(_about(done, 'take_stock'))}, reported is {report}"


def _tool(body: Any, *parameters: str, **options: Any) -> Tool:
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in parameters}}
    return Tool(
        body=body,
        name=body.__name__,
        description="Work.",
        parameters={**schema, "required": list(parameters)},
        **options,
    )


def _events(records: Sequence[Record], kind: type[E]) -> list[E]:
    return [record.event for record in records if isinstance(record.event, kind)]


def _calls(message: AssistantMessage) -> list[ToolCallBlock]:
    return [block for block in message.content if isinstance(block, ToolCallBlock)]


def _about(done: Sequence[Done], tool: str) -> Counter[int]:
    """How many invocations of `tool` took effect for each order."""
    ran = {(fact.invocation_id, json.loads(fact.arguments)["order"]) for fact in done if fact.tool == tool}
    return Counter(order for _, order in ran)


class Clerk(FakeModel):
    """Does what is left to do, a few orders at a time, then reports. All of it follows from the conversation."""

    def __init__(self) -> None:
        super().__init__([], "clerk")

    @asynccontextmanager
    async def stream(
        self,
        request: Request,
        attempt: int,  # noqa: ARG002
    ) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        """The next reply."""
        known = _Known.of(request.messages)
        wanted = known.next_calls()
        said = words("On to the next.", chunk=8) if wanted else words(known.report(), chunk=32)
        yield self._play([*said[:2], pause, *said[2:], *calls(*wanted)])


@define
class _Known:
    """What the conversation says of the orders: how they were last read, how their mails ended, whose stock is gone."""

    orders: dict[int, dict[str, Any]] = field(factory=dict)
    mailed: dict[int, str] = field(factory=dict)
    stocked: set[int] = field(factory=set)

    @classmethod
    def of(cls, messages: Sequence[Message]) -> _Known:
        known, asked = cls(), list[ToolCallBlock]()
        for message in messages:
            match message:
                case AssistantMessage():
                    asked = _calls(message)
                case ToolResult():
                    known._take(asked[message.position], message)
                case UserMessage(source="resync"):
                    known._read(line for line in message.text.splitlines() if line.startswith('{"order"'))
                case _:
                    pass
        return known

    def _read(self, answers: Iterable[str]) -> None:
        for order in map(json.loads, answers):
            self.orders[order["order"]] = order

    def _take(self, call: ToolCallBlock, result: ToolResult) -> None:
        order: int = json.loads(call.arguments)["order"]
        match call.name, result.outcome:
            case "read_order", "ok":
                self._read([result.text])
            case "send_mail", "ok" | "unknown":
                self.mailed[order] = result.outcome
            case "send_mail", "denied":
                self.orders.pop(order, None)  # it has changed: look again
            case "take_stock", "ok":
                self.stocked.add(order)
            case _:
                pass

    def next_calls(self) -> list[tuple[str, object]]:
        """What to do now; nothing once all is done."""
        left = [number for number in _ORDERS if not self._is_done(number)][:_AT_ONCE]
        if unread := [number for number in left if number not in self.orders and number not in self.mailed]:
            return [("read_order", {"order": number}) for number in unread]
        return [
            ("take_stock", {"order": number})
            if number in self.mailed
            else ("send_mail", {"order": number, "cents": self.orders[number]["cents"]})
            for number in left
        ]

    def _is_done(self, number: int) -> bool:
        if number in self.mailed:
            return number in self.stocked
        return number in self.orders and self.orders[number]["status"] != "open"

    def report(self) -> str:
        """The last words."""
        unknown = sorted(number for number, outcome in self.mailed.items() if outcome == "unknown")
        sent = sorted(self.mailed.keys() - set(unknown))
        return json.dumps({"sent": sent, "unknown": unknown, "not_shipped": sorted(set(_ORDERS) - self.mailed.keys())})
