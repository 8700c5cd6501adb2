"""Cancel ends the turn, not the session: what had arrived stays, what had started is judged, nothing dangles."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio
import trio._core._run as trio_run
import trio.testing

from flightlog import Limits, Session, tool
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import BlockEnd, BlockStart, TextBlock, TextDelta, ThinkingDelta, Tool, ToolCallDelta
from flightlog_hookspecs.events import AssistantMessage, RequestFailed, StepEnd, ToolCall, ToolResult, TurnEnd
from support.kernels import events_of, kinds_of, opened, outcomes_of, session_of, verified

AT_ONCE = Limits(cancel_grace_s=0)
HALF_A_CALL = [
    BlockStart(index=1, type="tool_call", call_id="c", name="act"),
    ToolCallDelta(index=1, text='{"path": "/et'),
]


class Stop:
    """A place to stop at: `reached` when the turn is there; then it hangs until cancelled."""

    def __init__(self) -> None:
        self.reached = trio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await trio.sleep_forever()


async def cancelled_at(stop: Stop, session: Session, cause: str = "user") -> None:
    """Run a turn up to `stop`, cancel it, and wait for its end."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        await stop.reached.wait()
        assert session.cancel(cause) is True


@pytest.mark.parametrize(
    ("streamed", "kept"),
    [
        (words("Some words")[:-1], "Some words"),
        (words("Some words"), "Some words"),
        ([*words("Some words"), *HALF_A_CALL], "Some words"),
        ([*words("Some words"), *calls(("act", {}))], "Some words"),
        ([*words("One. "), *words("Two", index=1)[:-1]], "One. Two"),
        ([BlockStart(index=0, type="thinking"), ThinkingDelta(index=0, text="hm"), *words("So", index=1)], "So"),
    ],
    ids=["open block", "closed block", "half a call", "a whole call", "two blocks", "thinking"],
)
async def test_words_that_had_arrived_become_an_interrupted_message(
    tmp_path: Path, streamed: list[object], kept: str
) -> None:
    stop = Stop()
    model = FakeModel([[*streamed, stop], words("On we go.")])
    async with session_of(tmp_path / "a.db", model) as session:
        await session.followup("hi")
        await cancelled_at(stop, session)
        (message,) = events_of(tmp_path / "a.db", AssistantMessage)
        assert (message.text, message.interrupted) == (kept, True)
        assert all(isinstance(block, TextBlock) for block in message.content)
        assert events_of(tmp_path / "a.db", ToolCall) == []
        await session.followup("go on")
        assert (await session.run()).text == "On we go."
    assert kept.encode() in b"".join(model.requests[-1])
    assert [(end.reason, end.cause) for end in events_of(tmp_path / "a.db", TurnEnd)] == [
        ("aborted", "user"),
        ("completed", ""),
    ]
    assert verified(tmp_path / "a.db", model)


@pytest.mark.parametrize(
    "streamed",
    [
        [],
        words(" \n\t ")[:-1],
        HALF_A_CALL,
        calls(("act", {})),
        [BlockStart(index=0, type="thinking"), ThinkingDelta(index=0, text="hm")],
        [BlockStart(index=0, type="text")],
    ],
    ids=["nothing", "white space", "half a call", "a whole call", "thinking", "an open block"],
)
async def test_without_words_there_is_no_message(tmp_path: Path, streamed: list[object]) -> None:
    stop = Stop()
    model = FakeModel([[*streamed, stop]])
    async with session_of(tmp_path / "a.db", model) as session:
        await session.followup("hi")
        await cancelled_at(stop, session)
        assert events_of(tmp_path / "a.db", AssistantMessage) == []
        assert [failed.failure for failed in events_of(tmp_path / "a.db", RequestFailed)] == ["interrupted"]
        model.replies = [words("Fine.")]
        await session.followup("again")
        assert (await session.run()).text == "Fine."
    assert [fragment[:9] for fragment in model.requests[-1][1:]] == [b'["user", ', b'["user", ']


async def test_five_calls_limit_two_cancelled_while_two_run(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    both, go_on, inside = trio.Event(), trio.Event(), []

    async def work(n: int) -> str:
        inside.append(n)
        if len(inside) == 2:
            both.set()
        with trio.CancelScope(shield=True):  # comes to rest by itself
            await go_on.wait()
        return f"real {n}"

    working = Tool(
        body=work,
        name="work",
        description="Work.",
        mode="parallel",
        effect="write",
        parameters={"type": "object", "properties": {"n": {"type": "integer"}}},
    )
    model = FakeModel([calls(*(("work", {"n": n}) for n in range(5)))])
    async with session_of(path, model, working, limits=Limits(parallel_tools=2)) as session:
        await session.followup("hi")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await both.wait()
            session.cancel()
            await trio.testing.wait_all_tasks_blocked()
            go_on.set()
    assert outcomes_of(path) == ["ok", "ok", "aborted", "aborted", "aborted"]
    results = sorted(events_of(path, ToolResult), key=lambda result: result.position)
    assert [result.text for result in results[:2]] == ["real 0", "real 1"]
    assert [result.call_seq is None for result in results] == [False, False, True, True, True]
    assert len(events_of(path, ToolCall)) == 2
    assert sorted(inside) == [0, 1]
    assert [kind for kind in kinds_of(path) if not kind.startswith("tool/")][-3:] == [
        "step/end",
        "turn/end",
        "session/closed",
    ]
    assert verified(path, model)


@pytest.mark.parametrize(
    ("effect", "outcome"),
    [("read", "aborted"), ("idempotent", "aborted"), ("write", "unknown"), ("external", "unknown")],
)
async def test_a_started_call_that_is_cut_off_is_judged_by_its_effect(
    tmp_path: Path, effect: str, outcome: str
) -> None:
    stop = Stop()
    hanging = Tool(body=stop.__call__, name="hang", description="Hang.", effect=effect)
    model = FakeModel([calls(("hang", {}))])
    async with session_of(tmp_path / "a.db", model, hanging, limits=AT_ONCE) as session:
        await session.followup("hi")
        await cancelled_at(stop, session)
        assert outcomes_of(tmp_path / "a.db") == [outcome]
        await session.followup("and now?")
        assert (await session.run()).reason == "completed"
    assert outcome.encode() in b"".join(model.requests[-1])


async def test_running_calls_get_a_grace_to_finish_and_then_are_cut_off(tmp_path: Path, autojump_clock: object) -> None:
    started = Stop()

    async def takes(seconds: float) -> str:
        started.reached.set()
        await trio.sleep(seconds)
        return "finished"

    working = Tool(
        body=takes,
        name="takes",
        description="Take time.",
        mode="parallel",
        effect="write",
        parameters={"type": "object", "properties": {"seconds": {"type": "number"}}},
    )
    model = FakeModel([calls(("takes", {"seconds": 1.5}), ("takes", {"seconds": 3}))])
    async with session_of(tmp_path / "a.db", model, working, limits=Limits(cancel_grace_s=2)) as session:
        await session.followup("hi")
        await cancelled_at(started, session)
    assert outcomes_of(tmp_path / "a.db") == ["ok", "unknown"]


async def test_a_cancel_stops_the_calls_that_wait_behind_a_barrier(tmp_path: Path) -> None:
    stop = Stop()
    tools = [
        Tool(body=stop.__call__, name="hang", description="Hang.", mode="exclusive", effect="read"),
        Tool(body=stop.__call__, name="next", description="Hang.", mode="parallel", effect="write"),
    ]
    model = FakeModel([calls(("hang", {}), ("next", {}), ("hang", {}), ("unknown", {}))])
    async with session_of(tmp_path / "a.db", model, *tools, limits=AT_ONCE) as session:
        await session.followup("hi")
        await cancelled_at(stop, session)
    assert outcomes_of(tmp_path / "a.db") == ["aborted", "aborted", "aborted", "error"]
    assert len(events_of(tmp_path / "a.db", ToolCall)) == 1


async def test_a_host_scope_that_is_cancelled_closes_the_turn_and_then_propagates(tmp_path: Path) -> None:
    stop = Stop()
    model = FakeModel([[*words("Some words"), stop]])
    after: list[str] = []
    async with session_of(tmp_path / "a.db", model) as session:
        await session.followup("hi")
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def host() -> None:
                with scope:
                    await session.run()
                    after.append("run returned")

            nursery.start_soon(host)
            await stop.reached.wait()
            scope.cancel()
        assert scope.cancelled_caught
        assert after == []
        assert [(end.reason, end.cause) for end in events_of(tmp_path / "a.db", TurnEnd)] == [("aborted", "host")]
        assert events_of(tmp_path / "a.db", AssistantMessage)[0].text == "Some words"
        await session.followup("again")
        assert (await session.run()).number == 2


async def test_a_host_deadline_ends_the_turn_too(tmp_path: Path, autojump_clock: object) -> None:
    stop = Stop()
    async with session_of(tmp_path / "a.db", FakeModel([[stop]])) as session:
        await session.followup("hi")
        with trio.move_on_after(5) as scope:
            await session.run()
        assert scope.cancelled_caught
        assert [end.reason for end in events_of(tmp_path / "a.db", TurnEnd)] == ["aborted"]


async def test_running_in_a_scope_that_is_cancelled_already_closes_what_it_opened(tmp_path: Path) -> None:
    async with session_of(tmp_path / "a.db", FakeModel([words("one")])) as session:
        await session.followup("hi")
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.run()
        kinds = kinds_of(tmp_path / "a.db")
        assert kinds.count("turn/start") == kinds.count("turn/end")
        await session.followup("again")
        turn = await session.run()
        assert turn.text == "one"


async def test_the_first_cause_of_several_cancels_is_the_one_that_counts(tmp_path: Path) -> None:
    stop = Stop()
    async with session_of(tmp_path / "a.db", FakeModel([[*words("one"), stop]])) as session:
        await session.followup("hi")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await stop.reached.wait()
            session.cancel("first")
            session.cancel("second")
        await session.followup("again")
        turn = await session.run()
        assert (turn.number, turn.reason) == (2, "completed")
    first = events_of(tmp_path / "a.db", TurnEnd)[0]
    assert (first.reason, first.cause) == ("aborted", "first")


async def test_a_tool_may_cancel_its_own_turn_and_its_result_still_counts(tmp_path: Path) -> None:
    session: Session

    @tool(effect="write")
    async def stop_it() -> str:
        """End the turn."""
        session.cancel("the tool said so")
        return "stopped"

    model = FakeModel([calls(("stop_it", {}), ("stop_it", {}))])
    async with session_of(tmp_path / "a.db", model, stop_it) as session:
        await session.followup("hi")
        turn = await session.run()
    assert (turn.reason, turn.cause) == ("aborted", "the tool said so")
    assert outcomes_of(tmp_path / "a.db") == ["ok", "aborted"]


async def test_a_cancel_that_comes_while_the_last_commit_waits_for_the_file_does_not_hit_the_next_message(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    last, go_on = trio.Event(), trio.Event()

    async def pause() -> None:
        last.set()
        await go_on.wait()

    async with session_of(path, FakeModel([[*words("one"), pause]])) as session, opened(path, FakeModel([])) as other:
        await session.followup("a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await last.wait()
            other._store.database.begin(barrier=False)
            go_on.set()
            await trio.testing.wait_all_tasks_blocked()
            session.cancel()
            await trio.testing.wait_all_tasks_blocked()
            other._store.database.rollback()
        assert len(events_of(path, TurnEnd)) == 1
        await session.followup("b")
        turn = await session.run()
        assert (turn.number, turn.reason) == (2, "completed")


async def test_a_keyboard_interrupt_in_a_body_closes_the_turn_and_reaches_the_host(tmp_path: Path) -> None:
    @tool(effect="write")
    async def pressed() -> str:
        """Be interrupted."""
        raise KeyboardInterrupt

    async with session_of(tmp_path / "a.db", FakeModel([calls(("pressed", {}))]), pressed) as session:
        await session.followup("hi")
        with pytest.raises(KeyboardInterrupt):
            await session.run()
        assert [end.cause for end in events_of(tmp_path / "a.db", TurnEnd)] == ["KeyboardInterrupt"]
        assert outcomes_of(tmp_path / "a.db") == ["unknown"]
        await session.followup("again")
        assert (await session.run()).reason == "completed"


async def test_a_step_that_was_cancelled_is_closed_exactly_once(tmp_path: Path) -> None:
    stop = Stop()
    streamed = [BlockStart(index=0, type="text"), TextDelta(index=0, text="x"), stop]
    model = FakeModel([[*streamed, BlockEnd(index=0, block=TextBlock(text="x"))]])
    async with session_of(tmp_path / "a.db", model) as session:
        await session.followup("hi")
        await cancelled_at(stop, session)
    assert len(events_of(tmp_path / "a.db", StepEnd)) == 1


@pytest.mark.parametrize("by", ["session", "host"])
@pytest.mark.parametrize("mode", ["parallel", "exclusive"])
async def test_a_cancel_before_the_first_call_starts_starts_none(
    tmp_path: Path, autojump_clock: object, by: str, mode: str
) -> None:
    ran: list[str] = []
    held: list[Session] = []
    scope = trio.CancelScope()

    async def long() -> str:
        ran.append("long")
        await trio.sleep(30)
        return "done"

    def watch(name: str, session: str, seq: int) -> None:
        if held and name == "committed" and held[0]._journal.state.step and held[0]._journal.state.step.calls:
            owner = held.pop()
            if by == "session":
                owner.cancel()
            else:
                scope.cancel()

    tools = [Tool(body=long, name="long", description="Take long.", mode=mode, effect="write")]
    model = FakeModel([calls(("long", {}), ("long", {}))])
    async with session_of(tmp_path / "a.db", model, *tools, on_boundary=watch) as session:
        await session.followup("hi")
        held.append(session)
        with scope:
            await session.run()
        assert not held
    assert (ran, events_of(tmp_path / "a.db", ToolCall)) == ([], [])
    assert outcomes_of(tmp_path / "a.db") == ["aborted", "aborted"]
    assert trio.current_time() < 1


@pytest.mark.parametrize("seed", range(4))
async def test_a_body_whose_turn_is_cancelled_while_its_intent_waits_for_the_file_never_begins(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The intent is in the log, but what never began is known not to have happened: aborted, not unknown."""
    monkeypatch.setattr(trio_run, "_r", random.Random(seed))  # decides whether the body or the cancel comes first
    path = tmp_path / "a.db"
    asked, go_on = trio.Event(), trio.Event()

    async def pause() -> None:
        asked.set()
        await go_on.wait()

    hanging = Tool(
        body=trio.sleep_forever, name="hang", description="Hang.", effect="write", parameters={"type": "object"}
    )
    model = FakeModel([[*calls(("hang", {})), pause]])
    waiting = trio.Event()

    def watch(name: str, session: str, seq: int) -> None:
        if name == "commit" and held and held[0]._journal.state.step and held[0]._journal.state.step.calls:
            waiting.set()

    held: list[Session] = []
    async with session_of(path, model, hanging, limits=AT_ONCE, on_boundary=watch) as session:
        held.append(session)
        await session.followup("hi")
        async with opened(path, FakeModel([])) as other, trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await asked.wait()

            def lock(name: str, session_name: str, seq: int) -> None:
                if name == "committed" and held[0]._journal.state.step and held[0]._journal.state.step.calls:
                    session._journal.on_boundary = watch
                    other._store.database.begin(barrier=False)

            session._journal.on_boundary = lock
            go_on.set()
            await waiting.wait()
            session.cancel()
            other._store.database.rollback()
    assert outcomes_of(path) == ["aborted"]
    assert trio.current_time() < 10
