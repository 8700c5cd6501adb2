"""Several calls of one message: how many at once, which ones wait, and when each result is durable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from flightlog import Limits
from flightlog.testing import FakeModel, calls
from flightlog_hookspecs import Tool
from flightlog_hookspecs.events import ToolCall, ToolResult
from support.kernels import events_of, kinds_of, outcomes_of, records_of, session_of, verified
from support.memory_folder import subfolder


class Hall:
    """Tools that wait until they are let go, and a record of who was inside when."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.seen: list[str] = []
        self.most = 0
        self.gates: dict[str, trio.Event] = {}

    def tool(self, name: str, *, mode: str = "parallel", effect: str = "read", waits: bool = True) -> Tool:
        """A tool `name`."""
        self.gates[name] = trio.Event()

        async def body() -> str:
            self.inside.append(name)
            self.seen.append(f"+{name}")
            self.most = max(self.most, len(self.inside))
            if waits:
                await self.gates[name].wait()
            await trio.lowlevel.checkpoint()
            self.inside.remove(name)
            self.seen.append(f"-{name}")
            return name

        return Tool(body=body, name=name, description="Wait.", mode=mode, effect=effect)

    async def let_go(self, *names: str) -> None:
        """Let them go one after the other, each once everything else has come to rest."""
        for name in names:
            await trio.testing.wait_all_tasks_blocked()
            self.gates[name].set()
        await trio.testing.wait_all_tasks_blocked()


async def test_parallel_calls_run_together_up_to_the_limit(tmp_path: Path) -> None:
    hall = Hall()
    names = [f"t{number}" for number in range(5)]
    tools = [hall.tool(name) for name in names]
    model = FakeModel([calls(*((name, {}) for name in names))])
    async with (
        session_of(tmp_path / "a.db", model, *tools, limits=Limits(parallel_tools=2)) as session,
        trio.open_nursery() as nursery,
    ):
        await session.followup("hi")
        nursery.start_soon(session.run)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(hall.inside) == ["t0", "t1"]
        await hall.let_go("t1")
        assert hall.inside == ["t0", "t2"]
        await hall.let_go("t0", "t2", "t3", "t4")
    assert hall.most == 2
    assert outcomes_of(tmp_path / "a.db") == ["ok"] * 5
    assert [message.name for message in events_of(tmp_path / "a.db", ToolResult)] == ["t1", "t0", "t2", "t3", "t4"]


async def test_the_default_limit_is_eight(tmp_path: Path) -> None:
    hall = Hall()
    names = [f"t{number}" for number in range(12)]
    model = FakeModel([calls(*((name, {}) for name in names))])
    tools = [hall.tool(name) for name in names]
    async with session_of(tmp_path / "a.db", model, *tools) as session, trio.open_nursery() as nursery:
        await session.followup("hi")
        nursery.start_soon(session.run)
        await hall.let_go(*names)
    assert hall.most == 8


async def test_a_write_between_reads_waits_for_the_first_and_holds_up_the_second(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    hall = Hall()
    tools = [hall.tool("read1"), hall.tool("write", mode="exclusive", effect="write"), hall.tool("read2")]
    model = FakeModel([calls(("read1", {}), ("write", {}), ("read2", {}))])
    async with session_of(path, model, *tools) as session, trio.open_nursery() as nursery:
        await session.followup("hi")
        nursery.start_soon(session.run)
        await trio.testing.wait_all_tasks_blocked()
        assert hall.inside == ["read1"]
        await hall.let_go("read1")
        assert hall.inside == ["write"]
        assert [event.name for event in events_of(path, ToolResult)] == ["read1"]
        await hall.let_go("write")
        assert hall.inside == ["read2"]
        await hall.let_go("read2")
    kinds = [kind for kind in kinds_of(path) if kind.startswith("tool/")]
    assert kinds == ["tool/call", "tool/result"] * 3


def modes() -> st.SearchStrategy[list[tuple[str, str]]]:
    """Calls as (mode, effect)."""
    mode = st.sampled_from(["parallel", "exclusive"])
    effect = st.sampled_from(["read", "idempotent", "write", "external"])
    return st.lists(st.tuples(mode, effect), min_size=1, max_size=7)


@settings(max_examples=settings.default.max_examples // 2)
@given(wanted=modes(), limit=st.integers(1, 4), data=st.data())
async def test_no_order_of_finishing_breaks_the_rules(
    wanted: list[tuple[str, str]], limit: int, data: st.DataObject, tmp_path: Path
) -> None:
    path = subfolder(tmp_path) / "a.db"
    hall = Hall()
    tools = [hall.tool(f"t{n}", mode=mode, effect=effect) for n, (mode, effect) in enumerate(wanted)]
    model = FakeModel([calls(*((tool.name, {}) for tool in tools))])
    async with (
        session_of(path, model, *tools, limits=Limits(parallel_tools=limit)) as session,
        trio.open_nursery() as nursery,
    ):
        await session.followup("hi")
        nursery.start_soon(session.run)
        await trio.testing.wait_all_tasks_blocked()
        while hall.inside:
            assert len(hall.inside) <= limit
            exclusive = [name for name in hall.inside if wanted[int(name[1:])][0] == "exclusive"]
            assert len(hall.inside) == 1 or not exclusive
            await hall.let_go(data.draw(st.sampled_from(hall.inside)))
    assert [event.name for event in events_of(path, ToolCall)] == [tool.name for tool in tools]
    for barrier, (mode, _) in enumerate(wanted):
        if mode == "exclusive":
            begin, end = hall.seen.index(f"+t{barrier}"), hall.seen.index(f"-t{barrier}")
            assert all(hall.seen.index(f"-t{before}") < begin for before in range(barrier))
            assert all(hall.seen.index(f"+t{after}") > end for after in range(barrier + 1, len(wanted)))
    assert outcomes_of(path) == ["ok"] * len(wanted)
    assert verified(path, model)


async def test_a_result_is_durable_while_a_sibling_still_runs(tmp_path: Path) -> None:
    """A finished effect must not wait in memory behind a slow one."""
    path = tmp_path / "a.db"
    hall = Hall()
    tools = [hall.tool(name) for name in ("a", "b", "c")]
    async with (
        session_of(path, FakeModel([calls(("a", {}), ("b", {}), ("c", {}))]), *tools) as session,
        trio.open_nursery() as nursery,
    ):
        await session.followup("hi")
        nursery.start_soon(session.run)
        await hall.let_go("c")
        assert sorted(hall.inside) == ["a", "b"]
        assert [event.name for event in events_of(path, ToolResult)] == ["c"]
        await hall.let_go("a")
        assert [event.name for event in events_of(path, ToolResult)] == ["c", "a"]
        await hall.let_go("b")


async def test_a_call_is_durable_before_its_body_starts_and_its_result_before_the_next_request(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    seen: list[Sequence[str]] = []

    async def body() -> str:
        seen.append(kinds_of(path)[-1:])
        return "ok"

    tool = Tool(body=body, name="t", description="Look at the log.", effect="write")

    class Looking(FakeModel):
        def stream(self, request: object, attempt: int) -> object:
            seen.append(kinds_of(path)[-2:])
            return super().stream(request, attempt)

    async with session_of(path, Looking([calls(("t", {}))]), tool) as session:
        await session.followup("hi")
        await session.run()
    assert seen[0] == ["request/header", "request/sent"]
    assert seen[1] == ["tool/call"]
    assert seen[2] == ["step/start", "request/sent"]
    assert "tool/result" in kinds_of(path)


async def test_the_intents_of_calls_that_start_together_are_one_commit_in_call_order(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    commits: list[int] = []
    hall = Hall()
    names = ["a", "b", "c", "d"]
    tools = [hall.tool(name, waits=False) for name in names]
    model = FakeModel([calls(*((name, {}) for name in names))])
    async with session_of(
        path, model, *tools, on_boundary=lambda name, _, seq: commits.append(seq) if name == "committed" else None
    ) as session:
        await session.followup("hi")
        await session.run()
    intents = [(record.seq, record.event.name) for record in records_of(path) if isinstance(record.event, ToolCall)]
    assert [name for _, name in intents] == names
    assert [seq for seq, _ in intents if seq in commits] == [intents[-1][0]]


async def test_one_of_three_that_raises_leaves_three_results_in_call_order(tmp_path: Path) -> None:
    async def good() -> str:
        return "good"

    async def bad() -> str:
        raise ValueError("broken")

    tools = [
        Tool(body=good, name="good", description="Work.", mode="parallel", effect="read"),
        Tool(body=bad, name="bad", description="Fail.", mode="parallel", effect="read"),
    ]
    model = FakeModel([calls(("good", {}), ("bad", {}), ("good", {}))])
    async with session_of(tmp_path / "a.db", model, *tools) as session:
        await session.followup("hi")
        turn = await session.run()
    assert turn.reason == "completed"
    assert outcomes_of(tmp_path / "a.db") == ["ok", "error", "ok"]
    assert [fragment for fragment in model.requests[1] if b'"tool"' in fragment] == [
        b'["tool", "call_1", "ok", "good"]',
        b'["tool", "call_2", "error", "bad failed: ValueError: broken"]',
        b'["tool", "call_3", "ok", "good"]',
    ]


async def test_calls_that_share_a_provider_id_each_get_their_own_answer(tmp_path: Path) -> None:
    """Some providers reuse call ids, in one message and across messages."""
    hall = Hall()
    tools = [hall.tool("a", waits=False), hall.tool("b", waits=False)]
    twice = [*calls(("a", {}), start=1), *calls(("b", {}), start=1)]
    doubled = [evt for number, evt in enumerate(twice) if number < 3] + [_shifted(evt) for evt in twice[3:]]
    async with session_of(tmp_path / "a.db", FakeModel([doubled, doubled]), *tools) as session:
        await session.followup("hi")
        turn = await session.run()
    assert turn.reason == "completed"
    called = [(event.call_id, event.name) for event in events_of(tmp_path / "a.db", ToolCall)]
    assert sorted(called) == [("call_1", "a"), ("call_1", "a"), ("call_1", "b"), ("call_1", "b")]
    ids = [event.invocation_id for event in events_of(tmp_path / "a.db", ToolCall)]
    assert len(set(ids)) == 4
    assert [record.event.outcome for record in records_of(tmp_path / "a.db") if isinstance(record.event, ToolResult)]


def _shifted(cue: object) -> object:
    """The same cue at block 2, still with the first one's call id."""
    from attrs import evolve

    return evolve(cue, index=2)
