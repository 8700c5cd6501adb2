"""Wake-ups: what a model is told that has itself woken, and what it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trio
import trio.testing

from flightlog import Limits
from flightlog.events import TimerSet, ToolResult, UserMessage
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Subagent
from flightlog_plugins.wake_ups import WakeUps
from support.kernels import events_of, kinds_of, opened, trio_clock


def calling(*wanted: tuple[str, dict[str, Any]]) -> FakeModel:
    """A model that makes these calls, one a step."""
    return FakeModel([*(calls((name, json.dumps(arguments))) for name, arguments in wanted), words("Later.")])


async def results(
    path: Path, *wanted: tuple[str, dict[str, Any]], limits: Limits | None = None
) -> list[tuple[str, str]]:
    """The outcomes and words of these calls."""
    async with (
        opened(path, calling(*wanted), plugins=[WakeUps()], clock=trio_clock()) as kernel,
        kernel.session("s", model="fake:m", limits=limits) as session,
    ):
        await session.followup("go")
        await session.run()
    return [(result.outcome, result.text) for result in events_of(path, ToolResult)]


async def test_a_model_is_woken_with_its_note(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    path, model = tmp_path / "a.db", calling(("wake_me", {"note": "look", "after_s": 60}))
    async with (
        opened(path, model, plugins=[WakeUps()], clock=trio_clock()) as kernel,
        kernel.session("s", model="fake:m") as session,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(session.serve)
        await session.followup("go")
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    (result,) = events_of(path, ToolResult)
    (timer,) = events_of(path, TimerSet)
    assert result.text == (
        f"It is 2023-11-14T22:13:20+00:00. Wake-up {timer.timer} comes at 2023-11-14T22:14:20+00:00."
    )
    assert timer.by == "model"
    assert [(m.text, m.source) for m in events_of(path, UserMessage)] == [("go", "user"), ("[wake-up] look", "timer")]


async def test_what_cannot_be_is_said_to_the_model(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    told = await results(
        tmp_path / "a.db",
        ("wake_me", {"note": "no time"}),
        ("wake_me", {"note": "both", "after_s": 1, "at": "2031-05-07T09:30:00Z"}),
        ("wake_me", {"note": "naive", "at": "2031-05-07T09:30:00"}),
        ("wake_me", {"note": "no time", "at": "tomorrow"}),
        ("wake_me", {"note": "too often", "every_s": 0.1}),
        ("wake_me", {"note": " ", "after_s": 1}),
        ("cancel_wake_up", {"name": "nobody"}),
    )
    assert [outcome for outcome, _ in told] == ["error"] * 6 + ["ok"]
    assert "It is 2023-11-14T22:13:20+00:00 now" in told[2][1]
    assert told[-1][1] == "There is no wake-up nobody that is still to come. These are: none."
    assert "timer/set" not in kinds_of(tmp_path / "a.db")


async def test_a_model_may_have_so_many_open_wake_ups(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    wake = ("wake_me", {"note": "look", "every_s": 60, "at": "2031-05-07T09:30:00+02:00", "times": 2})
    told = await results(tmp_path / "a.db", wake, wake, wake, limits=Limits(timers_open=2))
    assert [outcome for outcome, _ in told] == ["ok", "ok", "error"]
    assert told[0][1].endswith("comes at 2031-05-07T07:30:00+00:00, then every 60 s.")
    assert "cancel one" in told[2][1]


async def test_a_child_sets_no_timers(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    scout = Subagent(name="scout", description="looks", prompt="look", model="small:m")
    parent = FakeModel([calls(("scout", {"task": "look"})), words("Done.")])
    child = FakeModel([calls(("wake_me", {"note": "look", "after_s": 5})), words("No.")], "small")
    async with (
        opened(tmp_path / "a.db", [parent, child], plugins=[WakeUps(), Bundle(subagents=[scout])]) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await session.followup("go")
        await session.run()
        (name,) = [row[0] for row in (await kernel.query("SELECT session FROM sessions WHERE depth = 1")).rows]
    (result,) = events_of(tmp_path / "a.db", ToolResult, name)
    assert result.outcome == "error"
    assert "a child session ends with its task" in result.text
