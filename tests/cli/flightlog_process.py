"""The `flightlog` command as a real process: run it to its end, or hold it and signal it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attrs import field, frozen

import flightlog
from flightlog.cli import main

HERE = Path(__file__).parent
GIVE_UP_S = 120
"""Nothing waits for this: a child that hangs is killed, so that its test fails instead of hanging too."""
_OURS = ("FLIGHTLOG_DB", "FLIGHTLOG_TRACEBACK", "COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE")


@frozen(kw_only=True)
class Finished:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its stdout as one JSON document."""
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        """Its stdout as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def complaint(self) -> str:
        """Its one line on stderr."""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("flightlog: "), self.err
        return self.err.strip()


@frozen(kw_only=True)
class Held:
    """A command that is still running."""

    process: subprocess.Popen[str]

    def lines_until(self, *wanted: str) -> list[str]:
        """The next lines of its stdout, up to the first that holds all of `wanted`."""
        assert self.process.stdout is not None
        return _until(self.process.stdout, wanted)

    def complaints_until(self, wanted: str) -> list[str]:
        """The next lines of its stderr, up to the first that holds `wanted`."""
        assert self.process.stderr is not None
        return _until(self.process.stderr, (wanted,))

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def finished(self) -> Finished:
        """Wait for its end; what it said since the last look."""
        out, err = self.process.communicate()
        return Finished(code=self.process.returncode, out=out, err=err)


@frozen
class Shell:
    """Runs commands in `folder`, on the log `agent.db` there unless --db says otherwise."""

    folder: Path
    variables: dict[str, str] = field(factory=dict)

    @property
    def db(self) -> Path:
        """The log."""
        return self.folder / "agent.db"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the commands: ours, without what would change how they look."""
        mine = {name: value for name, value in os.environ.items() if name not in _OURS}
        return mine | {"FLIGHTLOG_DB": str(self.db), "TERM": "xterm", "PYTHONUNBUFFERED": ""} | self.variables

    def run(self, *arguments: str, code: int = 0) -> Finished:
        """Run `flightlog` to its end, which must have exit code `code`."""
        return self.python("-m", "flightlog.cli", *arguments, code=code)

    def call(self, *arguments: str, code: int | None = 0) -> Finished:
        """The same inside this process, which is ten times as fast; not for plugins and signals. None: any code."""
        out, err = io.StringIO(), io.StringIO()
        with (
            chdir(self.folder),
            patch.dict(os.environ, self.environment, clear=True),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            ended = main(arguments)
        done = Finished(code=ended, out=out.getvalue(), err=err.getvalue())
        assert code in (done.code, None), f"{arguments} ended with {done.code}\n{done.out}\n{done.err}"
        return done

    def python(self, *arguments: str, code: int = 0) -> Finished:
        """Run Python to its end, warnings being errors."""
        done = subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=GIVE_UP_S,
            check=False,
        )
        assert done.returncode == code, f"{arguments} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return Finished(code=done.returncode, out=done.stdout, err=done.stderr)

    @contextmanager
    def held(self, *arguments: str) -> Iterator[Held]:
        """Start `flightlog` in a process group of its own, as a shell does, and hold on to it."""
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "flightlog.cli", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        watchdog = threading.Timer(GIVE_UP_S, process.kill)
        watchdog.start()
        try:
            yield Held(process=process)
        finally:
            watchdog.cancel()
            watchdog.join()
            process.kill()
            process.communicate()

    def with_plugin(self, name: str, module: str) -> Shell:
        """The same shell with `module` (of this folder, or any other) installed as plugin `name`."""
        site = self.folder / "site"
        about = site / f"{name}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[flightlog]\n{name} = {module}\n")
        path = [str(site), str(HERE), *filter(None, [os.environ.get("PYTHONPATH", "")])]
        return Shell(self.folder, self.variables | {"PYTHONPATH": os.pathsep.join(path)})

    def files(self) -> dict[str, bytes]:
        """The log and its companions, byte for byte, but not what SQLite shares between processes."""
        return {path.name: path.read_bytes() for path in self.folder.glob("agent.db*") if path.suffix != ".db-shm"}

    def kinds(self, session: str) -> list[str]:
        """The kinds of all rows of a session."""
        with flightlog.open_log(self.db, discover=False) as log:
            return [record.event.kind for record in log.session(session).records()]


def _until(stream: Any, wanted: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for line in stream:
        lines.append(line)
        if all(part in line for part in wanted):
            return lines
    raise AssertionError(f"{wanted} never came; the last lines were {lines[-5:]}")
