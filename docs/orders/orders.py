"""A task on something real: ship the orders of a small shop, mail each customer once, keep the stock right.

    python orders.py work FOLDER     submit the task unless it was, and work on it; kill it whenever you like
    python orders.py report FOLDER   what was done, and what the shop says of it

The shop is a SQLite file of its own, beside the log. Its outbox is the witness: a mail that was sent twice stands there
twice. There is a model without a provider, so it runs offline; any other takes its place with --model.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import trio
from attrs import define, frozen

import flightlog
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import (
    AssistantMessage,
    BlockEvent,
    Request,
    Tool,
    ToolCallBlock,
    ToolContext,
    ToolResult,
    UserMessage,
)

GOAL = "Ship every open order: mail its customer once, take its items from stock, and report what you did."
AT_ONCE = 5
"""Orders that the clerk handles in one step."""

SCHEMA = """
CREATE TABLE orders(id INTEGER PRIMARY KEY, item TEXT, quantity INTEGER, cents INTEGER, status TEXT);
CREATE TABLE stock(item TEXT PRIMARY KEY, pieces INTEGER);
CREATE TABLE moves(key TEXT PRIMARY KEY, order_id INTEGER, item TEXT, quantity INTEGER);
CREATE TABLE outbox(id INTEGER PRIMARY KEY, order_id INTEGER, cents INTEGER);
"""
ITEMS = ("lamp", "chair", "kettle")


@define
class Shop:
    """The shop's database."""

    path: Path

    def create(self, orders: int) -> None:
        """Make a shop with so many open orders; they are the same each time."""
        random = Random(7)  # noqa: S311  a shop, not a secret
        with self.open() as db:
            db.executescript(SCHEMA)
            db.executemany("INSERT INTO stock VALUES(?, ?)", [(item, 10_000) for item in ITEMS])
            db.executemany(
                "INSERT INTO orders VALUES(?, ?, ?, ?, 'open')",
                [
                    (number, random.choice(ITEMS), random.randint(1, 9), random.randint(100, 9999))
                    for number in range(1, orders + 1)
                ],
            )

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        with closing(sqlite3.connect(self.path, timeout=30)) as db, db:
            yield db

    def order(self, number: int) -> Order:
        """The order as it is now."""
        with self.open() as db:
            row = db.execute("SELECT id, item, quantity, cents, status FROM orders WHERE id = ?", (number,)).fetchone()
        return Order(*row)

    def numbers(self) -> list[int]:
        """All orders."""
        with self.open() as db:
            return [number for (number,) in db.execute("SELECT id FROM orders ORDER BY id")]

    def mailed(self) -> list[tuple[int, int]]:
        """The mails in the outbox: order and price."""
        with self.open() as db:
            return db.execute("SELECT order_id, cents FROM outbox ORDER BY id").fetchall()

    def moved(self) -> list[tuple[int, int]]:
        """What was taken from stock: order and quantity."""
        with self.open() as db:
            return db.execute("SELECT order_id, quantity FROM moves ORDER BY order_id").fetchall()

    def pieces(self) -> int:
        """All that is in stock."""
        with self.open() as db:
            return int(db.execute("SELECT sum(pieces) FROM stock").fetchone()[0])


@frozen
class Order:
    """An order."""

    id: int
    item: str
    quantity: int
    cents: int
    status: str


def tools(shop: Shop) -> list[Tool]:
    """What the clerk can do. How each tool is declared is all that the kernel knows of it."""

    def list_orders() -> list[int]:
        """The numbers of all orders."""
        return shop.numbers()

    def read_order(order: int) -> dict[str, Any]:
        """An order as it is now."""
        found = shop.order(order)
        return {"order": found.id, "item": found.item, "cents": found.cents, "status": found.status}

    def send_mail(order: int, cents: int) -> str:
        """Tell the customer that the order is on its way and what it costs. Nobody can take a mail back."""
        with shop.open() as db:
            db.execute("INSERT INTO outbox(order_id, cents) VALUES(?, ?)", (order, cents))
        return f"mailed about order {order}"

    def still_true(order: int, cents: int) -> str | None:
        """Why the mail must not go out, if it must not."""
        found = shop.order(order)
        if found.status != "open":
            return f"order {order} is {found.status} now"
        if found.cents != cents:
            return f"order {order} costs {found.cents} now, not {cents}"
        return None

    def take_stock(context: ToolContext, order: int) -> str:
        """Take the items of an order from stock."""
        found = shop.order(order)
        with shop.open() as db:
            # The invocation id is the same when the kernel repeats the call: the second time nothing happens.
            new = db.execute(
                "INSERT OR IGNORE INTO moves VALUES(?, ?, ?, ?)",
                (context.invocation_id, order, found.item, found.quantity),
            ).rowcount
            db.execute("UPDATE stock SET pieces = pieces - ? WHERE item = ?", (found.quantity * new, found.item))
        return f"took {found.quantity} for order {order}"

    return [
        Tool(body=list_orders, effect="read"),
        Tool(body=read_order, effect="read", mode="parallel", refreshable=True),
        Tool(body=send_mail, effect="write", precheck=still_true),
        Tool(body=take_stock, effect="idempotent"),
    ]


class Clerk(FakeModel):
    """A model without a provider: what it does next follows from what it has been told."""

    def __init__(self) -> None:
        super().__init__((), name="clerk")

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:  # noqa: ARG002
        """Answer."""
        known = Known.of(request.messages)
        wanted = known.next_calls()
        yield self._play(calls(*wanted) if wanted else words(known.report(), chunk=40))


@define
class Known:
    """What the conversation says of the orders."""

    numbers: list[int] | None
    orders: dict[int, dict[str, Any]]
    mailed: dict[int, str]
    stocked: set[int]

    @classmethod
    def of(cls, messages: Sequence[object]) -> Known:
        """Read the conversation."""
        known = cls(None, {}, {}, set())
        asked: list[ToolCallBlock] = []
        for message in messages:
            match message:
                case AssistantMessage():
                    asked = [block for block in message.content if isinstance(block, ToolCallBlock)]
                case ToolResult():
                    known._take(asked[message.position], message)
                case UserMessage(source="resync"):
                    for line in message.text.splitlines():
                        if line.startswith('{"order"'):
                            known._read(json.loads(line))
        return known

    def _read(self, order: dict[str, Any]) -> None:
        self.orders[order["order"]] = order

    def _take(self, call: ToolCallBlock, result: ToolResult) -> None:
        if call.name == "list_orders" and result.outcome == "ok":
            self.numbers = json.loads(result.text)
        elif call.name == "read_order" and result.outcome == "ok":
            self._read(json.loads(result.text))
        elif call.name == "send_mail" and result.outcome in ("ok", "unknown"):
            self.mailed[json.loads(call.arguments)["order"]] = result.outcome
        elif call.name == "send_mail" and result.outcome == "denied":
            self.orders.pop(json.loads(call.arguments)["order"], None)  # it has changed: look again
        elif call.name == "take_stock" and result.outcome == "ok":
            self.stocked.add(json.loads(call.arguments)["order"])

    def next_calls(self) -> list[tuple[str, object]]:
        """What to do now; nothing once all is done."""
        if self.numbers is None:
            return [("list_orders", {})]
        left = [number for number in self.numbers if not self._done(number)][:AT_ONCE]
        if unread := [number for number in left if number not in self.orders]:
            return [("read_order", {"order": number}) for number in unread]
        wanted: list[tuple[str, object]] = []
        for number in left:
            if number not in self.mailed:
                wanted.append(("send_mail", {"order": number, "cents": self.orders[number]["cents"]}))
            elif number not in self.stocked:
                wanted.append(("take_stock", {"order": number}))
        return wanted

    def _done(self, number: int) -> bool:
        closed = number in self.orders and self.orders[number]["status"] != "open" and number not in self.mailed
        return closed or (number in self.mailed and number in self.stocked)

    def report(self) -> str:
        """The last words, in JSON."""
        unknown = sorted(number for number, outcome in self.mailed.items() if outcome == "unknown")
        sent = sorted(number for number, outcome in self.mailed.items() if outcome == "ok")
        closed = sorted(set(self.numbers or ()) - set(self.mailed))
        return json.dumps({"sent": sent, "unknown": unknown, "not_shipped": closed})


def plugin(shop: Shop) -> Bundle:
    """All of it as one plugin."""
    return Bundle(tools=tools(shop), adapters=[Clerk()])


async def submit(kernel: flightlog.Kernel, model: str = "clerk:v1") -> str:
    """Submit the task; the same one however often."""
    return str(await kernel.tasks.submit(GOAL, model=model, key="orders", max_steps=2000, max_recoveries=1000))


async def main(folder: Path, action: str, model: str, orders: int) -> None:
    """Run the program."""
    folder.mkdir(parents=True, exist_ok=True)
    shop = Shop(folder / "shop.db")
    if not shop.path.exists():
        shop.create(orders)
    async with flightlog.open_kernel(folder / "agent.db", plugins=[plugin(shop)]) as kernel:
        task = await submit(kernel, model)
        if action == "work":
            await kernel.work(until_idle=True)
        shown = await kernel.tasks.show(task)
        print(f"task {task} is {shown.state}; {len(shop.mailed())} mails, {len(shop.moved())} stock changes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["work", "report"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="clerk:v1")
    parser.add_argument("--orders", type=int, default=200)
    given = parser.parse_args()
    trio.run(main, given.folder, given.action, given.model, given.orders)
