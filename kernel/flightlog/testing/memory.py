"""A folder in memory, for logs that need no disk to be true."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SHARED: Final = "/dev/shm"  # noqa: S108  only a folder of our own is made in it


@contextmanager
def memory_folder() -> Iterator[Path]:
    """An empty folder, gone afterwards: on a memory file system where the machine has one, else a temporary one."""
    where = _SHARED if os.access(_SHARED, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where, prefix="flightlog-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
