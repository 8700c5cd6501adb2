"""A clean virtual environment that sees this checkout and what it needs, and into which plugins are pip-installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import attrs

import flightlog
import flightlog_hookspecs
import flightlog_plugins

ROOTS = [str(Path(package.__path__[0]).parent) for package in (flightlog, flightlog_hookspecs, flightlog_plugins)]
LIMIT_S = 300

COMMANDS = {"flightlog": "flightlog", "pytest": "pytest"}
"""Commands of an environment, and the modules that they run."""


@attrs.frozen
class Environment:
    """A virtual environment at `folder`. Nothing is ever downloaded into it, or built in one of its own."""

    folder: Path

    @classmethod
    def at(cls, folder: Path) -> Environment:
        """Make one."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=LIMIT_S)
        (packages,) = folder.glob("lib/*/site-packages")
        ours = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
        (packages / "host.pth").write_text("\n".join([*ROOTS, *ours, ""]))
        environment = cls(folder)
        pip = sys.executable if find_spec("pip") else str(Path(sys.base_prefix) / "bin" / "python3")
        environment._command("pip", f'exec "{pip}" -m pip --python "{environment.python}" "$@"')
        for name, module in COMMANDS.items():
            environment._command(name, f'exec "{environment.python}" -W error -m {module} "$@"')
        return environment

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run one of its commands in `cwd`; what it says is kept. Fails the test if the command does."""
        done = subprocess.run(
            command, cwd=cwd, env=self._surroundings(), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done

    def install(self, packages: Sequence[Path]) -> None:
        """`pip install` these folders, all at once."""
        self.run("pip", "install", "-q", *map(str, packages), cwd=self.folder)

    def _surroundings(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.folder / "bin"), os.environ.get("PATH", "")])
        inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
        return inherited | {
            "PATH": path,
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # pip reads a "no" of a "no" here: it builds without isolation
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTEST_ADDOPTS": "-p no:cacheprovider",
        }

    def _command(self, name: str, line: str) -> None:
        file = self.folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)
