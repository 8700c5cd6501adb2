"""A tool: a typed function with a docstring, which is all that the model is told about it."""

from __future__ import annotations

from collections.abc import Callable

from flightlog_hookspecs import Tool, hookimpl, tool
from flightlog_hookspecs.errors import ToolError

flightlog_contract = 1


@tool(mode="parallel", effect="read")
def my_plugin(text: str) -> str:
    """Count the words of a text.

    Args:
        text: the text, with at least one word
    """
    if not text.split():
        raise ToolError("the text has no words; send one that has")
    return f"{len(text.split())} words"


@hookimpl
def register_tools(register: Callable[[Tool], None]) -> None:
    """Offer the tool."""
    register(my_plugin)
