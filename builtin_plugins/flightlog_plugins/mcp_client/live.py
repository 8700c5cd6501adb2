"""A connection that is up, and the only module that imports the SDK: it takes a while, so it is imported when needed.

Of the SDK's client a call uses the plain request only, which is sent once: the conveniences around it send it again.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import httpx2
import mcp_types
import trio
from attrs import define, field, frozen
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.message import SessionMessage
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

_T = TypeVar("_T")

logging.getLogger("mcp").addHandler(logging.NullHandler())  # else what it warns of ends on the terminal


@define
class Exchange:
    """What HTTP said about one request, which the SDK does not pass on. `status` 0: nothing, so far."""

    status: int = 0
    is_json: bool = False
    unsent: bool = False
    cut: bool = False
    """Whether what the server was saying came to its end, or broke off. The SDK reads no further than an answer."""


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
        kind = response.headers.get("content-type", "").lower()
        if request.method == "POST":
            exchange.status = response.status_code
            exchange.is_json = kind.startswith("application/json")
        if kind.startswith("text/event-stream"):
            response.stream = NotedEvents(response.stream, exchange)
        return response


@frozen
class NotedEvents(httpx2.AsyncByteStream):
    """A stream of events. Notes when there is no more of it."""

    _stream: Any
    _exchange: Exchange

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        self._exchange.cut = False
        try:
            async with aclosing(aiter(self._stream)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except Exception:
            self._exchange.cut = True
            raise
        self._exchange.cut = True

    async def aclose(self) -> None:
        """Let go of the connection."""
        await self._stream.aclose()


@frozen
class Answers:
    """What a server says, as the SDK reads it.

    The code for a closed connection is the SDK's own there: a server that answers with it is given another.
    """

    _stream: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stream.__aexit__(*error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        item = await anext(self._stream)
        match item:
            case SessionMessage(message=mcp_types.JSONRPCError(error=error)):
                if error.code == mcp_types.CONNECTION_CLOSED and not self._is_of_transport():
                    error.code = mcp_types.INTERNAL_ERROR
        return item

    def _is_of_transport(self) -> bool:
        """Whether that of HTTP made the last one up, in place of an answer that did not come."""
        context = getattr(self._stream, "last_context", None)
        return context is not None and _EXCHANGE in context and context[_EXCHANGE].cut


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
        """All tools that the server has now. Raises `ToolError` when it does not say."""
        found: list[ServerTool] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            page = await self._sent(partial(self._client.list_tools, cursor=cursor))
            found += map(_tool, page.tools)
            cursor = page.next_cursor
            if cursor is None:
                return tuple(found)
        raise ToolError(f"its list of tools has more than {PAGES_MAX} pages")

    async def call(self, tool: str, arguments: dict[str, Any], report: Callable[[str], None]) -> ToolOutput:
        """Call a tool, once; how far it is goes to `report`.

        Raises `ToolError`, and `OutcomeUnknown` when it may have run or not.
        """
        request = mcp_types.CallToolRequest(params=mcp_types.CallToolRequestParams(name=tool, arguments=arguments))

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            await trio.lowlevel.checkpoint()
            report(_told(progress, total, message))

        send = partial(self._client.session.send_request, request, _RESULT, progress_callback=heard)
        result = await self._sent(send)
        if isinstance(result, mcp_types.InputRequiredResult):
            raise ToolError("The server did not finish the call: it wants to ask a person, and there is no way to.")
        return output_of(result.content, result.structured_content, is_error=result.is_error)

    async def _sent(self, send: Callable[[], Awaitable[_T]]) -> _T:
        exchange = Exchange()
        token = _EXCHANGE.set(exchange)
        try:
            return await send()
        except MCPError as error:
            raise self._failure(error, exchange) from error
        except ValidationError as error:
            raise ToolError(f"The server did answer, but not as MCP has it: {error}") from error
        finally:
            _EXCHANGE.reset(token)

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
            if not exchange.cut:  # else it is this answer that is lost, and no other
                self._lost()
            return OutcomeUnknown(f"The server did not answer ({error.message}).")
        return ToolError(f"The server answered with an error: {error.message}")

    async def listen(self) -> None:
        """Hear of changed tools. Older servers say so unasked, newer ones where somebody listens."""
        tools = self._client.server_capabilities.tools
        if self._client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (tools and tools.list_changed):
            return
        _EXCHANGE.set(Exchange())
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
            _told_apart(transport),
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
async def _told_apart(transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    async with transport as (reading, writing):
        yield Answers(reading), writing


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


def _told(progress: float, total: float | None, message: str | None) -> str:
    far = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
    return f"{far}: {message}" if message else far


def _tool(tool: mcp_types.Tool) -> ServerTool:
    hints = tool.annotations
    return ServerTool(
        name=tool.name,
        description=tool.description or tool.title or "",
        schema=tool.input_schema,
        only_reads=bool(hints and hints.read_only_hint),
    )
