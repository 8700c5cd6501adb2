"""A log that cannot be written: no effect without its record, nothing goes on, and the next open says what is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from flightlog import Kernel, Limits, Session
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import Tool, ToolContext
from flightlog_hookspecs.errors import DiskFull, StoreError, StoreStopped
from flightlog_hookspecs.events import AssistantMessage, InboxSplice, RequestSent, ToolCall, TurnEnd
from support.conversation import assert_at_rest, assert_effects
from support.kernels import Fails, committing, events_of, opened, outcomes_of, plant, session_of


class World:
    """Tools that leave a mark, and the model that calls them."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.model = FakeModel([[*words("I act."), *calls(("act", {}), ("look", {}))], words("Done.")])

    def tool(self, name: str, effect: str, mode: str = "parallel") -> Tool:
        async def body(context: ToolContext) -> str:
            self.effects.append(context.invocation_id)
            await trio.lowlevel.checkpoint()
            return f"{name} done"

        return Tool(body=body, name=name, description="Work.", effect=effect, mode=mode)

    def tools(self) -> list[Tool]:
        return [self.tool("act", "write"), self.tool("look", "read")]


async def run_into(path: Path, world: World, fails: Fails, *, lost: bool = True) -> None:
    """Run a turn that a planted fault ends; the kernel must then refuse everything."""
    async with opened(path, world.model, *world.tools()) as kernel:
        await run_faulty(kernel, fails, lost=lost)


async def run_faulty(kernel: Kernel, fails: Fails, *, lost: bool = True) -> None:
    async with kernel.session("s", model="fake:m", limits=Limits(cancel_grace_s=0)) as session:
        await session.followup("hi")
        faulty = plant(kernel, fails, lost=lost)
        with pytest.raises(DiskFull):
            await session.run()
        for refused in (session.run, lambda: session.followup("more")):
            with pytest.raises(StoreStopped):
                await refused()
    assert faulty.faults == 1, "nothing was retried"


async def recovered(path: Path, world: World) -> None:
    """Open what the fault left behind, and go on."""
    ran = list(world.effects)
    async with session_of(path, world.model, *world.tools()) as session:
        assert world.effects == ran, "opening runs no tool"
        await session.run()
        await session.followup("and on")
        assert (await session.run()).reason == "completed"
    records = assert_at_rest(path, world.model)
    assert_effects(records, world.effects)


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "reported late"])
async def test_when_the_intent_of_a_call_cannot_be_saved_its_body_does_not_run(tmp_path: Path, lost: bool) -> None:
    world = World()
    await run_into(tmp_path / "a.db", world, committing("tool/call"), lost=lost)
    assert world.effects == []
    assert len(world.model.requests) == 1
    async with session_of(tmp_path / "a.db", world.model, *world.tools()):
        expected = ["not_started", "not_started"] if lost else ["unknown", "aborted"]
        assert outcomes_of(tmp_path / "a.db") == expected
        assert world.effects == []
    await recovered(tmp_path / "a.db", world)


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "reported late"])
async def test_when_a_request_cannot_be_saved_the_adapter_is_not_called(tmp_path: Path, lost: bool) -> None:
    world = World()
    await run_into(tmp_path / "a.db", world, committing("request/sent"), lost=lost)
    assert world.model.requests == []
    await recovered(tmp_path / "a.db", world)


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "reported late"])
async def test_when_a_result_cannot_be_saved_nothing_further_happens_and_the_effect_is_not_repeated(
    tmp_path: Path, lost: bool
) -> None:
    world = World()
    world.model.replies = [calls(("act", {}), ("after", {}))]
    after = world.tool("after", "write", "exclusive")
    path = tmp_path / "a.db"
    async with opened(path, world.model, world.tool("act", "write", "exclusive"), after) as kernel:
        await run_faulty(kernel, committing("tool/result"), lost=lost)
    assert len(world.effects) == 1
    assert len(world.model.requests) == 1
    async with session_of(path, world.model, world.tool("act", "write"), after) as session:
        assert outcomes_of(path) == (["unknown", "not_started"] if lost else ["ok", "not_started"])
        await session.followup("what happened?")
        await session.run()
    assert len(world.effects) == 1
    assert_effects(assert_at_rest(path, world.model), world.effects)


async def test_when_a_result_cannot_be_saved_its_running_siblings_do_not_become_done(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    left: list[str] = []
    running = trio.Event()

    async def hang() -> str:
        running.set()
        try:
            await trio.sleep_forever()
        finally:
            left.append("hang")

    async def quick() -> str:
        await running.wait()
        return "quick"

    tools = [
        Tool(body=hang, name="hang", description="Hang.", effect="write", mode="parallel"),
        Tool(body=quick, name="quick", description="Be quick.", effect="write", mode="parallel"),
    ]
    model = FakeModel([calls(("hang", {}), ("quick", {}))])
    async with opened(path, model, *tools) as kernel:
        await run_faulty(kernel, committing("tool/result"))
    assert left == ["hang"], "it was stopped, not left behind"
    async with session_of(path, model, *tools):
        assert outcomes_of(path) == ["unknown", "unknown"]


async def test_a_body_that_ends_well_after_a_sibling_stopped_the_kernel_is_in_doubt_and_never_repeated(
    tmp_path: Path, autojump_clock: object
) -> None:
    path, world, ended = tmp_path / "a.db", World(), list[str]()

    async def slow(context: ToolContext) -> str:
        world.effects.append(context.invocation_id)
        await trio.sleep(1)
        ended.append("slow")
        return "slow done"

    tools = [
        Tool(body=slow, name="slow", description="Take your time.", effect="write", mode="parallel"),
        world.tool("quick", "write", "parallel"),
    ]
    model = FakeModel([calls(("slow", {}), ("quick", {})), words("Done.")])
    async with opened(path, model, *tools) as kernel, kernel.session("s", model="fake:m") as session:
        await session.followup("hi")
        plant(kernel, committing("tool/result"))
        with pytest.raises(DiskFull):
            await session.run()
    assert ended == ["slow"], "it was let end by itself"
    assert len(model.requests) == 1, "and no model was told"
    async with session_of(path, model, *tools) as session:
        assert outcomes_of(path) == ["unknown", "unknown"]
        await session.followup("and on")
        await session.run()
    assert len(world.effects) == 2
    assert_effects(assert_at_rest(path, model), world.effects)


async def test_a_body_does_not_start_when_the_store_stopped_after_its_intent_was_saved(tmp_path: Path) -> None:
    """Another session's write may fail between the commit of an intent and the start of its body."""
    path, world = tmp_path / "a.db", World()
    held: list[Kernel] = []

    def stop(name: str, session: str, seq: int) -> None:
        if name == "committed" and held and events_of(path, ToolCall):
            kernel = held.pop()
            plant(kernel, lambda barrier, rows: True)
            with pytest.raises(DiskFull):
                kernel._store.commit([], barrier=True)

    async with (
        opened(path, world.model, *world.tools(), on_boundary=stop) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await session.followup("hi")
        held.append(kernel)
        with pytest.raises(StoreStopped):
            await session.run()
    assert not held
    assert len(events_of(path, ToolCall)) == 2
    assert world.effects == []


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "reported late"])
async def test_when_a_message_cannot_be_saved_it_is_not_acknowledged(tmp_path: Path, lost: bool) -> None:
    path, world = tmp_path / "a.db", World()
    async with (
        opened(path, world.model, *world.tools()) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        plant(kernel, committing("inbox/splice"), lost=lost)
        with pytest.raises(DiskFull):
            await session.followup("hi")
        with pytest.raises(StoreStopped):
            await session.followup("hi")
    assert len(events_of(path, InboxSplice)) == (0 if lost else 1)


async def test_when_deltas_cannot_be_saved_the_stream_ends(tmp_path: Path, autojump_clock: object) -> None:
    world = World()

    async def pause() -> None:
        await trio.sleep(1)

    world.model.replies = [[*words("Some words")[:-1], pause, pause, pause]]
    await run_into(tmp_path / "a.db", world, committing("assistant/delta"))
    assert trio.current_time() < 1, "it ended at the first flush"
    world.model.replies = [words("Better.")] * 2
    await recovered(tmp_path / "a.db", world)


async def test_when_the_end_of_a_turn_cannot_be_saved_the_next_open_closes_it(tmp_path: Path) -> None:
    world = World()
    await run_into(tmp_path / "a.db", world, committing("turn/end"))
    assert events_of(tmp_path / "a.db", TurnEnd) == []
    async with session_of(tmp_path / "a.db", world.model, *world.tools()):
        assert [end.reason for end in events_of(tmp_path / "a.db", TurnEnd)] == ["interrupted"]
    await recovered(tmp_path / "a.db", world)


async def test_a_fault_while_a_cancel_winds_down_ends_in_the_same_way(tmp_path: Path) -> None:
    path, world = tmp_path / "a.db", World()
    begun = trio.Event()

    async def hang() -> None:
        begun.set()
        await trio.sleep_forever()

    world.model.replies = [[*words("Some words"), hang]]
    async with (
        opened(path, world.model, *world.tools()) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await session.followup("hi")
        plant(kernel, committing("turn/end"))
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                with pytest.raises(DiskFull):
                    await session.run()

            nursery.start_soon(run)
            await begun.wait()
            session.cancel()
    async with session_of(path, world.model, *world.tools()):
        (message,) = events_of(path, AssistantMessage)
        assert (message.text, message.interrupted) == ("Some words", True)
    await recovered(path, world)


async def test_a_fault_in_one_session_stops_the_others_of_the_kernel_before_their_next_effect(tmp_path: Path) -> None:
    path, world = tmp_path / "a.db", World()
    async with (
        opened(path, world.model, *world.tools()) as kernel,
        kernel.session("one", model="fake:m") as one,
        kernel.session("two", model="fake:m") as two,
    ):
        await two.followup("hi")
        plant(kernel, committing("inbox/splice"))
        with pytest.raises(DiskFull):
            await one.followup("hi")
        with pytest.raises(StoreStopped):
            await two.run()
    assert world.model.requests == []
    assert world.effects == []


def test_a_fault_at_every_single_commit_of_a_run_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Both kinds: the commit is lost, and the commit is there but was reported as lost."""
    for lost in (True, False):
        number = 0
        while True:
            path, world = tmp_path / f"{lost}{number}.db", World()
            acknowledged: list[str] = []
            faults = trio.run(_faulty_run, path, world, number, lost, acknowledged)
            ran = list(world.effects)
            trio.run(_finish, path, world, acknowledged)
            assert len(world.effects) >= len(ran)
            records = assert_at_rest(path, world.model)
            assert_effects(records, world.effects)
            accepted = {r.event.message_id for r in records if isinstance(r.event, InboxSplice)}
            assert set(acknowledged) <= accepted
            sent = sum(isinstance(record.event, RequestSent) for record in records)
            assert len(world.model.requests) <= sent
            if not faults:
                break
            number += 1
        assert number > 12


async def _faulty_run(path: Path, world: World, number: int, lost: bool, acknowledged: list[str]) -> int:
    """Two turns; commit `number`, counted from the opening of the session, fails. Returns the faults met."""
    counted = -1

    def fails(barrier: bool, rows: Sequence[Sequence[Any]]) -> bool:
        nonlocal counted
        counted += 1
        return counted == number

    async with opened(path, world.model, *world.tools()) as kernel:
        faulty = plant(kernel, fails, lost=lost)
        try:
            async with kernel.session("s", model="fake:m") as session:
                await _talk(session, acknowledged)
        except StoreError:
            assert faulty.faults == 1
        return faulty.faults


async def _talk(session: Session, acknowledged: list[str]) -> None:
    acknowledged.append((await session.followup("first")).message_id)
    acknowledged.append((await session.followup("second")).message_id)
    await session.run()


async def _finish(path: Path, world: World, acknowledged: list[str]) -> None:
    async with session_of(path, world.model, *world.tools()) as session:
        await session.run()
        acknowledged.append((await session.followup("last")).message_id)
        assert (await session.run()).reason == "completed"
