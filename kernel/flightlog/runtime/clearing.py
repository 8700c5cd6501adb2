"""What stands between a call and its start: guards, people, its tool's precheck, and how an earlier start ended.

Nothing here takes effect, so who is cancelled here leaves nothing in doubt that was not so before.
"""

from __future__ import annotations

from typing import Any, Literal

import trio
from attrs import evolve, frozen

from flightlog.core import doubt, repair
from flightlog.core.resuming import AskDatabase, AskPerson, AskTool, Forget, Repeat, Verdict, verdict_on, when_untold
from flightlog.core.state import Call, State
from flightlog.core.tool_schema import BadArguments, PreparedTool
from flightlog.runtime.journal import Journal
from flightlog.runtime.registry import Registered
from flightlog.runtime.surroundings import Surroundings
from flightlog.runtime.tool_body import arguments_of
from flightlog.runtime.tool_checks import ToolChecks
from flightlog.runtime.tool_output import Rendered, failed, rendered, told
from flightlog.runtime.transactions import database_of, database_says, made_final
from flightlog_hookspecs.events import About, ApprovalAsked, ApprovalDecided, Resumed, ToldBy
from flightlog_hookspecs.hooks import Ask, Deny, ProposedCall
from flightlog_hookspecs.tools import REPEATABLE, Done, Mode, NotDone, ToolContext, Unknown


@frozen(kw_only=True)
class Runnable:
    """A call whose tool exists and whose arguments fit; `raw` is their text, which guards may have changed."""

    call: Call
    registered: Registered[PreparedTool]
    raw: str
    arguments: dict[str, Any]

    @property
    def prepared(self) -> PreparedTool:
        """The tool."""
        return self.registered.item

    @property
    def mode(self) -> Mode:
        """Whether it may run beside others."""
        return self.prepared.tool.mode


@frozen(kw_only=True)
class CutOff:
    """A call that an earlier owner started, and what there is to run it with: if nothing, `obstacle` says why."""

    call: Call
    runnable: Runnable | None
    obstacle: Rendered | None

    @property
    def mode(self) -> Mode:
        """As it was started: it waits for nothing that it ran beside."""
        assert self.call.started is not None, "only a started call can be cut off"
        return self.call.started.mode


@frozen(kw_only=True)
class Start:
    """The call may start; once more if it is `resumed`."""

    item: Runnable
    resumed: Resumed = ""


@frozen(kw_only=True)
class Settled:
    """The call has its end without a start."""

    end: Rendered
    told_by: ToldBy = ""


Cleared = Start | Settled | None
"""What becomes of a call; None when it waits for a person, and is left for later."""


class Clearing:
    """Clears the calls of one session."""

    def __init__(self, journal: Journal, around: Surroundings) -> None:
        self._journal = journal
        self._around = around
        self._checks = ToolChecks(journal, around)

    async def cleared(self, item: Runnable | CutOff) -> Cleared:
        """What becomes of the call. One that may start has passed its precheck just now."""
        found = await (self._resumed(item) if isinstance(item, CutOff) else self._allowed(item))
        await trio.lowlevel.checkpoint_if_cancelled()
        found = await self._checked(found) if isinstance(found, Start) else found
        return await self._final(item, found) if isinstance(found, Settled) and isinstance(item, CutOff) else found

    def proposed(self, item: Runnable) -> ProposedCall:
        """The call as hooks are shown it."""
        call, state = item.call, self._journal.state
        return ProposedCall(
            session=self._journal.session,
            turn=state.turn,
            step=state.steps,
            position=call.position,
            call_id=call.call_id,
            name=call.name,
            arguments=item.raw,
            effect=item.prepared.tool.effect,
            remembered=_remembered(state, call.name),
        )

    def context(self, call: Call, invocation_id: str, deadline: float) -> ToolContext:
        """What the call's body, or what stands beside it, is told of it."""
        state = self._journal.state
        return ToolContext(
            invocation_id=invocation_id,
            session=self._journal.session,
            turn=state.turn,
            step=state.steps,
            position=call.position,
            call_id=call.call_id,
            deadline=deadline,
            workspace=self._around.workspace,
            protected=self._around.protected,
        )

    async def _allowed(self, item: Runnable) -> Cleared:
        """Ask guards, and a person if they want one. What was asked before a restart is not asked again."""
        call = item.call
        if call.asked_seq is None:
            ruling = await self._around.hooks.before_tool(self.proposed(item))
            if ruling.faults:
                await self._journal.append(*ruling.faults)
            if ruling.arguments is not None and not isinstance(ruling.verdict, Deny):
                try:
                    arguments = await arguments_of(item.prepared, ruling.arguments)
                except BadArguments as error:
                    return self._denied(f"Denied: a guard gave it arguments that do not fit. {error}")
                item = evolve(item, raw=ruling.arguments, arguments=arguments)
            if isinstance(ruling.verdict, Deny):
                return self._denied(f"Denied: {ruling.verdict.reason}")
            questions = [ruling.verdict.question] if isinstance(ruling.verdict, Ask) else []
            if (row := self._in_doubt(item)) is not None:
                questions.append(doubt.question(call.name, row))
            if not questions:
                return Start(item=item)
            changed = item.raw if item.raw != call.arguments else ""
            await self._ask(call, "\n".join(questions), ruling.guard or doubt.GUARD, arguments=changed)
        answer = await self._around.approvals.answer_about(call.position)
        if answer is None:
            return None
        if answer.decision != "allowed":
            why = [f"Denied by {answer.by}.", answer.reason, doubt.DENIED if self._in_doubt(item) is not None else ""]
            return self._denied(" ".join(filter(None, why)))
        return Start(item=item)

    def _in_doubt(self, item: Runnable) -> int | None:
        """The row that left it unknown whether such a call took effect, if this one might repeat the effect."""
        if item.prepared.tool.effect in REPEATABLE:
            return None
        doubts = self._journal.state.doubts
        return doubt.repeated(doubts, item.call.name, item.raw, item.prepared.defaults) if doubts else None

    async def _resumed(self, cut: CutOff) -> Cleared:
        """Find out what became of a call that was cut off. Guards have let it start before, and are not asked again."""
        tool = cut.runnable.prepared.tool if cut.runnable else None
        approver = self._around.approvals.has_approver
        return await self._by(verdict_on(cut.call, tool, approver=approver), cut)

    async def _by(self, verdict: Verdict, cut: CutOff) -> Cleared:
        match verdict:
            case Repeat():
                return self._again(cut, "repeatable")
            case AskTool():
                return await self._told_by_tool(cut)
            case AskDatabase():
                return await self._told_by_database(cut)
            case AskPerson():
                return await self._told_by_person(cut)
            case Forget():
                outcome, text = repair.in_doubt(cut.call)
                return Settled(end=failed(text, outcome))

    async def _told_by_tool(self, cut: CutOff) -> Cleared:
        item = cut.runnable
        assert item is not None, "only a tool that is there is asked"
        finding = await self._checks.finding(item.registered, self._aside(item), item.arguments)
        match finding:
            case Done(output=output):
                end = rendered(output, self._around.limits, self._around.redacting)
                return Settled(end=end, told_by="reconcile")
            case NotDone() if not cut.call.outlived:
                return self._again(cut, "reconciled")
            case NotDone() | Unknown():  # one that an owner who lives may still run is not done yet, and that is all
                return await self._by(when_untold(approver=self._around.approvals.has_approver), cut)

    async def _told_by_database(self, cut: CutOff) -> Cleared:
        started = cut.call.started
        assert started is not None, "only a started call can be cut off"
        # What starts again in the same database needs nothing more: the start whose row stands first has done it.
        same = cut.runnable is not None and database_of(cut.runnable.prepared.tool) == started.database
        match await database_says(started, self._journal.store.path, self._journal.clock, final=not same):
            case Done(output=Rendered() as end):
                return Settled(end=end, told_by="done_row")
            case NotDone():
                return self._again(cut, "reconciled")
            case _:
                return await self._by(when_untold(approver=self._around.approvals.has_approver), cut)

    async def _final(self, cut: CutOff, settled: Settled) -> Settled:
        """The end of a transactional call that does not run again, once its earlier start can do no more, either."""
        started, end = cut.call.started, settled.end
        if started is None or started.effect != "transactional" or settled.told_by or end.outcome == "unknown":
            return settled
        end, told_by = await made_final(started, end, self._journal.store.path, self._journal.clock)
        return Settled(end=end, told_by=told_by)

    async def _told_by_person(self, cut: CutOff) -> Cleared:
        call = cut.call
        if call.asked_seq is None:
            changed = call.wanted if call.wanted != call.arguments else ""
            await self._ask(call, doubt.outcome_question(call.name), doubt.GUARD, arguments=changed, about="outcome")
        answer = await self._around.approvals.answer_about(call.position)
        if answer is None:
            return None
        if answer.decision == "not_done":
            return self._again(cut, "answered")
        return self._reported(call, answer)

    def _reported(self, call: Call, answer: ApprovalDecided) -> Settled:
        """The end of a call that does not run again, since a person has said something about its outcome."""
        outcome, text, told_by = repair.reported(call, answer)
        return Settled(end=evolve(self._told(text), outcome=outcome), told_by=told_by)

    def _again(self, cut: CutOff, resumed: Resumed) -> Start | Settled:
        if cut.runnable is not None:
            return Start(item=cut.runnable, resumed=resumed)
        assert cut.obstacle is not None, "one or the other is there"
        return Settled(end=cut.obstacle)

    async def _checked(self, start: Start) -> Start | Settled:
        """The start, unless the tool's precheck objects to it."""
        item = start.item
        obstacle = await self._checks.obstacle(item.registered, self._aside(item), item.arguments)
        if not obstacle:
            return start
        before = "\nIt was started before, and cut off." if start.resumed == "repeatable" else ""
        return self._denied(f"Not run: {obstacle}{before}")

    def _aside(self, item: Runnable) -> ToolContext:
        """What stands beside the body is told of the call."""
        named = invocation_id(self._journal.state, item.call)
        return self.context(item.call, named, trio.current_time() + item.prepared.tool.timeout_s)

    async def _ask(self, call: Call, question: str, guard: str, *, arguments: str = "", about: About = "") -> None:
        step = self._journal.state.step
        assert step is not None, "calls are asked about inside their step"
        await self._around.approvals.ask(
            ApprovalAsked(
                position=call.position,
                call_id=call.call_id,
                name=call.name,
                message_seq=step.message_seq,
                question=question,
                guard=guard,
                arguments=arguments,
                about=about,
            )
        )

    def _denied(self, message: str) -> Settled:
        return Settled(end=evolve(self._told(message), outcome="denied"))

    def _told(self, message: str) -> Rendered:
        return told(message, self._around.limits, self._around.redacting)


def invocation_id(state: State, call: Call) -> str:
    """What names the call for ever: also where it starts once more."""
    if call.started is not None:
        return call.started.invocation_id
    return f"{state.invocations}.{state.turn}.{state.steps}.{call.position}"


def _remembered(state: State, tool: str) -> Literal["", "allowed", "denied"]:
    decision = state.remembered.get(tool)
    return decision if decision in ("allowed", "denied") else ""
