"""What plugins keep open: entered before the first request, left after the last call, and its faults stay its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

import flightlog
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Scope, Service, Tool
from flightlog_hookspecs.errors import OutcomeUnknown, PluginError
from flightlog_hookspecs.events import PluginFault, RequestHeader, ToolResult
from support.kernels import events_of, opened

Lifespan = Callable[[Scope], AbstractAsyncContextManager[object]]


def tool_of(name: str, body: Callable[[], object] = lambda: "ok") -> Tool:
    return Tool(body=body, name=name, description="A tool.")


def noting(seen: list[str], *tools: Tool) -> Lifespan:
    """A service that offers `tools` and says when it is entered and left."""

    @asynccontextmanager
    async def lifespan(scope: Scope) -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        scope.offer(Bundle(tools=tools))
        seen.append("entered")
        yield
        seen.append("left")

    return lifespan


def serving(lifespan: Lifespan, **options: float) -> Bundle:
    return Bundle(services=[Service(name="it", lifespan=lifespan, **options)])


def offered_in(path: Path) -> list[list[str]]:
    """The tools of each head."""
    return [[tool.name for tool in header.head.tools] for header in events_of(path, RequestHeader)]


@asynccontextmanager
async def served(
    tmp_path: Path, plugin: Bundle, *tools: Tool
) -> AsyncIterator[tuple[flightlog.Kernel, flightlog.Session]]:
    async with (
        opened(tmp_path / "log.db", FakeModel([]), *tools, plugins=[plugin]) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        yield kernel, session


async def turn(session: flightlog.Session, text: str = "go") -> None:
    await session.followup(text)
    await session.run()


async def test_it_is_entered_before_the_first_request_and_left_when_the_kernel_closes(tmp_path: Path) -> None:
    seen: list[str] = []
    async with opened(tmp_path / "log.db", FakeModel([]), plugins=[serving(noting(seen, tool_of("a")))]) as kernel:
        async with kernel.session("s", model="fake:m") as session:
            await turn(session)
        assert seen == ["entered"]
    assert seen == ["entered", "left"]
    assert offered_in(tmp_path / "log.db") == [["a"]]


async def test_one_of_a_session_is_entered_for_it_and_left_with_it(tmp_path: Path) -> None:
    seen: list[str] = []
    async with opened(tmp_path / "log.db", FakeModel([])) as kernel:
        async with kernel.session("s", model="fake:m") as session:
            registration = session.register(serving(noting(seen, tool_of("a"))))
            await turn(session)
            assert "a" not in kernel.registry.tools
        assert seen == ["entered", "left"]
        assert registration.closed
    assert offered_in(tmp_path / "log.db") == [["a"]]


def test_where_a_log_is_only_read_none_is_entered(tmp_path: Path) -> None:
    with flightlog.sync.open_kernel(tmp_path / "log.db", discover=False):
        pass
    seen: list[str] = []
    with flightlog.open_log(tmp_path / "log.db", discover=False, plugins=[serving(noting(seen))]):
        pass
    assert seen == []


async def test_a_turn_waits_for_a_slow_one_as_long_as_that_may_take_and_no_later_turn_does(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    @asynccontextmanager
    async def slow(scope: Scope) -> AsyncIterator[None]:
        await trio.sleep(1000)
        yield

    async with served(tmp_path, serving(slow, ready_s=7.0)) as (_kernel, session):
        start = trio.current_time()
        await turn(session)
        assert trio.current_time() == start + 7
        await turn(session)
        assert trio.current_time() == start + 7


@pytest.mark.parametrize("whose", ["the service's", "the plugin's own"])
async def test_it_is_left_after_the_last_call_also_when_waiting_for_that_is_cancelled(
    tmp_path: Path, whose: str
) -> None:
    seen: list[str] = []
    inside, go_on = trio.Event(), trio.Event()

    async def body() -> str:
        inside.set()
        await go_on.wait()
        seen.append("called")
        return "ok"

    model = FakeModel([calls(("a", {}))])
    async with opened(tmp_path / "log.db", model) as kernel, kernel.session("s", model="fake:m") as session:
        tool = tool_of("a", body)
        service = Service(name="it", lifespan=noting(seen, *([tool] if whose == "the service's" else [])))
        registration = kernel.register(Bundle(tools=[] if whose == "the service's" else [tool], services=[service]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn, session)
            await inside.wait()
            with trio.CancelScope() as scope:
                scope.cancel()
                await registration.aclose()
            assert "a" not in kernel.registry.tools
            await trio.testing.wait_all_tasks_blocked()
            assert seen == ["entered"]
            go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert seen == ["entered", "called", "left"]


async def test_a_call_may_take_back_the_plugin_whose_service_offers_it(tmp_path: Path) -> None:
    seen: list[str] = []
    held: list[flightlog.Registration] = []

    async def body() -> str:
        await held[0].aclose()
        return "closed"

    model = FakeModel([calls(("a", {}))])
    async with opened(tmp_path / "log.db", model) as kernel, kernel.session("s", model="fake:m") as session:
        held.append(kernel.register(serving(noting(seen, tool_of("a", body)))))
        await turn(session)
    assert [result.text for result in events_of(tmp_path / "log.db", ToolResult)] == ["closed"]
    assert seen == ["entered", "left"]


async def test_what_it_offers_anew_takes_the_place_of_what_it_offered_at_the_next_turn(tmp_path: Path) -> None:
    scopes: list[Scope] = []

    @asynccontextmanager
    async def lifespan(scope: Scope) -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        scopes.append(scope)
        yield

    async with served(tmp_path, serving(lifespan), tool_of("mine")) as (kernel, session):
        await trio.testing.wait_all_tasks_blocked()
        for names in (["a"], ["a", "b"], [], ["c"]):
            scopes[0].offer(Bundle(tools=[tool_of(name) for name in names]) if names else None)
            await turn(session)
        with pytest.raises(PluginError, match="exists already"):
            scopes[0].offer(Bundle(tools=[tool_of("d"), tool_of("mine")]))
        with pytest.raises(PluginError, match="no services of its own"):
            scopes[0].offer(serving(lifespan))
        assert sorted(kernel.registry.tools) == ["c", "mine"]
    scopes[0].offer(Bundle(tools=[tool_of("late")]))
    assert offered_in(tmp_path / "log.db") == [["a", "mine"], ["a", "b", "mine"], ["mine"], ["c", "mine"]]


@pytest.mark.parametrize("when", ["entering", "running", "leaving"])
async def test_one_that_fails_is_listed_and_all_else_goes_on(tmp_path: Path, when: str) -> None:
    fails = trio.Event()

    async def failing() -> None:
        await fails.wait()
        raise OSError("planted")

    @asynccontextmanager
    async def lifespan(scope: Scope) -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        scope.offer(Bundle(tools=[tool_of("a")]))
        if when == "entering":
            raise OSError("planted")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(failing)
            yield
            fails.set()

    async with served(tmp_path, serving(lifespan)) as (kernel, session):
        await turn(session)
        if when == "running":
            fails.set()
            await trio.testing.wait_all_tasks_blocked()
        await turn(session)
        await turn(session)
        faults = [("it", "planted" in problem.error) for problem in kernel.registry.problems]
        assert faults == ([] if when == "leaving" else [("it", True)])
        assert ("a" in kernel.registry.tools) == (when == "leaving")
    told = events_of(tmp_path / "log.db", PluginFault)
    assert [fault.hook for fault in told] == ([] if when == "leaving" else ["service it"])


async def test_a_problem_is_told_once_until_it_is_over(tmp_path: Path) -> None:
    scopes: list[Scope] = []

    @asynccontextmanager
    async def lifespan(scope: Scope) -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        scopes.append(scope)
        yield

    async with served(tmp_path, serving(lifespan)) as (kernel, session):
        await turn(session)
        for error in ("down", "down", "", "down"):
            scopes[0].problem(error)
            await turn(session)
        assert [problem.error for problem in kernel.registry.problems] == ["down"]
    assert [fault.error for fault in events_of(tmp_path / "log.db", PluginFault)] == ["down", "down"]


async def test_one_that_does_not_end_is_cancelled(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    @asynccontextmanager
    async def lifespan(scope: Scope) -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        yield
        await trio.sleep_forever()

    async with served(tmp_path, serving(lifespan)) as (_kernel, session):
        await turn(session)


@pytest.mark.parametrize(("effect", "outcome"), [("external", "unknown"), ("read", "error")])
async def test_a_body_may_say_that_it_does_not_know_the_outcome(tmp_path: Path, effect: str, outcome: str) -> None:
    def body() -> str:
        raise OutcomeUnknown("no answer came")

    tool = Tool(body=body, name="a", description="A tool.", effect=effect)
    model = FakeModel([calls(("a", {})), calls(("a", {})), words("ok")])
    async with opened(tmp_path / "log.db", model, tool) as kernel, kernel.session("s", model="fake:m") as session:
        await turn(session)
    first, second = events_of(tmp_path / "log.db", ToolResult)
    assert first.outcome == outcome
    assert first.text.startswith("no answer came")
    assert second.outcome == ("denied" if outcome == "unknown" else "error")
