"""The registration hooks. They are called once per plugin, when it enters a kernel."""

from __future__ import annotations

from collections.abc import Callable

from flightlog_hookspecs.adapters import Adapter
from flightlog_hookspecs.hooks import Hook
from flightlog_hookspecs.markers import hookspec
from flightlog_hookspecs.prompt import PromptSection
from flightlog_hookspecs.tools import Tool


@hookspec
def register_tools(register: Callable[[Tool], None]) -> None:
    """Offer tools: call `register(tool)` for each. A duplicate name or a bad schema raises there."""


@hookspec
def register_adapters(register: Callable[[Adapter], None]) -> None:
    """Offer adapters: call `register(adapter)` for each."""


@hookspec
def register_prompt_sections(register: Callable[[PromptSection], None]) -> None:
    """Offer pieces of the system text: call `register(section)` for each."""


@hookspec
def register_hooks(register: Callable[[Hook], None]) -> None:
    """Offer guards: call `register(hook)` for each."""
