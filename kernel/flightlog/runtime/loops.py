"""Which event loop the caller runs under, looked at before anything is made."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, Literal

import sniffio

from flightlog_hookspecs.errors import UsageError

_FACES: Final = MappingProxyType({"trio": "flightlog.open_kernel", "asyncio": "flightlog.aio.open_kernel"})


def check_loop(wanted: Literal["trio", "asyncio"]) -> None:
    """Raise `UsageError` unless this code runs under `wanted`."""
    try:
        found = sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        found = "no event loop"
    if found != wanted:
        face = _FACES.get(found, "flightlog.sync.open_kernel")
        raise UsageError(f"{_FACES[wanted]} runs under {wanted}, and this code under {found}: use {face}")
