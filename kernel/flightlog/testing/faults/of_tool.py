"""A workload made of one tool of yours: a model that calls it, once for each of the arguments."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from attrs import frozen

from flightlog.core import canonical
from flightlog.core.tool_schema import PreparedTool, prepare
from flightlog.testing import Bundle
from flightlog.testing.faults.workloads import Order, Script
from flightlog.testing.faults.world import World
from flightlog_hookspecs import Tool, ToolContext
from flightlog_hookspecs.errors import UsageError


@frozen
class _ToolScript(Script):
    """The model knows the tool by its name, and gives it a call's arguments as a text: the script's `task`."""

    prepared: PreparedTool

    def plugins(self, world: World) -> Sequence[object]:
        """The model, and the tool as the laboratory can run it."""
        return [Bundle(tools=[stand_in(self.prepared, world)], adapters=[self.adapter()])]


def stand_in(prepared: PreparedTool, world: World, said: Callable[[object], object] = lambda value: value) -> Tool:
    """A tool as the laboratory can run it: on the kernel's own thread, and in order. It returns what is `said` of it.

    Its one argument is `task`, the arguments of the tool as JSON. It takes effect as its body ends.
    """
    tool = prepared.tool

    async def body(context: ToolContext, task: str) -> object:
        leading = (context,) if prepared.wants_context else ()
        value = tool.body(*leading, **prepared.arguments(task))
        value = await value if inspect.isawaitable(value) else value
        world.done(context, tool.name, tool.effect, {"task": task})
        return said(value)

    return Tool(
        body=body,
        name=tool.name,
        description=prepared.spec.description,
        parameters={"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]},
        mode=tool.mode,
        effect=tool.effect,
        timeout_s=tool.timeout_s,
    )


def script_of(tool: Tool, *calls: Mapping[str, object], name: str = "") -> Script:
    """A workload in which a model calls `tool` with these arguments, all of which must differ, step by step.

    The last two share a step where there are three or more. The tool takes effect as its body ends. It lives through
    thousands of histories in one process, so it must answer the same however often it has been called before.
    Reproducers find the workload by its tool and these arguments, if the tool is a module's; otherwise give them a
    `name`, "module:name", where they find it. Raises `UsageError` for a tool that no kernel takes,
    for a transactional one, whose database is not on the laboratory's disk, and for arguments that do not fit it.
    """
    prepared = prepare(tool, "laboratory", "")
    if tool.effect == "transactional":
        raise UsageError(f"tool {tool.name!r}: a transactional tool's database is not on the laboratory's disk")
    tasks = [canonical.dumps(dict(arguments)) for arguments in calls]
    if not tasks or len(set(tasks)) < len(tasks):
        raise UsageError(f"tool {tool.name!r}: give the arguments of at least one call, and no two that are the same")
    for task in tasks:
        prepared.arguments(task)
    steps: list[tuple[tuple[str, str], ...]] = [((tool.name, task),) for task in tasks]
    if len(steps) > 2:
        steps[-2:] = [(*steps[-2], *steps[-1])]
    return _ToolScript(name or _name(tool, tasks), (("s", (Order("use it", tuple(steps)),)),), prepared)


def _name(tool: Tool, tasks: Sequence[str]) -> str:
    """What `script_again` makes the script of again, where it can."""
    module = getattr(tool.body, "__module__", "")
    for own, value in vars(sys.modules[module]).items() if module in sys.modules else ():
        if value is tool:
            return f"script_of({module}:{own}, {', '.join(tasks)})"
    return f"script_of({tool.name})"


def script_again(name: str) -> Script | None:
    """The script that `script_of` gave this name, None for other names. Raises `UsageError` when it cannot be made."""
    if not (found := re.fullmatch(r"script_of\((.*?)(?:, (.*))?\)", name, re.DOTALL)):
        return None
    module, colon, own = found[1].partition(":")
    if not colon:
        raise UsageError(f"{name!r} was made of a tool that is in no module: give script_of a name, MODULE:NAME")
    try:
        tool, calls = getattr(import_module(module), own), json.loads(f"[{found[2]}]")
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"there is no workload {name!r}: {error}") from error
    return script_of(tool, *calls)
