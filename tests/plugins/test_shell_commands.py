"""Commands: bounded in time and output, blind to the host's secrets, and nothing of one is left running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from flightlog.testing import FakeModel, calls
from flightlog_hookspecs import ToolOutput, text_of
from flightlog_hookspecs.errors import OutcomeUnknown, ToolError, UsageError
from flightlog_hookspecs.events import ToolCall, ToolResult
from flightlog_plugins.shell import Shell, running
from flightlog_plugins.shell.running import Output
from flightlog_plugins.test_suite import TestSuite
from support.children import closing_process, gone, started, until
from support.kernels import events_of, opened
from support.workspaces import call_in

pytestmark = pytest.mark.kill


async def output_of(folder: Path, command: str, shell: Shell | None = None, limit_s: float = 0) -> ToolOutput:
    """What the tool returns."""
    return await (shell or Shell()).run_command(call_in(folder), command, limit_s)


async def lines_of(folder: Path, command: str, shell: Shell | None = None) -> list[str]:
    """The lines of a result, the last of which says how the command ended."""
    return text_of((await output_of(folder, command, shell)).content).splitlines()


async def test_a_command_runs_in_the_workspace_and_both_its_outputs_come_in_order(tmp_path: Path) -> None:
    assert await lines_of(tmp_path, "pwd; echo err >&2; echo out") == [str(tmp_path), "err", "out", "", "[exit code 0]"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("exit 3", "exit code 3"),
        ("kill -TERM $$", "died of SIGTERM"),
        ("kill -KILL $$", "died of SIGKILL"),
        ("kill -SEGV $$", "died of SIGSEGV"),
        ("nothing-of-this-name", "exit code 127"),
    ],
)
async def test_a_command_that_fails_is_an_error_that_says_how(tmp_path: Path, command: str, says: str) -> None:
    output = await output_of(tmp_path, command)
    assert output.is_error
    assert text_of(output.content).splitlines()[-1] == f"[{says}]"


async def test_a_command_has_nothing_to_read(tmp_path: Path) -> None:
    assert await lines_of(tmp_path, "cat; echo end") == ["end", "", "[exit code 0]"]


async def test_the_hosts_secrets_are_not_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_KEY", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "PYTHONPATH", "LD_PRELOAD_NOT", "MINE"):
        monkeypatch.setenv(name, f"canary of {name}")
    shell = Shell(pass_env=["MIN*"], env={"GIVEN": "by the host"})
    lines = await lines_of(tmp_path, "env; cat /proc/self/environ | tr '\\0' '\\n'; cat /proc/$PPID/environ", shell)
    assert "canary" not in "".join(line for line in lines if "MINE" not in line)
    assert "MINE=canary of MINE" in lines
    assert "GIVEN=by the host" in lines
    assert any(line.startswith("PATH=") for line in lines)


async def test_no_descriptor_of_the_host_is_open_in_it(tmp_path: Path) -> None:
    """Closing one of the log's would drop its locks, and another could be written to."""
    fd = os.open(tmp_path / "held open", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(fd, True)
    lines = await lines_of(tmp_path, "ls -l /proc/$$/fd /proc/$PPID/fd")
    os.close(fd)
    assert any("/dev/null" in line for line in lines)
    assert not any("held open" in line for line in lines)


async def test_what_does_not_fit_is_left_out_of_the_middle(tmp_path: Path) -> None:
    shell = Shell(output_max_bytes=100)
    lines = await lines_of(tmp_path, "echo first; yes | head -c 1000000; echo last", shell)
    assert lines[0] == "first"
    assert lines[-3:] == ["last", "", "[exit code 0]"]
    assert f"[... {1_000_011 - 100} bytes left out ...]" in lines


async def test_a_command_that_floods_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "FLOOD_MAX_BYTES", 1_000_000)
    with pytest.raises(OutcomeUnknown, match=r"^y\n(.*\n)*\[ended after it had written 1000000 bytes\]$"):
        await output_of(tmp_path, "yes", Shell(output_max_bytes=100))


@given(chunks=st.lists(st.binary(max_size=9), max_size=9), max_bytes=st.integers(2, 20))
def test_an_output_is_whole_or_its_beginning_and_its_end(chunks: list[bytes], max_bytes: int) -> None:
    output, whole = Output(max_bytes), b"".join(chunks)
    for chunk in chunks:
        output.take(chunk)
    output._trim()
    kept = bytes(output._head + output._tail)
    if len(whole) <= max_bytes:
        assert kept == whole
    else:
        half = max_bytes // 2
        assert kept == whole[: max_bytes - half] + (whole[-half:] if half else b"")
    assert output.total == len(whole)


STUBBORN = """
python3 -c "
import os, signal, time, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)
{}
open(sys.argv[1], 'w').write(str(os.getpid()))
time.sleep(1000)
" pid &
until [ -s pid ]; do :; done
"""
DESCENDANTS = {
    "ignores SIGTERM and holds the pipe": STUBBORN.format(""),
    "starts a session of its own": STUBBORN.format("os.setsid()"),
    "is a daemon": STUBBORN.format("os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0)"),
}


@pytest.mark.parametrize("who", DESCENDANTS)
async def test_what_it_leaves_behind_ends_with_it_and_keeps_nobody_waiting(tmp_path: Path, who: str) -> None:
    lines = await lines_of(tmp_path, DESCENDANTS[who] + "echo done")
    assert lines[-3:] == ["done", "", "[exit code 0]"]
    await gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("who", DESCENDANTS)
async def test_when_its_time_is_up_all_of_it_is_killed_and_what_it_wrote_is_told(
    tmp_path: Path, who: str, mock_clock: trio.testing.MockClock
) -> None:
    mock_clock.rate = 1

    async def run() -> None:
        script = f"trap '' TERM\n{DESCENDANTS[who]}echo so far; touch said; sleep 1000"
        with pytest.raises(OutcomeUnknown, match=r"so far\n\n\[ended after 500 s, its time limit\]$"):
            await output_of(tmp_path, script, limit_s=500)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await until((tmp_path / "said").exists)
        mock_clock.jump(500)
    await gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("who", DESCENDANTS)
async def test_a_cancel_kills_all_of_it(tmp_path: Path, who: str) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(output_of, tmp_path, DESCENDANTS[who] + "sleep 1000")
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        nursery.cancel_scope.cancel()
    await gone(int((tmp_path / "pid").read_text()))


HOST = """
import sys, trio
from flightlog_plugins.shell import Shell
from support.workspaces import call_in

trio.run(Shell().run_command, call_in(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.parametrize("who", DESCENDANTS)
async def test_when_its_host_is_killed_nothing_of_it_goes_on(tmp_path: Path, who: str) -> None:
    host = started(HOST, str(tmp_path), DESCENDANTS[who] + "sleep 1000")
    with closing_process(host):
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    await gone(int((tmp_path / "pid").read_text()))


async def test_a_command_that_kills_its_supervisor_is_an_error_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    output = await output_of(tmp_path, "echo $$ >pid; kill -KILL $PPID; exec sleep 1000")
    assert output.is_error
    assert text_of(output.content).splitlines()[-1] == "[died of SIGKILL]"
    await gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("command", ["nul\0", "x" * 10_000_000])
async def test_a_command_that_no_system_takes_is_a_plain_error(tmp_path: Path, command: str) -> None:
    with pytest.raises(ToolError, match="cannot be started"):
        await output_of(tmp_path, command)


async def test_without_a_workspace_or_when_it_is_gone_nothing_is_run(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no workspace"):
        await Shell().run_command(evolve(call_in(tmp_path), workspace=""), "true")
    with pytest.raises(ToolError, match="cannot be started"):
        await output_of(tmp_path / "gone", "true")


@pytest.mark.parametrize("limit_s", [-1, 601, float("inf"), float("nan")])
async def test_a_time_limit_that_the_host_does_not_allow_is_refused(tmp_path: Path, limit_s: float) -> None:
    with pytest.raises(ToolError, match="limit_s must be"):
        await output_of(tmp_path, "touch ran", limit_s=limit_s)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(UsageError, match="limit_s must be"):
        Shell(limit_s=limit_s)


async def test_through_a_session_a_cancelled_command_is_in_doubt_and_the_session_goes_on(tmp_path: Path) -> None:
    path, work = tmp_path / "a.db", tmp_path / "work"
    work.mkdir()
    model = FakeModel([calls(("run_command", {"command": "touch started; sleep 1000"}))])
    async with (
        opened(path, model, workspace=work) as kernel,
        kernel.session("s", model="fake:m") as session,
        session.register(Shell()),
    ):
        await session.followup("hi")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await until((work / "started").exists)
            session.cancel(now=True)
        await session.followup("again")
        turn = await session.run()
        assert turn is not None
        assert turn.reason == "completed"
    assert [call.effect for call in events_of(path, ToolCall)] == ["external"]
    assert [result.outcome for result in events_of(path, ToolResult)] == ["unknown"]


@pytest.mark.parametrize("tool", ["run_command", "run_tests"])
@pytest.mark.parametrize("goes_on", ["sleep 1000", "exec yes so far"], ids=["late", "flood"])
async def test_through_a_session_a_command_that_was_cut_off_is_in_doubt_and_does_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock, tool: str, goes_on: str
) -> None:
    mock_clock.rate = 1
    monkeypatch.setattr(running, "FLOOD_MAX_BYTES", 1_000_000)
    path, work = tmp_path / "a.db", tmp_path / "work"
    work.mkdir()
    script = f"echo so far; echo once >>ran; [ $(wc -l <ran) = 1 ] || exit; {goes_on}"
    wanted: dict[str, object] = {"command": script} if tool == "run_command" else {}
    model = FakeModel([calls((tool, wanted)), calls((tool, wanted))])
    plugins = [Shell(limit_s=500), TestSuite(command=("/bin/sh", "-c", script), limit_s=500)]
    async with opened(path, model, workspace=work, plugins=plugins) as kernel, kernel.session("s", model="fake:m") as s:
        await s.followup("hi")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(s.run)
            await until((work / "ran").exists)
            if goes_on == "sleep 1000":
                mock_clock.jump(500)
    cut, again = events_of(path, ToolResult)
    assert (cut.outcome, again.outcome) == ("unknown", "denied")
    assert "so far" in text_of(cut.content)
    assert "ended" in text_of(cut.content)
    assert (work / "ran").read_text() == "once\n"


def test_a_shell_is_never_discovered() -> None:
    """Installing flightlog gives no model a shell."""
    listed = subprocess.run([sys.executable, "-m", "flightlog", "plugins"], capture_output=True, text=True, check=True)
    assert "files" in listed.stdout
    assert "shell" not in listed.stdout
    assert "suite" not in listed.stdout
