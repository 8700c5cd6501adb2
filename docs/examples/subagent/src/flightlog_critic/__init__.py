"""A subagent that reads and does nothing else: it has no tools, so a call that a crash cut off is made again.

What it says is the result of the call; how it came to that stays in a session of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from flightlog_hookspecs import Subagent, hookimpl

flightlog_contract = 1

CRITIC = Subagent(
    name="critic",
    description="Reads a text with fresh eyes and says what is unclear in it.",
    prompt="You are given a text. Name each sentence that can be read in two ways, and say which ways.",
    tools=(),
    effect="read",
    timeout_s=300.0,
)


@hookimpl
def register_subagents(register: Callable[[Subagent], None]) -> None:
    """Offer the subagent."""
    register(CRITIC)
