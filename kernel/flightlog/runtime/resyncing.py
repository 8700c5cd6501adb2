"""A task looks at things again before it goes on. See `core/resync.py`, which decides what that means."""

from __future__ import annotations

from functools import partial

import trio

from flightlog.core.limits import RESYNC_READS_MAX
from flightlog.core.resync import Answer, Read, reads, resynced
from flightlog.core.tool_schema import BadArguments, PreparedTool
from flightlog.runtime.briefing import Briefing
from flightlog.runtime.journal import Journal
from flightlog.runtime.plugin_call import Failed, call
from flightlog.runtime.registry import Registered
from flightlog.runtime.surroundings import Surroundings
from flightlog.runtime.tool_body import arguments_of, run_body
from flightlog.runtime.tool_output import rendered
from flightlog.store.replay import lone_record
from flightlog_hookspecs.content import text_of
from flightlog_hookspecs.events import Record, ToolCall
from flightlog_hookspecs.hooks import Allow, ProposedCall
from flightlog_hookspecs.tools import ToolContext


class Resyncing:
    """Brings the task of one session up to date."""

    def __init__(self, journal: Journal, around: Surroundings, briefing: Briefing) -> None:
        self._journal = journal
        self._around = around
        self._briefing = briefing

    async def run(self) -> None:
        """Ask again for what may have changed, then write all that comes of it as one append.

        Until then nothing is written but faults of plugins, so whoever is cut off here begins anew.
        """
        journal = self._journal
        head = await self._briefing.basis()
        found = reads(journal.history.messages(), self._refreshable())
        answers = [await self._asked(read) for read in found[:RESYNC_READS_MAX]]
        left_out = max(0, len(found) - RESYNC_READS_MAX)
        await journal.append(lambda state: resynced(state, head, answers, left_out, journal.clock.new_id), barrier=True)

    def _refreshable(self) -> set[str]:
        tools = self._around.registry.tools
        return {name for name, registered in tools.items() if registered.item.tool.refreshable}

    async def _asked(self, read: Read) -> Answer:
        """What the call answers now. Whatever its tool does, it is the end of this one call."""
        around, record = self._around, self._row(read)
        started = record.event
        assert isinstance(started, ToolCall), "a result names the row its call started in"
        registered = around.registry.tools.get(started.name)
        if registered is None:
            return Answer(read=read, error="there is no such tool any more")
        if obstacle := await self._obstacle(record, started, registered):
            return Answer(read=read, error=obstacle)
        try:
            value = await self._invoke(record, started, registered)
        except (Failed, BadArguments) as error:
            return Answer(read=read, error=around.redacting.text(str(error)))
        end = rendered(value, around.limits, around.redacting)
        if end.outcome != "ok" and end.content != read.result.content:
            return Answer(read=read, error=text_of(end.content))
        return Answer(read=read, content=end.content)

    async def _obstacle(self, record: Record, started: ToolCall, registered: Registered[PreparedTool]) -> str:
        """Why guards do not let it be asked again; "" when they do. People are not asked for it."""
        if not self._around.hooks.any_at("before_tool"):
            return ""
        ruling = await self._around.hooks.before_tool(
            ProposedCall(
                session=self._journal.session,
                turn=record.turn or 0,
                step=record.step or 0,
                position=started.position,
                call_id=started.call_id,
                name=started.name,
                arguments=started.arguments,
                effect=registered.item.tool.effect,
            )
        )
        await self._journal.append(*ruling.faults)
        return "" if isinstance(ruling.verdict, Allow) and ruling.arguments is None else "a guard keeps it from running"

    async def _invoke(self, record: Record, started: ToolCall, registered: Registered[PreparedTool]) -> object:
        """What its body returns. Raises `Failed` for whatever it raises, and when it takes too long."""
        journal, around, tool = self._journal, self._around, registered.item.tool
        arguments = await arguments_of(registered.item, started.arguments)
        context = ToolContext(
            invocation_id=f"{started.invocation_id}.{journal.state.epoch}",
            session=journal.session,
            turn=record.turn or 0,
            step=record.step or 0,
            position=started.position,
            call_id=started.call_id,
            deadline=trio.current_time() + tool.timeout_s,
            workspace=around.workspace,
            protected=around.protected,
        )
        journal.store.check_alive(in_place=False)
        journal.on_boundary("tool", journal.session, record.seq)
        with registered.plugin.running():
            body = partial(run_body, registered.item, context, arguments, around.threads)
            value: object = await call(body, limit_s=tool.timeout_s, threads=around.threads)
        journal.on_boundary("tool-done", journal.session, record.seq)
        return value

    def _row(self, read: Read) -> Record:
        row = self._journal.store.row(self._journal.key, read.call_seq)
        assert row is not None, "a result names the row its call started in"
        return lone_record(self._journal.store, self._journal.session, row)
