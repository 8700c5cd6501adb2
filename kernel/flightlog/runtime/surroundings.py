"""What a session works with, besides its log: handed from the kernel to the loop to the tools."""

from __future__ import annotations

import trio
from attrs import field, frozen

from flightlog.core.limits import Limits
from flightlog.runtime.approvals import Approvals
from flightlog.runtime.children import Children
from flightlog.runtime.gate import Gate
from flightlog.runtime.goal_checking import GoalChecks
from flightlog.runtime.hooks import Hooks
from flightlog.runtime.redacting import Redacting
from flightlog.runtime.registry import Registry
from flightlog.runtime.waking import Timers


@frozen(kw_only=True)
class Surroundings:
    """`workspace` is the folder tools may work in, "" for none; `protected` paths no tool may touch.

    With `hands_over`, what the host cuts off stays open for the next owner.
    """

    registry: Registry
    limits: Limits
    redacting: Redacting
    hooks: Hooks
    goal_checks: GoalChecks
    approvals: Approvals
    children: Children
    timers: Timers
    gate: Gate
    threads: trio.CapacityLimiter = field(eq=False)
    workspace: str
    protected: tuple[str, ...]
    hands_over: bool = False
