"""Asking the hooks at a point of the loop, each on its own: one that fails costs nothing but its answer.

Where guards are asked, an answer that never came counts as a no.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import trio
from attrs import evolve, field, frozen

from flightlog.core.canonical import paired
from flightlog.core.limits import RETRY_WISH_MAX_S
from flightlog.core.saying import shown
from flightlog.runtime.plugin_call import Failed, call, contained
from flightlog.runtime.redacting import Redacting
from flightlog.runtime.registry import Registered, Registry
from flightlog_hookspecs.content import Block, TextBlock
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import Event, PluginFault, TurnEnd
from flightlog_hookspecs.hooks import (
    ANSWERS,
    GUARDS,
    Allow,
    Append,
    Arguments,
    Ask,
    Continue,
    Deny,
    Fail,
    FailedRequest,
    FinishedCall,
    Hook,
    Point,
    ProposedCall,
    Replace,
    RequestView,
    Retry,
    StepView,
    StoppingTurn,
    Switch,
    Veto,
)
from flightlog_hookspecs.tools import ToolOutput

_STRENGTH: Final[Mapping[type, int]] = {Allow: 0, Ask: 1, Deny: 2}


@frozen(kw_only=True)
class Ruling:
    """What the guards decided about a call. `guard` is whose word it was.

    `arguments` are those that it runs with if it runs, None for its own; `faults` are for the log.
    """

    verdict: Allow | Deny | Ask
    guard: str = ""
    arguments: str | None = None
    faults: tuple[PluginFault, ...] = ()


@frozen(kw_only=True)
class Opinion:
    """What the hooks at a point said together: whether to go on, with which model, and what to tell it besides."""

    veto: str = ""
    model: str = ""
    added: tuple[tuple[Block, ...], ...] = ()
    faults: tuple[PluginFault, ...] = ()


@frozen(kw_only=True)
class Amended:
    """What the hooks made of a result: `output` replaces it unless None, `added` follows it."""

    output: ToolOutput | None = None
    added: tuple[tuple[Block, ...], ...] = ()
    faults: tuple[PluginFault, ...] = ()


@frozen(kw_only=True)
class Advice:
    """What to do about a failed request; None is nothing: it ends its turn."""

    answer: Retry | Switch | None = None
    faults: tuple[PluginFault, ...] = ()


@frozen(kw_only=True)
class Wish:
    """What is wanted of a turn that is about to end: another `end`, else that it goes on.

    `more` is what it goes on for, each with the name of the hook whose wish it is. `events` are for the log.
    """

    end: TurnEnd | None = None
    more: tuple[tuple[str, tuple[Block, ...]], ...] = ()
    events: tuple[Event, ...] = ()

    @property
    def none(self) -> bool:
        """Whether the turn may end as it is."""
        return self.end is None and not self.more


@frozen
class Hooks:
    """The hooks that a session has, as they are registered at that moment."""

    _registry: Registry
    _threads: trio.CapacityLimiter = field(eq=False)
    _redacting: Redacting

    def any_at(self, point: Point) -> bool:
        """Whether anybody is to be asked."""
        return bool(self._registry.hooks(point))

    async def before_step(self, view: StepView) -> Opinion:
        """Whether the step may begin, with which model, and what that is told besides."""
        return await self._opinion("before_step", view)

    async def before_request(self, view: RequestView) -> Opinion:
        """Whether the request may be sent."""
        return await self._opinion("before_request", view)

    async def before_tool(self, proposed: ProposedCall) -> Ruling:
        """Whether the call may run. Deny beats Ask beats Arguments beats Allow, the first of equals counts."""
        ruling = Ruling(verdict=Allow())
        for hook in self._registry.hooks("before_tool"):
            answer = await self._asked(hook, proposed)
            if isinstance(answer, PluginFault):
                ruling = evolve(ruling, faults=(*ruling.faults, answer))
                answer = Deny(f"the guard {hook.item.name!r} failed, so the call was not made")
            if isinstance(answer, Arguments) and ruling.arguments is None:
                ruling = evolve(ruling, arguments=answer.arguments)
            if isinstance(answer, (Deny, Ask)) and _STRENGTH[type(answer)] > _STRENGTH[type(ruling.verdict)]:
                ruling = evolve(ruling, verdict=answer, guard=hook.item.name)
        return ruling

    async def after_tool(self, finished: FinishedCall) -> Amended:
        """What becomes of a result: each hook is shown what the one before it made of it."""
        amended = Amended()
        for hook in self._registry.hooks("after_tool"):
            match await self._asked(hook, finished):
                case PluginFault() as fault:
                    amended = evolve(amended, faults=(*amended.faults, fault))
                case Replace(output=output):
                    finished = evolve(
                        finished, content=output.content, outcome="error" if output.is_error else finished.outcome
                    )
                    amended = evolve(amended, output=output)
                case Append(content=content):
                    amended = evolve(amended, added=(*amended.added, content))
        return amended

    async def on_request_error(self, failed: FailedRequest) -> Advice:
        """What to do about a failed request. Switch beats Retry, the first of equals counts."""
        advice = Advice()
        for hook in self._registry.hooks("on_request_error"):
            match await self._asked(hook, failed):
                case PluginFault() as fault:
                    advice = evolve(advice, faults=(*advice.faults, fault))
                case Switch() as answer if not isinstance(advice.answer, Switch):
                    advice = evolve(advice, answer=answer)
                case Retry() as answer if advice.answer is None:
                    advice = evolve(advice, answer=answer)
        return advice

    async def turn_stopping(self, turn: StoppingTurn, continued: Mapping[str, int]) -> Wish:
        """Whether the turn may end as it is. Fail beats Continue, the first of equals counts.

        Each hook is told how often it has had the turn go on, which stands in `continued` under its name.
        """
        wish = Wish()
        for hook in self._registry.hooks("turn_stopping"):
            name = f"{hook.plugin.name}: {hook.item.name}"
            match await self._asked(hook, evolve(turn, continued=continued.get(name, 0))):
                case PluginFault() as fault:
                    wish = evolve(wish, events=(*wish.events, fault))
                case Fail(code=code, message=message) if wish.end is None:
                    wish = evolve(wish, end=TurnEnd(reason="error", code=code, message=message))
                case Continue(content=content):
                    wish = evolve(wish, more=(*wish.more, (name, content)))
        return wish

    async def event_committed(self, event: object) -> tuple[PluginFault, ...]:
        """Tell who wants to know."""
        return (await self._opinion("event_committed", event)).faults

    async def _opinion(self, point: Point, view: object) -> Opinion:
        opinion = Opinion()
        for hook in self._registry.hooks(point):
            match await self._asked(hook, view):
                case PluginFault() as fault:
                    opinion = evolve(opinion, faults=(*opinion.faults, fault))
                    if point in GUARDS and not opinion.veto:
                        opinion = evolve(opinion, veto=f"the guard {hook.item.name!r} failed")
                case Veto(reason=reason) if not opinion.veto:
                    opinion = evolve(opinion, veto=reason or f"the guard {hook.item.name!r} said no")
                case Switch(model=model) if not opinion.model:
                    opinion = evolve(opinion, model=model)
                case Append(content=content):
                    opinion = evolve(opinion, added=(*opinion.added, content))
        return opinion

    async def _asked(self, registered: Registered[Hook], view: object) -> object:
        """What the hook answers, redacted; a `PluginFault` when it has none."""
        hook, plugin = registered.item, registered.plugin
        if plugin.taken_back:
            return None  # while those before it were asked
        try:
            with plugin.running(), contained():
                answer = await call(hook.body, view, limit_s=hook.limit_s, threads=self._threads)
                return self._read(hook.point, answer)
        except Failed as failed:
            error = self._redacting.text(str(failed))
        return PluginFault(plugin=plugin.name, hook=f"{hook.point} {hook.name}", error=error)

    def _read(self, point: Point, answer: object) -> object:
        """The answer, redacted. Raises `Failed` when it is none at `point`, or names a model that there is not."""
        if wrong := objection(point, answer):
            raise Failed(wrong)
        if isinstance(answer, Switch):
            try:
                self._registry.adapter_of(answer.model)
            except UsageError as error:
                raise Failed(str(error)) from None
        return self._redacted(answer)

    def _redacted(self, answer: object) -> object:
        """What an answer says, redacted. Arguments are what a call runs with, and a result is redacted as all are.

        Made anew: the class of what a plugin returned may be one of its own.
        """
        text, blocks = self._redacting.text, self._redacting.blocks
        match answer:
            case Deny(reason=reason):
                return Deny(text(reason))
            case Veto(reason=reason):
                return Veto(text(reason))
            case Ask(question=question):
                return Ask(text(question))
            case Fail(code=code, message=message):
                return Fail(text(code), text(message))
            case Append(content=content):
                return Append(blocks(content))
            case Continue(content=content):
                return Continue(blocks(content))
            case Arguments(arguments=arguments):
                return Arguments(paired(arguments))
            case Switch(model=model, after_s=after_s):
                return Switch(paired(model), after_s)
            case Replace(output=output):
                return Replace(ToolOutput(content=output.content, is_error=output.is_error, facts=output.facts))
            case _:
                return answer


def objection(point: Point, answer: object) -> str:
    """Why `answer` does not do at `point`; "" when it does."""
    if answer is None:
        return ""
    if not isinstance(answer, ANSWERS[point]) or not _is_sound(answer):
        return f"returned {shown(answer)}, which is no answer at {point}"
    if isinstance(answer, Switch) and point == "before_step" and answer.after_s:
        return f"returned {shown(answer)}, but a step that is about to begin does not wait"
    return ""


def _is_sound(answer: object) -> bool:
    """Whether an answer of a right kind holds what it must."""
    match answer:
        case Deny(reason=text) | Ask(question=text) | Veto(reason=text) | Arguments(arguments=text):
            return isinstance(text, str)
        case Fail(code=code, message=message):
            return isinstance(code, str) and code != "" and isinstance(message, str)
        case Append(content=content) | Continue(content=content):
            return isinstance(content, tuple) and bool(content) and all(isinstance(b, TextBlock) for b in content)
        case Replace(output=output):
            return isinstance(output, ToolOutput)
        case Retry(after_s=after_s) | Switch(after_s=after_s):
            return type(after_s) in (int, float) and 0 <= after_s <= RETRY_WISH_MAX_S
        case _:
            return True
