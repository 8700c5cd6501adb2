"""A tool body in a process of its own: a segfault, `os._exit` or an endless C loop is one failed call."""

from __future__ import annotations

import io
import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from flightlog.core.saying import described
from flightlog.runtime.plugin_call import in_thread
from flightlog.runtime.tool_worker import CARRIED
from flightlog_hookspecs.errors import OutcomeUnknown, ToolError

_CHUNK_BYTES: Final = 1 << 16
_WORKER: Final = str(Path(__file__).with_name("tool_worker.py"))


async def run_in_process(body: Callable[..., Any], leading: Sequence[object], arguments: dict[str, Any]) -> object:
    """The body's return value. Cancelling kills the process. Raises `ToolError` or `OutcomeUnknown`."""
    # In a thread, since arguments are written by code of their own, and one that nobody has to wait for.
    writing = partial(pickle.dumps, (tuple(leading), arguments))
    called = await in_thread(writing, trio.CapacityLimiter(1))
    running = _Running(pickle.dumps((os.getpid(), sys.path, body.__module__, body.__qualname__, called)))
    ended, token = trio.Event(), trio.lowlevel.current_trio_token()

    def attend() -> object:
        try:
            running.attend()
            return _answer_of(running)
        finally:
            token.run_sync_soon(ended.set)

    await trio.lowlevel.checkpoint_if_cancelled()  # from here on the thread is certain to start
    try:
        return await in_thread(attend, trio.CapacityLimiter(1))
    except trio.Cancelled:
        running.kill()
        with trio.CancelScope(shield=True):
            await ended.wait()
        raise


def _answer_of(running: _Running) -> object:
    if running.code != 0 or not running.answer:
        raise OutcomeUnknown(f"Its process {_how_it_ended(running.code)} before it answered.")
    try:
        kind, value = _Reader(io.BytesIO(running.answer)).load()
    except Exception as error:  # whatever the process wrote instead
        raise OutcomeUnknown(f"Its process gave an answer that cannot be read ({described(error)}).") from error
    match kind:
        case "ok":
            answer: object = value
            return answer
        case "unknown":
            raise OutcomeUnknown(str(value))
        case "tool":
            raise ToolError(str(value))
        case _:
            raise ToolError(f"It failed: {value}")


class _Reader(pickle.Unpickler):
    """Reads an answer without running code that came with it: whoever has the pipe may have written that."""

    def find_class(self, module: str, name: str) -> Any:
        """One of the classes that an answer may name."""
        if (module, name) not in CARRIED:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of an answer")
        return super().find_class(module, name)


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
            with suppress(BrokenPipeError), self._process.stdin as stdin:  # type: ignore[union-attr]
                stdin.write(self._request)
            self.answer = _read_until_exit(self._process)
            self.kill()  # nothing of a call outlives it, unless it has left the group on purpose
        self.code = self._process.returncode

    def kill(self) -> None:
        """End the process, also one that is still starting, and what it started itself."""
        self._killed = True
        if self._process is not None:
            with suppress(ProcessLookupError):  # its group may outlive it
                os.killpg(self._process.pid, signal.SIGKILL)


def _read_until_exit(process: subprocess.Popen[bytes]) -> bytes:
    """All that `process` itself wrote. What it forked may hold the pipe open for ever, so not until its end."""
    assert process.stdout is not None, "it was started with a pipe"
    out, answer = process.stdout.fileno(), bytearray()
    os.set_blocking(out, False)
    exited = os.pidfd_open(process.pid)
    try:
        watch = select.poll()
        watch.register(out, select.POLLIN)
        watch.register(exited, select.POLLIN)
        ended = closed = False
        while not ended:
            ended = any(fd == exited for fd, _ in watch.poll())
            with suppress(BlockingIOError):
                while chunk := os.read(out, _CHUNK_BYTES):
                    answer += chunk
                if not closed:
                    watch.unregister(out)  # at its end already: wait for the exit alone
                    closed = True
    finally:
        os.close(exited)
    return bytes(answer)


def _how_it_ended(code: int) -> str:
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
