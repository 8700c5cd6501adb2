"""A subagent: a kind of child session that a model may start with a task, and whose answer it is given."""

from __future__ import annotations

from collections.abc import Callable

from flightlog_hookspecs import Subagent, hookimpl

flightlog_contract = 1

CRITIC = Subagent(
    name="critic",
    description="Reads a text with fresh eyes and says what is unclear in it.",
    prompt="You are given a text. Name each sentence that can be read in two ways, and say which ways.",
    tools=(),
)


@hookimpl
def register_subagents(register: Callable[[Subagent], None]) -> None:
    """Offer the subagent."""
    register(CRITIC)
