"""A subagent as the tool that it is to the model. It does nothing that a plugin's own tool could not do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flightlog.core.limits import CHILD_WAIT_S, CHILD_WIND_DOWN_S
from flightlog_hookspecs.errors import ToolError
from flightlog_hookspecs.subagents import Children, ChildState, Subagent
from flightlog_hookspecs.tools import NotDone, Tool, ToolContext, ToolOutput

_BRIEF_CHARS: Final = 200
_TASK: Final[dict[str, Any]] = {
    "task": {
        "type": "string",
        "minLength": 1,
        "description": "What to do, with all that must be known for it: nothing else of this conversation is seen.",
    }
}
_MORE: Final[dict[str, Any]] = {
    "child": {
        "type": "string",
        "description": "The name of one that was started before, to give this to it. Left out: a new one is started.",
    },
    "steer": {
        "type": "boolean",
        "description": "With `child`: cut into what it is doing, instead of waiting until it is done.",
    },
    "action": {
        "type": "string",
        "enum": ["send", "call_off", "list"],
        "description": "send (the default): give `task` to a new one, or to `child`; call_off: end what `child` does; "
        "list: say which there are, and which are at work.",
    },
}


def as_tool(subagent: Subagent) -> Tool:
    """The tool by which the model calls `subagent`."""

    async def waits(context: ToolContext, task: str) -> ToolOutput:
        end = await _children(context).run(subagent, task)
        return ToolOutput(content=end.text, is_error=end.reason != "completed")

    async def goes_on(
        context: ToolContext, task: str = "", child: str = "", steer: bool = False, action: str = "send"
    ) -> str:
        if action == "list":
            return "\n".join(map(_line, _children(context).states(subagent))) or "There are none yet."
        if action == "call_off":
            if task or steer:
                raise ToolError("call_off takes a `child` and nothing else: nothing was called off.")
            await _children(context).call_off(subagent, child)
            return f"{child!r} was called off and is at rest. What had come of it is told to you in a message."
        if child:
            await _children(context).send(subagent, child, task, steer=steer)
            return f"Sent to {child!r}."
        started = await _children(context).start(subagent, task)
        return f"Started as {started!r}. What comes of it will be told to you in a message."

    return Tool(
        body=goes_on if subagent.background else waits,
        name=subagent.name,
        description=subagent.description,
        parameters={
            "type": "object",
            "properties": _TASK | (_MORE if subagent.background else {}),
            "required": [] if subagent.background else ["task"],
            "additionalProperties": False,
        },
        mode="parallel",
        effect=subagent.effect,
        reconcile=_goes_on_as_it_was if subagent.effect == "external" else None,
        # The child is cancelled when its time is up; only one that does not come to an end is cut off.
        timeout_s=60.0 if subagent.background else (subagent.timeout_s or CHILD_WAIT_S) + CHILD_WIND_DOWN_S,
    )


async def _goes_on_as_it_was(_: ToolContext, __: Mapping[str, Any]) -> NotDone:
    """A call that was cut off has still to be done: once more, as the same invocation, it takes up its child."""
    return NotDone()


def _line(state: ChildState) -> str:
    return f"{state.child!r} {'is at work on' if state.working else 'has come to rest from'}: {_brief(state.task)}"


def _brief(task: str) -> str:
    line = " ".join(task.split())
    return line if len(line) <= _BRIEF_CHARS else f"{line[:_BRIEF_CHARS]}..."


def _children(context: ToolContext) -> Children:
    assert context.children is not None, "the body is async and runs on the kernel's thread"
    return context.children
