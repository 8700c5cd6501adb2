"""An MCP server of an older protocol version, run as a script: `stdio`, or `http`, which prints its port.

It greets by `initialize` and says unasked that its tools have changed: on its standard output, or on the stream that
a client opens for that. After `sulk` it does not list its tools until the next `grow`. It is written without the SDK,
which would speak the newest version that both know.
"""

from __future__ import annotations

import json
import queue
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VERSION = "2025-06-18"
CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
tools = ["grow", "sulk", "cut", "greetings"]
greetings: list[str] = []
sulking: list[bool] = []
unasked: queue.Queue[dict[str, Any]] = queue.Queue()


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    """The answer to a message, None for a notification."""
    if "id" not in message:
        return None
    match message["method"]:
        case "initialize":
            greetings.append("hello")
            result: dict[str, Any] = {
                "protocolVersion": VERSION,
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "old", "version": "1.0"},
            }
        case "tools/list" if sulking:
            return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32000, "message": "not today"}}
        case "tools/list":
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools]}
        case "tools/call" if message["params"]["name"] == "sulk":
            sulking.append(True)
            unasked.put(CHANGED)
            result = {"content": [{"type": "text", "text": "sulking"}]}
        case "tools/call" if message["params"]["name"] == "greetings":
            result = {"content": [{"type": "text", "text": str(len(greetings))}]}
        case "tools/call":
            sulking.clear()
            tools.append("newcomer")
            unasked.put(CHANGED)
            result = {"content": [{"type": "text", "text": "grown"}]}
        case "ping":
            result = {}
        case _:
            error = {"code": -32601, "message": "Method not found"}
            return {"jsonrpc": "2.0", "id": message["id"], "error": error}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def stdio() -> None:
    """A line for each message."""
    for line in sys.stdin:
        said = [answer(json.loads(line))]
        while not unasked.empty():
            said.append(unasked.get())
        for one in filter(None, said):
            sys.stdout.write(json.dumps(one) + "\n")
            sys.stdout.flush()


class Handler(BaseHTTPRequestHandler):
    """Answers in JSON; what is said unasked goes to the stream."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if message.get("params", {}).get("name") == "cut":  # it ends a stream of events before its answer
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        said = answer(message)
        raw = json.dumps(said).encode() if said else b""
        self.send_response(200 if said else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.send_header("Mcp-Session-Id", "old-1")
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        while True:
            self.wfile.write(f"event: message\ndata: {json.dumps(unasked.get())}\n\n".encode())
            self.wfile.flush()

    def do_DELETE(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        stdio()
    else:
        listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        sys.stdout.write(f"{listening.server_port}\n")
        sys.stdout.flush()
        listening.serve_forever()
