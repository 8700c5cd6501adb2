"""Run as a script: starts the command of its arguments and ends as that does, once all that came of it is gone.

When its standard input ends it does so at once: then whoever wants the command is gone or has had enough. After
`--serve PID` the command has that input for itself, and what ends it is SIGTERM or the end of the process PID, its
parent. It adopts what loses its parent, so that nothing gets away by starting a session of its own. Imports nothing of
ours.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
END_LIMIT_S = 5.0
"""What is stuck in the system for longer is left to it."""

_LIBC = ctypes.CDLL(None)


def main() -> None:
    """Start, wait, end everything, end."""
    _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    command, watch = sys.argv[1:], select.poll()
    serves = command[0] == "--serve"
    if serves:
        host, command = int(command[1]), command[2:]
        watch.register(os.pidfd_open(host), select.POLLIN)
        if os.getppid() != host:
            os._exit(1)  # it ended before we could watch it, and its number may be another's
    else:
        watch.register(0, 0)  # its end is always told
    try:
        child = subprocess.Popen(  # noqa: S603  it is there to run what it is given
            command,
            stdin=None if serves else subprocess.DEVNULL,
            process_group=0,
            preexec_fn=_die_with_us,  # noqa: PLW1509  there are no threads here
        )
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127)
    if serves:
        signal.signal(signal.SIGTERM, lambda *_: _end(_ended_all(child.pid)))
    watch.register(os.pidfd_open(child.pid), select.POLLIN)
    watch.poll()
    _end(_ended_all(child.pid))


def _die_with_us() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _ended_all(child: int) -> int:
    """Kill whatever there is, those that come to us as their parents die included; the wait status of `child`."""
    status, give_up = int(signal.SIGKILL), time.monotonic() + END_LIMIT_S
    while time.monotonic() < give_up:
        try:
            pid = -1
            while pid:
                pid, ended = os.waitpid(-1, os.WNOHANG)
                if pid == child:
                    status = ended
        except ChildProcessError:
            break
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.001)
    return status


def _children() -> list[int]:
    """The processes whose parent we are, by now."""
    found, own = [], str(os.getpid())
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = file.read().rpartition(b")")[2].split()[1].decode()
            except (OSError, IndexError):
                continue  # gone since it was listed
            if parent == own:
                found.append(int(name))
    return found


def _end(status: int) -> None:
    """End as a process with the wait status `status` did."""
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main()
