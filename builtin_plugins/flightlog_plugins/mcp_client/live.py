"""A connection that is up, and the only module that imports the SDK: it takes a while, so it is imported when needed.

Of the SDK's client a call uses the plain request only, which is sent once: the conveniences around it send it again.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import httpx2
import mcp_types
import trio
from attrs import define, field
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from flightlog_hookspecs import CONTRACT_VERSION, ToolOutput
from flightlog_hookspecs.errors import OutcomeUnknown, ToolError
from flightlog_plugins.mcp_client.offering import ServerTool
from flightlog_plugins.mcp_client.results import output_of
from flightlog_plugins.mcp_client.servers import Http, Server, Stdio
from flightlog_plugins.shell import supervisor
from flightlog_plugins.shell.running import Output
from flightlog_plugins.shell.surroundings import scrubbed

PAGES_MAX: Final = 100
"""Of a list of tools; a server that goes on for longer has no end."""
LISTEN_AGAIN_S: Final = 30.0

_CHUNK_BYTES: Final = 1 << 16
_TIMEOUT: Final = httpx2.Timeout(30.0, read=600.0)
_RESULT: Final[TypeAdapter[mcp_types.CallToolResult | mcp_types.InputRequiredResult]] = TypeAdapter(
    mcp_types.CallToolResult | mcp_types.InputRequiredResult
)

logging.getLogger("mcp").addHandler(logging.NullHandler())  # else what it warns of ends on the terminal


@define
class Exchange:
    """What HTTP said about one request, which the SDK does not pass on. `status` 0: nothing, so far."""

    status: int = 0
    is_json: bool = False
    unsent: bool = False


_EXCHANGE: ContextVar[Exchange] = ContextVar("flightlog_mcp_exchange")
"""That of the request which is being made; the SDK runs each in the context of its sender."""


class NotingClient(httpx2.AsyncClient):
    """Notes how the server answered."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send `request`."""
        exchange = _EXCHANGE.get(None) or Exchange()
        try:
            response = await super().send(request, **options)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            exchange.unsent = request.method == "POST"
            raise
        if request.method == "POST":
            exchange.status = response.status_code
            exchange.is_json = response.headers.get("content-type", "").lower().startswith("application/json")
        return response


@define(eq=False)
class Live:
    """A connection that was opened. `lost` is called once it is of no more use."""

    _client: Client
    _lost: Callable[[], None]
    changed: trio.Event = field(factory=trio.Event)
    """Set when the server says that its tools have changed."""

    @property
    def version(self) -> str:
        """The server's own, "" for one that does not say."""
        return self._client.server_info.version if self._client.server_info else ""

    async def tools(self) -> tuple[ServerTool, ...]:
        """All tools that the server has now."""
        found: list[ServerTool] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            page = await self._client.list_tools(cursor=cursor)
            found += map(_tool, page.tools)
            cursor = page.next_cursor
            if cursor is None:
                return tuple(found)
        raise ToolError(f"its list of tools has more than {PAGES_MAX} pages")

    async def call(self, tool: str, arguments: dict[str, Any]) -> ToolOutput:
        """Call a tool, once. Raises `ToolError`, and `OutcomeUnknown` when it may have run or not."""
        exchange = Exchange()
        token = _EXCHANGE.set(exchange)
        request = mcp_types.CallToolRequest(params=mcp_types.CallToolRequestParams(name=tool, arguments=arguments))
        try:
            result = await self._client.session.send_request(request, _RESULT)
        except MCPError as error:
            raise self._failure(error, exchange) from error
        except ValidationError as error:
            raise ToolError(f"The call ran, but the server's answer is not one of MCP: {error}") from error
        finally:
            _EXCHANGE.reset(token)
        if isinstance(result, mcp_types.InputRequiredResult):
            raise ToolError("The server did not finish the call: it wants to ask a person, and there is no way to.")
        return output_of(result.content, result.structured_content, is_error=result.is_error)

    def _failure(self, error: MCPError, exchange: Exchange) -> ToolError:
        if exchange.unsent:
            self._lost()
            return ToolError("The server cannot be reached. The call was not made.")
        if exchange.status >= 500 and not exchange.is_json:  # of something between here and the server, maybe
            return OutcomeUnknown(f"The server answered with HTTP status {exchange.status}.")
        if exchange.status == 404:
            self._lost()
            return ToolError("The server has forgotten this connection. The call was not made; it is safe to repeat.")
        if exchange.status >= 400 and not exchange.is_json:
            return ToolError(f"The server refused the call with HTTP status {exchange.status}.")
        if error.code == mcp_types.CONNECTION_CLOSED:
            self._lost()
            return OutcomeUnknown(f"The server did not answer ({error.message}).")
        return ToolError(f"The server answered with an error: {error.message}")

    async def listen(self) -> None:
        """Hear of changed tools. Older servers say so unasked, newer ones where somebody listens."""
        tools = self._client.server_capabilities.tools
        if self._client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (tools and tools.list_changed):
            return
        while True:
            try:
                async with self._client.listen(tools_list_changed=True) as subscription:
                    async for _ in subscription:
                        self.changed.set()
            except SubscriptionLost:
                self.changed.set()  # what was missed cannot be heard any more
            except MCPError:
                return  # it does not want listeners
            await trio.sleep(LISTEN_AGAIN_S)


@asynccontextmanager
async def opened(server: Server, stderr: Output, lost: Callable[[], None]) -> AsyncIterator[Live]:
    """Connect to `server`. What it writes to its standard error goes to `stderr`; see `Live` for `lost`."""
    exchange = Exchange()
    _EXCHANGE.set(exchange)
    async with _transport(server, stderr, lost) as transport:
        live: list[Live] = []

        async def heard(message: object) -> None:
            await trio.lowlevel.checkpoint()
            if isinstance(message, mcp_types.ToolListChangedNotification):
                for one in live:
                    one.changed.set()

        client = Client(
            transport,
            cache=None,
            message_handler=heard,
            client_info=mcp_types.Implementation(name="flightlog", version=str(CONTRACT_VERSION)),
        )
        try:
            await client.__aenter__()
        except Exception as error:
            if exchange.status < 400:
                raise
            raise ToolError(f"it answers with HTTP status {exchange.status}") from error
        async with _entered(client):
            live.append(Live(client, lost))
            yield live[0]


@asynccontextmanager
async def _entered(client: Client) -> AsyncIterator[None]:
    try:
        yield
    except BaseException as error:
        await client.__aexit__(type(error), error, error.__traceback__)
        raise
    await client.__aexit__(None, None, None)


def _transport(
    server: Server, stderr: Output, lost: Callable[[], None]
) -> AbstractAsyncContextManager[AbstractAsyncContextManager[Any]]:
    return _by_stdio(server, stderr, lost) if isinstance(server, Stdio) else _by_http(server)


@asynccontextmanager
async def _by_http(server: Server) -> AsyncIterator[AbstractAsyncContextManager[Any]]:
    assert isinstance(server, Http), "there are two kinds"
    async with NotingClient(headers=server.headers, timeout=_TIMEOUT) as client:
        yield streamable_http_client(server.url, http_client=client)


@asynccontextmanager
async def _by_stdio(
    server: Stdio, stderr: Output, lost: Callable[[], None]
) -> AsyncIterator[AbstractAsyncContextManager[Any]]:
    if not hasattr(os, "pidfd_open"):
        raise ToolError("servers are started on Linux only: elsewhere nobody could end all that they start")
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-I", "-S", str(Path(supervisor.__file__)), "--serve", str(os.getpid()), *server.command],
        env=scrubbed(server.pass_env, server.env),
        cwd=server.folder or None,
        encoding_error_handler="replace",
    )
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as theirs:
        async with trio.lowlevel.FdStream(reading) as ours, trio.open_nursery() as nursery:

            @asynccontextmanager
            async def started() -> AsyncIterator[Any]:
                async with stdio_client(parameters, errlog=theirs) as streams:
                    theirs.close()  # so that the other end tells when the last of them has gone
                    yield streams

            nursery.start_soon(_read, ours, stderr, lost)
            yield started()
            nursery.cancel_scope.cancel()


async def _read(stream: trio.lowlevel.FdStream, stderr: Output, lost: Callable[[], None]) -> None:
    while chunk := await stream.receive_some(_CHUNK_BYTES):
        stderr.take(chunk)
    lost()


def _tool(tool: mcp_types.Tool) -> ServerTool:
    hints = tool.annotations
    return ServerTool(
        name=tool.name,
        description=tool.description or tool.title or "",
        schema=tool.input_schema,
        only_reads=bool(hints and hints.read_only_hint),
    )
