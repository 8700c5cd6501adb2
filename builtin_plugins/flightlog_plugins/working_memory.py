"""Working memory: what the model has found out and what it does next, at the end of what it sees, whatever it forgets.

The tool `note`, and the prompt section "working_memory", which stands last: the task, its goal, what was noted, and the
next step. All of it is in the log: a result may carry facts, and they stay when the conversation is made shorter. The
section says nothing while nothing was noted and the goal can still be seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from flightlog_hookspecs import PromptSection, StepView, TaskView, Tool, ToolOutput, UserMessage, hookimpl
from flightlog_hookspecs.errors import ToolError

__all__ = ["NEXT_STEP", "note", "register_prompt_sections", "register_tools", "render"]

NEXT_STEP: Final = "next step"
"""The fact that says what the model does next."""
SECTION: Final = "working_memory"
RANK: Final = 100
GOAL_MAX_CHARS: Final = 2000
"""As much of the goal is told, and as much of its parameters."""


async def note(facts: Mapping[str, str] | None = None, next_step: str = "") -> ToolOutput:
    """Keep facts that you have confirmed, and what you will do next. You will see them whatever else you forget.

    Args:
        facts: what you know for sure, each under a short name; an empty text takes away what that name says
        next_step: what you will do next, in one sentence; nothing keeps what you said last

    """
    noted = {**(facts or {}), **({NEXT_STEP: next_step} if next_step else {})}
    if not noted:
        raise ToolError("there is nothing to note: give facts or a next step")
    return ToolOutput(content=f"Noted: {', '.join(noted)}.", facts=noted)


async def render(view: StepView) -> str:
    """The task, its goal, the facts and the next step; "" while the model sees all of it anyway."""
    if not view.facts and (view.task is None or _is_seen(view.task, view)):
        return ""
    lines: list[str] = []
    if view.task is not None:
        lines += [f"Task: {view.task.id}", f"Goal: {_cut(view.task.goal)}"]
        if view.task.parameters:
            lines.append(f"Parameters: {_cut(json.dumps(view.task.parameters, ensure_ascii=False))}")
    facts = {name: text for name, text in view.facts.items() if name != NEXT_STEP}
    if facts:
        lines += ["Facts that you have confirmed:", *(f"- {name}: {text}" for name, text in facts.items())]
    if NEXT_STEP in view.facts:
        lines.append(f"Next step: {view.facts[NEXT_STEP]}")
    return "\n".join(lines)


def _is_seen(task: TaskView, view: StepView) -> bool:
    """Whether a message still says the goal, in lines of its own. It is an early one unless the goal was changed."""
    return any(
        isinstance(message, UserMessage) and message.section != SECTION and _says(message.text, task.goal)
        for message in view.messages
    )


def _says(text: str, goal: str) -> bool:
    lines = f"\n{text}\n"
    return f"\n{goal}\n" in lines or f"\nGoal: {goal}\n" in lines


def _cut(text: str) -> str:
    return text if len(text) <= GOAL_MAX_CHARS else text[: GOAL_MAX_CHARS - 1] + "…"


@hookimpl
def register_tools(register: Callable[[Tool], None]) -> None:
    """Offer the tool."""
    register(Tool(body=note, effect="idempotent"))


@hookimpl
def register_prompt_sections(register: Callable[[PromptSection], None]) -> None:
    """Offer the section."""
    register(PromptSection(name=SECTION, rank=RANK, render=render, kind="last"))
