"""Running the calls of one message: in order, bounded, each fault kept to its own call.

Order of events for one call: `tool/call` durable, body, `tool/result` durable. A call that cannot
run at all (unknown tool, bad arguments) only gets a result, as does one that is not cleared (see `clearing`). Calls
that an earlier owner started come first: they ran side by side already.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio
from attrs import evolve

from flightlog.core import repair
from flightlog.core.budget import calls_left, shed
from flightlog.core.facts import fitting
from flightlog.core.saying import described, said
from flightlog.core.schedule import startable
from flightlog.core.state import Call, State
from flightlog.core.tool_schema import BadArguments, key_of
from flightlog.core.usage import Demand
from flightlog.runtime.child_run import Stopping
from flightlog.runtime.clearing import Clearing, CutOff, Runnable, Settled, Start, invocation_id
from flightlog.runtime.error_groups import interrupt, single_error, unwrapped
from flightlog.runtime.gate import PATIENCE_S, alert_of
from flightlog.runtime.journal import Journal
from flightlog.runtime.past import Past
from flightlog.runtime.reporting import Reports
from flightlog.runtime.surroundings import Surroundings
from flightlog.runtime.tool_body import arguments_of, on_our_thread, run_body
from flightlog.runtime.tool_output import Rendered, checked, failed, rendered, told
from flightlog.runtime.transactions import UNDONE, after_cut, database_of, made_final, run_transaction, transaction_of
from flightlog.store.store import Blob
from flightlog_hookspecs.content import text_blocks, text_of
from flightlog_hookspecs.errors import OutcomeUnknown, ToolError
from flightlog_hookspecs.events import BudgetAlert, Event, Record, Resumed, ToldBy, ToolCall, ToolResult, UserMessage
from flightlog_hookspecs.hooks import FinishedCall
from flightlog_hookspecs.tools import REPEATABLE, Tool

if TYPE_CHECKING:
    from flightlog.store.foreign import Transaction


Report = Callable[[str], None]
"""Takes what a running body says of how far it is."""


def _nothing_runs(*_: object) -> None:
    raise AssertionError("bodies run inside `run`")


class ToolRunner:
    """Runs the calls of one message. Made anew for each message.

    Bodies run shielded: a cancel first stops new starts, then gives running bodies `cancel_grace_s`
    to end by themselves, then cancels them. Every result that comes to be is committed.
    """

    def __init__(self, journal: Journal, around: Surroundings) -> None:
        self._journal = journal
        self._around = around
        self._clearing = Clearing(journal, around)
        self._stopped = trio.Event()
        self._hands_over = False
        self._leaves_children = False
        self._left: set[str] = set()
        self._last_deadline = math.inf
        self._scopes: dict[int, trio.CancelScope] = {}
        self._running: set[int] = set()
        self._finished: set[int] = set()
        self._parked: set[int] = set()
        self._changed = trio.Event()
        self._beside: Callable[..., object] = _nothing_runs

    async def run(self, calls: Sequence[Call]) -> None:
        """Answer `calls`. Returns once each has a durable result, or waits for a person and is left for later.

        When cancelled, calls that were started have their results, the others are left unanswered.
        """
        items, refused = await self._sort(calls)
        alerts: list[BudgetAlert] = []
        items = self._within_budget(items, refused, alerts)
        if refused:
            await self._journal.append(
                *alerts,
                *(partial(_instead_of_a_run, call, result) for call, result, _ in refused),
                blobs=[blob for _, _, blob in refused if blob],
            )
        if not items:
            return
        with single_error():
            async with trio.open_nursery() as nursery:
                self._beside = nursery.start_soon
                try:
                    await self._schedule(nursery, items)
                except trio.Cancelled:
                    # The nursery waits for the bodies, which are shielded.
                    if not self._stopped.is_set():  # else whoever cancels has said how long they may take
                        self._hands_over = self._around.hands_over
                        self.stop(self._around.limits.cancel_grace_s)
                    raise

    async def _sort(
        self, calls: Sequence[Call]
    ) -> tuple[list[Runnable | CutOff], list[tuple[Call, ToolResult, Blob | None]]]:
        """The calls to schedule, those that were cut off first, and the results of those that cannot run."""
        cut: list[CutOff] = []
        runnable: list[Runnable] = []
        refused: list[tuple[Call, ToolResult, Blob | None]] = []
        for call in calls:
            made = await self._runnable(call)
            if call.started is not None:
                ready, obstacle = (made, None) if isinstance(made, Runnable) else (None, made)
                cut.append(CutOff(call=call, runnable=ready, obstacle=obstacle))
            elif isinstance(made, Runnable):
                runnable.append(made)
            else:
                refused.append((call, self._result(call, made, None, 0), made.blob))
        return [*cut, *runnable], refused

    def _within_budget(
        self,
        items: Sequence[Runnable | CutOff],
        refused: list[tuple[Call, ToolResult, Blob | None]],
        alerts: list[BudgetAlert],
    ) -> list[Runnable | CutOff]:
        """The items that a budget lets start; the others are `refused`, with `alerts` that say so.

        What was cut off was counted when it first started.
        """
        account = self._journal.state.account
        if account is None:
            return list(items)
        kept: list[Runnable | CutOff] = []
        started: Counter[str] = Counter()
        for item in items:
            found = None if isinstance(item, CutOff) else calls_left(account, item.call.name, started)
            if isinstance(item, CutOff) or found is None or found[1] > 0:
                kept.append(item)
                started.update(("calls", f"calls:{item.call.name}") if isinstance(item, Runnable) else ())
                continue
            alert = shed(account, found[0], core=item.prepared.tool.core)
            alerts += [] if alert in alerts else [alert]
            end = evolve(
                self._told(f"Not run: the budget of this task allows no more. {alert.message}."), outcome="denied"
            )
            refused.append((item.call, self._result(item.call, end, None, 0), end.blob))
        return kept

    async def _runnable(self, call: Call) -> Runnable | Rendered:
        """The call with what it runs with, or why it cannot run."""
        tools = self._around.registry.tools
        registered = tools.get(call.name)
        if registered is None:
            known = ", ".join(sorted(tools)) or "none"
            return failed(f"There is no tool named {call.name!r}. Available: {known}.")
        raw = call.wanted
        try:
            arguments = await arguments_of(registered.item, raw)
        except BadArguments as error:
            return self._told(str(error))
        return Runnable(call=call, registered=registered, raw=raw, arguments=arguments)

    async def _schedule(self, nursery: trio.Nursery, items: Sequence[Runnable | CutOff]) -> None:
        modes = [item.mode for item in items]
        # What was cut off is looked at in any case, however many may run at a time.
        limit = max(self._at_once, sum(isinstance(item, CutOff) for item in items))
        guarded = self._around.hooks.any_at("before_tool") or any(
            _may_wait(item) or self._demands(item.call) for item in items
        )
        while len(self._finished) < len(items):
            await trio.lowlevel.checkpoint_if_cancelled()  # a cancelled turn starts nothing
            self._changed = trio.Event()
            start = startable(modes, self._running, self._finished, limit)
            self._running.update(start)
            if not start and self._running == self._parked:
                return  # what is left waits for a person
            if guarded or self._journal.state.doubts:
                for index in start:
                    nursery.start_soon(self._run_guarded, index, items[index])
            elif start:
                await self._start(nursery, items, start)
            await self._changed.wait()

    @property
    def _at_once(self) -> int:
        account, most = self._journal.state.account, self._around.limits.parallel_tools
        return min(most, account.cards.get("tools_at_once", most)) if account else most

    async def _start(self, nursery: trio.Nursery, items: Sequence[Runnable | CutOff], start: Sequence[int]) -> None:
        """Commit the intents of one batch together and in call order, then start their bodies."""
        batch = [item for index in start if isinstance(item := items[index], Runnable)]
        intents = [self._intent(item) for item in batch]
        records = await self._journal.append(*intents, barrier=True)
        for index, item, intent, record in zip(start, batch, intents, records, strict=True):
            nursery.start_soon(self._run_body, index, item, intent, record.seq)

    async def _run_guarded(self, index: int, item: Runnable | CutOff) -> None:
        """Let one call come to its result on its own: clearance, intent, body."""
        match await self._clearing.cleared(item):
            case None:
                self._parked.add(index)
                self._changed.set()
            case Start(item=cleared, resumed=resumed):
                intent = self._intent(cleared, resumed)
                if (record := await self._through_gate(index, cleared, intent)) is not None:
                    await self._run_body(index, cleared, intent, record.seq)
            case Settled() as settled:
                await self._settle(index, item, settled)

    async def _through_gate(self, index: int, item: Runnable, intent: ToolCall) -> Record | None:
        """Commit the intent once quotas let it; None for a call that was answered instead.

        One that the task can do without does not wait for them.
        """
        core, gate, key = item.prepared.tool.core, self._around.gate, self._journal.key
        async with gate.through(key, self._demands(item.call), patience_s=PATIENCE_S if core else 0) as full:
            if full is None:
                (record,) = await self._journal.append(intent, barrier=True)
                return record
        alert = alert_of(full, then="pauses" if core else "shed")
        if self._journal.state.account is not None:
            await self._journal.append(alert)
        end = evolve(self._told(f"Not run: {alert.message}. Try again later."), outcome="denied")
        before = "" if item.call.started is None else "\nIt was started before, and cut off."
        end, told_by = await self._final(intent, evolve(end, content=text_blocks(text_of(end.content) + before)))
        await self._settle(index, item, Settled(end=end, told_by=told_by))
        return None

    def _demands(self, call: Call) -> list[Demand]:
        return self._around.gate.for_call(self._journal.key, call.name)

    async def _settle(self, index: int, item: Runnable | CutOff, settled: Settled) -> None:
        """Answer a call that does not run."""
        end, following = settled.end, list[Event]()
        if settled.told_by in ("reconcile", "done_row") and isinstance(item, CutOff) and item.runnable:
            end, following = await self._amended(item.runnable, end, 0)
        result = self._result(item.call, end, item.call.started_seq, 0, settled.told_by)
        blobs = [end.blob] if end.blob else []
        await self._journal.append(partial(_instead_of_a_run, item.call, result), *following, barrier=True, blobs=blobs)
        self._finish(index)

    def _finish(self, index: int) -> None:
        self._running.discard(index)
        self._finished.add(index)
        self._changed.set()

    async def _run_body(self, index: int, item: Runnable, intent: ToolCall, call_seq: int) -> None:
        journal, plugin = self._journal, item.registered.plugin
        journal.store.check_alive(
            in_place=False
        )  # another session's fault may have stopped it since the intent was committed
        if self._stopped.is_set() or plugin.taken_back:  # while the intent waited for the file: the body never began
            gone = failed(f"There is no tool named {item.call.name!r} any more. It was not started; nothing happened.")
            unstarted = repair.ABORTED if intent.resumed == "repeatable" else repair.ABORTED_UNSTARTED
            end = failed(unstarted, "aborted") if self._stopped.is_set() else gone
            end, told_by = await self._final(intent, end)
            blobs = [end.blob] if end.blob else []
            noting = partial(_noting, self._result(item.call, end, call_seq, 0, told_by))
            await journal.append(noting, barrier=True, blobs=blobs)
            self._finish(index)
            return
        with plugin.running():
            await self._run_to_result(index, item, intent, call_seq)

    async def _run_to_result(self, index: int, item: Runnable, intent: ToolCall, call_seq: int) -> None:
        journal = self._journal
        deadline = trio.current_time() + item.prepared.tool.timeout_s
        scope = trio.CancelScope(deadline=min(deadline, self._last_deadline), shield=True)
        self._scopes[index] = scope
        journal.on_boundary("tool", journal.session, call_seq)
        start_us = journal.clock.monotonic_us()
        reports = Reports(journal, intent, call_seq, self._around.redacting.text, self._beside)
        try:
            own = await self._body(item, intent, scope, reports.take)
        finally:
            reports.end()
        del self._scopes[index]
        if own is None:
            self._finish(index)
            return
        end, told_by = await self._final(intent, own)
        duration_us = journal.clock.monotonic_us() - start_us
        journal.on_boundary("tool-done", journal.session, call_seq)
        end, following = await self._amended(item, end, duration_us)
        result = self._result(item.call, end, call_seq, duration_us, told_by)
        noting = partial(_noting, result)
        await journal.append(noting, *following, barrier=True, blobs=[end.blob] if end.blob else [])
        self._finish(index)

    async def _final(self, intent: ToolCall, end: Rendered) -> tuple[Rendered, ToldBy]:
        """How a call ended by the end of this start: an earlier one may still take effect in its database, or has."""
        told_by: ToldBy = ""
        if intent.database and intent.resumed and end.outcome not in ("ok", "unknown"):
            with trio.CancelScope(shield=True):
                end, told_by = await made_final(intent, end, self._journal.store.path, self._journal.clock)
        return end, told_by

    async def _amended(self, item: Runnable, end: Rendered, duration_us: int) -> tuple[Rendered, list[Event]]:
        """The end as hooks leave it, and what follows its result. Shielded: an effect has happened."""
        hooks = self._around.hooks
        if not hooks.any_at("after_tool"):
            return end, []
        finished = FinishedCall(
            call=self._clearing.proposed(item),
            outcome=end.outcome,
            content=end.content,
            duration_us=duration_us,
            facts=end.facts,
        )
        with trio.CancelScope(shield=True):
            amended = await hooks.after_tool(finished)
        if amended.output is not None:
            replaced = self._rendered(amended.output)
            # What is in doubt stays in doubt, whatever it is called.
            end = replaced if end.outcome in ("ok", "error") else evolve(replaced, outcome=end.outcome)
        messages = [
            UserMessage(message_id=self._journal.clock.new_id(), content=content, source="plugin")
            for content in amended.added
        ]
        return end, [*amended.faults, *messages]

    async def _body(self, item: Runnable, intent: ToolCall, scope: trio.CancelScope, report: Report) -> Rendered | None:
        """Run the body; whatever it does becomes the end of this one call. None for one that the next owner settles."""
        tool, transaction = item.prepared.tool, self._transaction(intent)
        try:
            with scope:
                if transaction is not None:
                    return await self._transact(item, intent, scope, transaction, report)
                return self._rendered(await self._invoke(item, intent, scope, report))
        except ToolError as error:
            if scope.cancel_called:
                return await self._cut_off(tool, intent, transaction)
            if isinstance(error, OutcomeUnknown) and tool.effect not in REPEATABLE:
                return evolve(self._told(f"{said(error)} {repair.UNKNOWN}"), outcome="unknown")
            return self._told(said(error))
        except BaseException as error:
            if (stop := interrupt(error)) is not None:
                raise stop from None
            if (
                scope.cancel_called
            ):  # a body may answer its cancel with an error of its own: it was cut off all the same
                return await self._cut_off(tool, intent, transaction)
            undone = "" if transaction is None else f" {UNDONE}"
            return self._told(f"{tool.name} failed: {described(unwrapped(error))}{undone}")
        return await self._cut_off(tool, intent, transaction)

    def _told(self, message: str) -> Rendered:
        return told(message, self._around.limits, self._around.redacting)

    def _rendered(self, value: object) -> Rendered:
        return rendered(value, self._around.limits, self._around.redacting)

    async def _cut_off(self, tool: Tool, intent: ToolCall, transaction: Transaction | None) -> Rendered | None:
        """The end of a body that a cancel or its time limit cut off: the same verdict as after a crash."""
        if self._hands_over or intent.invocation_id in self._left:
            return None
        safe, again = tool.effect in REPEATABLE, (repair.ABORTED, "It is safe to call again.")
        if transaction is not None:
            try:
                if (end := await after_cut(transaction)) is not None:
                    return end
            except OutcomeUnknown as error:
                return failed(f"{said(error)} {repair.UNKNOWN}", "unknown")
            safe, again = True, (repair.UNDONE, repair.UNDONE)
        if self._stopped.is_set():
            return failed(again[0], "aborted") if safe else failed(repair.UNKNOWN, "unknown")
        late = f"{tool.name} did not finish within {tool.timeout_s:g} s."
        return failed(f"{late} {again[1]}", "timeout") if safe else failed(f"{late} {repair.UNKNOWN}", "unknown")

    def _transaction(self, intent: ToolCall) -> Transaction | None:
        if intent.effect != "transactional":
            return None
        return transaction_of(intent.database, intent.invocation_id, self._journal.store.path)

    async def _transact(
        self, item: Runnable, intent: ToolCall, scope: trio.CancelScope, transaction: Transaction, report: Report
    ) -> Rendered:
        context = self._clearing.context(item.call, intent.invocation_id, scope.deadline)
        context = evolve(context, database=transaction, report=report)
        body = partial(item.prepared.tool.body, context, **item.arguments)
        render = partial(checked, limits=self._around.limits, redacting=self._around.redacting)
        again = intent.resumed != ""
        return await run_transaction(transaction, body, render, self._journal.clock, self._around.threads, again=again)

    async def _invoke(self, item: Runnable, intent: ToolCall, scope: trio.CancelScope, report: Report) -> object:
        context = self._clearing.context(item.call, intent.invocation_id, scope.deadline)
        if not on_our_thread(item.prepared.tool):
            if item.prepared.tool.isolation != "process":
                context = evolve(context, report=report)
            return await run_body(item.prepared, context, item.arguments, self._around.threads)
        timers, stopping = self._around.timers.of_call(intent.invocation_id), self._stopping(intent, scope)
        async with self._around.children.of_call(intent.invocation_id, stopping) as children:
            context = evolve(context, children=children, timers=timers, past=Past(self._journal), report=report)
            return await run_body(item.prepared, context, item.arguments, self._around.threads)

    def hand_over(self) -> None:
        """Cut running bodies off at once, and leave it to the next owner to find out how they ended."""
        self._hands_over = True
        self.stop(0)

    def pause(self) -> None:
        """Let running bodies end by themselves. Those that wait for a child leave it as it is, to who goes on."""
        self._leaves_children = self._around.hands_over
        self.stop(math.inf)

    def _stopping(self, intent: ToolCall, scope: trio.CancelScope) -> Stopping:
        """How this call comes to its end while it waits for a child."""

        def cut() -> None:
            self._left.add(intent.invocation_id)
            scope.cancel()

        return Stopping(
            said=self._stopped,
            leaves=lambda: self._hands_over or self._leaves_children,
            now=lambda: self._last_deadline <= trio.current_time(),
            cut=cut,
        )

    def stop(self, grace_s: float) -> None:
        """Give running bodies at most `grace_s` more seconds. May be called again, to hurry them."""
        self._stopped.set()
        self._last_deadline = min(self._last_deadline, trio.current_time() + grace_s)
        for scope in self._scopes.values():
            scope.deadline = min(scope.deadline, self._last_deadline)

    def _intent(self, item: Runnable, resumed: Resumed = "") -> ToolCall:
        call, tool, state = item.call, item.prepared.tool, self._journal.state
        assert state.step is not None, "calls run inside their step"
        return ToolCall(
            position=call.position,
            call_id=call.call_id,
            name=call.name,
            arguments=item.raw,
            invocation_id=invocation_id(state, call),
            message_seq=state.step.message_seq,
            mode=tool.mode,
            effect=tool.effect,
            plugin=item.prepared.plugin,
            plugin_version=item.prepared.plugin_version,
            resumed=resumed,
            key=key_of(tool, item.raw),
            database=database_of(tool),
        )

    def _result(
        self, call: Call, end: Rendered, call_seq: int | None, duration_us: int, told_by: ToldBy = ""
    ) -> ToolResult:
        step = self._journal.state.step
        assert step is not None, "calls are answered inside their step"
        return ToolResult(
            position=call.position,
            call_id=call.call_id,
            name=call.name,
            message_seq=step.message_seq,
            outcome=end.outcome,
            content=end.content,
            call_seq=call_seq,
            duration_us=duration_us,
            spill=end.spill,
            told_by=told_by,
            facts=end.facts,
        )


def _may_wait(item: Runnable | CutOff) -> bool:
    """Whether something is to be found out before the call can start, were there no guards."""
    return isinstance(item, CutOff) or item.call.asked_seq is not None or item.prepared.tool.precheck is not None


def _instead_of_a_run(call: Call, result: ToolResult, state: State) -> tuple[Event, ...]:
    """The `result` of a call that does not run, whatever was asked about it, and whatever child it waited for."""
    return (*repair.withdrawn(state, call), *repair.abandoned(state, call), fitting(result, state.facts))


def _noting(result: ToolResult, state: State) -> ToolResult:
    """The `result`, or what it comes to when others have noted so much meanwhile that its facts have no room."""
    return fitting(result, state.facts)
