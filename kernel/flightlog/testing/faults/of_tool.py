"""A workload made of one tool of yours: a model that calls it, once for each of the arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence

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
    `name` is "module:name", where reproducers find the workload. Raises `UsageError` for a tool that no kernel takes,
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
    return _ToolScript(name or f"script_of({tool.name})", (("s", (Order("use it", tuple(steps)),)),), prepared)
