"""A tool that may be called again after a crash: the invocation id is the key of what it does.

It is registered as "idempotent", so a call that a crash left without an answer is made again, under the same id.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing

from flightlog_hookspecs import Tool, ToolContext, hookimpl, tool
from flightlog_hookspecs.errors import ToolError

flightlog_contract = 1


def payments(path: str = "") -> Tool:
    """The tool, with its books at `path`; "" for a file in the folder that the host lets tools work in."""

    @tool(effect="idempotent", timeout_s=10.0)
    async def pay(context: ToolContext, order: str, cents: int) -> str:
        """Pay for an order.

        Args:
            context: the call
            order: what is paid for
            cents: how much, at least 1
        """
        if cents < 1:
            raise ToolError(f"{cents} cents cannot be paid; the least is 1")
        with closing(_books(path or _in(context))) as books, books:
            books.execute("INSERT OR IGNORE INTO payments VALUES (?, ?, ?)", (context.invocation_id, order, cents))
        return f"paid {cents} cents for {order}"

    return pay


def _in(context: ToolContext) -> str:
    if not context.workspace:
        raise ToolError("there is no folder to keep the books in; the host has to name a workspace")
    return os.path.join(context.workspace, "payments.db")


def _books(path: str) -> sqlite3.Connection:
    books = sqlite3.connect(path)
    books.execute("CREATE TABLE IF NOT EXISTS payments (invocation TEXT PRIMARY KEY, payee TEXT, cents INTEGER)")
    return books


@hookimpl
def register_tools(register: Callable[[Tool], None]) -> None:
    """Offer the tool."""
    register(payments())
