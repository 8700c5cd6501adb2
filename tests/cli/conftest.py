"""Shells for the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from flightlog_process import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell in an empty folder."""
    return Shell(tmp_path)


@pytest.fixture
def stubborn(shell: Shell) -> Shell:
    """A shell with the stalling model and the stubborn tool."""
    return shell.with_plugin("stubborn", "stubborn_plugin")


@pytest.fixture
def asking(shell: Shell) -> Shell:
    """A shell with the model that pays and the guard that asks."""
    return shell.with_plugin("asking", "asking_plugin")


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell whose log holds session "c": one turn with words and two tool calls. Only to be read."""
    shell = Shell(tmp_path_factory.mktemp("counted"))
    model = "scripted:count?to=20&note_every=10&note=notes.txt&chunk=1&pace_ms=5"
    shell.run("run", "count to 20", "--session", "c", "--model", model, "--workspace", ".", "--system", "Be exact.")
    return shell
