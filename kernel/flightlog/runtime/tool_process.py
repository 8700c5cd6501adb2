"""A tool body in a process of its own: a segfault, `os._exit` or an endless C loop is one failed call."""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any, Final

import trio

from flightlog_hookspecs.errors import FlightlogError, ToolError

_WORKER: Final = str(Path(__file__).with_name("tool_worker.py"))


class ProcessFailed(FlightlogError):
    """The process ended without an answer; what it did until then is not known."""


async def run_in_process(body: Callable[..., Any], leading: Sequence[object], arguments: dict[str, Any]) -> object:
    """The body's return value. Cancelling kills the process. Raises `ToolError` or `ProcessFailed`."""
    request = pickle.dumps((sys.path, body.__module__, body.__qualname__, pickle.dumps((tuple(leading), arguments))))
    process = await trio.run_process(
        [sys.executable, _WORKER], stdin=request, stdout=PIPE, check=False, deliver_cancel=_kill
    )
    if process.returncode != 0 or not process.stdout:
        raise ProcessFailed(f"Its process {_how_it_ended(process.returncode)} before it answered.")
    kind, value = pickle.loads(process.stdout)  # noqa: S301  our own worker's answer
    if kind == "ok":
        answer: object = value
        return answer
    raise ToolError(str(value)) if kind == "tool" else ToolError(f"It failed: {value}")


async def _kill(process: trio.Process) -> None:
    process.kill()


def _how_it_ended(code: int) -> str:
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
