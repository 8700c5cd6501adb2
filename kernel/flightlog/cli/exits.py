"""Exit codes, and which error means which."""

from __future__ import annotations

from typing import Final

FINE: Final = 0
FAILED: Final = 1
"""The run failed: a turn did not complete, or could not be run just now."""
USAGE: Final = 2
REFUSED: Final = 3
"""The log was refused as it is: damaged, rolled back, too new, not ours, not to be opened."""
TERMINATED: Final = 143
"""SIGTERM, by the convention of shells: 128 + 15."""


def exit_code_of(error: BaseException) -> int:
    """The exit code that tells a script what `error` was."""
    from flightlog_hookspecs.errors import (
        DiskFull,
        Fenced,
        FileInUse,
        FileReplaced,
        ForkedProcess,
        NotCreated,
        SessionBusy,
        StoreError,
        StoreStopped,
        UsageError,
    )

    not_the_logs_fault = DiskFull, Fenced, FileInUse, FileReplaced, ForkedProcess, NotCreated, SessionBusy, StoreStopped
    match error:
        case UsageError():
            return USAGE
        case StoreError() if not isinstance(error, not_the_logs_fault):
            return REFUSED
        case _:
            return FAILED


def leaf(error: BaseException) -> BaseException:
    """The first error inside nested groups, or `error` itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def sentence(error: BaseException) -> str:
    """What `error` says, naming its type where the message alone would not tell."""
    match error:
        case OSError(strerror=str(reason)):
            return f"{error.filename}: {reason}" if error.filename else reason
        case _ if type(error).__module__.startswith("flightlog") and isinstance(error, Exception):
            return str(error)
        case _:
            return f"{type(error).__name__}: {error}"
