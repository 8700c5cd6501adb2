"""Subagents: a call that waits for a child session, and what the child may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

import flightlog
from flightlog import Limits
from flightlog.core.children import child_name
from flightlog.testing import Bundle, calls, words
from flightlog_hookspecs import (
    Ask,
    ChildEnd,
    Deny,
    Finish,
    Hook,
    Parameter,
    PromptSection,
    ProposedCall,
    Subagent,
    Tool,
    ToolContext,
    Verdict,
)
from flightlog_hookspecs.errors import PluginError, ProviderError, ToolError
from flightlog_hookspecs.events import (
    ApprovalDecided,
    RequestHeader,
    SessionCreated,
    SubagentSettled,
    SubagentSpawned,
    ToolResult,
    TurnEnd,
    UserMessage,
)
from support.family import Family, child_of, until
from support.kernels import events_of, kinds_of, verified

CALL = [calls(("scout", {"task": "look around"})), words("I see.")]
LOOKING = [[*words("I will look."), *calls(("look", {}))], words("Blue sky.")]


async def look() -> str:
    """Look."""
    return "sky"


async def write() -> str:
    """Write."""
    return "written"


LOOK = Tool(body=look, effect="read")


def result_of(family: Family) -> ToolResult:
    (result,) = events_of(family.path, ToolResult)
    return result


async def test_the_call_gives_the_child_its_task_and_its_result_is_the_last_words(tmp_path: Path) -> None:
    family = Family(tmp_path, CALL, LOOKING, tools=[LOOK])
    turn = await family.run("go")
    assert (turn.reason, turn.text) == ("completed", "I see.")
    assert (result_of(family).outcome, result_of(family).text) == ("ok", "Blue sky.")
    child = child_of(family.path)
    assert [m.text for m in events_of(family.path, UserMessage, child)] == ["look around"]
    assert [end.reason for end in events_of(family.path, TurnEnd, child)] == ["completed"]
    assert [header.head.system for header in events_of(family.path, RequestHeader, child)] == ["You look."]
    for name in ("s", child):
        verified(family.path, *family.models, name=name)


async def test_the_child_is_named_in_the_log_before_it_exists_and_settled_before_the_result(tmp_path: Path) -> None:
    family = Family(tmp_path, CALL, [words("Blue.")])
    await family.run("go")
    kinds = kinds_of(family.path)
    places = [kinds.index(kind) for kind in ("tool/call", "subagent/spawned", "subagent/settled", "tool/result")]
    assert places == sorted(places)
    (spawned,) = events_of(family.path, SubagentSpawned)
    (settled,) = events_of(family.path, SubagentSettled)
    assert (spawned.subagent, spawned.depth, spawned.task) == ("scout", 1, "look around")
    assert (settled.child, settled.invocation_id) == (spawned.child, spawned.invocation_id)
    assert (settled.reason, settled.result) == ("completed", "Blue.")
    (created,) = events_of(family.path, SessionCreated, spawned.child)
    (parent,) = events_of(family.path, SessionCreated)
    assert (created.parent_session, created.parent_uid, created.depth) == ("s", parent.uid, 1)
    assert spawned.child.startswith("s/scout-")
    with flightlog.open_log(family.path, discover=False) as log:
        assert {(one.session, one.parent, one.depth) for one in log.sessions()} == {
            ("s", None, 0),
            (spawned.child, "s", 1),
        }


BAD_ENDS = {
    "error: auth: no key": [ProviderError("auth", "no key")],
    "max_steps: 1 steps": calls(("look", {})),
    "error: refusal: the provider refused to answer": [*words("I would not."), Finish(reason="refusal")],
}


@pytest.mark.parametrize("why", BAD_ENDS)
async def test_a_child_that_ends_badly_is_an_error_result_that_says_so_and_names_it(tmp_path: Path, why: str) -> None:
    family = Family(tmp_path, CALL, [BAD_ENDS[why]], tools=[LOOK], limits=Limits(steps_per_turn=2))
    if why.startswith("max"):
        family = Family(tmp_path, [CALL[0]], [BAD_ENDS[why]], tools=[LOOK], limits=Limits(steps_per_turn=1))
    await family.run("go")
    (settled,) = events_of(family.path, SubagentSettled)
    assert (result_of(family).outcome, settled.reason) == ("error", why.partition(":")[0])
    assert f"({why}). Its session is {child_of(family.path)!r}." in result_of(family).text
    assert ("Its last words: I would not." in result_of(family).text) == ("refusal" in why)


@pytest.mark.parametrize("model", ["gone:m", "no model"])
async def test_a_child_that_cannot_be_opened_is_an_error_result(tmp_path: Path, model: str) -> None:
    family = Family(tmp_path, CALL, [], model=model)
    turn = await family.run("go")
    assert turn.reason == "completed"
    assert result_of(family).outcome == "error"
    assert "UsageError" in result_of(family).text
    assert [settled.reason for settled in events_of(family.path, SubagentSettled)] == ["error"]


async def test_a_session_that_has_the_childs_name_is_not_touched(tmp_path: Path) -> None:
    family = Family(tmp_path, CALL, [words("Blue.")])
    async with family.kernel() as kernel, kernel.session("s", model="fake:m") as session:
        name = child_name("s", "scout", f"{kernel.read('s').uid}.1.1.0")
        async with kernel.session(name, model="fake:m"):
            pass
        before = kinds_of(family.path, name)
        await session.followup("go")
        await session.run()
    assert "is not a child of this one" in result_of(family).text
    assert kinds_of(family.path, name)[: len(before)] == before
    assert family.child.requests == []


@pytest.mark.parametrize(
    ("scout", "says"),
    [
        ({"tools_of_child": ("look", "fly")}, "there is no tool 'fly' here"),
        ({"effect": "read", "tools_of_child": ("look", "write")}, "only reads, but 'write' may do more"),
        ({"effect": "read"}, "only reads, but 'write' may do more"),
    ],
)
async def test_a_subagent_that_wants_more_than_its_parent_has_is_not_started(
    tmp_path: Path, scout: dict[str, Any], says: str
) -> None:
    family = Family(tmp_path, CALL, [words("Blue.")], tools=[LOOK, Tool(body=write)], **scout)
    await family.run("go")
    assert result_of(family).outcome == "error"
    assert says in result_of(family).text
    assert events_of(family.path, SubagentSpawned) == []
    assert family.child.requests == []


async def test_a_child_sees_the_tools_that_it_was_given_and_none_that_come_later(tmp_path: Path) -> None:
    family = Family(tmp_path, CALL, [words("Blue.")], tools=[LOOK, Tool(body=write)], tools_of_child=("look",))
    await family.run("go")
    (header,) = events_of(family.path, RequestHeader, child_of(family.path))
    assert [tool.name for tool in header.head.tools] == ["look"]


async def test_a_child_keeps_its_tools_and_its_depth_when_it_is_opened_on_its_own(tmp_path: Path) -> None:
    family = Family(
        tmp_path,
        CALL,
        [words("Blue."), calls(("write", {})), calls(("scout", {"task": "go on"}))],
        tools=[LOOK, Tool(body=write)],
        tools_of_child=("look", "scout"),
    )
    await family.run("go")
    child = child_of(family.path)
    async with family.kernel() as kernel, kernel.session(child, limits=Limits(subagent_depth=1)) as session:
        await session.followup("more")
        await session.run()
    results = events_of(family.path, ToolResult, child)
    assert [result.outcome for result in results] == ["error", "error"]
    assert "There is no tool named 'write'" in results[0].text
    assert "1 levels deep at most" in results[1].text


async def test_children_have_children_down_to_the_limit(tmp_path: Path) -> None:
    """Each asks the next, and the one at the limit is told to do it itself."""
    deeper = [calls(("scout", {"task": "deeper"})), words("Up again.")]
    family = Family(tmp_path, CALL, deeper, limits=Limits(subagent_depth=2))
    await family.run("go")
    with flightlog.open_log(family.path, discover=False) as log:
        depths = sorted(one.depth for one in log.sessions())
        deepest = next(one.session for one in log.sessions() if one.depth == 2)
    assert depths == [0, 1, 2]
    (result,) = events_of(family.path, ToolResult, deepest)
    assert (result.outcome, "2 levels deep at most" in result.text) == ("error", True)


async def test_the_guards_of_the_kernel_and_of_the_parents_session_hold_for_the_child(tmp_path: Path) -> None:
    def guard(tool: str) -> Hook:
        async def deny(call: ProposedCall) -> Verdict:
            return Deny(f"no {tool}") if call.name == tool else None

        return Hook(point="before_tool", body=deny, name=tool)

    child = [calls(("look", {}), ("write", {})), words("Nothing.")]
    family = Family(tmp_path, CALL, child, tools=[LOOK, Tool(body=write)], hooks=[guard("look")])
    async with family.session() as session, session.register(Bundle(hooks=[guard("write")])):
        await session.followup("go")
        await session.run()
    texts = [result.text for result in events_of(family.path, ToolResult, child_of(family.path))]
    assert texts == ["Denied: no look", "Denied: no write"]


async def test_a_child_is_told_what_the_kernel_says_and_not_what_its_parents_session_says(tmp_path: Path) -> None:
    def saying(who: str) -> Bundle:
        sections = [PromptSection(name=who, rank=1, kind="static", render=lambda: f"I am the {who}.")]
        return Bundle(sections=sections, parameters=[Parameter(name=who, value=1)])

    family = Family(tmp_path, CALL, LOOKING, tools=[LOOK])
    async with (
        family.kernel() as kernel,
        kernel.register(saying("kernel")),
        kernel.session("s", model="fake:m") as session,
        session.register(saying("session")),
    ):
        await session.followup("go")
        await session.run()
    (parent,) = events_of(family.path, RequestHeader)
    (child,) = events_of(family.path, RequestHeader, child_of(family.path))
    assert (parent.head.parameters, child.head.parameters) == ('{"kernel":1,"session":1}', '{"kernel":1}')
    assert "I am the session." in parent.head.system
    assert "I am the kernel." in child.head.system
    assert "I am the session." not in child.head.system


async def asks(call: ProposedCall) -> Verdict:
    """Ask about looking."""
    return Ask("may it?") if call.name == "look" else None


async def test_a_question_of_a_child_waits_in_its_own_session(tmp_path: Path) -> None:
    hook = Hook(point="before_tool", body=asks, name="asks")
    family = Family(tmp_path, CALL, LOOKING, tools=[LOOK], hooks=[hook], approver=True)
    async with family.kernel() as kernel, kernel.session("s", model="fake:m", approver=True) as session:
        await session.followup("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await until(session, lambda record: isinstance(record.event, SubagentSpawned))
            child = child_of(family.path)
            while not (await kernel.query("SELECT seq FROM approvals WHERE session = ?", child)).rows:
                await trio.lowlevel.checkpoint()
            ((seq,),) = (await kernel.query("SELECT seq FROM approvals WHERE session = ?", child)).rows
            assert session.questions() == []
            await kernel.mailbox(child).approve(seq, by="ada")
    assert result_of(family).text == "Blue sky."


async def test_a_parent_without_an_approver_gives_its_child_none(tmp_path: Path) -> None:
    hook = Hook(point="before_tool", body=asks, name="asks")
    family = Family(tmp_path, CALL, LOOKING, tools=[LOOK], hooks=[hook])
    await family.run("go")
    (decided,) = events_of(family.path, ApprovalDecided, child_of(family.path))
    assert (decided.decision, decided.by) == ("denied", "nobody")


class Hanging:
    """A tool of the child that ends when it is cancelled."""

    def __init__(self) -> None:
        self.began = trio.Event()
        self.drained = False

    @property
    def tool(self) -> Tool:
        """It."""

        async def look() -> str:
            """Look for ever."""
            self.began.set()
            try:
                await trio.sleep_forever()
            finally:
                self.drained = True
            return ""

        return Tool(body=look, effect="read")


@pytest.mark.parametrize("now", [False, True])
async def test_cancelling_the_turn_cancels_the_child_and_drains_its_tools(tmp_path: Path, now: bool) -> None:
    hanging = Hanging()
    family = Family(tmp_path, CALL, LOOKING, tools=[hanging.tool])
    async with family.session() as session:
        await session.followup("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await hanging.began.wait()
            session.cancel(now=now)
    assert hanging.drained
    child = child_of(family.path)
    assert [(end.reason, end.cause) for end in events_of(family.path, TurnEnd, child)] == [
        ("aborted", "parent cancelled")
    ]
    kinds = kinds_of(family.path)
    assert kinds.index("subagent/settled") < kinds.index("tool/result")
    assert [settled.reason for settled in events_of(family.path, SubagentSettled)] == ["aborted"]
    assert [end.reason for end in events_of(family.path, TurnEnd)] == ["aborted"]
    assert child in result_of(family).text or result_of(family).outcome == "unknown"


async def test_a_child_whose_parent_is_cancelled_starts_nothing_more(tmp_path: Path) -> None:
    """The grace is for what runs, not for further steps."""
    began, go = trio.Event(), trio.Event()

    async def look() -> str:
        """Look until told."""
        began.set()
        await go.wait()
        return "sky"

    family = Family(tmp_path, CALL, LOOKING, tools=[Tool(body=look)], limits=Limits(cancel_grace_s=1000))
    async with family.session() as session:
        await session.followup("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await began.wait()
            session.cancel()
            await trio.testing.wait_all_tasks_blocked()
            go.set()
    assert len(family.child.requests) == 1
    assert (result_of(family).outcome, "parent cancelled" in result_of(family).text) == ("error", True)


async def test_closing_the_session_ends_a_call_that_waits_as_a_cancel_does(tmp_path: Path) -> None:
    hanging = Hanging()
    family = Family(tmp_path, CALL, LOOKING, tools=[hanging.tool])
    async with trio.open_nursery() as nursery, family.session() as session:
        await session.followup("go")
        nursery.start_soon(session.run)
        await hanging.began.wait()
    assert [end.reason for end in events_of(family.path, TurnEnd, child_of(family.path))] == ["aborted"]
    assert [settled.reason for settled in events_of(family.path, SubagentSettled)] == ["aborted"]


async def test_a_child_that_takes_too_long_is_cancelled_and_named(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    hanging = Hanging()
    family = Family(tmp_path, CALL, LOOKING, tools=[hanging.tool], timeout_s=5)
    turn = await family.run("go")
    assert turn.reason == "completed"
    child = child_of(family.path)
    assert [(end.reason, end.cause) for end in events_of(family.path, TurnEnd, child)] == [("aborted", "time limit")]
    assert (result_of(family).outcome, child in result_of(family).text) == ("error", True)


async def test_a_subagent_is_not_taken_back_under_its_call(tmp_path: Path) -> None:
    hanging = Hanging()
    family = Family(tmp_path, [*CALL, words("x")], LOOKING, tools=[hanging.tool])
    (scout,) = family.subagents
    family.subagents = []
    async with family.session() as session:
        registration = session.register(Bundle(subagents=[scout]))
        await session.followup("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await hanging.began.wait()
            closed = False

            async def close() -> None:
                nonlocal closed
                await registration.aclose()
                closed = True

            nursery.start_soon(close)
            await trio.testing.wait_all_tasks_blocked()
            assert not closed
            session.cancel()
        assert closed
        await session.followup("again")
        await session.run()
    heads = events_of(family.path, RequestHeader)
    assert [[tool.name for tool in header.head.tools] for header in heads] == [["look", "scout"], ["look"]]


async def test_several_children_work_side_by_side(tmp_path: Path) -> None:
    met = [trio.Event(), trio.Event()]

    async def meet() -> str:
        """Wait for the other one."""
        first = not met[0].is_set()
        met[0 if first else 1].set()
        await met[1].wait()
        return "met"

    both = [calls(("scout", {"task": "one"}), ("scout", {"task": "two"})), words("Both.")]
    child = [calls(("meet", {})), words("We met.")]
    family = Family(tmp_path, both, child, tools=[Tool(body=meet)])
    await family.run("go")
    assert [result.text for result in events_of(family.path, ToolResult)] == ["We met."] * 2
    assert len({spawned.child for spawned in events_of(family.path, SubagentSpawned)}) == 2


async def test_a_tool_of_any_plugin_may_start_a_child(tmp_path: Path) -> None:
    ends: list[ChildEnd] = []

    async def ask(context: ToolContext) -> str:
        """Ask somebody."""
        assert context.children
        critic = Subagent(name="critic", description="", prompt="Be strict.", model="child:m", tools=())
        ends.append(await context.children.run(critic, "judge"))
        await context.children.run(critic, "judge again")
        return "never"

    family = Family(tmp_path, [calls(("ask", {}))], [words("Bad.")], tools=[Tool(body=ask)])
    await family.run("go")
    assert [(end.reason, end.text) for end in ends] == [("completed", "Bad.")]
    assert ends[0].child == child_of(family.path)
    assert result_of(family).outcome == "error"
    assert result_of(family).text == "'critic' was not started: a call starts one child at most."


def plain(context: ToolContext) -> str:
    """Say what there is."""
    return str(context.children)


@pytest.mark.parametrize("isolation", ["inline", "thread", "process"])
async def test_a_body_off_the_kernels_thread_cannot_start_a_child(tmp_path: Path, isolation: Any) -> None:
    family = Family(tmp_path, [calls(("plain", {}))], [], tools=[Tool(body=plain, isolation=isolation)])
    await family.run("go")
    assert result_of(family).text == "None"


async def test_a_fork_of_a_child_may_use_no_more_and_is_nobodys_child(tmp_path: Path) -> None:
    family = Family(tmp_path, CALL, LOOKING, tools=[LOOK, Tool(body=write)], tools_of_child=("look",))
    await family.run("go")
    async with family.kernel() as kernel:
        await kernel.fork(child_of(family.path), 1, "f")
        await kernel.fork("s", 1, "g")
    (fork,) = events_of(family.path, SessionCreated, "f")
    assert (fork.parent_session, fork.depth, fork.tools) == ("", 1, ("look",))
    assert "subagent/spawned" not in kinds_of(family.path, "g")


@pytest.mark.parametrize(
    "scout",
    [
        {"name": ""},
        {"name": "a b"},
        {"tools_of_child": ["look"]},
        {"timeout_s": 0},
        {"prompt": None},
        {"effect": "write"},
        {"description": ""},
        {"background": True, "effect": "read"},
    ],
)
async def test_a_subagent_that_is_not_sound_is_refused_as_it_is_registered(tmp_path: Path, scout: Any) -> None:
    family = Family(tmp_path, [], [], **scout)
    with pytest.raises(PluginError, match=r"subagent|tool"):
        async with family.kernel():
            pass


async def test_a_subagent_and_a_tool_of_one_name_do_not_go_together(tmp_path: Path) -> None:
    family = Family(tmp_path, [], [], tools=[LOOK], name="look")
    with pytest.raises(PluginError, match="tool 'look' exists already"):
        async with family.kernel():
            pass


async def test_a_subagent_without_a_model_of_its_own_has_its_parents(tmp_path: Path) -> None:
    family = Family(tmp_path, [calls(("scout", {"task": "look"})), words("I see.")], [], model="")
    await family.run("go")
    (header,) = events_of(family.path, RequestHeader, child_of(family.path))
    assert f"{header.head.adapter}:{header.head.model}" == "fake:m"


async def test_a_wait_for_a_child_that_outlives_its_call_is_cut_off_and_settled_before_the_result(
    tmp_path: Path,
) -> None:
    ends: list[object] = []

    async def careless(context: ToolContext) -> str:
        """Leave a task behind that waits for a child."""

        async def wait() -> None:
            try:
                ends.append(await context.children.run(family.subagents[0], "look around"))
            except ToolError as error:
                ends.append(error)

        elsewhere.start_soon(wait)
        await began.wait()
        return "done"

    async def never() -> str:
        """Look for ever."""
        began.set()
        await trio.sleep_forever()
        return ""

    began = trio.Event()
    tools = [Tool(body=careless, effect="read"), Tool(body=never, name="look", effect="read")]
    family = Family(tmp_path, [calls(("careless", {})), words("I see.")], LOOKING, tools=tools)
    async with trio.open_nursery() as elsewhere:
        await family.run("go")
    assert [settled.reason for settled in events_of(family.path, SubagentSettled)] == ["aborted"]
    assert len(ends) == 1
    assert isinstance(ends[0], ToolError)
    kinds = kinds_of(family.path)
    assert kinds.index("subagent/settled") < kinds.index("tool/result")
    assert result_of(family).text == "done"
    assert verified(family.path, *family.models)


async def test_a_call_that_has_ended_starts_no_child(tmp_path: Path) -> None:
    kept: list[ToolContext] = []

    async def keep(context: ToolContext) -> str:
        """Keep the port."""
        kept.append(context)
        return "done"

    family = Family(tmp_path, [calls(("keep", {})), words("I see.")], LOOKING, tools=[Tool(body=keep, effect="read")])
    async with family.session() as session:
        await session.followup("go")
        await session.run()
        port = kept[0].children
        assert port is not None
        for use in (port.run, port.start):
            with pytest.raises(ToolError, match="has ended"):
                await use(family.subagents[0], "look around")
    assert "subagent/spawned" not in kinds_of(family.path)
