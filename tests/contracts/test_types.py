"""The contract's types: what plugins may write checks without an `Any`, and what they must not write does not check."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "typing_tests"
SOURCES = os.pathsep.join(str(ROOT / root) for root in ("kernel", "hookspecs", "builtin_plugins"))


@pytest.fixture(scope="module")
def found() -> dict[str, set[tuple[int, str]]]:
    """The errors that mypy finds in each file: line and code."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--strict", "--no-pretty", str(FOLDER)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": SOURCES},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    errors: dict[str, set[tuple[int, str]]] = {}
    for file, line, code in re.findall(r"^(.*?):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE):
        errors.setdefault(Path(file).name, set()).add((int(line), code))
    return errors


def test_what_plugins_may_write_has_no_errors(found: dict[str, set[tuple[int, str]]]) -> None:
    assert set(found) == {"mistakes.py"}


def test_each_mistake_is_found_where_it_is_made(found: dict[str, set[tuple[int, str]]]) -> None:
    lines = (FOLDER / "mistakes.py").read_text().splitlines()
    comments = [(number, *line.partition("# E: ")[1:]) for number, line in enumerate(lines, 1)]
    assert found["mistakes.py"] == {
        (number, code) for number, mark, codes in comments if mark for code in codes.split(", ")
    }


@pytest.mark.parametrize(
    "package", ["kernel/flightlog", "hookspecs/flightlog_hookspecs", "builtin_plugins/flightlog_plugins"]
)
def test_each_package_says_that_it_has_types(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()
