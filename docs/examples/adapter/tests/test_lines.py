from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from flightlog.pytest_plugin import KernelWith
from flightlog.testing.conformance import AdapterCase, Check, Frame, Recording, checks
from flightlog_hookspecs import TextBlock, Usage

from flightlog_lines import Lines

CASE = AdapterCase(
    name="lines",
    adapter=Lines,
    model="m",
    recordings=[
        Recording(
            name="two-words",
            frames=[Frame(b"w:Good\n", "Good"), b"\n", Frame(b"w: day\n", " day"), b"end\n"],
            content=(TextBlock(text="Good day"),),
            usage=Usage(output_tokens=2),
        )
    ],
    garbage=[b"rubbish\n"],
)


@pytest.mark.parametrize("check", checks(CASE), ids=str)
def test_it_keeps_the_rules_of_adapters(check: Check) -> None:
    check()


class Provider(BaseHTTPRequestHandler):
    """Says the same to everybody."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for line in (b"w:Good\n", b"w: day\n", b"end\n"):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        monkeypatch.setenv("FLIGHTLOG_LINES_URL", f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield
        server.shutdown()
        thread.join()


def test_a_session_can_have_its_model_once_it_is_installed(provider: None, kernel_with: KernelWith) -> None:
    kernel = kernel_with(discover=["lines"])
    with kernel.session("s", model="lines:m") as session:
        session.followup("Hello.")
        turn = session.run()
    assert turn is not None
    assert (turn.reason, turn.text) == ("completed", "Good day")
