"""An agent in a process of its own, watched through its log and killed where the log says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import IO

from attrs import frozen

from flightlog.cli.demo_proof import Sight, look
from flightlog_hookspecs.errors import FlightlogError


class FlightFailed(FlightlogError):
    """The agent's process did not do what the demo needs."""


@frozen(kw_only=True)
class Landing:
    """How a process ended: its id, its exit code (negative: by that signal), what its log shows."""

    pid: int
    code: int
    sight: Sight


def fly(
    arguments: Sequence[str],
    db: str,
    session: str,
    *,
    watch: Callable[[Sight], None],
    shoot: Callable[[Sight], bool] = lambda _: False,
) -> Landing:
    """Run `flightlog` with `arguments` in a child process; kill it with SIGKILL once `shoot` says so.

    `watch` and `shoot` are given what stands in the log file, whenever something was committed. The
    child is stopped before the last look, so that it dies where it was seen; at most one commit further, which was
    being made just then.
    """
    command = [sys.executable, "-m", "flightlog.cli", *arguments, "--db", db, "--json"]
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)  # noqa: S603  our own command
        try:
            assert child.stdout is not None, "it was asked for"
            # Its lines only say that something was committed; what it was is read from the file.
            for _ in child.stdout:
                sight = look(db, session)
                watch(sight)
                if shoot(sight) and _stopped(child):
                    sight = look(db, session)
                    if shoot(sight):
                        break
                    child.send_signal(signal.SIGCONT)
            else:
                return Landing(pid=child.pid, code=_ended_well(child, errors), sight=look(db, session))
            child.kill()
            return Landing(pid=child.pid, code=child.wait(), sight=look(db, session))
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            if child.stdout:
                child.stdout.close()


def _stopped(child: subprocess.Popen[bytes]) -> bool:
    """Stop the child. False when it had already ended."""
    child.send_signal(signal.SIGSTOP)
    found = os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return found is not None and found.si_code == os.CLD_STOPPED


def _ended_well(child: subprocess.Popen[bytes], errors: IO[bytes]) -> int:
    code = child.wait()
    if code != 0:
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise FlightFailed(f"the agent's process ended with {code}: {said[0].removeprefix('flightlog: ')}")
    return code
