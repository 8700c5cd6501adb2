"""What a server offers, as a plugin of its own: it has the server's version, and is replaced as a whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from attrs import evolve, frozen

from flightlog_hookspecs import Tool, ToolOutput, hookimpl
from flightlog_plugins.mcp_client.names import tool_name
from flightlog_plugins.mcp_client.schemas import parameters_of
from flightlog_plugins.mcp_client.servers import Server

DESCRIPTION_MAX_CHARS: Final = 8000

Call = Callable[..., Awaitable[ToolOutput]]
"""`call(tool, context, **arguments)`."""


@frozen(kw_only=True)
class ServerTool:
    """A tool as its server describes it."""

    name: str
    description: str
    schema: dict[str, Any]
    only_reads: bool


class ServerTools:
    """The plugin. `complaint` says what is left out of it, "" for nothing.

    What `redact` takes out of a text stands in none of what is offered.
    """

    def __init__(
        self,
        name: str,
        version: str,
        server: Server,
        tools: tuple[ServerTool, ...],
        call: Call,
        redact: Callable[[str], str],
    ) -> None:
        self.__name__ = f"mcp:{name}"
        self.__version__ = redact(version)
        self._tools: dict[str, Tool] = {}
        plain = [tool for tool in tools if redact(tool.name) == tool.name]
        twice = []
        for tool in plain:
            made = _tool(name, server, tool, call, redact)
            if self._tools.setdefault(made.name, made) is not made:
                twice.append(made.name)
        complaints = []
        if twice:
            complaints.append(f"offers more than one tool called {', '.join(twice)}; the first counts")
        if left := len(tools) - len(plain):
            complaints.append(f"names tools with a secret that it was given; {left} of them are left out")
        self.complaint = "; ".join(complaints)

    @hookimpl
    def register_tools(self, register: Callable[[Tool], None]) -> None:
        """Offer the tools."""
        for tool in self._tools.values():
            register(tool)


def _tool(name: str, server: Server, tool: ServerTool, call: Call, redact: Callable[[str], str]) -> Tool:
    parameters, note = parameters_of(tool.schema, redact)
    said = redact(tool.description).strip() or f"The tool {tool.name} of the MCP server {name}."
    if len(said) > DESCRIPTION_MAX_CHARS:
        said = f"{said[:DESCRIPTION_MAX_CHARS]}…"
    made = Tool(
        body=partial(call, tool.name),
        name=tool_name(name, tool.name),
        description=f"{said}\n\n{note}".strip(),
        parameters=parameters,
        timeout_s=server.limit_s,
    )
    return evolve(made, effect="read", mode="parallel") if server.trusted and tool.only_reads else made
