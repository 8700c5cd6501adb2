"""Child processes for tests: start one, wait for what it says or does, never for time to pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

TESTS = Path(__file__).parents[1]


def environment(**more: str) -> dict[str, str]:
    """This process's environment, with `tests/` and whatever else is ahead on the path of children too."""
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **more}


def run_python(code: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter to its end; `tests/` is on its path."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment(**(env or {})),
    )


def told_by(code: str, *arguments: str, env: dict[str, str] | None = None) -> Any:
    """What `code` prints, as JSON; it must succeed and be silent otherwise."""
    done = run_python(code, *arguments, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def started(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start `code` in a fresh interpreter; use with `closing_process`."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )


@contextmanager
def fork_server(script: Path, *arguments: str) -> Iterator[Callable[..., int]]:
    """`script` as a warm process that forks a child for each order it reads, and says how it ended.

    Call what this gives with the order; it returns the child's exit code. The server must end well.
    """
    server = subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert server.stdin is not None
    assert server.stdout is not None

    def lived(**order: object) -> int:
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        return int(json.loads(server.stdout.readline()))

    with closing_process(server):
        yield lived
        server.communicate()
        assert server.returncode == 0


@contextmanager
def closing_process(process: subprocess.Popen[str]) -> Iterator[None]:
    """However the test goes, `process` does not outlive it."""
    try:
        yield
    finally:
        process.kill()
        process.communicate()


async def until(condition: Callable[[], object]) -> None:
    """Look again and again, as fast as the loop allows, until `condition` holds."""
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110  other processes set no events
            await trio.sleep(0.001)


async def gone(pid: int) -> None:
    """Wait until process `pid` has ended."""

    def ended() -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        return state == "Z"

    await until(ended)
