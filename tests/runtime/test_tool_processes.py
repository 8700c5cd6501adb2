"""Tools in a process of their own: whatever happens to the process is one failed call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio._core._thread_cache as thread_cache
import trio.testing

from flightlog.testing import Bundle, FakeModel, calls
from flightlog_hookspecs import Tool
from flightlog_hookspecs.errors import PluginError
from flightlog_hookspecs.events import ToolCall, ToolResult
from support import worker_tools
from support.children import closing_process, gone, started, until
from support.kernels import events_of, opened, outcomes_of, session_of, verified


def apart(body: Callable[..., object], *, effect: str = "write", timeout_s: float = 30.0, **options: object) -> Tool:
    """`body` as a tool in a process of its own."""
    return Tool(body=body, isolation="process", effect=effect, timeout_s=timeout_s, **options)


async def run_calls(path: Path, tools: list[Tool], *wanted: tuple[str, object]) -> list[ToolResult]:
    """Run one turn with these calls; the session must go on after it."""
    model = FakeModel([calls(*wanted)])
    async with session_of(path, model, *tools) as session:
        await session.followup("hi")
        turn = await session.run()
        assert turn.reason == "completed"
        await session.followup("again")
        assert (await session.run()).reason == "completed"
    assert verified(path, model)
    return sorted(events_of(path, ToolResult), key=lambda result: result.position)


async def test_a_body_runs_in_another_process_and_its_value_comes_back(tmp_path: Path) -> None:
    tools = [apart(worker_tools.add, mode="parallel"), apart(worker_tools.who, mode="parallel"), worker_tools.decorated]
    results = await run_calls(tmp_path / "a.db", tools, ("add", {"a": 5}), ("who", {}), ("decorated", {"text": "hey"}))
    assert [result.outcome for result in results] == ["ok"] * 3
    assert (results[0].text, results[2].text) == ("6", "HEY")
    call = events_of(tmp_path / "a.db", ToolCall)[1]
    assert f'"invocation":"{call.invocation_id}"' in results[1].text
    assert '"position":1' in results[1].text
    assert f'"pid":{os.getpid()},' not in results[1].text


async def test_what_a_body_prints_is_not_taken_for_its_answer(tmp_path: Path) -> None:
    (result,) = await run_calls(tmp_path / "a.db", [apart(worker_tools.prints)], ("prints", {"text": "hello"}))
    assert (result.outcome, result.text) == ("ok", "said hello")


@pytest.mark.parametrize(
    ("body", "arguments", "says"),
    [
        (worker_tools.segfault, {}, "died of SIGSEGV"),
        (worker_tools.kills_itself, {}, "died of SIGKILL"),
        (worker_tools.leaves, {"code": 3}, "exited with code 3"),
        (worker_tools.leaves, {"code": 0}, "exited with code 0"),
    ],
)
@pytest.mark.parametrize(("effect", "outcome"), [("read", "error"), ("write", "unknown"), ("external", "unknown")])
async def test_a_process_that_dies_is_one_failed_call_judged_by_its_effect(
    tmp_path: Path, body: Callable[..., object], arguments: dict[str, object], says: str, effect: str, outcome: str
) -> None:
    tools = [apart(body, effect=effect, mode="parallel"), apart(worker_tools.add, mode="parallel")]
    name = body.__name__
    dead, alive = await run_calls(tmp_path / "a.db", tools, (name, arguments), ("add", {"a": 1}))
    assert (dead.outcome, alive.outcome) == (outcome, "ok")
    assert says in dead.text
    assert ("may or may not have taken effect" in dead.text) == (outcome == "unknown")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (worker_tools.raises, "ValueError: from afar"),
        (worker_tools.exits, "SystemExit: bye"),
        (worker_tools.refuses, "say please"),
        (worker_tools.unpicklable, "function is not a JSON value). Its effects stand."),
        (worker_tools.parts, "Parting: (its message cannot be shown)"),
    ],
)
async def test_a_body_that_raises_over_there_says_so_over_here(
    tmp_path: Path, body: Callable[..., object], says: str
) -> None:
    (result,) = await run_calls(tmp_path / "a.db", [apart(body)], (body.__name__, {}))
    assert result.outcome == "error"
    assert says in result.text


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("effect", "outcome"), [("read", "error"), ("write", "unknown"), ("external", "unknown")])
async def test_a_body_that_does_not_know_how_it_ended_says_so_over_here(
    tmp_path: Path, own: bool, effect: str, outcome: str
) -> None:
    tools = [apart(worker_tools.has_no_answer, effect=effect)]
    (result,) = await run_calls(tmp_path / "a.db", tools, ("has_no_answer", {"own": own}))
    assert result.outcome == outcome
    assert result.text.startswith("the bank did not answer")


async def test_a_tools_own_kind_of_error_is_told_in_its_own_words(tmp_path: Path) -> None:
    (result,) = await run_calls(tmp_path / "a.db", [apart(worker_tools.is_overdrawn)], ("is_overdrawn", {}))
    assert (result.outcome, result.text) == ("error", "there are 3 cents left")


async def test_large_and_binary_values_come_back_whole(tmp_path: Path) -> None:
    tools = [apart(worker_tools.large), apart(worker_tools.junk)]
    large, junk = await run_calls(tmp_path / "a.db", tools, ("large", {"size": 5_000_000}), ("junk", {}))
    assert large.spill is not None
    assert large.spill.bytes == 5_000_000
    assert junk.spill is not None
    assert junk.spill.binary


@pytest.mark.parametrize("way", ["sleeps", "exits", "interrupts"])
@pytest.mark.parametrize(
    ("body", "outcome", "says"),
    [
        (worker_tools.trapped, "error", "Trap is not a JSON value"),
        (worker_tools.forges, "unknown", "an answer that cannot be read"),
    ],
)
async def test_an_answer_that_would_do_something_where_it_is_read_is_one_failed_call(
    tmp_path: Path, body: Callable[..., object], outcome: str, says: str, way: str
) -> None:
    (result,) = await run_calls(tmp_path / "a.db", [apart(body)], (body.__name__, {"way": way}))
    assert result.outcome == outcome
    assert says in result.text


async def test_what_is_meant_as_a_plain_value_comes_back_as_one(tmp_path: Path) -> None:
    (result,) = await run_calls(tmp_path / "a.db", [apart(worker_tools.meant)], ("meant", {}))
    assert result.text == '{"a":[1,true],"b":1,"c":["d",1.5,null]}'


async def test_only_the_process_that_was_asked_answers(tmp_path: Path) -> None:
    (result,) = await run_calls(tmp_path / "a.db", [apart(worker_tools.twice)], ("twice", {}))
    assert (result.outcome, result.text) == ("ok", "parent")


async def test_a_body_that_spins_in_c_is_killed_when_its_time_is_up(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    tools = [apart(worker_tools.spins, timeout_s=0.5)]
    (result,) = await run_calls(tmp_path / "a.db", tools, ("spins", {"path": str(marker)}))
    assert result.outcome == "unknown"
    assert "did not finish within 0.5 s" in result.text
    if marker.exists():  # it may have been killed while it was still starting
        await gone(int(marker.read_text()))


async def test_a_cancel_kills_the_process(tmp_path: Path) -> None:
    from flightlog import Limits

    marker, fifo = tmp_path / "pid", tmp_path / "fifo"
    os.mkfifo(fifo)
    tools = [apart(worker_tools.waits)]
    model = FakeModel([calls(("waits", {"marker": str(marker), "fifo": str(fifo)}))])
    async with (
        session_of(tmp_path / "a.db", model, *tools, limits=Limits(cancel_grace_s=0)) as session,
        trio.open_nursery() as nursery,
    ):
        await session.followup("hi")
        nursery.start_soon(session.run)
        await until(lambda: marker.exists() and marker.read_text())
        session.cancel()
    await gone(int(marker.read_text()))
    assert outcomes_of(tmp_path / "a.db") == ["unknown"]


async def test_a_process_outlives_idle_threads_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux takes the death of the *thread* that started a child for the death of its parent."""
    marker, fifo = tmp_path / "pid", tmp_path / "fifo"
    os.mkfifo(fifo)
    model = FakeModel([calls(("waits", {"marker": str(marker), "fifo": str(fifo)}))])
    async with (
        session_of(tmp_path / "a.db", model, apart(worker_tools.waits)) as session,
        trio.open_nursery() as nursery,
    ):
        await session.followup("hi")
        nursery.start_soon(session.run)
        await until(lambda: marker.exists() and marker.read_text())
        await end_idle_threads(monkeypatch)
        tell(fifo, "go on")
    assert [result.text for result in events_of(tmp_path / "a.db", ToolResult)] == ["go on"]


def tell(fifo: Path, words: str) -> None:
    """Write to `fifo`, without waiting for a reader that may be dead."""
    descriptor = os.open(fifo, os.O_RDWR)
    os.write(descriptor, words.encode())
    os.close(descriptor)


async def end_idle_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each of trio's idle threads end, as it does by itself after ten seconds."""
    monkeypatch.setattr(thread_cache, "IDLE_TIMEOUT", 0.001)
    idle = list(thread_cache.THREAD_CACHE._idle_workers)
    meet = threading.Barrier(len(idle) or 1)
    async with trio.open_nursery() as nursery:
        for _ in idle:
            nursery.start_soon(trio.to_thread.run_sync, meet.wait)
    await until(lambda: not any(worker._thread.is_alive() for worker in idle))


KERNEL = """
import sys, trio
from flightlog.testing import FakeModel, calls
from flightlog_hookspecs import Tool
from support import worker_tools
from support.kernels import session_of

async def main(path, marker, fifo, target):
    wanted = calls(("effect", {"marker": marker, "fifo": fifo, "target": target}))
    tool = Tool(body=worker_tools.effect, isolation="process", effect="write")
    async with session_of(path, FakeModel([wanted]), tool) as session:
        await session.followup("hi")
        await session.run()

trio.run(main, *sys.argv[1:])
"""


async def test_a_process_dies_with_its_kernel_and_does_nothing_any_more(tmp_path: Path) -> None:
    """Its effect would come after recovery has said that the outcome is unknown."""
    path, marker, fifo, target = (str(tmp_path / name) for name in ("a.db", "pid", "fifo", "target"))
    os.mkfifo(fifo)
    kernel = started(KERNEL, path, marker, fifo, target)
    with closing_process(kernel):
        await until(lambda: Path(marker).exists() and Path(marker).read_text())
        worker = int(Path(marker).read_text())
        kernel.kill()
        kernel.wait()
        await gone(worker)
    tell(Path(fifo), "go on")
    async with session_of(path, FakeModel([])):
        assert outcomes_of(path) == ["unknown"]
    assert not Path(target).exists()


def test_a_body_that_cannot_be_imported_by_name_is_refused_when_it_is_registered(tmp_path: Path) -> None:
    def local() -> str:
        """Be local."""
        return ""

    async def coroutine() -> str:
        """Be async."""
        return ""

    for body in (local, lambda: "", coroutine):
        tool = Tool(body=body, name="x", description="x", isolation="process")

        async def main(tool: Tool = tool) -> None:
            async with opened(tmp_path / "a.db", FakeModel([]), tool):
                pass

        with pytest.raises(PluginError, match="isolation='process' needs a sync function importable by name"):
            trio.run(main)
    assert Bundle()
