"""Ctrl+C and SIGTERM, with real signals to a real process, sent when its output says where it is."""

from __future__ import annotations

import os
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING

import pytest
import trio

import flightlog

if TYPE_CHECKING:
    from flightlog_process import Finished, Shell


def _last_end(shell: Shell, session: str) -> dict[str, object]:
    rows = shell.call("show", session, "--json").json_lines
    ends: list[dict[str, object]] = [row["data"] for row in rows if row["kind"] == "turn/end"]
    return ends[-1]


def _stopped_in_mid_stream(shell: Shell, *command: str, signal: int | None = None) -> Finished:
    with shell.held(*command, "--model", "stall:stream", "--json") as held:
        held.lines_until("assistant/delta", "two")
        held.interrupt(*([SIGTERM] if signal == SIGTERM else []))
        return held.finished()


def test_the_first_ctrl_c_cancels_the_turn_and_leaves_cleanly(stubborn: Shell) -> None:
    done = _stopped_in_mid_stream(stubborn, "run", "go", "--session", "s")
    assert done.code == 1
    (turn,) = done.json_lines[-1]["turns"]
    assert (turn["reason"], turn["cause"], turn["text"]) == ("aborted", "user", "one two ")
    assert done.err.splitlines() == [
        "flightlog: cancelling the turn",
        "flightlog: turn 1 ended as aborted (user)",
        "flightlog: To go on: flightlog resume s continue",
    ]
    assert stubborn.kinds("s")[-2:] == ["turn/end", "session/closed"]
    stubborn.call("verify")


def test_ctrl_c_keeps_the_queue(stubborn: Shell) -> None:
    async def queue() -> None:
        async with flightlog.open_kernel(stubborn.db) as kernel, kernel.session("s") as session:
            for text in ("first", "second", "third"):
                await session.followup(text)

    trio.run(queue)
    done = _stopped_in_mid_stream(stubborn, "resume", "s")
    assert done.code == 1
    assert done.json_lines[-1]["pending"] == 2
    assert done.err.splitlines()[-1] == "flightlog: 2 messages still queued. To go on: flightlog resume s"
    out = stubborn.call("resume", "s", "--model", "scripted:echo").out
    assert out.splitlines()[:2] == ["second", "third"]


def test_sigterm_cancels_the_turn_closes_cleanly_and_says_143(stubborn: Shell) -> None:
    done = _stopped_in_mid_stream(stubborn, "run", "go", "--session", "s", signal=SIGTERM)
    assert done.code == 143
    assert _last_end(stubborn, "s")["cause"] == "SIGTERM"
    assert stubborn.kinds("s")[-1] == "session/closed"


@pytest.mark.parametrize("last_is_sigterm", [False, True])
def test_a_third_signal_leaves_a_tool_that_heeds_nothing_and_the_log_is_whole(
    stubborn: Shell, *, last_is_sigterm: bool
) -> None:
    with stubborn.held("run", "go", "--session", "s", "--model", "stall:stubborn", "--json") as held:
        held.lines_until("tool/call")
        held.interrupt()
        held.complaints_until("cancelling the turn")
        held.interrupt()
        held.complaints_until("once more kills")
        held.interrupt(*([SIGTERM] if last_is_sigterm else []))
        done = held.finished()
    assert done.code == (143 if last_is_sigterm else 1)
    assert done.complaint.startswith("flightlog: left at once")
    assert stubborn.kinds("s")[-1] == "tool/call"
    stubborn.call("verify")
    stubborn.call("resume", "s", "--model", "scripted:echo")
    rows = stubborn.call("show", "s", "--json").json_lines
    assert [row["data"]["outcome"] for row in rows if row["kind"] == "tool/result"] == ["unknown"]
    assert _last_end(stubborn, "s")["reason"] == "interrupted"


def test_a_second_ctrl_c_cuts_off_running_tools_and_leaves_cleanly(stubborn: Shell) -> None:
    os.mkfifo(stubborn.folder / "pipe")
    with stubborn.held("run", "go", "--session", "s", "--model", "stall:read_pipe", "--json") as held:
        held.lines_until("tool/call")
        held.interrupt()
        held.complaints_until("cancelling the turn")
        held.interrupt()
        done = held.finished()
    assert done.code == 1
    (result,) = [row["data"] for row in done.json_lines[:-1] if row["kind"] == "tool/result"]
    assert result["outcome"] == "unknown"
    assert stubborn.kinds("s")[-2:] == ["turn/end", "session/closed"]


def test_ctrl_c_at_a_terminal_reaches_every_process_but_leaves_a_tool_its_grace(stubborn: Shell) -> None:
    """A terminal sends Ctrl+C to the whole process group, so to a tool in a process of its own too."""
    pipe = stubborn.folder / "pipe"
    os.mkfifo(pipe)
    with stubborn.held("run", "go", "--session", "s", "--model", "stall:read_pipe", "--json") as held:
        held.lines_until("tool/call")
        with pipe.open("w") as writing:  # opens once the tool has opened its end
            os.killpg(held.process.pid, SIGINT)
            held.complaints_until("cancelling the turn")
            writing.write("what was read")
        done = held.finished()
    (result,) = [row["data"] for row in done.json_lines[:-1] if row["kind"] == "tool/result"]
    assert (result["outcome"], result["content"]) == ("ok", [{"type": "text", "text": "what was read"}])
    assert done.json_lines[-1]["turns"][0]["reason"] == "aborted"
