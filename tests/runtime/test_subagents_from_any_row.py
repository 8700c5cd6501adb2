"""A parent and its children, cut behind every append of all their logs, and resumed. Also cut twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio
import trio.testing

import flightlog
from flightlog import Limits
from flightlog.core.children import GO_ON
from flightlog.core.inbox import keyed_id
from flightlog.runtime.reader import LogReader
from flightlog.testing import calls, words
from flightlog_hookspecs import Tool, ToolContext
from flightlog_hookspecs.events import (
    InboxSplice,
    Record,
    SubagentSettled,
    SubagentSpawned,
    ToolCall,
    ToolResult,
    TurnEnd,
    UserMessage,
)
from support.conversation import assert_at_rest
from support.cutting import cut_file
from support.family import Family

LIMITS = Limits(cancel_grace_s=0, delta_flush_ms=1)
Rows = dict[str, int]


def family_in(folder: Path, ran: list[str], cuts: list[Rows] | None = None, *, background: bool) -> Family:
    """A parent that writes, calls its child, and writes; the child looks and writes.

    `ran` gets the invocation ids of all bodies, `cuts` how many rows each session has after each commit.
    """
    reached: Rows = {}

    def noted(name: str, session: str, seq: int) -> None:
        if cuts is None or name != "committed":
            return
        if session not in reached:
            cuts.append(reached | {session: 1})
        reached[session] = seq
        cuts.append(dict(reached))

    def made(name: str, effect: str) -> Tool:
        async def body(context: ToolContext) -> str:
            ran.append(context.invocation_id)
            await trio.lowlevel.checkpoint()
            return "done"

        return Tool(body=body, name=name, description="Work.", effect=effect, mode="parallel")  # type: ignore[arg-type]

    parent = [
        calls(("write", {}), ("scout", {"task": "look around"})),
        [*words("Then."), *calls(("write", {}))],
        *[words("I see.")] * 9,
    ]
    child = [[*words("I will."), *calls(("look", {}), ("write", {}))], *[words("Blue sky.")] * 9]
    tools = [made("look", "read"), made("write", "write")]
    return Family(folder, parent, child, tools=tools, limits=LIMITS, on_boundary=noted, background=background)


def names_in(path: Path) -> list[str]:
    with flightlog.open_log(path, discover=False) as log:
        return log.names()


def log_of(log: LogReader, name: str) -> list[Record]:
    return list(log.session(name).records())


def check(family: Family, ran: list[str], before: dict[str, list[Record]]) -> None:
    """What must hold of a family that has come to rest, and stood at `before` when it was taken up."""
    records = {name: assert_at_rest(family.path, *family.models, name=name) for name in names_in(family.path)}
    everything = [record for log in records.values() for record in log]
    started = {record.event.invocation_id for record in everything if isinstance(record.event, ToolCall)}
    assert len(set(ran)) == len(ran), "a body ran twice"
    assert set(ran) <= started, "an effect without its call in the log"
    for name, log in before.items():
        assert records[name][: len(log)] == log, "nothing that was there is changed"
    spawned = [record.event for record in records["s"] if isinstance(record.event, SubagentSpawned)]
    settled = [record.event for record in records["s"] if isinstance(record.event, SubagentSettled)]
    assert Counter(one.invocation_id for one in spawned) == Counter(one.invocation_id for one in settled)
    for one in spawned:
        told = keyed_id(f"{one.invocation_id} settled")
        accepted = [r for r in everything if isinstance(r.event, InboxSplice) and r.event.message_id == told]
        entered = [r for r in everything if isinstance(r.event, UserMessage) and r.event.message_id == told]
        assert len(entered) == one.background
        assert len(accepted) == 2 * one.background
        if one.child in records:
            inputs = [r.event.text for r in records[one.child] if isinstance(r.event, UserMessage)]
            assert inputs.count("look around") <= 1
            assert set(inputs) <= {"look around", GO_ON, "go on"}


async def taken_up(family: Family) -> None:
    """The host starts again: what waits, and one more message if a turn was cut off; then each child on its own."""
    async with family.kernel() as kernel:
        async with kernel.session("s", model="fake:m", limits=LIMITS) as session:
            await session.run(children=True)
            await session.followup("go on")
            await session.run(children=True)
        for name in names_in(family.path):
            if name != "s":
                async with kernel.session(name, model="child:m", limits=LIMITS) as child:
                    await child.followup("go on")
                    turn = await child.run()
                    assert turn is not None
                    assert turn.reason == "completed"


def flown(path: Path, ran: list[str], cuts: list[Rows], *, background: bool) -> Family:
    async def fly() -> None:
        await family.run("go")

    family = family_in(path, ran, cuts, background=background)
    trio.run(fly, clock=trio.testing.MockClock(autojump_threshold=0))
    return family


@pytest.mark.parametrize("background", [False, True])
def test_a_family_cut_behind_any_row_is_taken_up_and_nothing_is_lost_or_done_twice(
    tmp_path: Path, background: bool
) -> None:
    cuts: list[Rows] = []
    first_ran: list[str] = []
    whole = flown(tmp_path, first_ran, cuts, background=background)
    assert len(cuts) > 30
    twice = 0
    for number, rows in enumerate(cuts):
        cut = tmp_path / f"{number}"
        cut.mkdir()
        ran, again = begun(whole.path, rows), list[Rows]()
        family = family_in(cut, ran, again, background=background)
        cut_file(whole.path, family.path, rows)
        before = logs(family.path)
        trio.run(taken_up, family, clock=trio.testing.MockClock(autojump_threshold=0))
        check(family, ran, before)
        if number % 5:
            continue
        for second, more in enumerate(again[::9]):
            nested = cut / f"{second}"
            nested.mkdir()
            both = rows | more
            ran = begun(family.path, both)
            again_cut = family_in(nested, ran, background=background)
            cut_file(family.path, again_cut.path, both)
            before = logs(again_cut.path)
            trio.run(taken_up, again_cut, clock=trio.testing.MockClock(autojump_threshold=0))
            check(again_cut, ran, before)
            twice += 1
    assert twice > 10


async def gone_on(family: Family) -> None:
    """The host starts again, and lets what a crash cut off go on."""
    async with (
        family.kernel() as kernel,
        kernel.session("s", model="fake:m", limits=LIMITS, on_crash="continue") as session,
    ):
        await session.followup("go", key="go")
        await session.run(children=True)


def check_gone_on(family: Family, ran: list[str], before: dict[str, list[Record]], *, background: bool) -> None:
    """What must hold of a family that went on from `before` and has come to rest."""
    records = {name: assert_at_rest(family.path, *family.models, name=name) for name in names_in(family.path)}
    for name, log in before.items():
        assert records[name][: len(log)] == log, "nothing that was there is changed"
    everything = [record for log in records.values() for record in log]
    names = {
        record.event.invocation_id: record.event.name for record in everything if isinstance(record.event, ToolCall)
    }
    assert all(times == 1 or names[one] == "look" for one, times in Counter(ran).items()), "a write ran twice"
    (spawned,) = [record.event for record in records["s"] if isinstance(record.event, SubagentSpawned)]
    (settled,) = [record.event for record in records["s"] if isinstance(record.event, SubagentSettled)]
    if background and set(records) == {"s"}:  # it never began, or it is gone: nobody can tell, so it is not begun anew
        assert settled.reason == "error"
        return
    assert set(records) == {"s", spawned.child}, "one call has one child"
    assert (settled.reason, settled.result) == ("completed", "Blue sky.")
    inputs = [r.event.text for r in records[spawned.child] if isinstance(r.event, UserMessage)]
    assert inputs == ["look around"]
    ends = {r.event.reason for r in everything if isinstance(r.event, TurnEnd)}
    assert ends == {"completed"}
    results = [r.event for r in records["s"] if isinstance(r.event, ToolResult) and r.event.name == "scout"]
    assert [result.outcome for result in results] == ["ok"]
    assert background or results[0].text == "Blue sky."


@pytest.mark.parametrize("background", [False, True])
def test_a_family_cut_behind_any_row_goes_on_with_the_child_that_it_had(tmp_path: Path, background: bool) -> None:
    cuts: list[Rows] = []
    whole = flown(tmp_path, [], cuts, background=background)
    nested = 0
    for number, rows in enumerate(cuts):
        cut = tmp_path / f"{number}"
        cut.mkdir()
        ran, again = list[str](), list[Rows]()
        family = family_in(cut, ran, again, background=background)
        cut_file(whole.path, family.path, rows)
        before = logs(family.path)
        writes = begun(whole.path, rows, "write")
        trio.run(gone_on, family, clock=trio.testing.MockClock(autojump_threshold=0))
        check_gone_on(family, writes + ran, before, background=background)
        if number % 4:
            continue
        for second, more in enumerate(again[::7]):
            folder = cut / f"{second}"
            folder.mkdir()
            both, ran = rows | more, list[str]()
            twice = family_in(folder, ran, background=background)
            cut_file(family.path, twice.path, both)
            before, writes = logs(twice.path), begun(family.path, both, "write")
            trio.run(gone_on, twice, clock=trio.testing.MockClock(autojump_threshold=0))
            check_gone_on(twice, writes + ran, before, background=background)
            nested += 1
    assert nested > 10


def logs(path: Path) -> dict[str, list[Record]]:
    with flightlog.open_log(path, discover=False) as log:
        return {name: log_of(log, name) for name in log.names()}


def begun(path: Path, rows: Rows, *tools: str) -> list[str]:
    """The invocation ids of the calls of these tools, or of all, that may have run in those rows."""
    return [
        record.event.invocation_id
        for name, log in logs(path).items()
        for record in log[: rows.get(name, 0)]
        if record.event.kind == "tool/call" and record.event.name in (tools or ("look", "write"))
    ]
