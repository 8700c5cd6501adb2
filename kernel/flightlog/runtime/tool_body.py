"""Running one tool's body where it wants to run: beside the kernel, in a thread, in a process of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import trio

from flightlog.core.tool_schema import BadArguments, PreparedTool
from flightlog.runtime.plugin_call import in_own_task, in_thread
from flightlog_hookspecs.errors import OutcomeUnknown, ToolError
from flightlog_hookspecs.tools import Tool, ToolContext


def on_our_thread(tool: Tool) -> bool:
    """Whether the body runs on the kernel's own thread."""
    return tool.isolation == "inline" and inspect.iscoroutinefunction(tool.body)


async def arguments_of(prepared: PreparedTool, raw: str) -> dict[str, Any]:
    """The body's keyword arguments from the model's raw text. Raises `BadArguments`.

    What may take for ever is tried in a process first. A thread would not do: `re` keeps all others waiting while it
    matches, and nothing stops it.
    """
    if prepared.slow:
        from flightlog.runtime.argument_trial import tried
        from flightlog.runtime.tool_process import run_in_process

        try:
            with trio.fail_after(prepared.tool.timeout_s):
                await run_in_process(tried, (), {"schema": prepared.spec.parameters, "raw": raw})
        except (OutcomeUnknown, trio.TooSlowError, OSError):
            name = prepared.tool.name
            raise BadArguments(
                f"The arguments of {name!r} could not be checked against its patterns in time."
            ) from None
        except ToolError:
            pass  # it comes again, and is said to the model
    return prepared.arguments(raw)


async def run_body(
    prepared: PreparedTool, context: ToolContext, arguments: Mapping[str, Any], threads: trio.CapacityLimiter
) -> object:
    """What the body returns. Raises what it raises, and `OutcomeUnknown` when its process ends without an answer."""
    tool = prepared.tool
    leading = (context,) if prepared.wants_context else ()
    if tool.isolation == "process":
        from flightlog.runtime.tool_process import run_in_process

        return await run_in_process(tool.body, leading, dict(arguments))
    body: Callable[[], Any] = partial(tool.body, *leading, **arguments)
    if on_our_thread(tool):
        return await in_own_task(body)
    if inspect.iscoroutinefunction(tool.body):
        return await in_thread(partial(trio.run, body), threads)
    value = await in_thread(body, threads)
    return await in_own_task(lambda: value) if inspect.isawaitable(value) else value
