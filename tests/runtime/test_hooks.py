"""Hooks at every point of the loop: what they can do, and that one that is broken costs its own answer only."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
import trio
import trio.testing

import flightlog
from flightlog import Limits, Session
from flightlog.testing import Attempts, Bundle, FakeModel, calls, words
from flightlog_hookspecs import (
    Append,
    Arguments,
    Ask,
    Continue,
    Deny,
    Fail,
    FailedRequest,
    Failure,
    FinishedCall,
    Hook,
    Point,
    ProposedCall,
    Replace,
    RequestView,
    Retry,
    StepView,
    StoppingTurn,
    Switch,
    ToolOutput,
    Veto,
    tool,
)
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import (
    InboxSplice,
    PluginFault,
    Record,
    RequestHeader,
    RequestRetry,
    RequestSent,
    ToolCall,
    ToolResult,
    TurnEnd,
    UserMessage,
)
from flightlog_hookspecs.hooks import GUARDS
from support.kernels import events_of, new_id, session_of, verified

ran: list[str] = []


@tool(mode="parallel", effect="write")
async def pay(to: str) -> str:
    """Pay someone."""
    ran.append(to)
    return f"paid {to}"


@asynccontextmanager
async def hooked(
    path: Path,
    hooks: dict[str, Callable[[Any], object]] | list[Hook],
    *replies: Any,
    limits: Limits | None = None,
    approver: bool = False,
) -> AsyncIterator[Session]:
    """A session whose model calls `pay` once and then speaks, with hooks by point."""
    ran.clear()
    made = (
        [Hook(point=point, body=body, name=point) for point, body in hooks.items()]  # type: ignore[arg-type]
        if isinstance(hooks, dict)
        else hooks
    )
    model = FakeModel(replies or [calls(("pay", {"to": "ada"})), words("Fine.")])
    other = FakeModel(replies, name="other")
    plugin = Bundle(tools=[pay], adapters=[model, other], hooks=made)
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[plugin], clock=flightlog.Clock(new_id=new_id)) as kernel,
        kernel.session("s", model="fake:m", limits=limits, approver=approver) as session,
    ):
        await session.followup("pay ada")
        yield session


def contexts(path: Path) -> list[tuple[str, str]]:
    return [(message.source, message.text) for message in events_of(path, UserMessage)]


def faults(path: Path) -> list[str]:
    return [event.hook for event in events_of(path, PluginFault)]


async def test_each_point_is_shown_what_is_about_to_happen(tmp_path: Path) -> None:
    seen: list[object] = []
    async with hooked(
        tmp_path / "a.db", {point: seen.append for point in get_args(Point) if point != "event_committed"}
    ) as session:
        await session.run()
    assert [type(view) for view in seen] == [
        StepView,
        RequestView,
        ProposedCall,
        FinishedCall,
        StepView,
        RequestView,
        StoppingTurn,
    ]
    step, request, call, finished, _, second, stopping = seen
    assert isinstance(step, StepView)
    assert [message.text for message in step.messages] == ["pay ada"]
    assert isinstance(request, RequestView)
    assert (request.turn, request.step, request.attempt, len(request.messages)) == (1, 1, 1, 1)
    assert isinstance(finished, FinishedCall)
    assert (finished.call, finished.outcome) == (call, "ok")
    assert isinstance(second, RequestView)
    assert len(second.messages) == 3
    assert isinstance(stopping, StoppingTurn)
    assert (stopping.text, stopping.steps) == ("Fine.", 2)


async def test_a_veto_ends_the_turn_as_blocked_and_the_session_goes_on(tmp_path: Path) -> None:
    for number, point in enumerate(("before_step", "before_request")):
        path, closed = tmp_path / f"{number}.db", [True]
        async with hooked(
            path, {point: lambda view, closed=closed: Veto("not today") if closed else None}, words("ok")
        ) as session:
            turn = await session.run()
            assert turn is not None
            assert (turn.reason, turn.message) == ("blocked", "not today")
            assert events_of(path, RequestSent) == []
            closed.clear()
            await session.followup("again")
            assert (await session.run()).reason == "completed"
        assert verified(path)


async def test_before_step_tells_the_model_something_else(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with hooked(path, {"before_step": lambda view: Append(f"this is step {view.step}")}) as session:
        await session.run()
    assert contexts(path) == [("user", "pay ada"), ("plugin", "this is step 1"), ("plugin", "this is step 2")]
    assert verified(path)


async def test_changed_arguments_are_what_runs_and_what_the_log_says_ran(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with hooked(path, {"before_tool": lambda call: Arguments('{"to":"bob"}')}) as session:
        await session.run()
    assert ran == ["bob"]
    assert [call.arguments for call in events_of(path, ToolCall)] == ['{"to":"bob"}']


async def test_changed_arguments_that_do_not_fit_deny_the_call(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with hooked(path, {"before_tool": lambda call: Arguments('{"two":1}')}) as session:
        await session.run()
    assert ran == []
    (result,) = events_of(path, ToolResult)
    assert result.outcome == "denied"


async def test_deny_beats_ask_beats_changed_arguments_whatever_the_order(tmp_path: Path) -> None:
    answers = [Arguments('{"to":"bob"}'), Ask("may it?"), Deny("no")]
    for number, order in enumerate((answers, answers[::-1], [answers[1], answers[0]], answers[:1])):
        path = tmp_path / f"{number}.db"
        hooks = [
            Hook(point="before_tool", body=lambda call, answer=answer: answer, name=f"{index}")
            for index, answer in enumerate(order)
        ]
        async with hooked(path, hooks) as session:
            await session.run()
        (result,) = events_of(path, ToolResult)
        wanted = {3: "Denied: no", 2: "Denied by nobody. There is no approver in this session.", 1: "paid bob"}
        assert result.text == wanted[len(order)]


async def test_a_result_can_be_replaced_and_followed_and_what_happened_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    hooks = [
        Hook(point="after_tool", body=lambda f: Replace(ToolOutput(content="***")), name="redact"),
        Hook(point="after_tool", body=lambda f: Append(f"it said {f.content[0].text}"), name="tell"),
    ]
    async with hooked(path, hooks) as session:
        await session.run()
    (result,) = events_of(path, ToolResult)
    assert (result.text, result.outcome, ran) == ("***", "ok", ["ada"])
    assert contexts(path)[1:] == [("plugin", "it said ***")]
    assert verified(path)


async def test_a_replaced_result_of_a_call_in_doubt_stays_in_doubt(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    @tool(effect="write", timeout_s=1.0)
    async def slow() -> str:
        """Be slow."""
        await trio.sleep(100)
        return "late"

    path = tmp_path / "a.db"

    async def whitewash(finished: FinishedCall) -> Replace:
        return Replace(ToolOutput(content="all well"))

    hook = Hook(point="after_tool", body=whitewash, name="optimist")
    plugin = Bundle(tools=[slow], adapters=[FakeModel([calls(("slow", {}))])], hooks=[hook])
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[plugin]) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await session.followup("go")
        await session.run()
    (result,) = events_of(path, ToolResult)
    assert (result.outcome, result.text) == ("unknown", "all well")


async def test_a_failed_request_is_tried_again_when_a_hook_says_so(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "a.db"
    reply = Attempts(([ProviderError("bad_request", "odd")], words("ok")))

    async def again(failed: FailedRequest) -> Retry:
        return Retry(5.0)

    async with hooked(path, {"on_request_error": again}, reply) as session:
        assert (await session.run()).text == "ok"
    assert trio.current_time() >= 5


async def test_another_model_takes_over_for_the_rest_of_the_turn(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    bad = [ProviderError("bad_request", "odd")]
    model, other = FakeModel([bad, bad]), FakeModel([calls(("pay", {"to": "ada"})), words("ok")], name="other")
    hook = Hook(point="on_request_error", body=lambda failed: Switch("other:n"), name="failover")
    plugin = Bundle(tools=[pay], adapters=[model, other], hooks=[hook])
    async with (
        flightlog.open_kernel(path, discover=False, plugins=[plugin]) as kernel,
        kernel.session("s", model="fake:m") as session,
    ):
        await session.followup("pay")
        assert (await session.run()).text == "ok"
        await session.followup("again")
        await session.run()
        assert [kernel.read("s").request(1, 1, attempt).head.model for attempt in (1, 2)] == ["m", "n"]
        assert kernel.read("s").request(1, 2).head.adapter == "other"
        assert kernel.read("s").request(2, 1, 1).head.adapter == "fake"
        assert kernel.read("s").verify()
    assert [header.reason for header in events_of(path, RequestHeader)][:3] == [
        "first",
        "adapter, model",
        "adapter, model",
    ]


async def test_another_model_beats_another_attempt_and_the_first_of_equals_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    answers = [None, Retry(0.5), Switch("other:n"), Switch("fake:k"), Retry()]
    hooks = [
        Hook(point="on_request_error", body=lambda failed, answer=answer: answer, name=f"{answer}")
        for answer in answers
    ]
    reply = Attempts(([ProviderError("bad_request", "odd")], words("ok")))
    async with hooked(path, hooks, reply) as session:
        assert (await session.run()).text == "ok"
    (retry,) = events_of(path, RequestRetry)
    assert (retry.model, retry.delay_ms) == ("other:n", 0)


async def test_hooks_are_shown_all_that_failed_in_the_step_with_which_model(tmp_path: Path) -> None:
    path, seen = tmp_path / "a.db", list[FailedRequest]()
    kinds = ["overloaded", "server", "cut"]

    async def move(failed: FailedRequest) -> Retry | Switch:
        seen.append(failed)
        return Switch("other:n") if len(seen) % 3 == 2 else Retry()

    failing = Attempts((*([ProviderError(kind, "odd")] for kind in kinds), calls(("pay", {"to": "ada"}))))
    async with hooked(
        path, {"on_request_error": move}, failing, failing, words("ok"), limits=Limits(attempts_per_step=9)
    ) as session:
        assert (await session.run()).text == "ok"
    first = [Failure(model="fake:m", kind=kind) for kind in kinds[:2]] + [Failure(model="other:n", kind="cut")]
    second = [Failure(model="other:n", kind=kind) for kind in kinds]
    expected = [tuple(failures[:count]) for failures in (first, second) for count in (1, 2, 3)]
    assert [failed.failures for failed in seen] == expected
    assert all(failed.failures[-1] == Failure(model=failed.model, kind=failed.failure) for failed in seen)


async def test_a_hook_lets_another_model_serve_the_step_and_the_rest_of_the_turn(tmp_path: Path) -> None:
    path, shown = tmp_path / "a.db", list[tuple[str, str]]()

    async def choose(view: StepView) -> Switch | None:
        shown.append((view.model, view.session_model))
        return Switch("other:n") if view.turn == 1 and view.step == 1 else None

    replies = (calls(("pay", {"to": "ada"})), words("Fine."))
    async with hooked(path, {"before_step": choose}, *replies) as session:
        assert (await session.run()).text == "Fine."
        await session.followup("again")
        await session.run()
    assert shown == [("fake:m", "fake:m"), ("other:n", "fake:m"), ("fake:m", "fake:m")]
    with flightlog.open_log(path, discover=False) as log:
        heads = [log.session("s").request(turn, step).head for turn, step in ((1, 1), (1, 2), (2, 1))]
    assert [f"{head.adapter}:{head.model}" for head in heads] == ["other:n", "other:n", "fake:m"]
    assert verified(path, FakeModel([]), FakeModel([], name="other"))


@pytest.mark.parametrize("after_s", [-1.0, 1e30, 1e306, float("nan"), True])
async def test_an_answer_that_waits_for_ever_or_not_at_all_is_a_fault_of_the_hook(
    tmp_path: Path, after_s: float
) -> None:
    path = tmp_path / "a.db"
    model = [ProviderError("overloaded", "busy")]
    async with hooked(path, {"on_request_error": lambda failed: Retry(after_s)}, model) as session:
        turn = await session.run()
    assert (turn.reason, turn.code) == ("error", "overloaded")
    assert len(events_of(path, PluginFault)) == 1


@pytest.mark.parametrize("point", ["before_step", "on_request_error"])
@pytest.mark.parametrize("answer", [Switch("nowhere:n"), Switch("other"), Switch("other:n", after_s=-1.0)], ids=str)
async def test_a_switch_that_cannot_be_made_is_the_hooks_fault(tmp_path: Path, point: Point, answer: Switch) -> None:
    path = tmp_path / "a.db"
    async with hooked(path, {point: lambda view: answer}, [ProviderError("server", "odd")]) as session:
        assert (await session.run()).reason == ("blocked" if point == "before_step" else "error")
    assert faults(path) == [f"{point} {point}"]


async def test_a_switch_before_a_step_does_not_wait(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with hooked(path, {"before_step": lambda view: Switch("other:n", after_s=1.0)}) as session:
        assert (await session.run()).reason == "blocked"
    (fault,) = events_of(path, PluginFault)
    assert fault.error.endswith("a step that is about to begin does not wait")


async def test_retries_by_hooks_end_where_the_limits_do(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    path = tmp_path / "a.db"
    left: list[int] = []

    async def again(failed: FailedRequest) -> Retry:
        left.append(failed.attempts_left)
        return Retry(1.0)

    bad = [ProviderError("overloaded", "odd")]
    async with hooked(path, {"on_request_error": again}, bad, limits=Limits(attempts_per_step=4)) as session:
        assert (await session.run()).reason == "error"
    assert left == [3, 2, 1, 0]


async def test_a_turn_goes_on_when_a_hook_has_more_for_it(tmp_path: Path) -> None:
    path, more = tmp_path / "a.db", ["check it", "check it again"]
    async with hooked(
        path, {"turn_stopping": lambda turn: Continue(more.pop(0)) if more else None}, words("one"), words("two")
    ) as session:
        turn = await session.run()
        assert turn is not None
        assert (turn.number, turn.text, turn.reason) == (1, "done", "completed")
    assert contexts(path)[1:] == [("plugin", "check it"), ("plugin", "check it again")]
    assert verified(path)


async def test_a_hook_that_never_lets_a_turn_stop_meets_the_limit_of_steps(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with hooked(
        path, {"turn_stopping": lambda turn: Continue("on!")}, words("one"), limits=Limits(steps_per_turn=4)
    ) as session:
        turn = await session.run()
        assert turn is not None
        assert (turn.reason, turn.message) == ("max_steps", "4 steps")
        assert session.pending == 0
    assert len(events_of(path, RequestSent)) == 4
    assert len(events_of(path, TurnEnd)) == 1


async def test_a_turn_that_a_hook_fails_ends_as_error_whatever_the_others_want(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    hooks = [
        Hook(point="turn_stopping", body=lambda turn: Continue("on!"), name="eager"),
        Hook(point="turn_stopping", body=lambda turn: Fail("unfit", "not that"), name="strict"),
        Hook(point="turn_stopping", body=lambda turn: Fail("late", "nor that"), name="stricter"),
    ]
    async with hooked(path, hooks, words("one")) as session:
        turn = await session.run()
        assert turn is not None
        assert (turn.reason, turn.code, turn.message, turn.text) == ("error", "unfit", "not that", "one")
        assert session.pending == 0
    assert contexts(path) == [("user", "pay ada")]
    assert verified(path)


async def test_a_turn_can_be_failed_at_the_limit_of_steps(tmp_path: Path) -> None:
    fail = {"turn_stopping": lambda turn: Fail("unfit", "no")}
    async with hooked(tmp_path / "a.db", fail, words("one"), limits=Limits(steps_per_turn=1)) as session:
        turn = await session.run()
        assert turn is not None
        assert (turn.reason, turn.code) == ("error", "unfit")


async def test_each_hook_is_told_how_often_it_has_had_this_turn_go_on(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    def upto(name: str, limit: int) -> Hook:
        def body(turn: StoppingTurn) -> Continue | None:
            seen.append((name, turn.continued))
            return Continue(name) if turn.continued < limit else None

        return Hook(point="turn_stopping", body=body, name=name)

    path = tmp_path / "a.db"
    async with hooked(path, [upto("twice", 2), upto("once", 1)], words("one")) as session:
        assert (await session.run()).reason == "completed"
        await session.followup("again")
        await session.run()
    a_turn = [("twice", 0), ("once", 0), ("twice", 1), ("once", 1), ("twice", 2), ("once", 1)]
    assert seen == a_turn * 2
    wanted = [event.hook for event in events_of(path, InboxSplice) if event.content and event.source == "plugin"]
    assert wanted == ["Bundle: twice", "Bundle: once", "Bundle: twice"] * 2


async def test_how_often_a_turn_went_on_is_remembered_by_the_log(tmp_path: Path) -> None:
    """A turn that waits for people goes on in another process, and its hooks count on."""
    path, seen = tmp_path / "a.db", list[int]()

    def body(turn: StoppingTurn) -> Continue | None:
        seen.append(turn.continued)
        return Continue("pay") if turn.continued < 2 else None

    hooks = [
        Hook(point="turn_stopping", body=body, name="more"),
        Hook(point="before_tool", body=lambda call: Ask("sure?"), name="ask"),
    ]
    replies = words("one"), calls(("pay", {"to": "ada"})), words("two"), words("three")
    async with hooked(path, hooks, *replies, approver=True) as session:
        turn = await session.run(wait=False)
        assert turn is not None
        assert (turn.reason, seen) == ("paused", [0])
    async with hooked(path, hooks, *replies, approver=True) as session:
        (question,) = session.questions()
        await session.approve(question.seq)
        await session.run()
    assert seen[:3] == [0, 1, 2]


async def test_a_person_who_steers_while_hooks_are_asked_is_heard_in_the_same_step(tmp_path: Path) -> None:
    path, opened = tmp_path / "a.db", list[Session]()

    async def body(turn: StoppingTurn) -> Continue | None:
        if turn.continued:
            return None
        await opened[0].steer("and eve")
        return Continue("do it again")

    async with hooked(path, {"turn_stopping": body}, words("one"), words("two")) as session:
        opened.append(session)
        turn = await session.run()
        assert turn is not None
        assert (turn.number, turn.reason) == (1, "completed")
    assert contexts(path)[1:] == [("user", "and eve"), ("plugin", "do it again")]


async def test_a_person_who_steers_while_hooks_find_nothing_is_heard_in_the_same_turn(tmp_path: Path) -> None:
    path, opened = tmp_path / "a.db", list[Session]()

    async def body(turn: StoppingTurn) -> None:
        if turn.steps == 1:
            await opened[0].steer("and eve")

    async with hooked(path, {"turn_stopping": body}, words("one"), words("two")) as session:
        opened.append(session)
        turn = await session.run()
        assert turn is not None
        assert (turn.number, turn.reason, turn.text) == (1, "completed", "two")


async def test_a_person_who_steers_while_a_turn_is_failed_gets_a_turn_of_their_own(tmp_path: Path) -> None:
    path, opened = tmp_path / "a.db", list[Session]()

    async def body(turn: StoppingTurn) -> Fail | None:
        if turn.turn > 1:
            return None
        await opened[0].steer("and eve")
        return Fail("unfit", "no")

    async with hooked(path, {"turn_stopping": body}, words("one"), words("two")) as session:
        opened.append(session)
        turn = await session.run()
        assert turn is not None
        assert (turn.number, turn.reason, turn.text) == (2, "completed", "two")
    assert [end.reason for end in events_of(path, TurnEnd)] == ["error", "completed"]


async def test_every_committed_event_is_shown_in_order_and_once(tmp_path: Path) -> None:
    path, seen = tmp_path / "a.db", list[Record]()

    async def watch(record: Record) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(record)

    async with hooked(path, {"event_committed": watch}) as session:
        await session.run()
    assert [record.seq for record in seen] == list(range(2, len(seen) + 2))
    assert seen[-1].event.kind == "session/closed"


async def test_a_watcher_of_one_session_sees_its_end_too(tmp_path: Path) -> None:
    seen = list[Record]()

    async def watch(record: Record) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(record)

    async with session_of(tmp_path / "a.db", FakeModel([words("one")])) as session:
        # Left to the scope, as `registered` keeps it from being collected.
        registered = session.register(Bundle(hooks=[Hook(point="event_committed", name="watch", body=watch)]))
        await session.followup("hi")
        await session.run()
    assert registered.closed
    assert [record.seq for record in seen] == list(range(seen[0].seq, seen[-1].seq + 1))
    assert seen[-1].event.kind == "session/closed"


async def test_a_slow_watcher_holds_up_nothing(tmp_path: Path) -> None:
    released, seen = trio.Event(), list[Record]()

    async def watch(record: Record) -> None:
        await released.wait()
        seen.append(record)

    async with hooked(tmp_path / "a.db", {"event_committed": watch}) as session:
        assert (await session.run()).reason == "completed"
        assert seen == []
        released.set()
    assert seen[-1].event.kind == "session/closed"


WRONGS: dict[str, Callable[[Any], object]] = {}


def wrong(name: str) -> Callable[[Callable[[Any], object]], Callable[[Any], object]]:
    def enter(body: Callable[[Any], object]) -> Callable[[Any], object]:
        WRONGS[name] = body
        return body

    return enter


@wrong("raises")
async def _raises(view: object) -> object:
    raise ValueError("no such luck")


@wrong("raises late")
async def _raises_late(view: object) -> object:
    await trio.lowlevel.checkpoint()
    raise ValueError("no such luck")


@wrong("exits")
async def _exits(view: object) -> object:
    raise SystemExit(3)


@wrong("raises something foreign")
async def _foreign(view: object) -> object:
    raise type("Foreign", (BaseException,), {})("odd")


@wrong("hangs")
async def _hangs(view: object) -> object:
    await trio.sleep_forever()


@wrong("answers nonsense")
async def _nonsense(view: object) -> object:
    return "yes"


@wrong("answers what belongs elsewhere")
async def _elsewhere(view: object) -> object:
    return Continue("x") if not isinstance(view, StoppingTurn) else Veto("x")


@wrong("changes what it is shown")
async def _mutates(view: object) -> object:
    view.session = "other"  # type: ignore[attr-defined]
    return None


@wrong("leaves a task behind")
async def _leaks(view: object) -> object:
    nursery = await trio.open_nursery().__aenter__()
    nursery.start_soon(trio.sleep_forever)
    return None


@wrong("cancels itself")
async def _cancels(view: object) -> object:
    with trio.CancelScope() as scope:
        scope.cancel()
        await trio.sleep_forever()
    raise RuntimeError("cancelled myself")


@pytest.mark.parametrize("point", get_args(Point))
@pytest.mark.parametrize("how", WRONGS)
async def test_a_broken_hook_costs_its_answer_only(
    tmp_path: Path, how: str, point: Point, autojump_clock: trio.testing.MockClock
) -> None:
    path, healthy = tmp_path / "a.db", list[object]()
    failing = [ProviderError("overloaded", "busy")] if point == "on_request_error" else []

    async def note(view: object) -> Retry | None:
        healthy.append(view)
        return Retry() if failing else None

    hooks = [
        Hook(point=point, body=WRONGS[how], name="broken", limit_s=0.01),
        Hook(point=point, body=note, name="healthy"),
    ]
    reply = Attempts((failing, calls(("pay", {"to": "ada"})))) if failing else calls(("pay", {"to": "ada"}))
    async with hooked(path, hooks, reply, words("Fine.")) as session:
        turn = await session.run()
        assert turn is not None
        if point in ("before_step", "before_request"):
            assert (turn.reason, turn.message, ran) == ("blocked", "the guard 'broken' failed", [])
        else:
            assert turn.reason == "completed"
            await trio.sleep(1)  # of the mock clock: watchers come behind
            assert ran == ([] if point == "before_tool" else ["ada"])
    assert healthy, "the others are asked all the same"
    assert set(faults(path)) == {f"{point} broken"}
    assert point in GUARDS or turn.reason == "completed"
    assert verified(path)


async def test_a_plain_function_that_blocks_is_left_behind_and_costs_its_answer_only(tmp_path: Path) -> None:
    path, released = tmp_path / "a.db", threading.Event()
    hook = Hook(point="after_tool", body=lambda view: released.wait(30), name="stuck", limit_s=0.01)
    try:
        async with hooked(path, [hook]) as session:
            assert (await session.run()).reason == "completed"
        assert faults(path) == ["after_tool stuck"]
    finally:
        released.set()
