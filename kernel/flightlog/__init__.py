"""flightlog: an embeddable agent kernel whose only truth is an append-only log.

    async with flightlog.open_kernel("agent.db") as kernel:
        async with kernel.session("s1", model="scripted:count?to=3") as session:
            await session.followup("count to 3")
            turn = await session.run()

Every public name is listed here; everything else may change. Importing the package loads nothing
else: the first use of a name brings in the kernel (most of that time is trio).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flightlog import aio, errors, events, sync
    from flightlog.api import Kernel, open_kernel
    from flightlog.core.limits import Limits
    from flightlog.core.quotas import Budget, Pool, Quotas, Rate
    from flightlog.core.report import TaskReport
    from flightlog.runtime.approvals import Question
    from flightlog.runtime.clock import Clock
    from flightlog.runtime.inbox import Accepted
    from flightlog.runtime.journal import HeadToken
    from flightlog.runtime.mailbox import Mailbox, Posted
    from flightlog.runtime.reader import (
        CardUse,
        LogReader,
        SentRequest,
        SessionReader,
        SessionSummary,
        Spending,
        TimerSummary,
        open_log,
    )
    from flightlog.runtime.registration import Registration
    from flightlog.runtime.session import Session, Turn
    from flightlog.runtime.task_summary import TaskSummary
    from flightlog.runtime.tasks import Tasks
    from flightlog.runtime.upkeep import purge, repair
    from flightlog.store.purging import PurgeReport
    from flightlog.store.query import QueryResult
    from flightlog.store.repairing import RepairReport
    from flightlog.version import __version__
    from flightlog_hookspecs import OpenTimer, hookimpl, tool
    from flightlog_hookspecs.events import SubGoal

__all__ = [
    "Accepted",
    "Budget",
    "CardUse",
    "Clock",
    "HeadToken",
    "Kernel",
    "Limits",
    "LogReader",
    "Mailbox",
    "OpenTimer",
    "Pool",
    "Posted",
    "PurgeReport",
    "QueryResult",
    "Question",
    "Quotas",
    "Rate",
    "Registration",
    "RepairReport",
    "SentRequest",
    "Session",
    "SessionReader",
    "SessionSummary",
    "Spending",
    "SubGoal",
    "TaskReport",
    "TaskSummary",
    "Tasks",
    "TimerSummary",
    "Turn",
    "__version__",
    "aio",
    "errors",
    "events",
    "hookimpl",
    "open_kernel",
    "open_log",
    "purge",
    "repair",
    "sync",
    "tool",
]

_MODULES = ("aio", "errors", "events", "sync")

_HOME = {
    "Accepted": "flightlog.runtime.inbox",
    "Budget": "flightlog.core.quotas",
    "CardUse": "flightlog.runtime.reader",
    "Clock": "flightlog.runtime.clock",
    "HeadToken": "flightlog.runtime.journal",
    "Kernel": "flightlog.api",
    "Limits": "flightlog.core.limits",
    "PurgeReport": "flightlog.store.purging",
    "QueryResult": "flightlog.store.query",
    "OpenTimer": "flightlog_hookspecs",
    "LogReader": "flightlog.runtime.reader",
    "Mailbox": "flightlog.runtime.mailbox",
    "Pool": "flightlog.core.quotas",
    "Posted": "flightlog.runtime.mailbox",
    "Question": "flightlog.runtime.approvals",
    "Quotas": "flightlog.core.quotas",
    "Rate": "flightlog.core.quotas",
    "Registration": "flightlog.runtime.registration",
    "RepairReport": "flightlog.store.repairing",
    "SentRequest": "flightlog.runtime.reader",
    "Session": "flightlog.runtime.session",
    "SessionReader": "flightlog.runtime.reader",
    "SessionSummary": "flightlog.runtime.reader",
    "Spending": "flightlog.runtime.reader",
    "SubGoal": "flightlog_hookspecs.events",
    "TaskReport": "flightlog.core.report",
    "TaskSummary": "flightlog.runtime.task_summary",
    "Tasks": "flightlog.runtime.tasks",
    "TimerSummary": "flightlog.runtime.reader",
    "Turn": "flightlog.runtime.session",
    "__version__": "flightlog.version",
    "hookimpl": "flightlog_hookspecs",
    "open_kernel": "flightlog.api",
    "open_log": "flightlog.runtime.reader",
    "purge": "flightlog.runtime.upkeep",
    "repair": "flightlog.runtime.upkeep",
    "tool": "flightlog_hookspecs",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"flightlog.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'flightlog' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
