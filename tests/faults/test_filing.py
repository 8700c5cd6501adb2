"""The plugins in the box that write files, in the laboratory: what they wrote is on the same disk as the log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from filing import FILES, MEMORIES
from planted import replaced

from flightlog.testing.faults import Script, named, run_io_errors, run_power_loss
from flightlog_plugins.files import writing
from flightlog_plugins.memory.keeping import Keeper

scripts = pytest.mark.parametrize("script", [FILES, MEMORIES], ids=lambda script: script.name)


@scripts
def test_what_tools_wrote_is_whole_and_what_the_log_says_after_every_crash(script: Script, effort: int) -> None:
    report = run_power_loss(script, seed=effort, points=60 * effort, nested=8 * effort)
    report.merge(run_io_errors(script, seed=effort, points=10 * effort))
    assert not report.violations, report
    assert named(script.name) is script


@contextmanager
def unsynced() -> Iterator[None]:
    """A line counts as appended when the system has it."""
    with replaced(writing, "keep", lambda fd, path: None):
        yield


@contextmanager
def in_place() -> Iterator[None]:
    """A file is written over as it stands."""

    def over(folder: int, name: str, path: str, raw: bytes, before: object) -> None:
        fd = writing.os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=folder)
        writing.os.ftruncate(fd, 0)
        writing.os.write(fd, raw)
        writing.os.fsync(fd)
        writing.os.close(fd)

    with replaced(writing, "replace", over):
        yield


@contextmanager
def never_caught_up() -> Iterator[None]:
    """What an index has missed in a crash it misses for ever."""
    missed_nothing: Any = lambda keeper, session, seq: True  # noqa: E731
    with replaced(Keeper, "_missed_nothing", missed_nothing):
        yield


@pytest.mark.parametrize(
    ("script", "plant"),
    [(FILES, unsynced), (FILES, in_place), (MEMORIES, never_caught_up)],
    ids=lambda x: x.__name__ if callable(x) else x.name,
)
def test_a_tool_that_leaves_something_else_behind_is_found(script: Script, plant: Any) -> None:
    with plant():
        report = run_power_loss(script, seed=1, points=300, first_only=True)
    assert [violation.promise for violation in report.violations] == ["P7"], report
