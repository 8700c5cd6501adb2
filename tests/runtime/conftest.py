"""A folder in memory where there is one: tests that open hundreds of logs need no disk to be true."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, on a memory file system when the machine has one."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="flightlog-tests-") as folder:
        yield Path(folder)
