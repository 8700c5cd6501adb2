"""Staying connected to one server: connect, offer its tools, connect again when the connection is lost.

One task opens and closes each connection; calls use it from tasks of their own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import define, field

from flightlog_hookspecs import Scope, ToolContext, ToolOutput
from flightlog_hookspecs.errors import PluginError, ToolError
from flightlog_plugins.mcp_client.offering import ServerTool, ServerTools
from flightlog_plugins.mcp_client.servers import Server
from flightlog_plugins.shell.running import Output

if TYPE_CHECKING:
    from flightlog_plugins.mcp_client.live import Live

STDERR_MAX_BYTES: Final = 16 * 1024
LAST_WORDS_MAX_CHARS: Final = 1000

_LIVE: Final = "flightlog_plugins.mcp_client.live"


@define(eq=False)
class Connection:
    """To `server`, which is called `name`. See `McpServers` for the waits."""

    name: str
    server: Server
    redact: Callable[[str], str]
    """Takes out of a text what the servers are given to prove who asks."""
    wait_s: float = field(kw_only=True)
    wait_max_s: float = field(kw_only=True)
    _live: Live | None = field(default=None, init=False)
    _why: str = field(default="", init=False)
    _offered: tuple[str, tuple[ServerTool, ...]] | None = field(default=None, init=False)
    _complaint: str = field(default="", init=False)
    _leaving: bool = field(default=False, init=False)
    _wanted: bool = field(default=False, init=False)
    """Whether a call waits for the next attempt to connect."""
    _attempt: trio.Event = field(factory=trio.Event, init=False)
    """Set when the attempt that is under way, or comes next, has ended."""
    _over: trio.Event = field(factory=trio.Event, init=False)
    """Set when the connection of this attempt is of no more use."""
    _wake: trio.Event = field(factory=trio.Event, init=False)
    _trying: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    @asynccontextmanager
    async def lifespan(self, scope: Scope) -> AsyncIterator[None]:
        """The service: entered once the first attempt to connect has ended, however it did."""
        async with trio.open_nursery() as nursery:
            first = self._attempt
            nursery.start_soon(self._keep, scope)
            await first.wait()
            yield
            self._leaving = True
            self._wake.set()
            if self._live is None:
                self._trying.cancel()
            self._over.set()

    async def call(self, tool: str, context: ToolContext, /, **arguments: Any) -> ToolOutput:
        """Call a tool of the server. Waits for a connection when there is none, and is sent once."""
        live = self._live or await self._next()
        if live is None:
            raise ToolError(f"{self._why[:1].upper()}{self._why[1:]}. The call was not made.")
        return await live.call(tool, arguments, context.report)

    async def _next(self) -> Live | None:
        """The connection that comes of the next attempt, which is made at once."""
        self._wanted = True
        self._wake.set()
        await self._attempt.wait()
        return self._live

    async def _keep(self, scope: Scope) -> None:
        wait_s = self.wait_s
        while True:
            began, stderr = trio.current_time(), Output(STDERR_MAX_BYTES)
            self._wake = trio.Event()
            why, was_live = await self._once(scope, stderr)
            if self._leaving:
                return
            last = stderr.text()[-LAST_WORDS_MAX_CHARS:].strip()
            self._why = f"the MCP server {self.name!r} cannot be used: {why}"
            self._why += f". The last that it wrote to its standard error: {last}" if last else ""
            scope.problem(self._why)
            if not was_live:
                self._wanted = False
                ended, self._attempt = self._attempt, trio.Event()
                ended.set()
            if trio.current_time() - began > self.wait_max_s:
                wait_s = self.wait_s
            if not self._wanted:
                with trio.move_on_after(wait_s):
                    await self._wake.wait()
            wait_s = min(2 * wait_s, self.wait_max_s)

    async def _once(self, scope: Scope, stderr: Output) -> tuple[str, bool]:
        """Connect, and stay so as long as it goes; returns why it is over, and whether there was a connection."""
        over = self._over = trio.Event()
        was_live, why = False, "the connection was lost"

        def lost() -> None:
            over.set()
            if self._over is over and self._live is not None:
                self._live, self._attempt = None, trio.Event()

        with trio.CancelScope(deadline=trio.current_time() + self.server.connect_s) as self._trying:
            try:
                live_module = await trio.to_thread.run_sync(import_module, _LIVE)
                async with live_module.opened(self.server, stderr, lost) as live, trio.open_nursery() as nursery:
                    self._offer(scope, live.version, await live.tools())
                    self._trying.deadline = float("inf")
                    self._live, self._wanted, was_live = live, False, True
                    self._attempt.set()
                    nursery.start_soon(live.listen)
                    nursery.start_soon(self._relist, scope, live)
                    await over.wait()
                    lost()
                    nursery.cancel_scope.cancel()
            except Exception as error:
                why = _said(error)
            finally:
                lost()
        if self._trying.cancelled_caught:
            why = f"it did not answer within {self.server.connect_s:g} s"
        return why, was_live

    async def _relist(self, scope: Scope, live: Live) -> None:
        while True:
            await live.changed.wait()
            live.changed = trio.Event()
            try:
                with trio.fail_after(self.server.connect_s):
                    tools = await live.tools()
            except trio.TooSlowError:
                self._not_listed(scope, f"no answer within {self.server.connect_s:g} s")
            except ToolError as error:
                self._not_listed(scope, str(error))
            else:
                self._offer(scope, live.version, tools)

    def _not_listed(self, scope: Scope, why: str) -> None:
        scope.problem(f"the MCP server {self.name!r} has changed its tools, and they cannot be listed: {why}")

    def _offer(self, scope: Scope, version: str, tools: tuple[ServerTool, ...]) -> None:
        """Offer `tools`, unless these are offered already."""
        if (version, tools) != self._offered:
            plugin = ServerTools(self.name, version, self.server, tools, self.call, self.redact)
            self._offered, self._complaint = (version, tools), plugin.complaint
            try:
                scope.offer(plugin)
            except PluginError as error:
                self._complaint = f"its tools cannot be offered: {error}"
        scope.problem(f"the MCP server {self.name!r}: {self._complaint}" if self._complaint else "")


def _said(error: BaseException) -> str:
    """The words of the first error in a group, or of `error`."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
