"""Calls that ask before they run: a model that pays several people at once, and a world that sees each payment."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import flightlog
from flightlog.runtime.clock import Clock
from flightlog.testing import Bundle, FakeModel, calls, fixed_clock, words
from flightlog_hookspecs import Ask, Hook, ProposedCall, Tool, ToolContext, Verdict
from flightlog_hookspecs.events import ApprovalAsked, ApprovalDecided, TurnEnd
from support.kernels import events_of, outcomes_of


def ask_always(call: ProposedCall) -> Verdict:
    """The guard."""
    return Ask(f"may {call.name} run with {call.arguments}?")


def ask_unless_bob(call: ProposedCall) -> Verdict:
    """A guard that lets bob be paid."""
    return None if "bob" in call.arguments else ask_always(call)


def guard(body: Any, name: str = "guard") -> Hook:
    """A hook that is asked about each call."""
    return Hook(point="before_tool", body=body, name=name)


def till(folder: Path, to: Sequence[str], *hooks: Hook, tools: Sequence[Tool] | None = None) -> Bundle:
    """The plugin. `paid` in `folder` gets a line for each payment: its invocation id and who was paid."""

    async def pay(context: ToolContext, to: str) -> str:
        descriptor = os.open(folder / "paid", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{context.invocation_id} {to}\n".encode())
        os.close(descriptor)
        return f"paid {to}"

    model = FakeModel([calls(*[("pay", {"to": name}) for name in to]), words("Fine.")])
    mine = Tool(body=pay, description="Pay someone.", mode="parallel", effect="write")
    return Bundle(tools=[mine] if tools is None else tools, adapters=[model], hooks=hooks or [guard(ask_always)])


def payments(folder: Path) -> list[str]:
    """Who was paid, in order."""
    try:
        return [line.split()[1] for line in (folder / "paid").read_text().splitlines()]
    except FileNotFoundError:
        return []


@asynccontextmanager
async def at_till(
    folder: Path,
    to: Sequence[str] = ("ada", "bob", "eve"),
    *hooks: Hook,
    tools: Sequence[Tool] | None = None,
    approver: bool = True,
    clock: Clock | None = None,
    **options: Any,
) -> AsyncIterator[tuple[flightlog.Kernel, flightlog.Session]]:
    """Session "s" of a kernel on `a.db` in `folder`, told to pay if it is new."""
    plugin = till(folder, to, *hooks, tools=tools)
    async with (
        flightlog.open_kernel(
            folder / "a.db", discover=False, plugins=[plugin], clock=clock or fixed_clock()
        ) as kernel,
        kernel.session("s", model="fake:m", approver=approver, **options) as session,
    ):
        await session.followup("pay", key="once")
        yield kernel, session


async def suspended(folder: Path, to: Sequence[str] = ("ada", "bob", "eve"), *hooks: Hook) -> list[int]:
    """Leave a turn suspended in `folder`; returns the rows of its questions."""
    async with at_till(folder, to, *hooks) as (_, session):
        turn = await session.run(wait=False)
        assert turn is not None
        assert (turn.reason, turn.cause) == ("paused", "approval")
        return [question.seq for question in session.questions()]


def ends(folder: Path) -> list[str]:
    """Why the turns ended."""
    return [event.reason for event in events_of(folder / "a.db", TurnEnd)]


def decisions(folder: Path) -> list[tuple[int, str]]:
    """(which question, what was decided), in order of the decisions."""
    asked = asked_rows(folder)
    return [(asked.index(event.asked_seq), event.decision) for event in events_of(folder / "a.db", ApprovalDecided)]


def asked_rows(folder: Path) -> list[int]:
    """The rows of all questions."""
    with flightlog.open_log(folder / "a.db", discover=False) as log:
        return [record.seq for record in log.session("s").records() if isinstance(record.event, ApprovalAsked)]


def outcomes(folder: Path) -> list[str]:
    """How the calls ended, in call order."""
    return outcomes_of(folder / "a.db")


def check(folder: Path, to: Sequence[str] = ("ada", "bob", "eve")) -> int:
    """Verify all that can be verified, the hash of every request included."""
    with flightlog.open_log(folder / "a.db", discover=False, plugins=[till(folder, to)]) as log:
        log.check_file()
        return log.session("s").verify()
