"""The registration hooks. They are called once each when a plugin enters a kernel or a session.

A plugin states the contract that it was written for as `flightlog_contract = 1`; one that needs a newer
one than `CONTRACT_VERSION` is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from flightlog_hookspecs.adapters import Adapter
from flightlog_hookspecs.compaction import Compactor
from flightlog_hookspecs.goals import GoalCheck
from flightlog_hookspecs.hooks import Hook
from flightlog_hookspecs.markers import hookspec
from flightlog_hookspecs.parameters import Parameter
from flightlog_hookspecs.prices import Price
from flightlog_hookspecs.prompt import PromptSection
from flightlog_hookspecs.redaction import Redaction
from flightlog_hookspecs.services import Service
from flightlog_hookspecs.subagents import Subagent
from flightlog_hookspecs.tools import Tool


@hookspec
def register_tools(register: Callable[[Tool], None]) -> None:
    """Offer tools: call `register(tool)` for each. A duplicate name or a bad schema raises there."""


@hookspec
def register_adapters(register: Callable[[Adapter], None]) -> None:
    """Offer adapters: call `register(adapter)` for each."""


@hookspec
def register_prompt_sections(register: Callable[[PromptSection], None]) -> None:
    """Offer pieces of what the model is told: call `register(section)` for each."""


@hookspec
def register_parameters(register: Callable[[Parameter], None]) -> None:
    """Offer parameters of requests: call `register(parameter)` for each. A duplicate name or no JSON raises there."""


@hookspec
def register_hooks(register: Callable[[Hook], None]) -> None:
    """Offer hooks of the loop: call `register(hook)` for each."""


@hookspec
def register_subagents(register: Callable[[Subagent], None]) -> None:
    """Offer kinds of child sessions: call `register(subagent)` for each."""


@hookspec
def register_goal_checks(register: Callable[[GoalCheck], None]) -> None:
    """Offer what tasks may have their goals checked by: call `register(check)` for each."""


@hookspec
def register_compactors(register: Callable[[Compactor], None]) -> None:
    """Offer what makes a conversation shorter that no longer fits: call `register(compactor)` for each."""


@hookspec
def register_prices(register: Callable[[Price], None]) -> None:
    """Offer prices: call `register(price)` for each. Of those that fit a model the first counts, a session's first."""


@hookspec
def register_redactions(register: Callable[[Redaction], None]) -> None:
    """Offer functions that keep secrets out of the log: call `register(redaction)` for each."""


@hookspec
def register_services(register: Callable[[Service], None]) -> None:
    """Offer what is to be kept open beside the sessions: call `register(service)` for each."""
