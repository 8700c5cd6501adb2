"""The command line. It needs click, rich and platformdirs, which nothing else in the package imports."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

_NEEDS: Final = ("click", "rich", "platformdirs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with `arguments` (the process's own by default) and return its exit code."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:  # while it starts; what runs has ways of its own
        sys.stderr.write("flightlog: interrupted\n")
        return 1


def _run(arguments: Sequence[str] | None) -> int:
    try:
        for needed in _NEEDS:
            import_module(needed)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDS:
            raise
        sys.stderr.write(f"flightlog: the command line needs {missing}: pip install 'flightlog[cli]'\n")
        return 2
    from flightlog.cli.app import run

    return run(arguments)
