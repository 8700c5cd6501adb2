"""A contest of durable agents: each in a process of its own, all taking turns, a few steps at a time."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from attrs import define, field

CHILD: Final = Path(__file__).parent / "contestants" / "child.py"


@define
class Runner:
    """The process of one contestant: `wall_us` and `cpu_us` of each step so far."""

    module: str
    name: str
    folder: Path
    wall_us: list[float] = field(factory=list, init=False)
    cpu_us: list[float] = field(factory=list, init=False)
    memory: list[tuple[int, float]] = field(factory=list, init=False)
    """Resident megabytes after so many steps."""
    _process: subprocess.Popen[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.folder.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, CHILD, "run", self.module, self.name, self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == [], f"{self.name} is ready"

    def _answer(self) -> list[list[float]]:
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def step(self, number: int) -> None:
        """Do so many steps."""
        assert self._process.stdin
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        taken = self._answer()
        assert len(taken) == number, f"{self.name} did {len(taken)} steps of {number}"
        self.wall_us += [wall for wall, _ in taken]
        self.cpu_us += [cpu for _, cpu in taken]
        self.memory.append((len(self.wall_us), self._status("VmRSS")))

    @property
    def peak_mb(self) -> float:
        """The most megabytes that were resident at a time."""
        return self._status("VmHWM")

    @property
    def bytes(self) -> int:
        """What it has on the disk."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def _status(self, name: str) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+) kB", status)
        assert found
        return int(found[1]) / 1000

    def kill(self) -> None:
        """As a crash does it."""
        with self._process:
            self._process.kill()

    def resume(self) -> float:
        """Milliseconds until a fresh process is ready to go on. Once, as going on writes."""
        return self._resumed(self.folder)

    def resume_copies(self, number: int, name: str = "") -> list[float]:
        """The same, so many times, on copies; if need be by a contestant of another name."""
        taken = []
        for _ in range(number):
            with tempfile.TemporaryDirectory(dir=self.folder.parent) as copies:
                taken.append(self._resumed(Path(shutil.copytree(self.folder, f"{copies}/copy")), name))
        return taken

    def _resumed(self, folder: Path, name: str = "") -> float:
        command = [sys.executable, CHILD, "resume", self.module, name or self.name, folder]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout
        steps, milliseconds = json.loads(found)
        assert steps == len(self.wall_us), f"{self.name} came back with {steps} of {len(self.wall_us)} steps"
        return milliseconds


def take_turns(runners: Iterable[Runner], *, until: int, at_a_time: int) -> None:
    """Let each do steps until it has done so many, in turns."""
    runners = list(runners)
    while len(runners[0].wall_us) < until:
        for runner in runners:
            runner.step(at_a_time)


def medians(taken: Sequence[float], start: int, end: int, at_a_time: int) -> list[float]:
    """The median of each turn between two steps."""
    return [statistics.median(taken[at : at + at_a_time]) for at in range(start, end, at_a_time)]
