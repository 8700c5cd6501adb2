"""An MCP server for tests, run as a script: `stdio LEDGER`, or `http LEDGER [PORT]`, which prints its port.

What its tools do stands in the ledger, a line each, also when they never answer.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import subprocess
import sys
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

LEDGER = Path(sys.argv[2])
TOLD = os.environ.get("TELLING_TOKEN", "")
"""What the server tells everybody who asks for its tools."""
server = MCPServer("tests", version=f"7.1{TOLD}")


def note(line: str) -> None:
    """Write a line to the ledger."""
    with LEDGER.open("a") as file:
        file.write(f"{line}\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    note("add")
    return a + b


@server.tool()
def write(text: str, context: str = "", self: str = "") -> str:  # names that mean something to whoever calls
    """Write to the ledger."""
    note(f"write {text}{context}{self}")
    return "written"


@server.tool()
def crash() -> str:
    """End in the middle of the call."""
    note("crash")
    sys.stderr.write("last words\n")
    sys.stderr.flush()
    os._exit(9)


@server.tool()
async def hang() -> str:
    """Never answer."""
    note("hang")
    await asyncio.sleep(3600)
    return ""


@server.tool()
async def gate() -> str:
    """Answer once the gate is open: a file beside the ledger."""
    note("gate")
    while not LEDGER.with_name("gate").exists():  # noqa: ASYNC110  another process opens it
        await asyncio.sleep(0.005)
    return "through"


@server.tool()
async def steps(ctx: Context, context: str) -> str:
    """Say how far it is, and answer once the gate is open."""
    await ctx.report_progress(1, 2, context)
    return await gate()


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("no such ticket")


@server.tool()
def refuse() -> str:
    """Answer with an error, whose number is what clients call a closed connection."""
    raise MCPError(code=CONNECTION_CLOSED, message="no such shop")


@server.tool()
def environment() -> list[str]:
    """The variables."""
    return [f"{name}={value}" for name, value in os.environ.items()]


@server.tool()
def family() -> str:
    """Its process, the one that started it, and one that it starts in a session of its own."""
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    return f"[{os.getpid()}, {os.getppid()}, {child.pid}]"


@server.tool(structured_output=False)
def show() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Text, an image, a resource."""
    image = base64.b64encode(b"\x89PNG not really").decode()
    resource = TextResourceContents(uri="file:///notes.txt", text="noted", mime_type="text/plain")
    return [
        TextContent(type="text", text="Look:"),
        ImageContent(type="image", data=image, mime_type="image/png"),
        EmbeddedResource(type="resource", resource=resource),
    ]


@server.tool()
async def grow(ctx: Context) -> str:
    """Have one tool more."""
    server.add_tool(lambda: "new", name="newcomer", description="It is new.")
    await ctx.notify_tools_changed()
    return "grown"


@server.tool(name="dotted.name with a very long tail that no provider takes as it is, because it is long")
def dotted() -> str:
    """Has a name that is not legal."""
    return "dotted"


@server.tool()
def odd(value: int) -> str:
    """Has a schema that is none."""
    return f"odd {value}"


server._tool_manager._tools["odd"].parameters = {
    "type": "object",
    "properties": {"value": {"$ref": "https://example.com/elsewhere.json"}, "many": {"type": "integer", "items": [1]}},
}


if TOLD:
    for name in ("by_description", "by_schema", f"by_name_{TOLD}"):
        server.add_tool(lambda: "told", name=name, description=f"Look: {TOLD}" if name == "by_description" else "Look.")
    server._tool_manager._tools["by_schema"].parameters = {
        "type": "object",
        "properties": {"key": {"default": TOLD, "enum": [TOLD]}, TOLD: {"description": TOLD}},
    }


async def main() -> None:
    note("started")
    if sys.argv[1] == "stdio":
        await server.run_stdio_async()
        return
    listening = socket.create_server(("127.0.0.1", int(sys.argv[3]) if len(sys.argv) > 3 else 0))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    app = server.streamable_http_app()
    if token := os.environ.get("EXPECTED_TOKEN"):
        app.add_middleware(_Guarded, token=token)
    await uvicorn.Server(uvicorn.Config(app, log_level="critical")).serve(sockets=[listening])


class _Guarded:
    """Answers 401 without the token, and as the file `status` beside the ledger says while there is one."""

    def __init__(self, app: object, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: dict, receive: object, send: object) -> None:
        headers = dict(scope.get("headers") or ())
        wanted = LEDGER.with_name("status")
        status = int(wanted.read_text()) if wanted.exists() else 401
        if scope["type"] != "http" or (
            headers.get(b"authorization") == f"Bearer {self.token}".encode() and not wanted.exists()
        ):
            await self.app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"no"})


if __name__ == "__main__":
    asyncio.run(main())
