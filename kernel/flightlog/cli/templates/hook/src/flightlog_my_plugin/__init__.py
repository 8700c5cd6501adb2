"""A hook: it is asked at its point of the loop. At this one it is a guard, and one that raises counts as a no."""

from __future__ import annotations

from collections.abc import Callable

from flightlog_hookspecs import Deny, Hook, ProposedCall, Verdict, hook, hookimpl

flightlog_contract = 1

MAX_CHARS = 10_000


@hook("before_tool")
def my_plugin(call: ProposedCall) -> Verdict:
    """No call has arguments that nobody can read."""
    if len(call.arguments) > MAX_CHARS:
        return Deny(f"the arguments have {len(call.arguments)} characters; send at most {MAX_CHARS}")
    return None


@hookimpl
def register_hooks(register: Callable[[Hook], None]) -> None:
    """Offer the hook."""
    register(my_plugin)
