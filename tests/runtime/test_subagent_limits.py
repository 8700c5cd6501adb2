"""What bounds subagents: steps, time, how many there are at once; and calling one off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve

from flightlog import Limits, Session
from flightlog.runtime.clock import Clock
from flightlog.testing import calls, words
from flightlog_hookspecs import Tool
from flightlog_hookspecs.errors import PluginError
from flightlog_hookspecs.events import SubagentSettled, SubagentSpawned, ToolResult, TurnEnd, UserMessage
from support.family import Family, child_of
from support.kernels import events_of, kinds_of, verified

START = [calls(("scout", {"task": "look around"})), words("Started."), words("I see."), words("Good.")]
LOOKING = [[*words("I will look."), *calls(("look", {}))], words("Blue sky."), words("More.")]
NOW_US = 1_700_000_000_000_000


class Looking:
    """A tool of the child that never ends by itself, unless it may."""

    def __init__(self) -> None:
        self.began, self.may = trio.Event(), trio.Event()

    @property
    def tool(self) -> Tool:
        async def look() -> str:
            """Look."""
            self.began.set()
            await self.may.wait()
            return "sky"

        return Tool(body=look, effect="read")


class Timed(Family):
    """A family on a wall clock that goes with trio's, and goes on while no kernel is open."""

    offset_us = 0

    def clock(self) -> Clock:
        return evolve(super().clock(), now_us=lambda: NOW_US + self.offset_us + int(trio.current_time() * 1_000_000))


def told(family: Family) -> list[str]:
    return [m.text for m in events_of(family.path, UserMessage) if m.source == "subagent"]


def results(family: Family) -> list[str]:
    return [result.text for result in events_of(family.path, ToolResult)]


async def start(session: Session, looking: Looking) -> None:
    await session.followup("go")
    await session.run()
    await looking.began.wait()


async def say(session: Session, family: Family, *script: Any) -> None:
    """Let the parent make one more turn of `script`."""
    family.parent.replies = [
        *family.parent.replies[: len(family.parent.requests)],
        *script,
        words("Fine."),
        words("Ok."),
    ]
    await session.followup("next")
    await session.run()


async def test_each_of_its_turns_has_its_own_steps_at_most(tmp_path: Path) -> None:
    async def look() -> str:
        """Look."""
        return "sky"

    looking = [calls(("look", {})) for _ in range(9)]
    for steps, of_parent, most in ((2, 5, 2), (5, 2, 2), (None, 3, 3)):
        (folder := tmp_path / f"{steps}").mkdir()
        limits = Limits(steps_per_turn=of_parent)
        family = Family(
            folder, START, looking, tools=[Tool(body=look, effect="read")], limits=limits, steps_per_turn=steps
        )
        await family.run("go")
        (end,) = events_of(family.path, TurnEnd, child_of(family.path))
        assert (end.reason, end.message) == ("max_steps", f"{most} steps")


async def test_one_in_the_background_is_ended_when_its_time_is_up(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    looking = Looking()
    family = Timed(tmp_path, START, LOOKING, tools=[looking.tool], background=True, timeout_s=30.0)
    await family.run("go")
    assert 30 <= trio.current_time() < 40
    (spawned,) = events_of(family.path, SubagentSpawned)
    assert 30 <= (spawned.until_us - NOW_US) / 1e6 < 31
    assert [settled.reason for settled in events_of(family.path, SubagentSettled)] == ["aborted"]
    (message,) = told(family)
    assert "did not finish (aborted: time limit)" in message
    assert "Its last words: I will look." in message
    child = child_of(family.path)
    for name in ("s", child):
        verified(family.path, *family.models, name=name)


async def test_its_time_goes_on_while_no_process_runs_and_is_up_for_the_next_owner(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """By the log: the next owner knows another limit, and holds the child to the one it was started with."""
    looking, script = Looking(), [LOOKING[0], [trio.sleep_forever], [trio.sleep_forever]]
    family = Timed(tmp_path, START, script, tools=[looking.tool], background=True, timeout_s=30.0)
    async with family.session() as session:
        await start(session, looking)
    family.subagents = [evolve(family.subagents[0], timeout_s=None)]
    family.offset_us = 20_000_000
    async with family.session() as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.serve)
        await trio.sleep(5)
        assert events_of(family.path, SubagentSettled) == []
        nursery.cancel_scope.cancel()
    family.offset_us = 40_000_000
    tasks = len(events_of(family.path, UserMessage, child_of(family.path)))
    await family.run()
    assert [settled.reason for settled in events_of(family.path, SubagentSettled)] == ["aborted"]
    assert "time limit" in told(family)[0]
    assert len(events_of(family.path, UserMessage, child_of(family.path))) == tasks, "it was not told to go on"


async def test_one_that_was_done_in_time_is_not_late_for_being_taken_up_late(tmp_path: Path) -> None:
    family = Timed(tmp_path, START, LOOKING, tools=[(looking := Looking()).tool], background=True, timeout_s=30.0)
    async with family.session() as session:
        await start(session, looking)
    child = child_of(family.path)
    looking.may.set()
    async with family.kernel() as kernel, kernel.session(child) as mine:
        await mine.followup("go on")
        await mine.run()
    family.offset_us = 99_000_000
    await family.run()
    assert told(family) == [f"[scout {child!r}: completed]\nBlue sky."]


async def test_one_that_waits_for_children_of_its_own_is_ended_too(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    deeper = [calls(("scout", {"task": "deeper"})), words("Started it."), words("It is done.")]
    family = Timed(tmp_path, START, deeper, background=True, timeout_s=30.0, limits=Limits(subagent_depth=2))
    family.child.replies = [deeper[0], deeper[1], [trio.sleep_forever], *deeper[2:]]
    await family.run("go")
    assert [settled.reason for settled in events_of(family.path, SubagentSettled)] == ["aborted"]
    assert "time limit" in told(family)[0]


async def test_one_that_somebody_else_has_is_asked_to_end_when_its_time_is_up(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    looking, script = Looking(), [LOOKING[0], [trio.sleep_forever], [trio.sleep_forever]]
    family = Timed(tmp_path, START, script, tools=[looking.tool], background=True, timeout_s=30.0)
    async with family.session() as session:
        await start(session, looking)
    child = child_of(family.path)
    async with family.kernel() as kernel, kernel.session("s", model="fake:m") as session:
        async with kernel.session(child) as mine, trio.open_nursery() as nursery:
            await mine.followup("do what I say")
            nursery.start_soon(mine.run)
            nursery.start_soon(session.run)
        await session.run(children=True)
    assert "(aborted: time limit)" in told(family)[0]


async def test_no_more_children_are_at_work_than_may_be(tmp_path: Path) -> None:
    for limits, kind in ((Limits(subagents_at_once=2), None), (Limits(), 2)):
        (folder := tmp_path / f"{kind}").mkdir()
        three = calls(*(("scout", {"task": f"look {number}"}) for number in range(3)))
        looking = Looking()
        family = Family(
            folder,
            [three, words("Started."), *START[1:]],
            [calls(("look", {})), calls(("look", {})), words("Blue."), words("Sky.")],
            tools=[looking.tool],
            background=True,
            limits=limits,
            at_once=kind,
        )
        async with family.session() as session:
            await start(session, looking)
            (refused,) = [text for text in results(family) if "was not started" in text]
            assert f"2 {'of its kind' if kind else 'children'} are at work" in refused
            looking.may.set()
            await session.run(children=True)
            await say(session, family, calls(("scout", {"task": "again"})))
        assert len(events_of(family.path, SubagentSpawned)) == 3


async def test_what_counts_is_what_the_log_says_so_a_restart_makes_no_room(tmp_path: Path) -> None:
    looking = Looking()
    family = Family(tmp_path, START, LOOKING, tools=[looking.tool], background=True, at_once=1)
    async with family.session() as session:
        await start(session, looking)
    family.child.replies = [[trio.sleep_forever]] * 4
    async with family.session() as session:
        await say(session, family, calls(("scout", {"task": "one more"})))
    assert "1 of its kind are at work" in results(family)[-1]
    assert len(events_of(family.path, SubagentSpawned)) == 1


async def test_the_model_calls_one_off_and_lists_them(tmp_path: Path) -> None:
    looking = Looking()
    family = Family(tmp_path, START, LOOKING, tools=[looking.tool], background=True)
    async with family.session() as session:
        await say(session, family, calls(("scout", {"action": "list"})))
        assert results(family) == ["There are none yet."]
        family.parent.replies = [*family.parent.replies[: len(family.parent.requests)], *START]
        await start(session, looking)
        child = child_of(family.path)
        listing = calls(("scout", {"action": "list"}))
        await say(session, family, listing, calls(("scout", {"action": "call_off", "child": child})), listing)
    at_work, off, at_rest = results(family)[-3:]
    assert at_work == f"{child!r} is at work on: look around"
    assert off.startswith(f"{child!r} was called off and is at rest")
    assert at_rest == f"{child!r} has come to rest from: look around"
    (message,) = told(family)
    assert "(aborted: called off by its parent)" in message
    kinds = kinds_of(family.path)
    assert kinds.index("subagent/settled") < len(kinds) - 1 - kinds[::-1].index("tool/result")
    for name in ("s", child):
        verified(family.path, *family.models, name=name)


async def test_one_that_was_called_off_takes_another_task(tmp_path: Path) -> None:
    looking = Looking()
    family = Family(tmp_path, START, LOOKING, tools=[looking.tool], background=True)
    async with family.session() as session:
        await start(session, looking)
        child = child_of(family.path)
        off = calls(("scout", {"action": "call_off", "child": child}))
        queued = calls(("scout", {"task": "and this", "child": child}))
        await say(session, family, queued, off, off, calls(("scout", {"task": "go on", "child": child})))
        await session.run(children=True)
    assert "has come to rest already" in results(family)[-2]
    assert [m.text for m in events_of(family.path, UserMessage, child)] == ["look around", "go on"]
    assert told(family)[-1] == f"[scout {child!r}: completed]\nBlue sky."


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"action": "call_off", "child": "s/other"}, "not a child of this session"),
        ({"action": "call_off"}, "not a child of this session"),
        ({"action": "call_off", "child": "s/other", "task": "x"}, "nothing was called off"),
        ({"action": "send"}, "its task is empty"),
        ({}, "its task is empty"),
    ],
)
async def test_what_makes_no_sense_is_refused(tmp_path: Path, arguments: dict[str, Any], why: str) -> None:
    family = Family(tmp_path, [calls(("scout", arguments)), words("I see.")], LOOKING, background=True)
    await family.run("go")
    assert why in results(family)[0]
    assert "subagent/spawned" not in kinds_of(family.path)


@pytest.mark.parametrize(
    "wrong", [{"timeout_s": 0.0}, {"timeout_s": float("inf")}, {"steps_per_turn": 0}, {"at_once": -1}]
)
async def test_a_limit_that_is_none_is_refused_at_registration(tmp_path: Path, wrong: dict[str, Any]) -> None:
    family = Family(tmp_path, START, LOOKING, **wrong)
    with pytest.raises(PluginError, match=next(iter(wrong))):
        await family.run("go")
