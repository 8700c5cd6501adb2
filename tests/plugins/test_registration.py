"""Plugins that come and go while sessions live: each is taken back whole, at rest, and what was sent stays sent."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

import flightlog
from flightlog import Session, aio, sync
from flightlog.runtime.plugins import register
from flightlog.runtime.registry import Registry
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Ask, Deny, Hook, Point, PromptSection, ProposedCall, Tool, hookimpl, specs, tool
from flightlog_hookspecs.errors import PluginError, UsageError
from flightlog_hookspecs.events import (
    PluginFault,
    PluginLoaded,
    PluginUnloaded,
    RequestHeader,
    RequestSent,
    SessionOpened,
    ToolResult,
    TurnEnd,
)
from support.kernels import events_of, opened, outcomes_of, session_of, trio_clock, verified
from support.memory_folder import subfolder


def named(name: str, text: str = "") -> Tool:
    """A tool that says `text`."""
    return Tool(body=lambda: text or name, name=name, description="Say a name.", effect="read")


def hook(point: Point, name: str, body: Callable[[object], object]) -> Hook:
    """A hook."""
    return Hook(point=point, body=body, name=name)


def tool_names(path: Path, name: str = "s") -> list[list[str]]:
    """The tools in each head that was sent."""
    return [[spec.name for spec in header.head.tools] for header in events_of(path, RequestHeader, name)]


async def say(session: Session, text: str = "go") -> flightlog.Turn:
    """Run one turn."""
    await session.followup(text)
    turn = await session.run()
    assert turn is not None
    return turn


# Taking back what runs


async def test_a_registration_closed_while_its_tool_runs_waits_for_its_result(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    started, go = trio.Event(), trio.Event()

    @tool(effect="write")
    async def slow() -> str:
        """Be slow."""
        started.set()
        await go.wait()
        return "done in the end"

    model = FakeModel([calls(("slow", {})), calls(("slow", {})), words("I see.")])
    async with opened(path, model) as kernel, kernel.session("s", model="fake:m") as session:
        registration = kernel.register(Bundle(tools=[slow]))
        await session.followup("go")
        at_rest: list[list[str]] = []

        async def close() -> None:
            await started.wait()
            async with trio.open_nursery() as closing:
                closing.start_soon(registration.aclose)
                await trio.testing.wait_all_tasks_blocked()
                assert registration.closed
                assert "slow" not in kernel.registry.tools
                go.set()
            at_rest.append([result.text for result in events_of(path, ToolResult)])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            await session.run()
        assert at_rest == [["done in the end"]], "the result is committed before closing returns"
        assert outcomes_of(path) == ["ok", "error"], "the same call again finds nothing to call"
        assert "no tool named 'slow'" in events_of(path, ToolResult)[1].text
        assert tool_names(path) == [["slow"]], "the running turn keeps its head"
        await say(session, "again")
        assert tool_names(path) == [["slow"], []], "the next one has a new one"
    assert verified(path, model)


async def test_a_call_that_waits_behind_another_is_not_started_once_its_tool_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    taken: list[str] = []

    @tool(effect="write")
    async def taker() -> str:
        """Take the other one back."""
        await registration.aclose()
        return "taken"

    @tool(effect="write")
    async def late() -> str:
        """Never run."""
        taken.append("ran")
        return "ran"

    model = FakeModel([calls(("taker", {}), ("late", {})), words("ok")])
    async with opened(path, model, taker) as kernel, kernel.session("s", model="fake:m") as session:
        registration = kernel.register(Bundle(tools=[late]))
        assert (await say(session)).reason == "completed"
    assert taken == []
    assert outcomes_of(path) == ["ok", "error"]
    assert "no tool named 'late' any more" in events_of(path, ToolResult)[1].text
    assert verified(path, model)


async def test_a_call_that_waits_for_a_person_is_not_started_once_its_tool_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([calls(("late", {})), words("ok")])
    ask = hook("before_tool", "ask", lambda call: Ask("may it?"))
    async with (
        opened(path, model) as kernel,
        kernel.session("s", model="fake:m", approver=True) as session,
        kernel.register(Bundle(hooks=[ask])),
    ):
        registration = kernel.register(Bundle(tools=[named("late")]))
        await session.followup("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            while not session.questions():
                await trio.lowlevel.checkpoint()
            await registration.aclose()
            await session.approve(session.questions()[0].seq)
    assert outcomes_of(path) == ["error"]


async def test_a_tool_can_take_back_its_own_plugin(tmp_path: Path) -> None:
    """It cannot wait for itself, so closing from inside does not wait."""
    path = tmp_path / "a.db"

    @tool(effect="write")
    async def farewell() -> str:
        """Take itself back."""
        await registration.aclose()
        return "gone"

    model = FakeModel([calls(("farewell", {})), words("ok")])
    async with opened(path, model) as kernel, kernel.session("s", model="fake:m") as session:
        registration = kernel.register(Bundle(tools=[farewell]))
        assert (await say(session)).reason == "completed"
    assert outcomes_of(path) == ["ok"]


async def test_cancelling_the_one_who_closes_stops_the_waiting_only(tmp_path: Path) -> None:
    started, go = trio.Event(), trio.Event()

    @tool(effect="write")
    async def slow() -> str:
        """Be slow."""
        started.set()
        await go.wait()
        return "done"

    async with (
        opened(tmp_path / "a.db", FakeModel([calls(("slow", {}))])) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        registration = kernel.register(Bundle(tools=[slow]))
        await session.followup("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await started.wait()
            with trio.CancelScope() as scope:
                scope.cancel()
                await registration.aclose()
            assert scope.cancelled_caught
            assert registration.closed
            go.set()
    assert outcomes_of(tmp_path / "a.db") == ["ok"]


async def test_an_adapter_taken_back_in_mid_stream_finishes_and_the_next_request_says_it_is_gone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    started, go = trio.Event(), trio.Event()

    async def pause() -> None:
        started.set()
        await go.wait()

    fleeting = FakeModel([[*words("half"), pause, *calls(("look", {}))]], name="fleeting")
    async with opened(path, FakeModel([]), named("look")) as kernel:
        registration = kernel.register(Bundle(adapters=[fleeting]))
        async with kernel.session("s", model="fleeting:m") as session:
            await session.followup("go")
            turns: list[flightlog.Turn | None] = []

            async def run() -> None:
                turns.append(await session.run())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await started.wait()
                nursery.start_soon(registration.aclose)
                await trio.testing.wait_all_tasks_blocked()
                go.set()
            assert outcomes_of(path) == ["ok"], "the answer was taken whole"
            (turn,) = turns
            assert turn is not None
            assert turn.reason == "error"
            assert "no adapter named 'fleeting'" in turn.message
            async with kernel.register(Bundle(adapters=[fleeting])):
                assert (await say(session, "again")).reason == "completed"
    assert verified(path, fleeting)


async def test_a_hook_taken_back_while_those_before_it_are_asked_is_not_asked(tmp_path: Path) -> None:
    path, asked = tmp_path / "a.db", list[str]()

    async def first(view: object) -> None:
        await late.aclose()

    async with session_of(path, FakeModel([words("ok")])) as session:
        early = session.register(Bundle(hooks=[hook("before_step", "first", first)]))
        late = session.register(Bundle(hooks=[hook("before_step", "late", lambda view: asked.append("late"))]))
        assert (await say(session)).reason == "completed"
        assert late.closed
        assert not early.closed
        await early.aclose()
    assert asked == []


# Scopes


async def test_a_session_shadows_its_kernel_and_leaves_no_trace_in_other_sessions(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    model = FakeModel([calls(("look", {})), words("ok")])
    async with opened(path, model, named("look", "kernel's")) as kernel:
        async with (
            kernel.session("inner", model="fake:m") as inner,
            kernel.session("other", model="fake:m") as other,
            inner.register(Bundle(tools=[named("look", "session's"), named("extra")])),
        ):
            await say(inner)
            await say(other)
            assert list(kernel.registry.tools) == ["look"]
        async with kernel.session("inner") as again:
            await say(again)
    assert [result.text for result in events_of(path, ToolResult, "inner")] == ["session's"]
    assert [result.text for result in events_of(path, ToolResult, "other")] == ["kernel's"]
    assert tool_names(path, "inner") == [["extra", "look"], ["look"]]


async def test_a_session_cannot_shadow_a_guard_of_its_kernel(tmp_path: Path) -> None:
    path, asked = tmp_path / "a.db", list[str]()

    def guard(name: str, answer: object) -> Hook:
        def body(call: ProposedCall) -> object:
            asked.append(name)
            return answer

        return hook("before_tool", "guard", body)  # type: ignore[arg-type]

    model = FakeModel([calls(("look", {})), words("ok")])
    async with (
        opened(path, model, named("look")) as kernel,
        kernel.session("s", model="fake:m") as session,
        session.register(Bundle(hooks=[guard("session's", None)])),
        kernel.register(Bundle(hooks=[guard("kernel's", Deny("never"))])),
    ):
        await say(session)
    assert asked == ["kernel's", "session's"], "the kernel's first, whichever came first"
    assert outcomes_of(path) == ["denied"]


async def test_what_a_session_leaves_registered_is_taken_back_with_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        async with kernel.session("s", model="fake:m") as session:
            registration = session.register(Bundle(tools=[named("mine")]))
            assert not registration.closed
        assert registration.closed
        await registration.aclose()
        with pytest.raises(UsageError, match="is closed"):
            session.register(Bundle(tools=[named("late")]))


async def test_closing_twice_and_after_the_kernel_is_gone_does_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        first = kernel.register(Bundle(tools=[named("one")]))
        await first.aclose()
        async with kernel.register(Bundle(tools=[named("one")])) as second:
            await first.aclose()
            assert list(kernel.registry.tools) == ["one"], "it is another registration's by then"
            assert not second.closed
        third = kernel.register(Bundle(tools=[named("one")]))
    assert third.closed
    await third.aclose()
    del kernel
    gc.collect()
    await third.aclose()


async def test_one_that_is_dropped_unclosed_warns_and_stays_registered(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        with pytest.warns(ResourceWarning, match="plugin 'Bundle' was dropped without being closed"):
            kernel.register(Bundle(tools=[named("kept")]))
        assert list(kernel.registry.tools) == ["kept"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gc.collect()


class HalfWay:
    """Offers one of everything, then fails."""

    @hookimpl
    def register_adapters(self, register: Callable[[object], None]) -> None:
        register(FakeModel([], name="half"))

    @hookimpl
    def register_tools(self, register: Callable[[Tool], None]) -> None:
        register(named("half"))

    @hookimpl
    def register_prompt_sections(self, register: Callable[[PromptSection], None]) -> None:
        register(PromptSection(name="half", rank=1, render=lambda: "half"))

    @hookimpl
    def register_hooks(self, register: Callable[[Hook], None]) -> None:
        register(hook("before_step", "half", lambda view: None))
        raise ValueError("half way")


KEEPS = [name for name in vars(specs) if name.startswith("register_")]


@pytest.mark.parametrize("keeps", KEEPS)
async def test_nothing_is_registered_once_its_hook_has_returned(tmp_path: Path, keeps: str) -> None:
    kept: list[Callable[[object], None]] = []
    late = type("Late", (), {keeps: hookimpl(lambda self, register: kept.append(register), specname=keeps)})()
    one = Tool(body=lambda: "", name="one", description="One.", effect="read")
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        registration = kernel.register(late)
        with pytest.raises(UsageError, match="registered too late"):
            kept[0](one)
        await registration.aclose()
        assert list(kernel.registry.tools) == []


async def test_a_plugin_takes_back_what_is_its_own_only(tmp_path: Path) -> None:
    """Whatever stands under its names by then."""
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        registration = kernel.register(Bundle(tools=[named("one"), named("two")]))
        del kernel.registry._tools["one"]
        other = kernel.register(Bundle(tools=[named("one", "another")]))
        await registration.aclose()
        assert list(kernel.registry.tools) == ["one"]
        await other.aclose()
        assert list(kernel.registry.tools) == []


@pytest.mark.parametrize(
    "plugin", [HalfWay(), Bundle(sections=[PromptSection(name="new", rank=1, render=str)], tools=[named("look")])]
)
async def test_setup_that_fails_registers_nothing_in_either_scope(tmp_path: Path, plugin: object) -> None:
    async with (
        opened(tmp_path / "a.db", FakeModel([]), named("look")) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        session_scope = session._registry
        async with session.register(Bundle(tools=[named("look")])):
            before = snapshot(session_scope)
            for scope in (kernel, session):
                with pytest.raises(PluginError):
                    scope.register(plugin)
            assert snapshot(session_scope) == before


def snapshot(registry: Registry) -> object:
    """All that is registered, by name."""
    return (
        {name: entry.item.tool.body() for name, entry in registry.tools.items()},
        sorted(registry.adapters),
        sorted(registry.sections),
        [(entry.item.point, entry.item.name) for point in ("before_step",) for entry in registry.hooks(point)],
        registry.versions,
    )


# In the log


async def test_the_log_of_each_live_session_says_what_came_and_went(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    class Extra(Bundle):
        __version__ = "3"

    async with (
        opened(path, FakeModel([words("ok")])) as kernel,
        kernel.session("a", model="fake:m") as a,
        kernel.session("b", model="fake:m") as b,
    ):
        await say(a)
        registration = kernel.register(Extra(tools=[named("x")]))
        await say(a)
        await say(b)
        await registration.aclose()
        await say(a)
    came, went = PluginLoaded(plugin="Extra", version="3"), PluginUnloaded(plugin="Extra", version="3")
    assert events_of(path, PluginLoaded, "a") == events_of(path, PluginLoaded, "b") == [came]
    assert events_of(path, PluginUnloaded, "a") == [went]
    assert events_of(path, PluginUnloaded, "b") == [], "it asked for nothing more"
    assert [plugin.name for plugin in events_of(path, SessionOpened, "a")[0].plugins] == ["Bundle"]
    assert verified(path, FakeModel([]), name="a")


async def test_a_plugin_that_comes_in_the_middle_of_a_turn_is_in_the_log_before_it_is_heard(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    kept: list[flightlog.Registration] = []

    class Guard(Bundle):
        """A plugin that fails."""

    def broken(view: object) -> None:
        raise RuntimeError("no")

    @tool(effect="read")
    async def look() -> str:
        """Register a plugin from inside."""
        kept.append(kernel.register(Guard(hooks=[hook("turn_stopping", "broken", broken)])))
        return "registered"

    model = FakeModel([calls(("look", {})), words("ok")])
    async with opened(path, model, look) as kernel, kernel.session("s", model="fake:m") as session:
        assert (await say(session)).reason == "completed"
    (fault,) = events_of(path, PluginFault)
    assert fault.plugin == "Guard"
    assert events_of(path, PluginLoaded) == [PluginLoaded(plugin="Guard", version="")]
    assert verified(path, model)


# From where


async def test_registering_from_another_thread_is_refused_before_any_effect(tmp_path: Path) -> None:
    path, asked = tmp_path / "a.db", list[str]()

    @tool(effect="read")
    def look() -> str:
        """Register from a thread, wrongly, then rightly."""
        plugin = Bundle(hooks=[hook("before_step", "seen", lambda view: asked.append("seen"))])
        with pytest.raises(UsageError, match="kernel's own thread"):
            kernel.register(plugin)
        kept.append(trio.from_thread.run_sync(kernel.register, plugin))
        return "ok"

    kept: list[flightlog.Registration] = []
    model = FakeModel([calls(("look", {})), words("ok")])
    async with opened(path, model, look) as kernel, kernel.session("s", model="fake:m") as session:
        await say(session)
        assert outcomes_of(path) == ["ok"]
    assert asked == ["seen"]


async def test_a_section_can_be_registered_from_inside_a_hook_and_is_told_next(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    kept: list[flightlog.Registration] = []

    async def add(call: object) -> None:
        section = PromptSection(name="late", rank=1, render=lambda: "Late news.", kind="runtime")
        kept.append(session.register(Bundle(sections=[section])))

    model = FakeModel([calls(("look", {})), words("ok")])
    async with opened(path, model, named("look")) as kernel, kernel.session("s", model="fake:m") as session:
        async with session.register(Bundle(hooks=[hook("after_tool", "add", add)])):
            await say(session)
        assert any("Late news." in message.text for message in kernel.read("s").messages())
    assert len({sent.header_seq for sent in events_of(path, RequestSent)}) == 1


async def test_a_tool_in_a_thread_can_take_back_its_own_plugin(tmp_path: Path) -> None:
    @tool(effect="write")
    def farewell() -> str:
        """Take itself back, from a thread."""
        trio.from_thread.run(registration.aclose)
        return "gone"

    model = FakeModel([calls(("farewell", {})), words("ok")])
    async with opened(tmp_path / "a.db", model) as kernel, kernel.session("s", model="fake:m") as session:
        registration = kernel.register(Bundle(tools=[farewell]))
        assert (await say(session)).reason == "completed"
    assert outcomes_of(tmp_path / "a.db") == ["ok"]


async def test_registering_with_a_kernel_that_is_closed_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel:
        pass
    with pytest.raises(UsageError, match="is closed"):
        kernel.register(Bundle(tools=[named("late")]))


# The other faces


def test_blocking_hosts_register_and_take_back(tmp_path: Path) -> None:
    kept: list[sync.Registration] = []
    threads: list[str] = []

    @tool(effect="write", isolation="thread")
    def farewell() -> str:
        """Take itself back, from a thread."""
        threads.append(threading.current_thread().name)
        kept[0].close()
        return "gone"

    model = FakeModel([calls(("farewell", {})), words("ok")])
    with (
        sync.open_kernel(tmp_path / "a.db", discover=False, plugins=[Bundle(adapters=[model])]) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        kept.append(kernel.register(Bundle(tools=[farewell])))
        with session.register(Bundle(tools=[named("look")])) as registration:
            assert (registration.name, registration.closed) == ("Bundle", False)
            session.followup("go")
            assert session.run().reason == "completed"
        assert registration.closed
        registration.close()
    assert kept[0].closed
    assert outcomes_of(tmp_path / "a.db") == ["ok"]
    assert tool_names(tmp_path / "a.db") == [["farewell", "look"]]


def test_asyncio_hosts_register_and_take_back(tmp_path: Path) -> None:
    async def main() -> None:
        plugins = [Bundle(adapters=[FakeModel([words("ok")])])]
        async with aio.open_kernel(tmp_path / "a.db", discover=False, plugins=plugins) as kernel:
            async with kernel.session("s", model="fake:m") as session:
                async with await kernel.register(Bundle(tools=[named("one")])) as first:
                    second = await session.register(Bundle(tools=[named("two")]))
                    await session.followup("go")
                    await session.run()
                assert first.closed
                with pytest.raises(PluginError):
                    await kernel.register(object())
            assert second.closed
            await second.aclose()

    asyncio.run(main())
    assert tool_names(tmp_path / "a.db") == [["one", "two"]]


# For all sequences


@frozen
class Entered:
    """One registration in the model: where, which names, which number."""

    scope: int
    names: frozenset[str]
    number: int


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 1), st.frozensets(st.sampled_from("abc"))),
        st.tuples(st.just("close"), st.integers(0, 20), st.none()),
    ),
    max_size=20,
)


@given(steps=STEPS)
def test_inner_shadows_outer_and_hooks_keep_their_order_whatever_opens_and_closes(
    steps: list[tuple[str, int, frozenset[str] | None]],
) -> None:
    kernel = Registry()
    scopes = [kernel, Registry(outer=kernel)]
    numbers = count()
    model: list[Entered] = []
    held: dict[int, flightlog.Registration] = {}

    async def perform() -> None:
        for what, which, names in steps:
            if what == "open":
                assert names is not None
                number = next(numbers)
                plugin = Bundle(
                    tools=[named(name, f"{number}") for name in sorted(names)],
                    sections=[PromptSection(name=name, rank=number, render=str) for name in sorted(names)],
                    hooks=[hook("before_step", f"{number}", lambda view: None)],
                )
                taken = any(entry.names & names for entry in model if entry.scope == which)
                if taken:
                    with pytest.raises(PluginError, match="exists already"):
                        register(scopes[which], plugin)
                else:
                    held[number] = register(scopes[which], plugin)
                    model.append(Entered(which, names, number))
            elif held:
                number = sorted(held)[which % len(held)]
                await held[number].aclose()
                model[:] = [entry for entry in model if entry.number != number]
            for scope, registry in enumerate(scopes):
                compare(registry, scope)
        for registration in held.values():
            await registration.aclose()

    def compare(registry: Registry, scope: int) -> None:
        visible = [entry for outer in range(scope + 1) for entry in model if entry.scope == outer]
        expected = {name: f"{entry.number}" for entry in visible for name in entry.names}
        assert {name: entry.item.tool.body() for name, entry in registry.tools.items()} == expected
        assert {name: f"{entry.item.rank}" for name, entry in registry.sections.items()} == expected
        assert [entry.item.name for entry in registry.hooks("before_step")] == [f"{e.number}" for e in visible]
        assert len(registry.versions) == len(visible)

    trio.run(perform)


async def test_a_turn_that_ends_in_error_names_the_adapter_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as kernel:
        registration = kernel.register(Bundle(adapters=[FakeModel([], name="brief")]))
        async with kernel.session("s", model="brief:m") as session:
            await registration.aclose()
            turn = await say(session)
    assert (turn.reason, "no adapter named 'brief'" in turn.message) == ("error", True)
    assert [end.reason for end in events_of(path, TurnEnd)] == ["error"]


# For all interleavings


@given(seed=st.integers(0, 2**32 - 1))
def test_nothing_of_a_plugin_starts_once_closing_it_has_returned(seed: int, tmp_path: Path) -> None:
    """Plugins come and go at random moments of a turn that calls their tools, asks their guards and sections."""
    path = subfolder(tmp_path) / "a.db"
    chance = random.Random(seed)
    gone: set[int] = set()
    running: dict[int, int] = dict.fromkeys(range(3), 0)
    late: list[str] = []

    def made(number: int) -> Bundle:
        async def at(what: str) -> None:
            if number in gone:
                late.append(f"{what} {number} started")
            running[number] += 1
            try:
                await trio.sleep(chance.choice([0, 0, 0.1, 1]))
            finally:
                running[number] -= 1

        async def body() -> str:
            await at("tool")
            return "ok"

        async def guard(view: object) -> None:
            await at("hook")

        async def render() -> str:
            await at("section")
            return "text"

        one = Tool(
            body=body,
            name=f"tool_{number}",
            description="Work.",
            effect="write",
            mode=chance.choice(["parallel", "exclusive"]),
        )
        points: list[Point] = ["before_step", "before_request", "before_tool", "after_tool", "turn_stopping"]
        return Bundle(
            tools=[one],
            hooks=[hook(point, f"{point} {number}", guard) for point in points],
            sections=[PromptSection(name=f"s{number}", rank=1, render=render, kind="runtime")],
        )

    wanted = calls(*[(f"tool_{chance.randrange(3)}", {}) for _ in range(4)])
    model = FakeModel([wanted, wanted, words("ok")])

    async def main() -> None:
        async with opened(path, model, clock=trio_clock()) as kernel, kernel.session("s", model="fake:m") as session:
            held = {number: chance.choice([kernel, session]).register(made(number)) for number in range(3)}

            async def come_and_go(number: int) -> None:
                await trio.sleep(chance.uniform(0, 8))
                await held[number].aclose()
                gone.add(number)
                if running[number]:
                    late.append(f"{number} still runs")
                if chance.random() < 0.5:
                    await trio.sleep(chance.uniform(0, 2))
                    gone.discard(number)
                    held[number] = chance.choice([kernel, session]).register(made(number))

            async with trio.open_nursery() as nursery:
                for number in range(3):
                    nursery.start_soon(come_and_go, number)
                for _ in range(2):
                    assert (await say(session)).reason == "completed"
            for registration in held.values():
                await registration.aclose()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert late == []
    assert verified(path, model)
