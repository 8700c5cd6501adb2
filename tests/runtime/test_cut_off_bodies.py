"""A body that was cut off is told apart from one that failed, and one that never began from both."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
import trio

import flightlog
from flightlog.errors import StoreError, StoreStopped, ToolError, UsageError
from flightlog.events import AssistantDelta, ToolResult, TurnEnd
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs import BlockEnd, BlockStart, TextBlock, TextDelta, Tool, tool
from support.kernels import events_of, opened, session_of
from support.worker_tools import decorated


def answering(error: Exception, effect: str) -> Tool:
    async def body() -> str:
        """Answer a cancel with an error."""
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise error from None
        return "unreachable"

    return Tool(body=body, name="body", effect=effect, timeout_s=5.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [RuntimeError("mine"), ToolError("mine")], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("effect", "outcome"), [("write", "unknown"), ("external", "unknown"), ("read", "timeout")])
async def test_a_body_that_answers_its_time_limit_with_an_error_was_cut_off(
    tmp_path: Path, error: Exception, effect: str, outcome: str, autojump_clock: object
) -> None:
    model = FakeModel([calls(("body", {}))])
    async with session_of(tmp_path / "a.db", model, answering(error, effect)) as session:
        await session.followup("go")
        await session.run()
    (result,) = events_of(tmp_path / "a.db", ToolResult)
    assert result.outcome == outcome


async def test_a_process_tool_whose_time_is_up_before_it_starts_is_one_cut_off_call(tmp_path: Path) -> None:
    late = Tool(
        body=decorated.body, name="late", description="Late.", effect="read", isolation="process", timeout_s=1e-9
    )
    async with session_of(tmp_path / "a.db", FakeModel([calls(("late", {"text": "x"}))]), late) as session:
        await session.followup("go")
        with trio.fail_after(60):
            turn = await session.run()
    assert turn is not None
    assert turn.reason == "completed"
    (result,) = events_of(tmp_path / "a.db", ToolResult)
    assert result.outcome == "timeout"


async def test_a_call_cancelled_while_its_intent_waits_for_the_file_never_begins(tmp_path: Path) -> None:
    path, ran = tmp_path / "a.db", []

    @tool(effect="write")
    def put() -> str:
        """Put."""
        ran.append("put")
        return "done"

    async with (
        opened(path, FakeModel([calls(("put", {}))]), put) as kernel,
        opened(path, FakeModel([])) as other,
        kernel.session("s", model="fake:m") as session,
        trio.open_nursery() as nursery,
    ):
        await session.followup("go")
        blocker = other._store.database

        def block(name: str, _session: str, _seq: int) -> None:
            if name == "commit" and session._journal.state.step and session._journal.state.step.calls:
                session._journal.on_boundary = lambda *_: None
                blocker.begin(barrier=True)
                nursery.start_soon(cancel)

        async def cancel() -> None:
            assert session.cancel()
            blocker.rollback()

        session._journal.on_boundary = block
        turn = await session.run()
    assert turn is not None
    assert turn.reason == "aborted"
    (result,) = events_of(path, ToolResult)
    assert (result.outcome, ran) == ("aborted", [])
    assert "before it started" in result.text


async def test_an_async_body_may_have_a_thread_and_a_loop_of_its_own(tmp_path: Path) -> None:
    ran: list[bool] = []

    @tool(effect="read", isolation="thread")
    async def look() -> str:
        """Look."""
        await trio.lowlevel.checkpoint()
        ran.append(threading.current_thread() is threading.main_thread())
        return "seen"

    async with session_of(tmp_path / "a.db", FakeModel([calls(("look", {}))]), look) as session:
        await session.followup("go")
        await session.run()
    (result,) = events_of(tmp_path / "a.db", ToolResult)
    assert (result.outcome, result.text, ran) == ("ok", "seen", [False])


async def test_halves_of_a_character_in_one_delta_are_kept_as_the_character(tmp_path: Path) -> None:
    halves = "\ud83d\ude00"
    stream = [
        BlockStart(index=0, type="text"),
        TextDelta(index=0, text=halves),
        BlockEnd(index=0, block=TextBlock(text=halves)),
    ]
    async with session_of(tmp_path / "a.db", FakeModel([stream])) as session:
        await session.followup("smile")
        turn = await session.run()
    assert turn is not None
    assert (turn.reason, turn.text) == ("completed", "\U0001f600")
    with flightlog.open_log(tmp_path / "a.db", discover=False) as log:
        deltas = [r.event for r in log.session("s").records(deltas=True) if isinstance(r.event, AssistantDelta)]
    assert [piece.text for delta in deltas for piece in delta.pieces] == ["\U0001f600"]


async def test_whoever_serves_is_told_when_the_store_stops_or_the_session_is_closed(tmp_path: Path) -> None:
    async def served(session: flightlog.Session, seen: list[BaseException]) -> None:
        try:
            await session.serve()
        except (StoreStopped, UsageError) as error:
            seen.append(error)

    stopped: list[BaseException] = []
    closed: list[BaseException] = []
    async with opened(tmp_path / "a.db", FakeModel([])) as kernel, trio.open_nursery() as nursery:
        async with kernel.session("b", model="fake:m") as session:
            nursery.start_soon(served, session, closed)
            await trio.testing.wait_all_tasks_blocked()
        async with kernel.session("a", model="fake:m") as session:
            with trio.fail_after(60):
                async with trio.open_nursery() as serving:
                    serving.start_soon(served, session, stopped)
                    await trio.testing.wait_all_tasks_blocked()
                    kernel._store.stop(StoreError("planted fault"))
    assert [type(error) for error in stopped] == [StoreStopped]
    assert [type(error) for error in closed] == [UsageError]


def test_ctrl_c_in_the_middle_of_a_commit_leaves_log_and_kernel_of_one_mind(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def main() -> None:
        async with session_of(path, FakeModel([words("Fine.")])) as session:
            await session.followup("go")
            commit = session._journal.store.commit

            def interrupted(*arguments: object, **options: object) -> None:
                commit(*arguments, **options)  # type: ignore[arg-type]
                signal.raise_signal(signal.SIGINT)

            session._journal.store.commit = interrupted  # type: ignore[method-assign]
            try:
                await session.run()
                await trio.lowlevel.checkpoint()
            except KeyboardInterrupt:
                session._journal.store.commit = commit  # type: ignore[method-assign]
            assert await session.followup("still here"), "the kernel knows where its log ends"

    with pytest.raises(KeyboardInterrupt):
        trio.run(_then_interrupt, main)
    assert {end.reason for end in events_of(path, TurnEnd)} <= {"aborted", "completed"}


async def _then_interrupt(main: object) -> None:
    await main()  # type: ignore[operator]
    raise KeyboardInterrupt
