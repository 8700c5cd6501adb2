"""`send`, `approve` and `cancel` reach a session through its mailbox, whoever drives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from flightlog_process import Shell


def test_what_is_sent_waits_for_the_next_owner_and_is_taken_once(shell: Shell) -> None:
    shell.run("run", "first", "--session", "s")
    first = shell.call("send", "s", "second", "--key", "k", "--json").json_lines[0]
    again = shell.call("send", "s", "second", "--key", "k", "--json").json_lines[0]
    assert first == again
    assert "second" in shell.call("resume", "s").out
    assert shell.kinds("s").count("user/message") == 2
    assert "nothing to do" in shell.call("resume", "s").out


def test_a_session_that_does_not_exist_yet_finds_its_letters(shell: Shell) -> None:
    shell.run("run", "hello", "--session", "other")
    assert shell.call("send", "new", "waiting").out == "new: followup sent\n"
    out = shell.call("run", "now", "--session", "new").out
    assert [line for line in out.splitlines() if line in ("waiting", "now")] == ["waiting", "now"]


def test_resume_finds_a_session_that_only_has_letters(shell: Shell) -> None:
    shell.run("run", "hello", "--session", "other")
    shell.call("send", "new", "waiting")
    assert shell.call("resume", "new").out.startswith("waiting\n")
    assert "no session" in shell.call("resume", "nobody", code=2).err


def test_an_inject_alone_runs_nothing(shell: Shell) -> None:
    shell.run("run", "first", "--session", "s")
    shell.call("send", "s", "by the way", "--as", "inject")
    assert "nothing to do" in shell.call("resume", "s").out
    shell.call("resume", "s", "go on")
    assert shell.call("query", "SELECT text FROM messages WHERE role = 'user'", "--json").code == 0
    assert shell.kinds("s").count("user/message") == 3


@pytest.mark.kill
def test_a_session_is_taken_over_from_a_process_that_is_stuck(stubborn: Shell) -> None:
    with stubborn.held("run", "go", "--session", "s", "--model", "stall:stream", "--json") as held:
        held.lines_until("assistant/delta", "two")
        assert "--take-over" in stubborn.call("resume", "s", code=1).err
        stubborn.call("resume", "s", "go on", "--take-over", "--model", "scripted:echo")
    assert stubborn.kinds("s").count("session/opened") == 2


@pytest.mark.kill
def test_a_running_turn_is_cancelled_from_another_process(stubborn: Shell) -> None:
    with stubborn.held("run", "go", "--session", "s", "--model", "stall:stream", "--json") as held:
        held.lines_until("assistant/delta", "two")
        assert stubborn.call("cancel", "s", "--cause", "enough").out == "s: cancel sent\n"
        done = held.finished()
    (turn,) = done.json_lines[-1]["turns"]
    assert (turn["reason"], turn["cause"], turn["text"]) == ("aborted", "enough", "one two ")


@pytest.mark.parametrize(
    "command", [("send", "", "text"), ("approve", "s", "0"), ("cancel", "s\n"), ("send", "s", "x", "--as", "shout")]
)
def test_wrong_orders_are_usage_errors(shell: Shell, command: tuple[str, ...]) -> None:
    shell.run("run", "first", "--session", "s")
    assert shell.call(*command, code=2).err
