"""Goal checks: they alone decide whether a task is done, and one that cannot say anything pauses it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from flightlog import Session
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Continue, GoalCheck, GoalView, Met, Missing, Redaction, hook
from flightlog_hookspecs.errors import PluginError, UsageError
from flightlog_hookspecs.events import GoalChecked, InboxSplice, PluginFault, TaskAmended, TurnEnd, UserMessage
from support.conversation import assert_at_rest
from support.kernels import events_of, session_of
from support.tasks import task_of

NAMED = {"goal_check": "seen", "parameters": '{"at":"sky"}'}


def checks(*answers: object) -> tuple[GoalCheck, list[GoalView]]:
    """A check that gives `answers` in turn, the last for ever, and what it was shown."""
    shown: list[GoalView] = []

    async def body(view: GoalView) -> Any:
        shown.append(view)
        answer = answers[min(len(shown), len(answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return GoalCheck(name="seen", body=body), shown


def done(times: int) -> FakeModel:
    return FakeModel([words(f"Done, I say for the time {'I' * n}.") for n in range(1, times + 1)])


async def test_a_task_is_completed_once_its_check_says_so_and_the_model_is_told_what_is_missing(
    tmp_path: Path,
) -> None:
    check, shown = checks(Missing("The moon is not seen."), Met())
    async with task_of(tmp_path / "s.db", done(9), wanted=NAMED, plugins=[Bundle(goal_checks=[check])]) as session:
        turn = await session.run()
        assert session._journal.state.task is not None
        assert session._journal.state.task.goal_met is True
    assert turn is not None
    assert (turn.reason, len(shown)) == ("completed", 2)
    first, second = events_of(tmp_path / "s.db", GoalChecked)
    assert (first.met, first.missing, first.check, first.plugin) == (False, "The moon is not seen.", "seen", "Bundle")
    assert (second.met, second.missing) == (True, "")
    _, told = events_of(tmp_path / "s.db", UserMessage)
    assert told.text == "You have stopped, but the goal is not reached yet. The moon is not seen."
    assert told.source == "plugin"
    assert (shown[0].task, shown[0].goal, shown[0].parameters) == ("s", "look", {"at": "sky"})
    assert [message.kind for message in shown[0].messages] == ["user/message", "assistant/message"]
    assert shown[0].text == "Done, I say for the time I."
    assert_at_rest(tmp_path / "s.db", done(9))


async def test_the_same_thing_missing_again_and_again_ends_without_progress(tmp_path: Path) -> None:
    check, shown = checks(Missing("All."))
    model = FakeModel([words("Done.") for _ in range(9)])
    async with task_of(tmp_path / "s.db", model, wanted=NAMED, plugins=[Bundle(goal_checks=[check])]) as session:
        turn = await session.run()
        assert session.pending == 0
    assert turn is not None
    assert (turn.reason, len(shown)) == ("no_progress", 4), "once it had been told, it said the same three times"


async def test_what_is_missing_less_and_less_is_progress(tmp_path: Path) -> None:
    check, _ = checks(*[Missing(f"{n} stars") for n in range(9, 0, -1)], Met())
    model = FakeModel([words("Done.") for _ in range(19)])
    async with task_of(tmp_path / "s.db", model, wanted=NAMED, plugins=[Bundle(goal_checks=[check])]) as session:
        turn = await session.run()
    assert turn is not None
    assert turn.reason == "completed"


@pytest.mark.parametrize(("answer", "reason"), [(Met(), "completed"), (Missing("All."), "max_steps")])
async def test_what_is_reached_in_the_last_step_counts(tmp_path: Path, answer: object, reason: str) -> None:
    check, _ = checks(answer)
    wanted = {**NAMED, "max_steps": 1}
    async with task_of(tmp_path / "s.db", done(9), wanted=wanted, plugins=[Bundle(goal_checks=[check])]) as session:
        turn = await session.run()
        assert session.pending == 0, "nobody is told what is missing when there is no step left"
    assert turn is not None
    assert turn.reason == reason
    assert len(events_of(tmp_path / "s.db", GoalChecked)) == 1


def unreadable(view: GoalView) -> object:
    class Unreadable:
        def __repr__(self) -> str:
            raise ValueError("no")

    return Unreadable()


def forever(view: GoalView) -> Met:
    threading.Event().wait(30)
    return Met()


async def forever_awaiting(view: GoalView) -> Met:
    await trio.sleep_forever()
    return Met()


BROKEN: list[tuple[Callable[[GoalView], Any], str]] = [
    (lambda view: 1 / 0, "ZeroDivisionError: division by zero"),
    (lambda view: True, "returned True, which is neither Met() nor Missing()"),
    (lambda view: None, "returned None"),
    (lambda view: Met, "returned <class"),
    (lambda view: Missing(""), "returned Missing(what='')"),
    (lambda view: Missing(7), "returned Missing(what=7)"),  # type: ignore[arg-type]
    (unreadable, "returned something whose repr fails"),
    (forever_awaiting, "did not answer within 0.01 s"),
    (forever, "did not answer within 0.01 s"),
]


@pytest.mark.parametrize(("body", "error"), BROKEN)
async def test_a_check_that_fails_pauses_the_task_and_never_completes_it(
    tmp_path: Path, body: Callable[[GoalView], Any], error: str
) -> None:
    check = GoalCheck(name="seen", body=body, limit_s=0.01 if "within" in error else 30.0)
    async with task_of(tmp_path / "s.db", done(9), wanted=NAMED, plugins=[Bundle(goal_checks=[check])]) as session:
        turn = await session.run()
        assert session._journal.state.task is not None
        assert session._journal.state.task.goal_met is None
    assert turn is not None
    assert (turn.reason, turn.cause) == ("paused", "goal_check")
    assert error in turn.message
    (fault,) = events_of(tmp_path / "s.db", PluginFault)
    assert fault.hook == "goal_check seen"
    assert error in fault.error
    assert events_of(tmp_path / "s.db", GoalChecked) == []


async def test_a_task_whose_check_nobody_offers_is_paused_and_says_so(tmp_path: Path) -> None:
    other = GoalCheck(name="heard", body=lambda view: Met())
    async with task_of(tmp_path / "s.db", done(9), wanted=NAMED, plugins=[Bundle(goal_checks=[other])]) as session:
        turn = await session.run()
    assert turn is not None
    assert (turn.reason, turn.cause) == ("paused", "goal_check")
    assert turn.message == "no goal check named 'seen' (known: heard). Install or pass its plugin."


async def test_a_hook_that_wants_more_is_heard_before_the_check_is_asked(tmp_path: Path) -> None:
    @hook("turn_stopping")
    def once_more(turn: Any) -> Continue | None:
        return None if turn.continued else Continue("Look again.")

    check, shown = checks(Met())
    plugin = Bundle(goal_checks=[check], hooks=[once_more])
    async with task_of(tmp_path / "s.db", done(9), wanted=NAMED, plugins=[plugin]) as session:
        turn = await session.run()
    assert turn is not None
    assert (turn.reason, len(shown)) == ("completed", 1)
    assert shown[0].text == "Done, I say for the time II."


async def test_what_a_check_found_about_a_goal_that_was_changed_meanwhile_is_not_counted(tmp_path: Path) -> None:
    session: Session
    goals = []

    async def body(view: GoalView) -> Met:
        goals.append(view.goal)
        if len(goals) == 1:
            await session._journal.append(TaskAmended(goal="listen"))
        return Met()

    plugin = Bundle(goal_checks=[GoalCheck(name="seen", body=body)])
    async with task_of(tmp_path / "s.db", done(9), wanted=NAMED, plugins=[plugin]) as session:
        turn = await session.run()
    assert turn is not None
    assert turn.reason == "completed"
    assert goals == ["look", "listen"]
    assert len(events_of(tmp_path / "s.db", GoalChecked)) == 1


async def test_a_turn_that_stops_for_another_reason_is_not_checked(tmp_path: Path) -> None:
    check, shown = checks(Met())
    model = FakeModel([calls(("nope", {})) for _ in range(9)])
    async with task_of(tmp_path / "s.db", model, wanted=NAMED, plugins=[Bundle(goal_checks=[check])]) as session:
        turn = await session.run()
    assert turn is not None
    assert (turn.reason, shown) == ("no_progress", [])


async def test_a_session_that_is_no_tasks_is_never_checked(tmp_path: Path) -> None:
    check, shown = checks(Missing("All."))
    async with session_of(tmp_path / "s.db", done(9), plugins=[Bundle(goal_checks=[check])]) as session:
        await session.followup("go")
        turn = await session.run()
    assert turn is not None
    assert (turn.reason, shown) == ("completed", [])


async def test_what_is_missing_is_redacted_before_it_is_written(tmp_path: Path) -> None:
    check, _ = checks(Missing("the key is hunter2"), Met())
    plugin = Bundle(
        goal_checks=[check], redactions=[Redaction(name="key", body=lambda text: text.replace("hunter2", "***"))]
    )
    async with task_of(tmp_path / "s.db", done(9), wanted=NAMED, plugins=[plugin]) as session:
        await session.run()
    assert events_of(tmp_path / "s.db", GoalChecked)[0].missing == "the key is ***"
    assert "hunter2" not in str(events_of(tmp_path / "s.db", InboxSplice))


async def test_a_cancel_while_the_check_is_asked_ends_the_turn(tmp_path: Path) -> None:
    session: Session

    async def body(view: GoalView) -> Met:
        session.cancel()
        await trio.sleep_forever()
        return Met()

    plugin = Bundle(goal_checks=[GoalCheck(name="seen", body=body)])
    async with task_of(tmp_path / "s.db", done(9), wanted=NAMED, plugins=[plugin]) as session:
        turn = await session.run()
    assert turn is not None
    assert (turn.reason, events_of(tmp_path / "s.db", GoalChecked)) == ("aborted", [])


UNSOUND: list[Any] = [
    "seen",
    GoalCheck(name="", body=lambda view: Met()),
    GoalCheck(name="seen", body=Met),  # type: ignore[arg-type]
    GoalCheck(name="seen", body=7),  # type: ignore[arg-type]
    GoalCheck(name="seen", body=lambda view: Met(), limit_s=0),
]


@pytest.mark.parametrize("check", UNSOUND)
async def test_a_check_that_cannot_work_is_refused_when_it_is_registered(tmp_path: Path, check: Any) -> None:
    async with session_of(tmp_path / "s.db", done(1)) as session:
        with pytest.raises(PluginError, match=r"goal.check"):
            session.register(Bundle(goal_checks=[check]))


async def test_a_sessions_check_shadows_its_kernels_and_is_taken_back(tmp_path: Path) -> None:
    inner, outer = checks(Met())[0], checks(Missing("All."))[0]
    async with session_of(tmp_path / "s.db", done(1), plugins=[Bundle(goal_checks=[outer])]) as session:
        registry = session._registry
        async with session.register(Bundle(goal_checks=[inner])):
            assert registry.goal_check_of("seen").item is inner
            with pytest.raises(PluginError, match="goal check 'seen' exists already"):
                session.register(Bundle(goal_checks=[inner]))
        assert registry.goal_check_of("seen").item is outer
        with pytest.raises(UsageError, match="no goal check named 'heard'"):
            registry.goal_check_of("heard")


def test_how_a_turn_ended_and_what_was_found_stand_in_one_append(tmp_path: Path) -> None:
    """So that no crash falls between them."""
    check, _ = checks(Met())
    commits: list[int] = []

    async def main() -> None:
        def watch(name: str, session: str, seq: int) -> None:
            if name == "commit":
                commits.append(seq)

        plugin = Bundle(goal_checks=[check])
        async with task_of(tmp_path / "s.db", done(1), wanted=NAMED, plugins=[plugin], on_boundary=watch) as session:
            await session.run()
            end = session._journal.seq
        assert end in commits
        assert end - 1 not in commits

    trio.run(main)
    assert [end.reason for end in events_of(tmp_path / "s.db", TurnEnd)] == ["completed"]
