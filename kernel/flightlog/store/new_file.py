"""A file that appears under its name complete and on the disk, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from flightlog.store.connection import translated
from flightlog_hookspecs.errors import DiskFull, NotCreated, StoreError, UsageError


@contextmanager
def new_file(path: str) -> Iterator[str]:
    """Yields the path of an empty file (mode 0600) to write; afterwards it stands under `path`.

    Until then its name ends in ".part"; a kill leaves that behind and nothing else. Raises
    `UsageError` when `path` exists, also when it has come to exist meanwhile.
    """
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise UsageError(f"{path}: its folder does not exist. Create {folder} first.")
    _check_free(path)
    with part_of(path, failed=not_created) as part:
        yield part
        try:
            bring_to_disk(part)
            try:
                os.link(part, path)  # unlike a rename it never replaces what has come to stand there
            except PermissionError:  # a file system without hard links
                _check_free(path)
                os.rename(part, path)
            bring_to_disk(folder)
        except FileExistsError:
            raise _exists(path) from None


@contextmanager
def part_of(path: str, *, failed: Callable[[OSError, str], StoreError] = translated) -> Iterator[str]:
    """Yields the path of an empty file (mode 0600) beside `path` that ends in ".part" and is gone afterwards.

    Raises what `failed` makes of an error of the system.
    """
    folder, name = os.path.split(path)
    try:
        descriptor, part = tempfile.mkstemp(prefix=f"{name}.", suffix=".part", dir=folder or ".")
        os.close(descriptor)
    except OSError as error:
        raise failed(error, path) from error
    try:
        yield part
    except OSError as error:
        raise failed(error, path) from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)


def not_created(error: OSError, path: str) -> StoreError:
    """What is said when no new file can be made at `path`, or not be written."""
    known = translated(error, path)
    if isinstance(known, DiskFull):
        return known
    return NotCreated(f"{path}: cannot be created ({error.strerror}). Check the permissions of its folder.")


def bring_to_disk(path: str) -> None:
    """Sync a file (not the database: closing a descriptor of it drops SQLite's locks) or a folder's names."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _check_free(path: str) -> None:
    if os.path.lexists(path):
        raise _exists(path)


def _exists(path: str) -> UsageError:
    return UsageError(f"{path}: exists already, and nothing is ever overwritten. Name another file.")
