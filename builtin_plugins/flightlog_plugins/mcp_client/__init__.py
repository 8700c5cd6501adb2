"""Tools of MCP servers, by the official SDK (`pip install 'flightlog[mcp]'`). The host passes it in.

    McpServers({
        "tickets": Stdio(["npx", "-y", "tickets-mcp"], env={"TICKETS_TOKEN": token}),
        "docs": Http("https://docs.example.com/mcp", headers={"Authorization": f"Bearer {token}"}, trusted=True),
    })

Each server is connected to when its kernel is opened, and again when the connection is lost, and what it offers is
offered as `tickets__create`. A call is sent once: one whose answer never came has the outcome unknown. A server that
is down is a problem in `kernel.registry.problems`, its calls fail meanwhile, and all else goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec

from attrs import field, frozen

from flightlog_hookspecs import Redaction, Service, hookimpl
from flightlog_hookspecs.errors import UsageError
from flightlog_plugins.mcp_client.connection import Connection
from flightlog_plugins.mcp_client.names import check_server
from flightlog_plugins.mcp_client.servers import Http, Server, Stdio, secrets_of
from flightlog_plugins.secrets import redacting, register_values

__all__ = ["Http", "McpServers", "Stdio"]


def _servers(given: Mapping[str, Server]) -> dict[str, Server]:
    return dict(given)


@frozen
class McpServers:
    """A plugin with the tools of `servers`, by the names that stand before their tools'.

    What looks like a secret among the headers and variables that they are given is redacted wherever it turns up. Of
    a server that cannot be reached the next attempt is made after `wait_s` seconds, then after twice as many, up to
    `wait_max_s`, and with the next call. Raises `UsageError` for a name that cannot stand there.
    """

    servers: Mapping[str, Server] = field(converter=_servers)
    wait_s: float = field(default=1.0, kw_only=True)
    wait_max_s: float = field(default=60.0, kw_only=True)

    def __attrs_post_init__(self) -> None:
        for name, server in self.servers.items():
            check_server(name)
            if not isinstance(server, (Stdio, Http)):
                raise UsageError(f"the MCP server {name!r} must be a Stdio or an Http, not {type(server).__name__}")
        if not 0 < self.wait_s <= self.wait_max_s:
            raise UsageError(f"wait_s must be over 0 and at most wait_max_s, not {self.wait_s!r}")

    @hookimpl
    def register_services(self, register: Callable[[Service], None]) -> None:
        """Keep a connection to each server."""
        if find_spec("mcp") is None:
            raise UsageError("the MCP SDK is not installed: pip install 'flightlog[mcp]'")
        redact = redacting(self._secrets())
        for name, server in self.servers.items():
            connection = Connection(name, server, redact, wait_s=self.wait_s, wait_max_s=self.wait_max_s)
            register(Service(name=name, lifespan=connection.lifespan, ready_s=server.connect_s))

    @hookimpl
    def register_redactions(self, register: Callable[[Redaction], None]) -> None:
        """Keep out of the log what the servers are given to prove who asks."""
        register_values(register, "mcp", self._secrets())

    def _secrets(self) -> Iterator[str]:
        return (value for server in self.servers.values() for value in secrets_of(server))
