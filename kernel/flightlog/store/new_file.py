"""A file that appears under its name complete and on the disk, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from flightlog.store.connection import translated
from flightlog.store.witness import bring_to_disk
from flightlog_hookspecs.errors import UsageError


@contextmanager
def new_file(path: str) -> Iterator[str]:
    """Yields the path of an empty file (mode 0600) to write; afterwards it stands under `path`.

    Until then its name ends in ".part"; a kill leaves that behind and nothing else. Raises
    `UsageError` when `path` exists, also when it has come to exist meanwhile.
    """
    folder, name = os.path.split(path)
    if not os.path.isdir(folder or "."):
        raise UsageError(f"{path}: its folder does not exist. Create {folder} first.")
    _check_free(path)
    try:
        descriptor, part = tempfile.mkstemp(prefix=f"{name}.", suffix=".part", dir=folder or ".")
        os.close(descriptor)
    except OSError as error:
        raise translated(error, path) from error
    try:
        yield part
        bring_to_disk(part)
        try:
            os.link(part, path)  # unlike a rename it never replaces what has come to stand there
        except PermissionError:  # a file system without hard links
            _check_free(path)
            os.rename(part, path)
        bring_to_disk(folder or ".")
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise translated(error, path) from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)


def _check_free(path: str) -> None:
    if os.path.lexists(path):
        raise _exists(path)


def _exists(path: str) -> UsageError:
    return UsageError(f"{path}: exists already, and nothing is ever overwritten. Name another file.")
