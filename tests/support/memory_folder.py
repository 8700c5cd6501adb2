"""`tmp_path` on a memory file system where the machine has one: what these tests prove needs no disk to be true.

A conftest that wants it imports the fixture.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flightlog.testing.memory import memory_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """An empty folder of the test's own, gone when it ends."""
    with memory_folder() as folder:
        yield folder


def subfolder(parent: Path) -> Path:
    """A fresh folder in `parent`, for each example of a property."""
    return Path(tempfile.mkdtemp(dir=parent))
