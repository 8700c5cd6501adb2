"""A tool body in a process of its own: a segfault, `os._exit` or an endless C loop is one failed call."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

from flightlog_hookspecs.errors import FlightlogError, ToolError

_WORKER: Final = str(Path(__file__).with_name("tool_worker.py"))


class ProcessFailed(FlightlogError):
    """The process ended without an answer; what it did until then is not known."""


async def run_in_process(body: Callable[..., Any], leading: Sequence[object], arguments: dict[str, Any]) -> object:
    """The body's return value. Cancelling kills the process. Raises `ToolError` or `ProcessFailed`."""
    called = pickle.dumps((tuple(leading), arguments))
    running = _Running(pickle.dumps((os.getpid(), sys.path, body.__module__, body.__qualname__, called)))
    ended, token = trio.Event(), trio.lowlevel.current_trio_token()

    def attend() -> None:
        try:
            running.attend()
        finally:
            token.run_sync_soon(ended.set)

    await trio.lowlevel.checkpoint_if_cancelled()  # from here on the thread is certain to start
    try:
        await trio.to_thread.run_sync(attend, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))
    except trio.Cancelled:
        running.kill()
        with trio.CancelScope(shield=True):
            await ended.wait()
        raise
    if running.code != 0 or not running.answer:
        raise ProcessFailed(f"Its process {_how_it_ended(running.code)} before it answered.")
    kind, value = pickle.loads(running.answer)  # noqa: S301  our own worker's answer
    if kind == "ok":
        answer: object = value
        return answer
    raise ToolError(str(value)) if kind == "tool" else ToolError(f"It failed: {value}")


class _Running:
    """One process, from its start to its end. `attend` runs in a thread, `kill` beside it."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self.code = 0
        self.answer = b""

    def attend(self) -> None:
        """Start the process and stay with it.

        Staying matters: the process dies with its parent, which to Linux is the *thread* that started
        it, and idle threads end. A session of its own keeps a Ctrl-C at the terminal from it, which is
        the kernel's to handle.
        """
        command = [sys.executable, _WORKER]
        with subprocess.Popen(  # noqa: S603  our own worker
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        ) as self._process:
            if self._killed:
                self.kill()
            self.answer = self._process.communicate(self._request)[0]
        self.code = self._process.returncode

    def kill(self) -> None:
        """End the process, also one that is still starting, and what it started itself."""
        self._killed = True
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _how_it_ended(code: int) -> str:
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
