"""pluggy markers, and the version of the contract this package defines."""

from __future__ import annotations

from typing import Final

import pluggy

PROJECT: Final = "flightlog"
CONTRACT_VERSION: Final = 1

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
