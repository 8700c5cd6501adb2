"""A plugin for the command line's tests: two calls, one of them put to a person."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import Adapter, Ask, Hook, ProposedCall, Tool, Verdict, hookimpl, tool


@tool(mode="parallel", effect="write")
def pay(to: str) -> str:
    """Pay someone."""
    with Path("paid").open("a") as file:
        file.write(f"{to}\n")
    return f"paid {to}"


ONCE = calls(("pay", {"to": "ada"}), ("pay", {"to": "bob"}))
MODEL = FakeModel([ONCE, words("Paid both."), calls(("pay", {"to": "eve"})), words("Paid eve.")], name="asking")


async def guard(call: ProposedCall) -> Verdict:
    """Ask about everybody but bob, unless a person has decided about such calls."""
    return Ask(f"May {call.name} run?") if "bob" not in call.arguments and not call.remembered else None


@hookimpl
def register_tools(register: Callable[[Tool], None]) -> None:
    """The tool."""
    register(pay)


@hookimpl
def register_adapters(register: Callable[[Adapter], None]) -> None:
    """The model "asking:m"."""
    register(MODEL)


@hookimpl
def register_hooks(register: Callable[[Hook], None]) -> None:
    """The guard."""
    register(Hook(point="before_tool", body=guard, name="cashier"))
