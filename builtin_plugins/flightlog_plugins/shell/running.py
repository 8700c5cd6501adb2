"""Running a command: bounded in time and output, and nothing of it is left running.

Not the command is started, but a supervisor that starts it and ends all that came of it: with the command itself,
when it is told to, and when this process dies.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, cast

import trio
from attrs import define, field, frozen

from flightlog_hookspecs.errors import ToolError

END_LIMIT_S: Final = 10.0
"""The supervisor gets this long to end everything."""
FLOOD_MAX_BYTES: Final = 256 * 1024 * 1024
"""A command that has written more than this is ended."""

_CHUNK_BYTES: Final = 1 << 16
_SUPERVISOR: Final = str(Path(__file__).with_name("supervisor.py"))


@frozen(kw_only=True)
class Ended:
    """How a command ended. `code` is negative for a signal; `why` says who ended it."""

    code: int
    output: str
    why: Literal["itself", "late", "flood"]

    @property
    def cut_off(self) -> bool:
        """Whether it was ended from here, in the middle of what it did."""
        return self.why != "itself"

    def said(self) -> str:
        """In words."""
        if self.why == "flood":
            return f"ended after it had written {FLOOD_MAX_BYTES} bytes"
        if self.why == "late":
            return "ended when its time was up"
        return f"died of {_signal(-self.code)}" if self.code < 0 else f"exit code {self.code}"


@define
class Output:
    """The beginning and the end of what is written, half of `max_bytes` each; the rest is counted."""

    max_bytes: int
    total: int = field(default=0, init=False)
    _head: bytearray = field(factory=bytearray, init=False)
    _tail: bytearray = field(factory=bytearray, init=False)

    def take(self, chunk: bytes | bytearray) -> None:
        """Take note of what was written next."""
        self.total += len(chunk)
        room = max(0, self.max_bytes - self.max_bytes // 2 - len(self._head))
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > self.max_bytes + _CHUNK_BYTES:
            self._trim()

    def text(self) -> str:
        """What is kept, with a note where something is left out. Bytes that are no text show as U+FFFD."""
        self._trim()
        left_out = self.total - len(self._head) - len(self._tail)
        between = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out else b""
        return (self._head + between + self._tail).decode(errors="replace")

    def _trim(self) -> None:
        del self._tail[: max(0, len(self._tail) - self.max_bytes // 2)]


async def run(
    command: Sequence[str], *, folder: str, env: Mapping[str, str], limit_s: float, output_max_bytes: int
) -> Ended:
    """Run `command` in `folder`, with standard output and error as one, and nothing to read.

    All that it started is ended when it ends, after `limit_s` seconds, and when this is cancelled. Raises
    `ToolError` when it cannot be started.
    """
    if not folder:
        raise ToolError("the host has given tools no workspace")
    if not hasattr(os, "pidfd_open"):
        raise ToolError("commands are run on Linux only: elsewhere nobody could end all that they start")
    process = await _started(command, folder, env)
    stdout = cast("trio.lowlevel.FdStream", process.stdout)  # which a pipe is
    output = Output(output_max_bytes)
    try:
        with trio.move_on_after(limit_s) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_read, stdout, output, scope)
                await process.wait()
                nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await _end(process)
            _drain(stdout.fileno(), output)
            await stdout.aclose()
    flooded = output.total > FLOOD_MAX_BYTES
    code = -signal.SIGKILL if process.returncode is None or scope.cancelled_caught else process.returncode
    why: Literal["itself", "late", "flood"] = "flood" if flooded else "late" if scope.cancelled_caught else "itself"
    return Ended(code=code, output=output.text(), why=why)


async def _started(command: Sequence[str], folder: str, env: Mapping[str, str]) -> trio.Process:
    try:
        return await trio.lowlevel.open_process(
            [sys.executable, "-I", "-S", _SUPERVISOR, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=env,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # a folder that is gone, a command that is too long or has a NUL in it
        raise ToolError(f"the command cannot be started: {error}") from error


async def _read(stdout: trio.abc.ReceiveStream, output: Output, scope: trio.CancelScope) -> None:
    """Until all that hold the other end are gone, or there is too much of it."""
    while chunk := await stdout.receive_some(_CHUNK_BYTES):
        output.take(chunk)
        if output.total > FLOOD_MAX_BYTES:
            scope.cancel()
    await trio.sleep(math.inf)  # who closed it may go on


async def _end(process: trio.Process) -> None:
    """Nothing of the command is left running, unless it has got rid of its supervisor on purpose."""
    assert process.stdin is not None, "it was started with a pipe"
    await process.stdin.aclose()  # which the supervisor takes as its order
    with trio.move_on_after(END_LIMIT_S):
        await process.wait()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with trio.move_on_after(END_LIMIT_S / 2):
            await process.wait()


def _drain(fd: int, output: Output) -> None:
    """Take what stands in the pipe still. Whoever escaped may hold it open, so it is not read to its end."""
    with suppress(BlockingIOError):
        while output.total <= FLOOD_MAX_BYTES and (chunk := os.read(fd, _CHUNK_BYTES)):
            output.take(chunk)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
