"""Asking the goal check of a task whose model has stopped. It alone decides; without an answer the task is paused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio
from attrs import field, frozen

from flightlog.core import canonical
from flightlog.core.saying import shown
from flightlog.core.state import State
from flightlog.core.task import GOAL_ID, Task
from flightlog.runtime.hooks import Wish
from flightlog.runtime.plugin_call import Failed, call, contained
from flightlog.runtime.redacting import Redacting
from flightlog.runtime.registry import Loaded, Registry
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import GoalChecked, Message, PluginFault, TurnEnd
from flightlog_hookspecs.goals import GoalView, Met, Missing

CAUSE: Final = "goal_check"
"""The cause of a turn that is paused because its goal check could not say anything."""


@frozen(kw_only=True)
class GoalChecks:
    """The goal checks that a session has, as they are registered at that moment."""

    _registry: Registry
    _threads: trio.CapacityLimiter = field(eq=False)
    _redacting: Redacting
    _workspace: str

    async def ask(self, session: str, task: Task, text: str, messages: Sequence[Message]) -> Wish:
        """What becomes of a turn of `task` whose model has stopped with the words `text`."""
        name = task.submitted.goal_check
        registered = self._registry.goal_checks.get(name)
        if registered is None:
            return _paused(self.missing(task))
        check, plugin = registered.item, registered.plugin
        view = GoalView(
            task=session,
            goal=task.goal,
            parameters=canonical.loads(task.parameters),
            text=text,
            messages=messages,
            workspace=self._workspace,
        )
        try:
            with plugin.running(), contained():
                answer = await call(check.body, view, limit_s=check.limit_s, threads=self._threads)
                missing = _missing(answer)
        except Failed as failed:
            return self._failed(name, plugin, str(failed))
        missing = missing and self._redacting.text(missing)
        found = GoalChecked(
            check=name,
            met=missing is None,
            missing=missing or "",
            plugin=plugin.name,
            plugin_version=plugin.version.version,
        )
        told = text_blocks(f"You have stopped, but the goal is not reached yet. {missing}")
        return Wish(events=(found,), more=() if found.met else (("", told),))

    def missing(self, task: Task) -> str:
        """Why the goal check of `task` cannot be asked now; "" when it can."""
        try:
            self._registry.goal_check_of(task.submitted.goal_check)
        except UsageError as error:
            return self._redacting.text(str(error))
        return ""

    def _failed(self, check: str, plugin: Loaded, error: str) -> Wish:
        error = self._redacting.text(error)
        fault = PluginFault(plugin=plugin.name, hook=f"goal_check {check}", error=error)
        return _paused(f"the goal check {check!r} of plugin {plugin.name!r} failed: {error}", fault)


def is_checked(state: State) -> bool:
    """Whether a goal check has a say in how the open turn ends: not while the model is still to be woken."""
    waits = any(timer != GOAL_ID for timer in state.timers)
    return state.task is not None and not state.task.ended and state.task.submitted.goal_check != "" and not waits


def aim(state: State) -> tuple[str, str] | None:
    """What is to be reached, as far as a goal check is concerned."""
    return (state.task.goal, state.task.parameters) if state.task else None


def _missing(answer: object) -> str | None:
    """What is missing, None when nothing is."""
    if isinstance(answer, Met):
        return None
    if isinstance(answer, Missing) and isinstance(answer.what, str) and answer.what.strip():
        return answer.what
    raise Failed(f"returned {shown(answer)}, which is neither Met() nor Missing() with what is missing")


def _paused(why: str, *faults: PluginFault) -> Wish:
    return Wish(end=TurnEnd(reason="paused", cause=CAUSE, message=why), events=faults)
