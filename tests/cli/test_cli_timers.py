"""`flightlog timer`: what is set is listed and fires once somebody drives the session."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from flightlog_process import Shell

from flightlog.cli.moments import MomentType, SpanType


def test_a_timer_is_set_listed_fires_and_is_gone(shell: Shell) -> None:
    shell.call("run", "hello", "--session", "s")
    (posted,) = shell.call("timer", "set", "s", "look", "--at", "2020-01-01T00:00:00Z", "--json").json_lines
    assert "no open timers" in shell.call("timer", "list", "s").out
    assert shell.call("resume", "s").out.startswith("look\n")
    (row,) = shell.call("timer", "list", "--all", "--json").json_lines
    assert (row["timer"], row["state"], row["runs"], row["text"]) == (posted["timer"], "fired", 1, "look")
    assert shell.call("timer", "list").out == "no open timers\n"


def test_a_timer_is_cancelled(shell: Shell) -> None:
    shell.call("run", "hello", "--session", "s")
    said = shell.call("timer", "set", "s", "look", "--every", "1d", "--times", "3", "--by", "ada").out
    assert said.startswith("s: timer sent, timer-")
    shell.call("resume", "s")
    (row,) = shell.call("timer", "list", "s", "--json").json_lines
    assert (row["every_us"], row["set_by"]) == (86_400_000_000, "ada")
    assert f"s {row['timer']} " in shell.call("timer", "list").out
    shell.call("timer", "cancel", "s", row["timer"])
    shell.call("resume", "s")
    assert shell.call("timer", "list").out == "no open timers\n"
    assert shell.kinds("s")[-3:] == ["timer/cancelled", "letter/taken", "session/closed"]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--at", "tomorrow"),
        ("--at", "2031-05-07T09:30:00Z", "--after", "1h"),
        ("--after", "soon"),
        ("--after", ""),
        ("--after", "-1h"),
        ("--every", "0s"),
        ("--every", "1h", "--after", "1h"),
        ("--after", "1h", "--times", "2"),
        ("--every", "1h", "--times", "0"),
    ],
)
def test_nonsense_is_a_usage_error(shell: Shell, options: tuple[str, ...]) -> None:
    shell.call("run", "hello", "--session", "s")
    assert shell.call("timer", "set", "s", "look", *options, code=2).err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("45m", 2700), ("2h30m", 9000), ("1d", 86_400), ("1w1s", 604_801), ("0s", 0)]
)
def test_spans_of_time_are_read(text: str, seconds: int) -> None:
    assert SpanType().convert(text, None, None) == seconds
    until = MomentType().convert(f"+{text}", None, None) - datetime.now(UTC)
    assert abs(until.total_seconds() - seconds) < 60


def test_a_task_whose_goal_comes_again_waits_for_it(shell: Shell) -> None:
    (task,) = shell.call("task", "submit", "sweep", "--every", "1d", "--times", "2").out.splitlines()
    shell.call("work", "--until-idle")
    (shown,) = shell.call("task", "show", task, "--json").json_lines
    assert (shown["state"], shown["cause"]) == ("paused", "timer")
    assert shell.call("task", "submit", "sweep", "--times", "2", code=2).err
