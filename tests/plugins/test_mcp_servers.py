"""Tools of MCP servers: offered under legal names, called once, and a server that fails costs its own calls only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, evolve

import flightlog
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import FileBlock, text_of
from flightlog_hookspecs.events import (
    ApprovalAsked,
    PluginFault,
    PluginLoaded,
    RequestHeader,
    ToolCall,
    ToolProgress,
    ToolResult,
)
from flightlog_plugins.approval_policy import ApprovalPolicy
from flightlog_plugins.mcp_client import Http, McpServers, Stdio
from support.children import closing_process, gone, started, until
from support.kernels import events_of, opened, verified

pytestmark = pytest.mark.kill

SERVER = str(Path(__file__).parents[1] / "support" / "mcp_server.py")
OLD_SERVER = str(Path(__file__).parents[1] / "support" / "old_mcp_server.py")
TOKEN = "token-0123456789"


@define
class Place:
    """Where a server of a test keeps its ledger."""

    folder: Path

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def noted(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []

    def stdio(self, **options: Any) -> Stdio:
        return Stdio([sys.executable, SERVER, "stdio", str(self.ledger)], **options)

    @contextmanager
    def http(self, port: int = 0) -> Iterator[int]:
        """While entered the server runs; yields its port."""
        process = subprocess.Popen(
            [sys.executable, SERVER, "http", str(self.ledger), str(port)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "EXPECTED_TOKEN": TOKEN},
        )
        with closing_process(process):
            assert process.stdout is not None
            yield int(process.stdout.readline())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def at(port: int, **options: Any) -> Http:
    """The server at `port`, with the token it expects."""
    return Http(f"http://127.0.0.1:{port}/mcp", headers={"Authorization": f"Bearer {TOKEN}"}, **options)


@asynccontextmanager
async def talking(
    folder: Path, server: Any, *wanted: Any, plugins: tuple[object, ...] = (), **options: Any
) -> AsyncIterator[tuple[flightlog.Kernel, flightlog.Session]]:
    """A session with the servers' tools, whose model makes each of `wanted`, a call or words, in a step of its own."""
    servers = McpServers({"t": server}, wait_s=0.05, wait_max_s=0.2)
    async with (
        opened(
            folder / "log.db",
            FakeModel([calls(one) if isinstance(one, tuple) else one for one in wanted]),
            plugins=[servers, *plugins],
        ) as kernel,
        kernel.session("s", model="fake:m", **options) as session,
    ):
        yield kernel, session


async def results(folder: Path, server: Any, *wanted: tuple[str, object], **options: Any) -> list[ToolResult]:
    """What came of `wanted`."""
    async with talking(folder, server, *wanted, **options) as (_, session):
        await session.followup("go")
        await session.run()
    verified(folder / "log.db", FakeModel([]))
    return events_of(folder / "log.db", ToolResult)


def ends(found: list[ToolResult]) -> list[tuple[str, str]]:
    return [(one.outcome, text_of(one.content)) for one in found]


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest, place: Place) -> Iterator[Any]:
    """A server of each kind."""
    if request.param == "stdio":
        yield place.stdio(limit_s=25.0)
    else:
        with place.http() as port:
            yield at(port, limit_s=25.0)


async def test_a_servers_tools_are_offered_before_the_first_request_and_called(place: Place, server: Any) -> None:
    found = await results(place.folder, server, ("t__add", {"a": 2, "b": 3}), ("t__write", {"text": "x", "self": "y"}))
    assert ends(found) == [("ok", "5"), ("ok", "written")]
    assert place.noted() == ["started", "add", "write xy"]
    (head,) = events_of(place.folder / "log.db", RequestHeader)
    specs = {tool.name: tool for tool in head.head.tools}
    assert specs["t__add"].description == "Add two numbers."
    assert json.loads(specs["t__add"].parameters)["required"] == ["a", "b"]
    assert PluginLoaded(plugin="mcp:t", version="7.1") in events_of(place.folder / "log.db", PluginLoaded)


async def test_how_far_a_call_is_is_told_to_those_who_watch(place: Place, server: Any) -> None:
    path = place.folder / "log.db"
    async with talking(place.folder, server, ("t__steps", {"context": "half"})) as (_, session):
        await session.followup("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await until(lambda: events_of(path, ToolProgress))
            place.folder.joinpath("gate").touch()
    assert [told.text for told in events_of(path, ToolProgress)] == ["1 of 2: half"]
    assert ends(events_of(path, ToolResult)) == [("ok", "through")]


async def test_arguments_that_do_not_fit_are_refused_before_the_server_is_asked(place: Place, server: Any) -> None:
    (refused,) = await results(place.folder, server, ("t__add", {"a": "two"}))
    assert refused.outcome == "error"
    assert place.noted() == ["started"]


async def test_names_and_schemas_that_are_not_legal_are_made_so(place: Place, server: Any) -> None:
    name = "t__dotted_name_with_a_very_long_tail_that_no_provider_t_"
    async with talking(place.folder, server, ("t__odd", {"value": "any"})) as (kernel, session):
        await session.followup("go")
        await session.run()
        (dotted,) = [tool for tool in kernel.registry.tools if tool.startswith("t__dotted")]
    assert dotted.startswith(name[:50])
    assert len(dotted) == 64
    (head,) = events_of(place.folder / "log.db", RequestHeader)
    (odd,) = [tool for tool in head.head.tools if tool.name == "t__odd"]
    assert json.loads(odd.parameters) == {"type": "object"}
    assert "https://example.com/elsewhere.json" in odd.description
    assert "Input should be a valid integer" in ends(events_of(place.folder / "log.db", ToolResult))[0][1]


async def test_what_a_server_says_only_reads_does_so_only_if_the_host_trusts_it(place: Place) -> None:
    for trusted, effect in ((False, "external"), (True, "read")):
        folder = place.folder / effect
        folder.mkdir()
        await results(folder, place.stdio(trusted=trusted), ("t__add", {"a": 1, "b": 1}), ("t__write", {"text": "x"}))
        assert [call.effect for call in events_of(folder / "log.db", ToolCall)] == [effect, "external"]


async def test_an_approval_that_is_remembered_holds_for_that_tool_of_that_server_only(place: Place) -> None:
    wanted = [("t__write", {"text": text}) for text in "ab"] + [("t__fail", {})]
    async with talking(place.folder, place.stdio(), *wanted, plugins=(ApprovalPolicy(),), approver=True) as (
        _,
        session,
    ):
        await session.followup("go")
        await session.run(wait=False)
        (question,) = session.questions()
        await session.approve(question.seq, remember=True)
        await session.run(wait=False)
        assert len(session.questions()) == 1
    assert place.noted() == ["started", "write a", "write b"]
    assert [asked.name for asked in events_of(place.folder / "log.db", ApprovalAsked)] == ["t__write", "t__fail"]


async def test_an_answer_becomes_text_and_files_by_fixed_rules(place: Place, server: Any) -> None:
    (shown, failed) = await results(place.folder, server, ("t__show", {}), ("t__fail", {}))
    text, image, resource = shown.content
    assert isinstance(image, FileBlock)
    assert (image.media_type, image.size_bytes) == ("image/png", 15)
    assert text_of((text, resource)) == "Look:[resource file:///notes.txt]\nnoted"
    assert failed.outcome == "error"
    assert "no such ticket" in text_of(failed.content)


async def test_a_server_that_dies_in_mid_call_leaves_the_outcome_unknown_and_is_connected_to_again(
    place: Place,
) -> None:
    crash, add, again = await results(
        place.folder, place.stdio(), ("t__crash", {}), ("t__add", {"a": 1, "b": 1}), ("t__crash", {})
    )
    assert crash.outcome == "unknown"
    assert "did not answer" in text_of(crash.content)
    assert (add.outcome, text_of(add.content)) == ("ok", "2")
    assert again.outcome == "denied"  # the same call again is a person's to decide
    assert place.noted() == ["started", "crash", "started", "add"]


async def test_a_server_that_died_between_calls_is_connected_to_again_at_once(place: Place) -> None:
    path = place.folder / "log.db"
    model = FakeModel([calls(("t__family", {})), words("ok"), calls(("t__add", {"a": 1, "b": 1}))])
    servers = McpServers({"t": place.stdio()}, wait_s=0.05)
    async with opened(path, model, plugins=[servers]) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup("go")
        await session.run()
        os.kill(json.loads(text_of(events_of(path, ToolResult)[0].content))[0], signal.SIGKILL)
        await until(lambda: place.noted() == ["started", "started"])
        await session.followup("go on")
        await session.run()
    assert ends(events_of(path, ToolResult))[1] == ("ok", "2")


async def test_a_server_that_dies_in_mid_call_over_http_is_never_asked_twice(place: Place) -> None:
    with place.http() as port:
        async with talking(place.folder, at(port), ("t__crash", {}), ("t__add", {"a": 1, "b": 1})) as (_, session):
            await session.followup("go")
            await session.run()
    crash, add = events_of(place.folder / "log.db", ToolResult)
    assert crash.outcome == "unknown"
    assert add.outcome == "error"
    assert "not made" in text_of(add.content)
    assert place.noted() == ["started", "crash"]


async def test_an_error_that_a_server_answers_with_costs_that_call_and_no_other(place: Place, server: Any) -> None:
    path = place.folder / "log.db"
    models = [FakeModel([calls(("t__gate", {}))], name="slow"), FakeModel([calls(("t__refuse", {}))], name="refused")]
    async with (
        opened(path, models, plugins=[McpServers({"t": server})]) as kernel,
        kernel.session("slow", model="slow:m") as slow,
        kernel.session("refused", model="refused:m") as refused,
    ):
        await slow.followup("go")
        await refused.followup("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow.run)
            await until(lambda: "gate" in place.noted())
            await refused.run()
            place.folder.joinpath("gate").touch()
        assert kernel.registry.problems == []
    assert ends(events_of(path, ToolResult, "refused")) == [
        ("error", "The server answered with an error: no such shop")
    ]
    assert ends(events_of(path, ToolResult, "slow")) == [("ok", "through")]
    assert place.noted() == ["started", "gate"]


async def test_an_answer_that_is_cut_off_on_its_way_leaves_that_outcome_unknown_and_the_connection_up(
    place: Place,
) -> None:
    with old_server_over_http() as server:
        cut, greetings = await results(place.folder, server, ("t__cut", {}), ("t__greetings", {}))
    assert cut.outcome == "unknown"
    assert text_of(greetings.content) == "1"


async def test_a_server_that_answers_with_an_error_when_its_tools_are_listed_again_is_a_problem_and_serves_on(
    place: Place, old_server: Any
) -> None:
    async with talking(place.folder, old_server, ("t__sulk", {}), words("done"), ("t__grow", {})) as (kernel, session):
        await session.followup("go")
        await session.run()
        await until(lambda: kernel.registry.problems)
        assert "cannot be listed: The server answered with an error: not today" in kernel.registry.problems[0].error
        await session.followup("go on")
        await session.run()
        await until(lambda: "t__newcomer" in kernel.registry.tools)
        assert kernel.registry.problems == []
    assert ends(events_of(place.folder / "log.db", ToolResult)) == [("ok", "sulking"), ("ok", "grown")]


async def test_a_server_that_hangs_is_given_its_time_and_serves_on(place: Place, server: Any) -> None:
    slow = evolve(server, limit_s=2.0, connect_s=1.9)
    async with talking(place.folder, slow, ("t__hang", {}), ("t__add", {"a": 1, "b": 1})) as (kernel, session):
        await until(lambda: "t__hang" in kernel.registry.tools)
        await session.followup("go")
        await session.run()
    hung, add = events_of(place.folder / "log.db", ToolResult)
    assert hung.outcome == "unknown"
    assert "within 2 s" in text_of(hung.content)
    assert (add.outcome, text_of(add.content)) == ("ok", "2")


async def test_a_server_that_cannot_be_started_is_a_problem_and_all_else_works(place: Place) -> None:
    async with talking(place.folder, Stdio(["nothing-of-this-name"]), ("t__add", {})) as (kernel, session):
        await session.followup("go")
        turn = await session.run()
        assert turn is not None
        assert turn.text == "done"
        (problem,) = kernel.registry.problems
    assert problem.service == "t"
    assert "nothing-of-this-name: No such file or directory" in problem.error
    (fault, *_) = events_of(place.folder / "log.db", PluginFault)
    assert fault.hook == "service t"
    assert "nothing-of-this-name" in fault.error
    assert "no tool named" in ends(events_of(place.folder / "log.db", ToolResult))[0][1]


async def test_a_server_that_comes_up_later_is_found(place: Place) -> None:
    with place.http() as port:
        pass
    async with talking(place.folder, at(port), ("t__add", {"a": 1, "b": 1})) as (kernel, session):
        await until(lambda: kernel.registry.problems)
        with place.http(port):
            await until(lambda: "t__add" in kernel.registry.tools)
            assert kernel.registry.problems == []
            await session.followup("go")
            await session.run()
    assert ends(events_of(place.folder / "log.db", ToolResult)) == [("ok", "2")]


@pytest.mark.parametrize(("status", "outcome"), [(502, "unknown"), (403, "error")])
async def test_what_stands_before_a_server_may_have_let_the_call_through_or_not(
    place: Place, status: int, outcome: str
) -> None:
    with place.http() as port:
        async with talking(place.folder, at(port), ("t__write", {"text": "x"})) as (kernel, session):
            await until(lambda: "t__write" in kernel.registry.tools)
            place.folder.joinpath("status").write_text(str(status))
            await session.followup("go")
            await session.run()
    (result,) = events_of(place.folder / "log.db", ToolResult)
    assert result.outcome == outcome
    assert str(status) in text_of(result.content)


async def test_a_server_that_refuses_us_is_a_problem_that_says_so(place: Place) -> None:
    with place.http() as port:
        wrong = Http(f"http://127.0.0.1:{port}/mcp", headers={"Authorization": "Bearer wrong"})
        async with talking(place.folder, wrong) as (kernel, _):
            await until(lambda: kernel.registry.problems)
            assert "HTTP status 401" in kernel.registry.problems[0].error


async def test_tools_that_change_are_offered_at_the_next_turn(place: Place, server: Any) -> None:
    async with talking(place.folder, server, ("t__grow", {})) as (kernel, session):
        await session.followup("go")
        await session.run()
        await until(lambda: "t__newcomer" in kernel.registry.tools)
        await session.followup("go on")
        await session.run()
    before, after = events_of(place.folder / "log.db", RequestHeader)
    assert {tool.name for tool in after.head.tools} - {tool.name for tool in before.head.tools} == {"t__newcomer"}


@contextmanager
def old_server_over_http() -> Iterator[Http]:
    process = subprocess.Popen([sys.executable, OLD_SERVER, "http"], stdout=subprocess.PIPE, text=True)
    with closing_process(process):
        assert process.stdout is not None
        yield Http(f"http://127.0.0.1:{int(process.stdout.readline())}/mcp", limit_s=25.0)


@pytest.fixture(params=["stdio", "http"])
def old_server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server of each kind that speaks a protocol version without listeners."""
    if request.param == "stdio":
        yield Stdio([sys.executable, OLD_SERVER, "stdio"], limit_s=25.0)
        return
    with old_server_over_http() as server:
        yield server


async def test_tools_of_an_older_server_that_says_unasked_that_they_changed_are_offered_too(
    place: Place, old_server: Any
) -> None:
    async with talking(place.folder, old_server, ("t__grow", {})) as (kernel, session):
        assert "t__newcomer" not in kernel.registry.tools
        await session.followup("go")
        await session.run()
        await until(lambda: "t__newcomer" in kernel.registry.tools)
        await session.followup("go on")
        await session.run()
    before, after = events_of(place.folder / "log.db", RequestHeader)
    assert {tool.name for tool in after.head.tools} - {tool.name for tool in before.head.tools} == {"t__newcomer"}
    assert ends(events_of(place.folder / "log.db", ToolResult)) == [("ok", "grown")]


async def test_a_server_sees_what_it_is_given_and_the_log_sees_none_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_SECRET", "canary of the host")
    server = place.stdio(env={"TICKETS_TOKEN": "ticket-token-0815", "COLOUR": "ultramarine"})
    (result,) = await results(place.folder, server, ("t__environment", {}))
    seen = text_of(result.content)
    assert "ultramarine" in seen
    assert "TICKETS_TOKEN=[redacted]" in seen
    assert "canary" not in seen
    assert all(b"ticket-token-0815" not in file.read_bytes() for file in place.folder.glob("log.db*"))


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_nor_does_the_log_see_it_where_a_server_tells_of_itself_and_its_tools(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def told() -> list[Path]:
        files = [*place.folder.glob("log.db*")]
        assert len(files) > 1
        return [file for file in files if TOKEN.encode() in file.read_bytes()]

    monkeypatch.setenv("TELLING_TOKEN", TOKEN)
    with place.http() as port:
        server = at(port) if kind == "http" else place.stdio(env={"TELLING_TOKEN": TOKEN})
        async with talking(place.folder, server, ("t__by_schema", {"key": "any"})) as (kernel, session):
            await session.followup("go")
            await session.run()
            assert told() == []
            (problem,) = kernel.registry.problems
    assert "names tools with a secret that it was given; 1 of them" in problem.error
    assert told() == []
    (head,) = events_of(place.folder / "log.db", RequestHeader)
    shown = {tool.name: tool.description for tool in head.head.tools}
    assert shown["t__by_description"] == "Look: [redacted]"
    assert '"key": {"default": "[redacted]", "enum": ["[redacted]"]}' in shown["t__by_schema"]
    assert not any(name.startswith("t__by_name") for name in shown)
    assert PluginLoaded(plugin="mcp:t", version="7.1[redacted]") in events_of(place.folder / "log.db", PluginLoaded)
    assert ends(events_of(place.folder / "log.db", ToolResult)) == [("ok", "told")]


async def test_nothing_of_a_server_is_left_when_the_kernel_is_closed(place: Place) -> None:
    (result,) = await results(place.folder, place.stdio(), ("t__family", {}))
    for pid in json.loads(text_of(result.content)):
        await gone(pid)


async def test_a_server_that_is_taken_back_finishes_its_call_first(place: Place, server: Any) -> None:
    path = place.folder / "log.db"
    model = FakeModel([calls(("t__gate", {}))])
    async with opened(path, model) as kernel, kernel.session("s", model="fake:m") as session:
        registration = kernel.register(McpServers({"t": server}))
        await session.followup("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await until(lambda: "gate" in place.noted())
            nursery.start_soon(registration.aclose)
            await until(lambda: "t__gate" not in kernel.registry.tools)
            place.folder.joinpath("gate").touch()
        assert registration.closed
    assert ends(events_of(path, ToolResult)) == [("ok", "through")]


async def test_a_cancelled_host_leaves_no_server_behind(place: Place) -> None:
    with trio.CancelScope() as scope:
        async with talking(place.folder, place.stdio(), ("t__family", {}), ("t__hang", {})) as (_, session):
            await session.followup("go")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.run)
                await until(lambda: "hang" in place.noted())
                scope.cancel()
    for pid in json.loads(text_of(events_of(place.folder / "log.db", ToolResult)[0].content)):
        await gone(pid)


async def test_a_host_that_is_killed_leaves_no_server_behind(place: Place) -> None:
    code = """
import sys, trio, flightlog
from flightlog.testing import Bundle, FakeModel, calls
from flightlog_plugins.mcp_client import McpServers, Stdio

async def main():
    model = FakeModel([calls(("t__family", {})), calls(("t__hang", {}))])
    plugins = [McpServers({"t": Stdio(sys.argv[2:])}), Bundle(adapters=[model])]
    async with flightlog.open_kernel(sys.argv[1], discover=False, plugins=plugins) as kernel:
        async with kernel.session("s", model="fake:m") as session:
            await session.followup("go")
            await session.run()

trio.run(main)
"""
    path = place.folder / "log.db"
    stays = ["/bin/sh", "-c", '"$@"; sleep 3600', "sh"]  # also when nobody writes to it any more
    process = started(code, str(path), *stays, *place.stdio().command)
    with closing_process(process):
        await until(lambda: "hang" in place.noted())
        process.send_signal(signal.SIGKILL)
    for pid in json.loads(text_of(events_of(path, ToolResult)[0].content)):
        await gone(pid)


def test_the_sdk_is_not_imported_before_a_kernel_connects() -> None:
    code = (
        "import sys; sys.modules['httpx2'] = sys.modules['pydantic'] = None; import flightlog\n"
        "from flightlog_plugins.mcp_client import Http, McpServers, Stdio\n"
        "McpServers({'a': Stdio(['x']), 'b': Http('http://localhost/mcp')})\n"
        "print('mcp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"False\n"
