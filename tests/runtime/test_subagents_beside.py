"""Subagents in the background: what they are sent, how they settle, and who goes on with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing

import flightlog
from flightlog import Limits, Session, purge
from flightlog.core.children import GO_ON
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Ask, Hook, ProposedCall, Subagent, Tool, ToolContext, Verdict
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import (
    InboxSplice,
    Record,
    SessionClosed,
    SubagentSettled,
    SubagentSpawned,
    ToolResult,
    TurnEnd,
    UserMessage,
)
from support.family import Family, child_of, settled_in, until
from support.kernels import events_of, kinds_of, records_of, verified

START = [calls(("scout", {"task": "look around"})), words("Started."), words("I see."), words("Good.")]
LOOKING = [[*words("I will look."), *calls(("look", {}))], words("Blue sky."), words("More."), words("Enough.")]


class Gate:
    """A tool of the child that ends when it is told to."""

    def __init__(self) -> None:
        self.began, self.go = trio.Event(), trio.Event()

    @property
    def tool(self) -> Tool:
        """It."""

        async def look() -> str:
            """Look until told."""
            self.began.set()
            await self.go.wait()
            return "sky"

        return Tool(body=look, effect="read")


def told(family: Family) -> list[str]:
    """What the model was told of its children."""
    return [m.text for m in events_of(family.path, UserMessage) if m.source == "subagent"]


def tasks_of(family: Family) -> list[str]:
    """What the child was told."""
    return [m.text for m in events_of(family.path, UserMessage, child_of(family.path))]


async def start(session: Session, gate: Gate) -> None:
    """Run the parent's first turn; the child then stands in its tool."""
    await session.followup("go")
    turn = await session.run()
    assert turn is not None
    assert turn.text == "Started."
    await gate.began.wait()


async def test_the_call_returns_at_once_and_what_came_of_it_is_a_message(tmp_path: Path) -> None:
    gate = Gate()
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    async with family.session() as session:
        await start(session, gate)
        assert "subagent/settled" not in kinds_of(family.path)
        gate.go.set()
        turn = await session.run(children=True)
        assert turn is not None
        assert turn.text == "I see."
    child = child_of(family.path)
    assert told(family) == [f"[scout {child!r}: completed]\nBlue sky."]
    assert child in events_of(family.path, ToolResult)[0].text
    for name in ("s", child):
        verified(family.path, *family.models, name=name)


async def test_it_settles_and_tells_in_one_append(tmp_path: Path) -> None:
    appends: list[int] = []
    family = Family(
        tmp_path,
        START,
        [words("Blue.")],
        background=True,
        on_boundary=lambda name, session, seq: appends.append(seq) if (name, session) == ("committed", "s") else None,
    )
    await family.run("go")
    (seq,) = (record.seq for record in records_of(family.path) if isinstance(record.event, SubagentSettled))
    told = records_of(family.path)[seq].event
    assert isinstance(told, InboxSplice)
    assert (told.source, told.cause) == ("subagent", "accepted")
    assert seq not in appends
    assert seq + 1 in appends


async def test_who_serves_is_woken_by_it(tmp_path: Path) -> None:
    gate = Gate()
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    async with family.session() as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.serve)
        await session.followup("go")
        await gate.began.wait()
        gate.go.set()
        await until(session, lambda record: isinstance(record.event, UserMessage) and record.event.source == "subagent")
        nursery.cancel_scope.cancel()
    assert len(told(family)) == 1


async def test_one_that_fails_settles_too(tmp_path: Path) -> None:
    family = Family(tmp_path, START, [[ProviderError("auth", "no key")]], background=True)
    await family.run("go")
    (text,) = told(family)
    assert "did not finish (error: auth: no key)" in text


async def test_one_that_somebody_cancels_settles_too(tmp_path: Path) -> None:
    gate = Gate()
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    async with family.kernel() as kernel, kernel.session("s", model="fake:m") as session:
        await start(session, gate)
        await kernel.mailbox(child_of(family.path)).cancel(now=True)
        await settled_in(session)
    assert [settled.reason for settled in events_of(family.path, SubagentSettled)] == ["aborted"]


def sends(child: str, text: str, **more: object) -> list[object]:
    return calls(("scout", {"task": text, "child": child} | more))


async def test_a_child_that_works_is_sent_more_by_the_same_tool(tmp_path: Path) -> None:
    gate = Gate()
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    async with family.kernel() as kernel, kernel.session("s", model="fake:m") as session:
        await start(session, gate)
        child = child_of(family.path)
        family.parent.replies = [
            *START[:2],
            sends(child, "and there", steer=True),
            words("Sent."),
            sends(child, "then here"),
            words("Sent."),
            words("I see."),
        ]
        for text in ("steer", "queue"):
            await session.followup(text)
        await session.run()
        await until(kernel.read(child), lambda record: getattr(record.event, "verb", "") == "followup")
        gate.go.set()
        await session.run(children=True)
    assert tasks_of(family) == ["look around", "and there", "then here"]
    assert len(events_of(family.path, SubagentSpawned)) == 1
    assert told(family) == [f"[scout {child!r}: completed]\nMore."]


async def test_what_it_is_sent_as_it_comes_to_rest_is_done_before_it_settles(tmp_path: Path) -> None:
    gate = Gate()
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    async with family.kernel() as kernel, kernel.session("s", model="fake:m") as session:
        await start(session, gate)
        child = child_of(family.path)
        async with session._children._gates[child]:
            gate.go.set()
            await until(kernel.read(child), lambda record: isinstance(record.event, TurnEnd))
            await trio.testing.wait_all_tasks_blocked(0.001)
            await kernel.mailbox(child).followup("and more")
        await session.run(children=True)
    assert tasks_of(family) == ["look around", "and more"]
    assert told(family) == [f"[scout {child!r}: completed]\nMore."]


async def test_a_parent_that_was_imported_elsewhere_begins_no_child_again(tmp_path: Path) -> None:
    gate = Gate()
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    async with family.session() as session:
        await start(session, gate)
    with flightlog.open_log(family.path, discover=False) as log:
        log.session("s").export(tmp_path / "s.jsonl")
    there = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    there.path = tmp_path / "there.db"
    gate.go.set()
    async with there.kernel() as kernel:
        await kernel.import_session(tmp_path / "s.jsonl")
    await there.run("go on")
    assert [settled.reason for settled in events_of(there.path, SubagentSettled)] == ["error"]
    assert there.child.requests == []


async def test_a_child_that_has_settled_is_given_another_task(tmp_path: Path) -> None:
    gate = Gate()
    gate.go.set()
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    await family.run("go")
    child = child_of(family.path)
    family.parent.replies = [*START[:3], sends(child, "go on"), words("Sent."), words("I see more.")]
    await family.run("again")
    first, second = events_of(family.path, SubagentSpawned)
    assert (first.child, first.task, second.child, second.task) == (child, "look around", child, "go on")
    assert told(family) == [f"[scout {child!r}: completed]\n{words}" for words in ("Blue sky.", "More.")]


async def test_a_child_that_is_still_being_closed_is_given_another_task_once_it_is(tmp_path: Path) -> None:
    gate, seen_off = Gate(), trio.Event()
    gate.go.set()

    async def watch(record: Record) -> None:
        if isinstance(record.event, SessionClosed) and record.session != "s":
            await seen_off.wait()

    hooks = [Hook(point="event_committed", name="slow", body=watch, limit_s=60.0)]
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], hooks=hooks, background=True)
    async with family.session() as session, trio.open_nursery() as nursery:
        await session.followup("go")
        await session.run()
        await settled_in(session)
        child = child_of(family.path)
        family.parent.replies = [*START[:2], sends(child, "go on"), words("Sent."), words("Fine.")]
        nursery.start_soon(session.serve)
        await until(session, lambda record: isinstance(record.event, SubagentSpawned) and record.event.task == "go on")
        seen_off.set()
        await settled_in(session, 2)
        nursery.cancel_scope.cancel()
    assert [message.text for message in events_of(family.path, UserMessage, child)] == ["look around", "go on"]
    assert verified(family.path, *family.models)


async def test_a_cancel_of_the_host_lets_a_body_still_start_a_child_and_leaves_it_to_the_next_owner(
    tmp_path: Path,
) -> None:
    began = trio.Event()

    async def late(context: ToolContext) -> str:
        """Start a child while all is being cancelled."""
        began.set()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
        return await context.children.start(family.subagents[0], "look around")

    parent = [calls(("late", {})), *START[1:]]
    family = Family(tmp_path, parent, [words("Seen.")], tools=[Tool(body=late, effect="read")], background=True)
    family.limits = Limits(cancel_grace_s=60.0)
    with trio.CancelScope() as host:
        async with family.session() as session, trio.open_nursery() as nursery:
            await session.followup("go")
            nursery.start_soon(session.run)
            await began.wait()
            host.cancel()
    assert host.cancelled_caught
    await family.run()
    assert len(events_of(family.path, SubagentSettled)) == 1
    assert verified(family.path, *family.models)


async def test_a_cancel_of_the_host_cancels_cleanly_while_a_child_waits_for_its_own(tmp_path: Path) -> None:
    gate = Gate()
    middle = [calls(("leaf", {"task": "look"})), words("Waiting.")]
    leaf = Subagent(name="leaf", description="Looks.", prompt="You look.", model="leaf:m", background=True)
    family = Family(tmp_path, START, middle, tools=[gate.tool], background=True)
    family.subagents.append(leaf)
    bottom = Bundle(adapters=[FakeModel([calls(("look", {})), words("Sky.")], "leaf")])
    with trio.CancelScope() as host:
        async with family.kernel() as kernel, kernel.register(bottom), kernel.session("s", model="fake:m") as session:
            await session.followup("go")
            await session.run()
            await gate.began.wait()
            host.cancel()
            await trio.sleep_forever()
    assert host.cancelled_caught


@pytest.mark.parametrize("background", [True, False])
async def test_only_a_background_child_of_this_session_is_sent_anything(tmp_path: Path, background: bool) -> None:
    family = Family(tmp_path, [sends("other", "hello")], [], background=background)
    async with family.kernel() as kernel, kernel.session("other", model="fake:m"):
        pass
    await family.run("go")
    (result,) = events_of(family.path, ToolResult)
    assert result.outcome == "error"
    assert events_of(family.path, SubagentSpawned) == []
    assert "inbox/splice" not in kinds_of(family.path, "other")


async def test_a_cancel_of_the_turn_leaves_it_at_work(tmp_path: Path) -> None:
    gate = Gate()
    hung = trio.Event()

    async def hang() -> None:
        """Hang."""
        hung.set()
        await trio.sleep_forever()

    replies = [START[0], calls(("hang", {})), words("I see."), words("I see.")]
    family = Family(tmp_path, replies, LOOKING, tools=[gate.tool, Tool(body=hang)], background=True)
    async with family.session() as session:
        await session.followup("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await gate.began.wait()
            await hung.wait()
            session.cancel()
        gate.go.set()
        await session.run(children=True)
    assert next(end.reason for end in events_of(family.path, TurnEnd)) == "aborted"
    assert len(told(family)) == 1


async def test_the_next_owner_goes_on_with_one_that_was_left_at_a_close(tmp_path: Path) -> None:
    gate = Gate()
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    async with family.session() as session:
        await start(session, gate)
    child = child_of(family.path)
    assert events_of(family.path, SubagentSettled) == []
    assert kinds_of(family.path, child)[-1] == "session/closed"
    async with family.session():
        pass
    assert kinds_of(family.path, child)[-1] == "session/closed"
    assert tasks_of(family) == ["look around"], "opening runs nothing"
    async with family.session() as session:
        await session.run(children=True)
    assert tasks_of(family) == ["look around", GO_ON]
    assert told(family) == [f"[scout {child!r}: completed]\nBlue sky."]


async def test_one_that_is_cut_off_again_and_again_settles_as_interrupted(tmp_path: Path) -> None:
    family = Family(tmp_path, START, [[trio.sleep_forever]], background=True)
    async with family.session() as session:
        await session.followup("go")
        await session.run()
    for _ in range(3):
        async with family.session() as session:
            count = len(events_of(family.path, UserMessage, child_of(family.path)))
            await session.run()
            await until_told(family, count)
    async with family.session() as session:
        await session.run(children=True)
    assert [settled.reason for settled in events_of(family.path, SubagentSettled)] == ["aborted"]
    assert tasks_of(family) == ["look around", GO_ON, GO_ON, GO_ON]


async def until_told(family: Family, count: int) -> None:
    """Wait until the child was told something more."""
    while len(events_of(family.path, UserMessage, child_of(family.path))) == count:
        await trio.lowlevel.checkpoint()


async def asks(call: ProposedCall) -> Verdict:
    """Ask about looking."""
    return Ask("may it?") if call.name == "look" else None


async def test_a_child_that_waits_for_a_person_still_does_after_a_close(tmp_path: Path) -> None:
    gate = Gate()
    gate.go.set()
    hook = Hook(point="before_tool", body=asks, name="asks")
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], hooks=[hook], background=True, approver=True)
    async with family.session() as session:
        await session.followup("go")
        await session.run()
        child = child_of(family.path)
        while "approval/asked" not in kinds_of(family.path, child):
            await trio.lowlevel.checkpoint()
    assert "turn/end" not in kinds_of(family.path, child)
    async with family.kernel() as kernel:
        ((seq,),) = (await kernel.query("SELECT seq FROM approvals WHERE session = ?", child)).rows
        await kernel.mailbox(child).approve(seq)
        async with kernel.session("s", model="fake:m", approver=True) as session:
            await session.run(children=True)
    assert told(family) == [f"[scout {child!r}: completed]\nBlue sky."]
    assert tasks_of(family) == ["look around"]


async def test_one_that_somebody_else_has_open_is_waited_for(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    gate = Gate()
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    async with family.session() as session:
        await start(session, gate)
    child = child_of(family.path)
    async with (
        family.kernel() as kernel,
        trio.open_nursery() as nursery,
        kernel.session("s", model="fake:m") as session,
    ):
        async with kernel.session(child) as mine:
            nursery.start_soon(session.run)
            await trio.sleep(10)
            await mine.followup("do what I say")
            gate.go.set()
            await mine.run()
            assert events_of(family.path, SubagentSettled) == []
        await session.run(children=True)
    assert told(family) == [f"[scout {child!r}: completed]\nBlue sky."]


async def test_one_that_was_purged_is_reported_and_never_begun_again(tmp_path: Path) -> None:
    gate = Gate()
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    async with family.session() as session:
        await start(session, gate)
    child = child_of(family.path)
    purge(family.path, child)
    gate.go.set()
    await family.run("go on")
    assert [settled.reason for settled in events_of(family.path, SubagentSettled)] == ["error"]
    assert "its session is not in this file" in told(family)[0]
    with flightlog.open_log(family.path, discover=False) as log:
        assert log.names() == ["s"]


async def test_a_child_outlives_its_parent_and_is_nobodys_then(tmp_path: Path) -> None:
    gate = Gate()
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    async with family.session() as session:
        await start(session, gate)
    child = child_of(family.path)
    purge(family.path, "s")
    gate.go.set()
    async with family.kernel() as kernel, kernel.session(child) as session:
        await session.followup("go on")
        turn = await session.run()
        assert turn is not None
        assert turn.text == "Blue sky."
    with flightlog.open_log(family.path, discover=False) as log:
        assert [(one.session, one.parent) for one in log.sessions()] == [(child, "s")]


async def test_a_fork_does_not_go_on_with_the_children_of_its_origin(tmp_path: Path) -> None:
    gate = Gate()
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    async with family.session() as session:
        await start(session, gate)
    async with family.kernel() as kernel:
        await kernel.fork("s", 1, "f")
        async with kernel.session("f") as fork:
            assert await fork.run(children=True) is None
    assert not {"subagent/spawned", "subagent/settled"} & set(kinds_of(family.path, "f"))
    assert tasks_of(family) == ["look around"]


async def test_one_whose_subagent_is_gone_goes_on_with_its_own_head(tmp_path: Path) -> None:
    gate = Gate()
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    async with family.session() as session:
        await start(session, gate)
    family.subagents = []
    await family.run("go on")
    assert [settled.reason for settled in events_of(family.path, SubagentSettled)] == ["completed"]


async def test_a_childs_own_children_settle_before_it_does(tmp_path: Path) -> None:
    """The child starts a child of its own and has nothing else to do: it is at rest once it has heard of it."""
    deeper = [calls(("scout", {"task": "deeper"})), words("Started it."), words("It is done.")]
    family = Family(tmp_path, START, deeper, background=True, limits=Limits(subagent_depth=2))
    await family.run("go")
    with flightlog.open_log(family.path, discover=False) as log:
        names = {one.depth: one.session for one in log.sessions()}
    assert "completed" in {end.reason for end in events_of(family.path, TurnEnd, names[2])}
    assert told(family) == [f"[scout {names[1]!r}: completed]\nIt is done."]


async def test_a_fenced_parent_leaves_its_children_to_the_new_owner(tmp_path: Path) -> None:
    gate = Gate()
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    async with family.session() as session:
        await start(session, gate)
        second = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
        async with second.kernel() as kernel, kernel.session("s", model="fake:m", take_over=True) as new:
            gate.go.set()
            await new.run(children=True)
    assert len(events_of(family.path, SubagentSettled)) == 1
    assert len(told(family)) == 1


async def test_a_run_without_children_does_not_wait(tmp_path: Path) -> None:
    gate = Gate()
    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True)
    async with family.session() as session:
        await start(session, gate)
        assert await session.run() is None
    assert isinstance(records_of(family.path)[-1].event, SessionClosed)
    assert isinstance(family.parent, FakeModel)


async def test_a_cancel_that_comes_as_the_turn_ends_does_not_wait_for_the_children(tmp_path: Path) -> None:
    gate, accepted = Gate(), []

    def cancel(name: str, session: str, seq: int) -> None:
        if name == "committed" and session == "s" and events_of(family.path, TurnEnd) and not accepted:
            accepted.append(held[0].cancel())

    family = Family(tmp_path, START, LOOKING, tools=[gate.tool], background=True, on_boundary=cancel)
    held: list[Session] = []
    async with family.session() as session:
        held.append(session)
        await session.followup("go")
        turn = await session.run(children=True)
        assert (accepted, turn is not None and turn.reason) == ([True], "completed")
    assert events_of(family.path, SubagentSettled) == []


async def test_a_call_that_says_it_has_started_one_has_given_it_its_task(tmp_path: Path) -> None:
    """Whatever crashes then, the child is there to go on; one that is not there could only be reported."""
    there: list[list[str]] = []

    def look_at(name: str, session: str, seq: int) -> None:
        if name == "committed" and session == "s" and not there and events_of(family.path, ToolResult):
            accepted = events_of(family.path, InboxSplice, child_of(family.path))
            there.append([block.text for message in accepted for block in message.content or ()])

    family = Family(tmp_path, START, [words("Blue.")], background=True, on_boundary=look_at)
    await family.run("go")
    assert there == [["look around"]]
