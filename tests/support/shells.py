"""Command-line shells for SQLite files, as people use them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from support.agents import WAIT_MAX_S
from support.children import closing_process


@frozen
class Shell:
    """One of them, by the command that starts it."""

    command: tuple[str, ...]

    def run(self, path: Path, script: str) -> subprocess.CompletedProcess[str]:
        """Run `script` on the file to its end, whatever goes wrong in it."""
        patient = f".timeout 30000\n{script}"  # a dump, too, asks for the write lock
        return subprocess.run(
            [*self.command, str(path)], input=patient, capture_output=True, text=True, check=False, timeout=WAIT_MAX_S
        )

    def told(self, path: Path, script: str) -> list[str]:
        """The lines that `script` prints; nothing may go wrong."""
        done = self.run(path, script)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    @contextmanager
    def held(self, path: Path, script: str) -> Iterator[None]:
        """While entered, the shell is open and has run `script`. It leaves the file as it likes, by itself."""
        process = subprocess.Popen(
            [*self.command, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        with closing_process(process):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{script}\n.shell echo held\n")
            while line := process.stdout.readline():
                if line == "held\n":
                    break
            yield
            process.communicate(".quit\n", timeout=WAIT_MAX_S)
