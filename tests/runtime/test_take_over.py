"""Taking a session over from an owner that still lives: it writes no more, and its open calls are in doubt."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flightlog.runtime.feed import Feed
from flightlog.runtime.group_commit import GroupCommit
from flightlog.runtime.recovery import close_session, open_session
from flightlog.store.store import Store
from flightlog.testing import FakeModel, calls, fixed_clock, words
from flightlog_hookspecs import Tool
from flightlog_hookspecs.errors import Fenced, SessionBusy
from flightlog_hookspecs.events import PluginFault, SessionCreated, SessionOpened
from support.children import closing_process, started
from support.conversation import assert_at_rest
from support.kernels import events_of, kinds_of, new_id, opened, outcomes_of
from support.memory_folder import subfolder

FAULT = PluginFault(plugin="p", hook="h", error="broken")


def locks(path: Path) -> list[int]:
    return [event.lock for event in events_of(path, SessionOpened)]


async def test_an_owner_that_lives_is_named_and_its_session_can_be_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as first, first.session("s", model="fake:m") as old:
        await old.followup("hi")
        async with opened(path, FakeModel([words("hello")])) as second:
            with pytest.raises(SessionBusy, match=f"process {os.getpid()} .* take the session over"):
                await second.session("s", model="fake:m").__aenter__()
            async with second.session("s", model="fake:m", take_over=True) as new:
                with pytest.raises(Fenced, match="'s' was taken over"):
                    await old.followup("too late")
                assert (await new.run()).text == "hello"
                with pytest.raises(SessionBusy):
                    await second.session("s").__aenter__()
    assert locks(path) == [0, 1]
    assert_at_rest(path)


async def test_a_call_that_runs_at_the_old_owner_is_unknown_and_never_repeated(tmp_path: Path) -> None:
    path, effects, finish = tmp_path / "a.db", list[str](), trio.Event()

    async def pay() -> str:
        effects.append("paid")
        await finish.wait()
        return "paid"

    tool = Tool(body=pay, name="pay", description="Pay.", effect="write")
    model = FakeModel([calls(("pay", {})), words("done")])
    async with opened(path, model, tool) as first, first.session("s", model="fake:m") as old:
        await old.followup("pay ada")
        async with trio.open_nursery() as nursery:

            async def drive() -> None:
                with pytest.raises(Fenced):
                    await old.run()

            nursery.start_soon(drive)
            await trio.testing.wait_all_tasks_blocked()
            async with opened(path, model, tool) as second, second.session("s", take_over=True) as new:
                assert outcomes_of(path) == ["unknown"]
                finish.set()
                await trio.testing.wait_all_tasks_blocked()
                await new.followup("and?")
                await new.run()
    assert effects == ["paid"]
    assert outcomes_of(path) == ["unknown"]
    assert_at_rest(path)


async def test_the_lock_of_an_old_owner_that_dies_later_gives_nobody_a_way_in(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as third:
        async with opened(path, FakeModel([])) as second:
            async with opened(path, FakeModel([])) as first:
                old = first.session("s", model="fake:m")
                await old.__aenter__()
                new = second.session("s", model="fake:m", take_over=True)
                session = await new.__aenter__()
                await old.__aexit__(None, None, None)
            with pytest.raises(SessionBusy):
                await third.session("s").__aenter__()
            await session.followup("still mine")
            await new.__aexit__(None, None, None)
        async with third.session("s", model="fake:m") as after:
            await after.run()
    assert locks(path) == [0, 1, 1]
    assert_at_rest(path)


async def test_taking_over_a_session_that_nobody_drives_is_just_opening_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    for _ in range(2):
        async with opened(path, FakeModel([])) as kernel, kernel.session("s", model="fake:m", take_over=True):
            pass
    assert locks(path) == [0, 0]


async def test_live_readers_of_the_old_owner_go_on_with_what_the_new_one_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with opened(path, FakeModel([])) as first, first.session("s", model="fake:m") as old:
        reader = first.read("s").events(after=2, deltas=False)
        async with (
            opened(path, FakeModel([words("hello")])) as second,
            second.session("s", model="fake:m", take_over=True) as new,
        ):
            with pytest.raises(Fenced):
                await old.followup("too late")
            await new.followup("hi")
            await new.run()
        with trio.fail_after(30):
            seen = [(await anext(reader)).event.kind for _ in range(len(kinds_of(path)) - 2)]
        assert seen == kinds_of(path)[2:]


async def test_an_owner_that_keeps_writing_is_taken_over_all_the_same(tmp_path: Path) -> None:
    """It may write between our reading and our own first row, again and again."""
    path, writes = tmp_path / "a.db", 0
    async with opened(path, FakeModel([])) as first, first.session("s", model="fake:m") as old:

        def write_too(name: str, session: str, seq: int) -> None:
            nonlocal writes
            if name == "commit" and writes < 5:
                writes += 1
                with pytest.raises(StopIteration):  # one session alone commits without waiting a round
                    old._journal.append(FAULT).send(None)

        async with (
            opened(path, FakeModel([]), on_boundary=write_too) as second,
            second.session("s", model="fake:m", take_over=True) as new,
        ):
            await new.followup("hi")
            await new.run()
    assert (writes, len(events_of(path, PluginFault))) == (5, 5)
    assert_at_rest(path)


CODE = """
import sys, trio, flightlog
from flightlog.testing import Bundle, FakeModel, calls
from flightlog_hookspecs import Tool

async def main():
    async def pay() -> str:
        print("paying", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        return "paid"
    tool = Tool(body=pay, name="pay", description="Pay.", effect="write")
    plugin = Bundle(adapters=[FakeModel([calls(("pay", {}))])], tools=[tool])
    async with flightlog.open_kernel(sys.argv[1], discover=False, plugins=[plugin]) as kernel:
        async with kernel.session("s", model="fake:m") as session:
            await session.followup("pay ada")
            try:
                await session.run()
            except flightlog.errors.Fenced:
                print("fenced", flush=True)
trio.run(main)
"""


@pytest.mark.kill
async def test_a_stopped_process_loses_its_session_and_learns_of_it_when_it_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    process = started(CODE, str(path))
    with closing_process(process):
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "paying\n"
        process.send_signal(signal.SIGSTOP)
        async with opened(path, FakeModel([[], words("I cannot know.")])) as kernel:
            with pytest.raises(SessionBusy):
                await kernel.session("s").__aenter__()
            async with kernel.session("s", model="fake:m", take_over=True) as session:
                assert outcomes_of(path) == ["unknown"]
                process.send_signal(signal.SIGCONT)
                process.stdin.write("go on\n")
                process.stdin.flush()
                assert await trio.to_thread.run_sync(process.stdout.readline) == "fenced\n"
                await session.followup("was it paid?")
                assert (await session.run()).text == "I cannot know."
        assert process.wait(60) == 0
    assert outcomes_of(path) == ["unknown"]
    assert_at_rest(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["open", "take over", "write", "close"])), max_size=25))
def test_at_any_time_at_most_one_of_several_owners_can_write(tmp_path: Path, steps: list[tuple[int, str]]) -> None:
    """Whatever three would-be owners do in whatever order: the newest one that got in is the only writer."""

    async def main(path: Path) -> None:
        stores = [Store.open(str(path)) for _ in range(3)]
        held: dict[int, object] = {}
        newest: int | None = None
        for who, what in steps:
            if what in ("open", "take over") and who not in held:
                try:
                    held[who] = await open_session(
                        GroupCommit(stores[who]),
                        "s",
                        created=SessionCreated,
                        plugins=(),
                        expect=None,
                        clock=evolve(fixed_clock(), new_id=new_id),
                        on_boundary=lambda name, session, seq: None,
                        feed=Feed(),
                        take_over=what == "take over",
                    )
                    assert newest is None or what == "take over"
                    newest = who
                except SessionBusy:
                    assert newest is not None
                    assert what == "open"
            elif what == "close" and who in held:
                await close_session(held.pop(who))  # type: ignore[arg-type]
                newest = None if newest == who else newest
            elif what == "write" and who in held:
                fenced = False
                try:
                    await held[who].append(FAULT)  # type: ignore[attr-defined]
                except Fenced:
                    fenced = True
                assert fenced == (newest != who)
        for store in stores:
            store.close()

    trio.run(main, subfolder(tmp_path) / "a.db")
