"""How the states of tasks look."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from flightlog_hookspecs.events import TaskStateName

STYLES: Final[Mapping[TaskStateName, str]] = MappingProxyType(
    {"completed": "green", "failed": "red", "cancelled": "yellow", "paused": "bold yellow", "running": "bold"}
)
