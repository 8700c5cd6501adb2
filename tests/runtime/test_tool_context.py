"""What a body is told about its call: identity, place, deadline, workspace; stable where it must be."""

from __future__ import annotations

import os
from pathlib import Path

import trio

from flightlog import tool
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import Tool, ToolContext
from flightlog_hookspecs.events import SessionCreated, ToolCall
from support.kernels import events_of, opened, records_of, session_of


def collecting(seen: list[ToolContext], **options: object) -> Tool:
    """A tool that keeps its contexts."""

    async def note(context: ToolContext, n: int = 0) -> str:
        """Note it.

        Args:
            context: the call
            n: a number

        """
        seen.append(context)
        return str(n)

    return Tool(body=note, effect="read", **options)


async def test_a_context_names_the_call_and_its_place(tmp_path: Path) -> None:
    seen: list[ToolContext] = []
    model = FakeModel([calls(("note", {"n": 1}), ("note", {"n": 2})), calls(("note", {})), words("ok")])
    async with session_of(tmp_path / "a.db", model, collecting(seen)) as session:
        await session.followup("hi")
        await session.run()
    assert [(c.session, c.turn, c.step, c.position, c.call_id) for c in seen] == [
        ("s", 1, 1, 0, "call_1"),
        ("s", 1, 1, 1, "call_2"),
        ("s", 1, 2, 0, "call_1"),
    ]
    assert [c.invocation_id for c in seen] == [e.invocation_id for e in events_of(tmp_path / "a.db", ToolCall)]


async def test_an_invocation_id_is_made_of_the_session_and_the_place_of_the_call(tmp_path: Path) -> None:
    """So it is the same for the same call however often the process dies, and no other call ever has it."""
    seen: list[ToolContext] = []
    model = FakeModel([calls(("note", {}), ("note", {}))] * 3)
    path = tmp_path / "a.db"
    for _ in range(2):
        async with session_of(path, model, collecting(seen)) as session:
            await session.followup("hi")
            await session.run()
    async with opened(path, model, collecting(seen)) as kernel, kernel.session("other", model="fake:m") as session:
        await session.followup("hi")
        await session.run()
    ids = [c.invocation_id for c in seen]
    assert len(set(ids)) == len(ids) == 12
    for name in ("s", "other"):
        (created,) = events_of(path, SessionCreated, name)
        for record in records_of(path, name):
            if isinstance(record.event, ToolCall):
                place = f"{created.uid}.{record.turn}.{record.step}.{record.event.position}"
                assert record.event.invocation_id == place


async def test_a_deadline_is_the_time_limit_on_the_kernels_clock(tmp_path: Path, autojump_clock: object) -> None:
    seen: list[tuple[float, float]] = []

    async def note(context: ToolContext) -> str:
        seen.append((context.deadline, trio.current_time()))
        return "ok"

    noting = Tool(body=note, name="note", description="Note.", effect="read", timeout_s=7.0)
    async with session_of(tmp_path / "a.db", FakeModel([calls(("note", {}))]), noting) as session:
        await session.followup("hi")
        await session.run()
    ((deadline, now),) = seen
    assert deadline - now == 7.0


async def test_the_workspace_and_what_is_protected_in_it_are_stated(tmp_path: Path) -> None:
    seen: list[ToolContext] = []
    work = tmp_path / "work"
    work.mkdir()
    link = tmp_path / "link"
    link.symlink_to(work)
    path = work / "a.db"
    model = FakeModel([calls(("note", {}))])
    async with session_of(path, model, collecting(seen), workspace=link) as session:
        await session.followup("hi")
        await session.run()
    (context,) = seen
    assert context.workspace == str(link)
    real = os.path.realpath(path)
    assert set(context.protected) == {real + suffix for suffix in ("", "-wal", "-shm", "-journal", "-head")}


async def test_without_a_workspace_tools_are_given_none(tmp_path: Path) -> None:
    seen: list[ToolContext] = []
    async with session_of(tmp_path / "a.db", FakeModel([calls(("note", {}))]), collecting(seen)) as session:
        await session.followup("hi")
        await session.run()
    assert seen[0].workspace == ""


async def test_the_context_is_not_part_of_what_the_model_may_send(tmp_path: Path) -> None:
    seen: list[ToolContext] = []
    model = FakeModel([calls(("note", {"context": "forged"}), ("note", {"n": 1}))])
    async with opened(tmp_path / "a.db", model, collecting(seen)) as kernel, kernel.session("s", model="fake:m") as s:
        await s.followup("hi")
        await s.run()
        (spec,) = kernel.read("s").request(1, 1).head.tools
    assert "context" not in spec.parameters
    assert len(seen) == 1


async def test_every_call_carries_the_plugin_and_version_that_answered_it(tmp_path: Path) -> None:
    @tool(mode="parallel", effect="idempotent")
    async def act() -> str:
        """Act."""
        return "ok"

    async with session_of(tmp_path / "a.db", FakeModel([calls(("act", {}))]), act) as session:
        await session.followup("hi")
        await session.run()
    (call,) = events_of(tmp_path / "a.db", ToolCall)
    assert (call.plugin, call.mode, call.effect) == ("Bundle", "parallel", "idempotent")
