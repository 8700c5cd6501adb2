"""Any small session, cut behind any row, and once more in its recovery: it comes to what it would have come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import trio
import trio.testing
from attrs import define, field, frozen
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog import Limits
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import Done, NotDone, Tool, ToolContext
from flightlog_hookspecs.events import (
    Message,
    Record,
    RequestSent,
    ToolCall,
    ToolResult,
    TurnEnd,
)
from flightlog_hookspecs.tools import REPEATABLE, Effect, Mode
from support import files
from support.conversation import assert_at_rest
from support.cutting import cut_log
from support.kernels import records_of, session_of

LIMITS = Limits(cancel_grace_s=0, delta_flush_ms=1, parallel_tools=2)


@frozen
class Kind:
    """A tool: what it does, how it runs, whether it can tell what it has done."""

    effect: Effect
    mode: Mode
    reconciled: bool

    @property
    def name(self) -> str:
        return f"{self.effect}_{self.mode}{'_told' if self.reconciled else ''}"

    @property
    def is_known(self) -> bool:
        """Whether it will be known what became of a call that was cut off."""
        return self.reconciled or self.effect in REPEATABLE


KINDS = [
    Kind(effect, mode, reconciled)
    for effect in get_args(Effect)
    if effect != "transactional"  # its database tells, see test_transactional_going_on
    for mode in get_args(Mode)
    for reconciled in (False, True)
]
BY_NAME = {kind.name: kind for kind in KINDS}
Script = Sequence[Sequence[str]]
"""The names of the tools that each step calls."""

scripts = st.lists(st.lists(st.sampled_from(sorted(BY_NAME)), min_size=1, max_size=3), min_size=1, max_size=2)


@define
class World:
    """What has taken effect, by invocation id, and how often."""

    done: Counter[str] = field(factory=Counter)

    def tools(self) -> list[Tool]:
        return [self.tool(kind) for kind in KINDS]

    def tool(self, kind: Kind) -> Tool:
        async def body(context: ToolContext, n: str) -> str:
            await trio.lowlevel.checkpoint()
            self.done[context.invocation_id] += 1
            await trio.lowlevel.checkpoint()
            return f"did {n}"

        async def reconcile(context: ToolContext, arguments: Mapping[str, Any]) -> Done | NotDone:
            await trio.lowlevel.checkpoint()
            return Done(f"did {arguments['n']}") if self.done[context.invocation_id] else NotDone()

        return Tool(
            body=body,
            name=kind.name,
            description="Work.",
            effect=kind.effect,
            mode=kind.mode,
            reconcile=reconcile if kind.reconciled else None,
        )


def model_of(script: Script) -> FakeModel:
    # No call equals another: one like a call that is in doubt would be denied.
    steps = [
        [*words(f"Step {n}."), *calls(*((name, {"n": f"{n}.{i}"}) for i, name in enumerate(step)))]
        for n, step in enumerate(script)
    ]
    return FakeModel([*steps, words("All done."), words("And more.")])


async def live(path: Path, script: Script, world: World, commits: list[int]) -> FakeModel:
    """Whatever is left to do. `commits` gets how many rows there were after each commit."""

    def noted(name: str, session: str, seq: int) -> None:
        if name == "committed":
            commits.append(seq)

    model = model_of(script)
    options: dict[str, Any] = {"limits": LIMITS, "on_crash": "continue", "on_boundary": noted}
    async with session_of(path, model, *world.tools(), **options) as session:
        await session.followup("begin", key="first")
        await session.followup("go on", key="second")
        await session.run()
    return model


def run(path: Path, script: Script, world: World) -> tuple[FakeModel, list[int]]:
    commits: list[int] = []
    model = trio.run(live, path, script, world, commits, clock=trio.testing.MockClock(autojump_threshold=0))
    return model, commits


def messages_of(path: Path) -> list[Message]:
    with flightlog.open_log(path, discover=False) as log:
        return log.session("s").messages()


def world_at(records: Sequence[Record], data: st.DataObject) -> World:
    """What may have taken effect by the last of `records`: of a call without a result nobody knows."""
    world = World()
    answered = {record.event.call_seq for record in records if isinstance(record.event, ToolResult)}
    for record in records:
        if isinstance(record.event, ToolCall):
            done = record.seq in answered or data.draw(st.booleans(), label=f"call {record.seq} has taken effect")
            world.done[record.event.invocation_id] = int(done)
    return world


def check(path: Path, before: Sequence[Record], world: World, whole: Path, model: FakeModel) -> None:
    """What holds of a session that went on behind the rows `before`."""
    records = assert_at_rest(path, model)
    assert records[: len(before)] == list(before), "nothing that was there is changed"
    ends = [record.event.reason for record in records if isinstance(record.event, TurnEnd)]
    assert ends == ["completed"] * 2
    starts = [record.event for record in records if isinstance(record.event, ToolCall)]
    kinds = {call.invocation_id: BY_NAME[call.name] for call in starts}
    assert set(world.done) <= set(kinds), "an effect without its call in the log"
    assert all(times <= 1 or kinds[one].effect in REPEATABLE for one, times in world.done.items())
    in_doubt, vague = set(), 0
    for ours, theirs in zip(messages_of(path), messages_of(whole), strict=True):
        match ours, theirs:
            case ToolResult(outcome="unknown") as result, ToolResult():
                assert not BY_NAME[result.name].is_known
                in_doubt.add(result.name)
                vague += 1
            case ToolResult(), ToolResult():
                assert (ours.outcome, ours.text, ours.position) == (theirs.outcome, theirs.text, theirs.position)
            case _:
                assert (type(ours), ours.content) == (type(theirs), theirs.content)
    sent = {record.event.sha256 for record in records if isinstance(record.event, RequestSent)}
    whole_sent = {r.event.sha256 for r in records_of(whole) if isinstance(r.event, RequestSent)}
    assert vague or sent == whole_sent, "each request is what it would have been"


@given(script=scripts, data=st.data())
def test_a_session_cut_anywhere_comes_to_what_it_would_have_come_to(script: Script, data: st.DataObject) -> None:
    with files.in_memory() as folder:
        whole, cut, again = folder / "whole.db", folder / "cut.db", folder / "again.db"
        _, commits = run(whole, script, World())
        records = records_of(whole)
        rows = data.draw(st.sampled_from(commits), label="rows that are left")
        cut_log(whole, cut, rows)
        world = world_at(records[:rows], data)
        model, commits = run(cut, script, world)
        check(cut, records[:rows], world, whole, model)

        records = records_of(cut)
        left = data.draw(st.sampled_from(commits), label="rows that are left of the recovery")
        cut_log(cut, again, left)
        world = world_at(records[:left], data)
        model, _ = run(again, script, world)
        check(again, records[:left], world, whole, model)
