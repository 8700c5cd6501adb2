"""openai-agents: its SQLite session, with and without the read of the history that its runner does at each run."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from agents import SQLiteSession

from contestants.step import NAME, Contestant, Pace, arguments, question, result


def items(number: int) -> list[dict[str, Any]]:
    """The three items of a step."""
    return [
        {"role": "user", "content": question(number)},
        {"type": "function_call", "call_id": f"call-{number}", "name": NAME, "arguments": arguments(number)},
        {"type": "function_call_output", "call_id": f"call-{number}", "output": result(number)},
    ]


async def steps(folder: Path, pace: Pace, *, reads: bool) -> None:
    """Each item is added by itself, so that it can be resumed at every point."""
    session = SQLiteSession("s", folder / "agents.db")
    number = 0
    while pace.more():
        if reads:
            assert len(await session.get_items()) == 3 * number
        for item in items(number):
            await session.add_items([item])
        number += 1


def run(folder: Path, pace: Pace, *, reads: bool) -> None:
    """Work."""
    asyncio.run(steps(folder, pace, reads=reads))


def resume(folder: Path) -> int:
    """Read the history."""
    found = asyncio.run(SQLiteSession("s", folder / "agents.db").get_items())
    assert found == [item for number in range(len(found) // 3) for item in items(number)]
    return len(found) // 3


CONTESTANTS = {
    "openai-agents": Contestant(partial(run, reads=False), resume),
    "openai-agents, reading its history": Contestant(partial(run, reads=True), resume),
}
