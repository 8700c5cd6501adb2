"""Asking the guards about a call, each on its own: one that fails denies that call and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import trio
from attrs import field, frozen

from flightlog.runtime.plugin_call import Failed, call
from flightlog_hookspecs.events import PluginFault
from flightlog_hookspecs.hooks import Allow, Ask, Deny, Hook, ProposedCall, Verdict

_STRENGTH: Final[Mapping[type, int]] = {Allow: 0, Ask: 1, Deny: 2}


@frozen(kw_only=True)
class Guard:
    """A hook and the plugin it came with."""

    hook: Hook
    plugin: str


@frozen(kw_only=True)
class Ruling:
    """What the guards decided together. `guard` is whose word it was; `faults` are for the log."""

    verdict: Allow | Deny | Ask
    guard: str = ""
    faults: tuple[PluginFault, ...] = field(default=())


async def rule(guards: Sequence[Guard], proposed: ProposedCall, threads: trio.CapacityLimiter) -> Ruling:
    """Ask all `guards`: Deny beats Ask beats Allow, the first of equals counts. Guards fail closed."""
    ruling = Ruling(verdict=Allow())
    faults: list[PluginFault] = []
    for guard in guards:
        verdict = await _asked(guard, proposed, threads)
        if isinstance(verdict, PluginFault):
            faults.append(verdict)
            verdict = Deny(f"the guard {guard.hook.name!r} failed, so the call was not made")
        if verdict is not None and _STRENGTH[type(verdict)] > _STRENGTH[type(ruling.verdict)]:
            ruling = Ruling(verdict=verdict, guard=guard.hook.name)
    return Ruling(verdict=ruling.verdict, guard=ruling.guard, faults=tuple(faults))


async def _asked(guard: Guard, proposed: ProposedCall, threads: trio.CapacityLimiter) -> Verdict | PluginFault:
    hook = guard.hook
    try:
        verdict = await call(hook.body, proposed, limit_s=hook.limit_s, threads=threads)
        error = f"returned {verdict!r:.200}, not a verdict"
    except Failed as failed:
        verdict, error = None, str(failed)
    else:
        if _is_verdict(verdict):
            return verdict
    return PluginFault(plugin=guard.plugin, hook=f"{hook.point} {hook.name}", error=error)


def _is_verdict(value: object) -> bool:
    match value:
        case None | Allow():
            return True
        case Deny(reason=str()) | Ask(question=str()):
            return True
        case _:
            return False
