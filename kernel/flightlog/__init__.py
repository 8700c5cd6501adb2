"""flightlog: an embeddable agent kernel whose only truth is an append-only log.

    async with flightlog.open_kernel("agent.db") as kernel:
        async with kernel.session("s1", model="scripted:count?to=3") as session:
            await session.followup("count to 3")
            turn = await session.run()

Every public name is listed here; everything else may change.
"""

from flightlog.api import Kernel, open_kernel, open_log
from flightlog.core.limits import Limits
from flightlog.runtime.clock import Clock
from flightlog.runtime.journal import HeadToken
from flightlog.runtime.reader import LogReader, SentRequest, SessionReader, SessionSummary
from flightlog.runtime.session import Accepted, Session, Turn
from flightlog.version import __version__
from flightlog_hookspecs import errors, events, hookimpl, tool

__all__ = [
    "Accepted",
    "Clock",
    "HeadToken",
    "Kernel",
    "Limits",
    "LogReader",
    "SentRequest",
    "Session",
    "SessionReader",
    "SessionSummary",
    "Turn",
    "__version__",
    "errors",
    "events",
    "hookimpl",
    "open_kernel",
    "open_log",
    "tool",
]
