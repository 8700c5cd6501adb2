"""Tools that fail, hang or misbehave, and calls that cannot be run: one answered call each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from flightlog import Limits, tool
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import Tool, ToolOutput
from flightlog_hookspecs.errors import ToolError
from flightlog_hookspecs.events import ToolCall, ToolResult
from support.kernels import events_of, outcomes_of, session_of, trio_clock, verified


@tool(mode="parallel", effect="read")
async def add(a: int, b: int = 1) -> str:
    """Add two numbers."""
    return str(a + b)


async def answered(path: Path, model: FakeModel, *tools: Tool, **options: object) -> list[ToolResult]:
    """Run one turn, check that the session goes on after it; returns the results in call order."""
    async with session_of(path, model, *tools, **options) as session:
        await session.followup("hi")
        turn = await session.run()
        assert (turn.number, turn.reason) == (1, "completed")
        await session.followup("again")
        assert (await session.run()).reason == "completed"
    assert verified(path, model)
    return sorted(events_of(path, ToolResult), key=lambda result: result.position)


async def test_an_unknown_tool_is_answered_with_the_names_there_are(tmp_path: Path) -> None:
    (result,) = await answered(tmp_path / "a.db", FakeModel([calls(("sub", {}))]), add)
    assert (result.outcome, result.call_seq) == ("error", None)
    assert result.text == "There is no tool named 'sub'. Available: add."
    assert events_of(tmp_path / "a.db", ToolCall) == []


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("[1, 2]", "must be a JSON object, not list"),
        ("5", "must be a JSON object, not int"),
        ('"a"', "must be a JSON object, not str"),
        ("null", "must be a JSON object, not NoneType"),
        ('{"a": NaN}', "NaN"),
        ('{"a": Infinity}', "Infinity"),
        ('{"a": 1', "not valid JSON"),
        ('{"a": "cut of', "not valid JSON"),
        ("{'a': 1}", "not valid JSON"),
        ('{"a": 1} trailing', "not valid JSON"),
        ('{"a": 1, "a": 2}', "duplicate key"),
        ('{"a": 99999999999999999999}', "64 bits"),
        ("[" * 100_000, "nested"),
        ('{"a":' * 300 + "1" + "}" * 300, "nested"),
        ('{"a": "1"}', "is not of type 'integer'"),
        ('{"a": 1.5}', "is not of type 'integer'"),
        ('{"a": true}', "is not of type 'integer'"),
        ('{"a": null}', "is not of type 'integer'"),
        ("{}", "'a' is a required property"),
        ('{"a": 1, "c": 2}', "'c'"),
        ("\0", "not valid JSON"),
        ("\ud800", "not valid JSON"),
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0][:30],
)
async def test_arguments_that_do_not_fit_are_answered_so_that_the_model_can_mend_them(
    tmp_path: Path, raw: str, says: str
) -> None:
    model = FakeModel([calls(("add", raw), ("add", {"a": 1}))])
    bad, good = await answered(tmp_path / "a.db", model, add)
    assert (bad.outcome, bad.call_seq) == ("error", None)
    assert says in bad.text
    assert (good.outcome, good.text) == ("ok", "2")
    assert len(bad.text) < 2000


async def test_missing_arguments_are_none_at_all(tmp_path: Path) -> None:
    @tool(effect="read")
    async def now() -> str:
        """Tell the time."""
        return "noon"

    results = await answered(tmp_path / "a.db", FakeModel([calls(("now", ""), ("now", "  "), ("now", "{}"))]), now)
    assert [result.text for result in results] == ["noon"] * 3


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Weird(BaseException):
    """Neither an error nor an exit."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        SystemExit(3),
        GeneratorExit(),
        StopIteration(5),
        StopAsyncIteration(),
        RecursionError(),
        MemoryError(),
        Weird("w"),
        Unprintable(),
        ExceptionGroup("g", [ValueError("a"), ValueError("b")]),
        BaseExceptionGroup("g", [SystemExit(1), GeneratorExit()]),
        trio.TooSlowError(),
        ValueError("nul\0 and lone \ud800"),
        ValueError("x" * 1_000_000),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_whatever_a_body_raises_is_one_error_result(tmp_path: Path, error: BaseException, kind: str) -> None:
    async def raises_async() -> str:
        raise error

    def raises() -> str:
        raise error

    body = raises_async if kind == "async" else raises
    broken = Tool(body=body, name="broken", description="Fail.", mode="parallel", effect="write")
    model = FakeModel([calls(("broken", {}), ("add", {"a": 1}))])
    bad, good = await answered(tmp_path / "a.db", model, broken, add)
    assert (bad.outcome, good.outcome) == ("error", "ok")
    assert bad.call_seq is not None
    assert len(bad.text) < 40_000


async def test_a_tool_error_speaks_to_the_model_in_its_own_words(tmp_path: Path) -> None:
    @tool(effect="read")
    async def picky() -> str:
        """Refuse."""
        raise ToolError("say please")

    (result,) = await answered(tmp_path / "a.db", FakeModel([calls(("picky", {}))]), picky)
    assert (result.outcome, result.text) == ("error", "say please")


async def test_a_tool_error_without_words_is_still_an_answer(tmp_path: Path) -> None:
    @tool(effect="read")
    async def mute() -> str:
        """Refuse without a reason."""
        raise ToolError

    (result,) = await answered(tmp_path / "a.db", FakeModel([calls(("mute", {}))]), mute)
    assert result.outcome == "error"


@pytest.mark.parametrize(
    ("effect", "outcome"),
    [("read", "timeout"), ("idempotent", "timeout"), ("write", "unknown"), ("external", "unknown")],
)
async def test_a_call_that_runs_out_of_time_is_judged_by_its_effect(
    tmp_path: Path, autojump_clock: object, effect: str, outcome: str
) -> None:
    async def hangs() -> str:
        await trio.sleep_forever()

    slow = Tool(body=hangs, name="slow", description="Hang.", effect=effect, timeout_s=5.0)
    model = FakeModel([calls(("slow", {}))])
    (result,) = await answered(tmp_path / "a.db", model, slow, clock=trio_clock())
    assert result.outcome == outcome
    assert "did not finish within 5 s" in result.text
    assert 5_000_000 <= result.duration_us < 5_100_000
    assert ("safe to call again" in result.text) == (outcome == "timeout")


async def test_a_body_that_swallows_its_time_out_keeps_the_result_it_came_to(
    tmp_path: Path, autojump_clock: object
) -> None:
    async def stubborn() -> str:
        with trio.move_on_after(60, shield=True):
            await trio.sleep(20)
        return "late but true"

    slow = Tool(body=stubborn, name="slow", description="Take long.", effect="write", timeout_s=5.0)
    (result,) = await answered(tmp_path / "a.db", FakeModel([calls(("slow", {}))]), slow)
    assert (result.outcome, result.text) == ("ok", "late but true")


async def test_a_sync_body_that_hangs_costs_its_call_and_not_the_loop(tmp_path: Path) -> None:
    release, ended = threading.Event(), threading.Event()

    def hangs() -> str:
        release.wait()
        ended.set()
        return "too late"

    slow = Tool(body=hangs, name="slow", description="Hang.", mode="parallel", effect="write", timeout_s=0.05)
    model = FakeModel([calls(("slow", {}), ("add", {"a": 1}))])
    bad, good = await answered(tmp_path / "a.db", model, slow, add)
    assert (bad.outcome, good.outcome) == ("unknown", "ok")
    before = outcomes_of(tmp_path / "a.db")
    release.set()
    assert ended.wait(10)
    assert outcomes_of(tmp_path / "a.db") == before, "what comes too late changes nothing"


async def test_sync_bodies_run_beside_each_other_and_beside_the_loop(tmp_path: Path) -> None:
    """Each waits for the other: one at a time, they would never meet."""
    meet = threading.Barrier(2)

    def meets() -> str:
        assert threading.current_thread() is not threading.main_thread()
        meet.wait(10)
        return "met"

    pair = Tool(body=meets, name="meets", description="Meet.", mode="parallel", effect="read")
    results = await answered(tmp_path / "a.db", FakeModel([calls(("meets", {}), ("meets", {}))]), pair)
    assert [result.text for result in results] == ["met", "met"]


async def test_a_tool_that_alters_its_arguments_alters_nothing_else(tmp_path: Path) -> None:
    @tool(effect="read")
    async def greedy(items: list[int], options: dict[str, int]) -> str:
        """Empty what it is given."""
        items.clear()
        options["x"] = 99
        return "mine"

    model = FakeModel([calls(("greedy", {"items": [1, 2], "options": {"a": 1}}))])
    await answered(tmp_path / "a.db", model, greedy)
    (call,) = events_of(tmp_path / "a.db", ToolCall)
    assert call.arguments == '{"items": [1, 2], "options": {"a": 1}}'


class _Callable:
    def __call__(self, a: int) -> str:
        return f"callable {a}"


class _AsyncCallable:
    async def __call__(self, a: int) -> str:
        await trio.lowlevel.checkpoint()
        return f"async {a}"


class _Holder:
    def method(self, a: int) -> str:
        return f"method {a}"

    async def async_method(self, a: int) -> str:
        await trio.lowlevel.checkpoint()
        return f"async method {a}"


@pytest.mark.parametrize(
    "make",
    [
        _Callable,
        _AsyncCallable,
        lambda: _Holder().method,
        lambda: _Holder().async_method,
        lambda: lambda a: f"lambda {a}",
    ],
    ids=["callable", "async callable", "method", "async method", "lambda"],
)
async def test_any_callable_can_be_a_body(tmp_path: Path, make: Callable[[], Callable[..., object]]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    any_tool = Tool(body=make(), name="any", description="Do it.", parameters=schema, effect="read")
    (result,) = await answered(tmp_path / "a.db", FakeModel([calls(("any", {"a": 5}))]), any_tool)
    assert result.text.endswith(" 5")
    assert result.outcome == "ok"


async def test_a_body_with_tasks_of_its_own_comes_to_rest_with_its_call(tmp_path: Path, autojump_clock: object) -> None:
    left: list[str] = []

    @tool(effect="read", timeout_s=5.0)
    async def busy() -> str:
        """Start tasks that never end."""

        async def worker() -> None:
            try:
                await trio.sleep_forever()
            finally:
                left.append("worker")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker)
            nursery.start_soon(worker)
        return "never"

    (result,) = await answered(tmp_path / "a.db", FakeModel([calls(("busy", {}))]), busy)
    assert result.outcome == "timeout"
    assert left == ["worker", "worker"]


async def test_a_failing_tool_does_not_disturb_its_running_siblings(tmp_path: Path) -> None:
    failed, gate = trio.Event(), trio.Event()

    async def bad() -> str:
        failed.set()
        raise SystemExit

    async def good() -> ToolOutput:
        await failed.wait()
        await gate.wait()
        return ToolOutput(content="survived")

    tools = [
        Tool(body=bad, name="bad", description="Fail.", mode="parallel", effect="read"),
        Tool(body=good, name="good", description="Go on.", mode="parallel", effect="read"),
    ]
    path = tmp_path / "a.db"
    model = FakeModel([calls(("bad", {}), ("good", {})), words("ok")])
    async with session_of(path, model, *tools) as session, trio.open_nursery() as nursery:
        await session.followup("hi")
        nursery.start_soon(session.run)
        await trio.testing.wait_all_tasks_blocked()
        assert outcomes_of(path) == ["error"]
        gate.set()
    assert outcomes_of(path) == ["error", "ok"]


async def test_the_time_limit_counts_from_the_start_of_the_body(tmp_path: Path, autojump_clock: object) -> None:
    """A call that waited its turn has not used up its time."""

    async def takes_four() -> str:
        await trio.sleep(4)
        return "ok"

    slow = Tool(body=takes_four, name="slow", description="Take long.", effect="read", timeout_s=5.0)
    results = await answered(
        tmp_path / "a.db", FakeModel([calls(("slow", {}), ("slow", {}), ("slow", {}))]), slow, limits=Limits()
    )
    assert [result.outcome for result in results] == ["ok"] * 3


async def test_a_body_in_a_thread_that_raises_keyboard_interrupt_fails_its_own_call_only(tmp_path: Path) -> None:
    def body() -> str:
        """Stop."""
        raise KeyboardInterrupt

    model = FakeModel([calls(("stop", {})), words("Well.")])
    async with session_of(tmp_path / "a.db", model, Tool(body=body, name="stop")) as session:
        await session.followup("go")
        turn = await session.run()
    assert turn is not None
    assert turn.reason == "completed"
    (result,) = events_of(tmp_path / "a.db", ToolResult)
    assert (result.outcome, "KeyboardInterrupt" in result.text) == ("error", True)
