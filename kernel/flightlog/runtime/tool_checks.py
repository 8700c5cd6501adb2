"""What a tool has beside its body: a reconciler and a precheck. Contained and bounded, as its body is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from flightlog.core.saying import said, shown
from flightlog.core.tool_schema import PreparedTool
from flightlog.runtime.error_groups import unwrapped
from flightlog.runtime.journal import Journal
from flightlog.runtime.plugin_call import Failed, call, contained
from flightlog.runtime.registry import Registered
from flightlog.runtime.surroundings import Surroundings
from flightlog_hookspecs.errors import ToolError
from flightlog_hookspecs.events import PluginFault
from flightlog_hookspecs.tools import Done, Finding, NotDone, ToolContext, Unknown

T = TypeVar("T")
UNCHECKED = "what must be checked before it runs could not be checked"


class ToolChecks:
    """Asks the tools of one session. Neither question changes anything, so who is cancelled leaves no doubt."""

    def __init__(self, journal: Journal, around: Surroundings) -> None:
        self._journal = journal
        self._around = around

    async def finding(
        self, registered: Registered[PreparedTool], context: ToolContext, arguments: dict[str, Any]
    ) -> Finding:
        """What the tool's reconciler says about a call that was cut off: nothing, when it fails."""
        tool = registered.item.tool
        assert tool.reconcile is not None, "only a tool that has a reconciler is asked"
        try:
            return await self._asked(registered, partial(tool.reconcile, context, arguments), _finding)
        except Failed as failed:
            await self._log_fault(registered, "reconcile", str(failed))
            return Unknown()

    async def obstacle(
        self, registered: Registered[PreparedTool], context: ToolContext, arguments: dict[str, Any]
    ) -> str:
        """Why the tool's precheck says that the call must not run now; "" when it may."""
        prepared = registered.item
        if prepared.tool.precheck is None:
            return ""
        leading = (context,) if prepared.precheck_wants_context else ()
        try:
            return await self._asked(registered, partial(prepared.tool.precheck, *leading, **arguments), _reason)
        except Failed as failed:
            if failed.__cause__ and isinstance(error := unwrapped(failed.__cause__), ToolError):
                return said(error)
            await self._log_fault(registered, "precheck", str(failed))
            return UNCHECKED

    async def _asked(
        self, registered: Registered[PreparedTool], question: partial[Any], read: Callable[[object], T]
    ) -> T:
        self._journal.store.check_alive(in_place=False)  # what may not be saved may not be found out either
        with registered.plugin.running(), contained():
            return read(await call(question, limit_s=registered.item.tool.timeout_s, threads=self._around.threads))

    async def _log_fault(self, registered: Registered[PreparedTool], what: str, error: str) -> None:
        await self._journal.append(
            PluginFault(
                plugin=registered.plugin.name,
                hook=f"{what} {registered.item.tool.name}",
                error=self._around.redacting.text(error),
            )
        )


def _finding(found: object) -> Finding:
    if isinstance(found, Done):
        return Done(found.output)  # its class may be one of the plugin's own
    if isinstance(found, (NotDone, Unknown)):
        return found
    raise Failed(f"returned {shown(found)}, which is no Done, NotDone or Unknown")


def _reason(answer: object) -> str:
    if answer is None:
        return ""
    if isinstance(answer, str):
        return str.__str__(answer) or UNCHECKED
    raise Failed(f"returned {shown(answer)}, which is no reason and not None")
