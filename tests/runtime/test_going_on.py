"""`on_crash="continue"`: a turn goes on from the step it died in, each open call settled by its effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field

from flightlog import Limits, open_kernel
from flightlog.errors import Fenced, UsageError
from flightlog.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantDelta,
    LetterTaken,
    PluginFault,
    RequestFailed,
    RequestRetry,
    RequestSent,
    SessionOpened,
    StepStart,
    ToolCall,
    ToolResult,
    TurnEnd,
    UserMessage,
)
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import (
    Append,
    Ask,
    Done,
    Hook,
    NotDone,
    ProposedCall,
    StepView,
    Tool,
    ToolContext,
    ToolOutput,
    Unknown,
)
from flightlog_hookspecs.errors import ProviderError, ToolError
from flightlog_hookspecs.tools import Effect
from support.conversation import assert_at_rest
from support.cutting import cut_log
from support.kernels import SOON, events_of, outcomes_of, records_of, session_of
from support.paying import guard

CALLS = [*words("I work."), *calls(("act", {"what": "a"}), ("act", {"what": "b"}))]
END = words("Done.")


@define
class Works:
    """A tool `act`, and who ran: (invocation id, what) of each start of a body."""

    effect: Effect = "write"
    ran: list[tuple[str, str]] = field(factory=list)
    looked: list[tuple[str, Mapping[str, Any]]] = field(factory=list)
    options: dict[str, Any] = field(factory=dict)

    def tool(self) -> Tool:
        async def act(context: ToolContext, what: str) -> str:
            """Act."""
            for _ in range(1 + 20 * context.position):  # so that they end in call order
                await trio.lowlevel.checkpoint()
            self.ran.append((context.invocation_id, what))
            return f"{what} acted"

        return Tool(body=act, mode="parallel", effect=self.effect, **self.options)

    def finding(self, answer: Callable[[str], object]) -> Works:
        """With a reconciler that says this of what was done."""

        async def reconcile(context: ToolContext, arguments: Mapping[str, Any]) -> Any:
            await trio.lowlevel.checkpoint()
            self.looked.append((context.invocation_id, arguments))
            return answer(arguments["what"])

        return Works(effect=self.effect, looked=self.looked, options={**self.options, "reconcile": reconcile})


async def whole_run(path: Path, works: Works, replies: Sequence[Any] = (CALLS, END)) -> Path:
    whole = path.with_suffix(".whole")
    async with session_of(whole, FakeModel(list(replies)), works.tool()) as session:
        await session.followup("hi")
        await session.run()
    return whole


async def cut_behind(path: Path, works: Works, kind: str, occurrence: int = 1) -> Path:
    """A log that ends with the `occurrence`-th event of `kind`."""
    whole = await whole_run(path, works)
    cut_log(whole, path, [record.seq for record in records_of(whole) if record.event.kind == kind][occurrence - 1])
    return path


async def go_on(path: Path, works: Works, replies: Sequence[Any] = (CALLS, END), **options: Any) -> FakeModel:
    """Open the session once more and let it come to its end."""
    model = FakeModel(list(replies))
    async with session_of(path, model, works.tool(), on_crash="continue", **options) as session:
        turn = await session.run()
        assert turn is not None
        assert (turn.number, turn.reason, turn.text) == (1, "completed", "Done.")
    assert_at_rest(path, model)
    return model


def starts(path: Path) -> list[tuple[int, str]]:
    return [(call.position, call.resumed) for call in events_of(path, ToolCall)]


async def test_opening_runs_nothing_and_leaves_the_turn_open(tmp_path: Path) -> None:
    path = await cut_behind(tmp_path / "a.db", Works(), "tool/call")
    works, model = Works(), FakeModel([])
    before = len(records_of(path))
    async with session_of(path, model, works.tool(), on_crash="continue"):
        pass
    assert (works.ran, model.requests) == ([], [])
    assert [type(record.event) for record in records_of(path)[before:]] == [SessionOpened]


async def test_a_call_that_never_started_runs_without_asking_the_model_again(tmp_path: Path) -> None:
    path = await cut_behind(tmp_path / "a.db", Works(), "assistant/message")
    works = Works()
    model = await go_on(path, works)
    assert [what for _, what in works.ran] == ["a", "b"]
    assert (starts(path), len(model.requests)) == ([(0, ""), (1, "")], 1)
    assert len(events_of(path, StepStart)) == 2


@pytest.mark.parametrize("effect", ["read", "idempotent"])
async def test_what_may_be_repeated_runs_again_as_the_same_invocation(tmp_path: Path, effect: Effect) -> None:
    works = Works(effect)
    path = await cut_behind(tmp_path / "a.db", works, "tool/call", 2)
    again = Works(effect)
    await go_on(path, again)
    assert [what for _, what in again.ran] == ["a", "b"]
    invocations = [call.invocation_id for call in events_of(path, ToolCall)]
    assert sorted(invocations[2:]) == invocations[:2] == [invocation_id for invocation_id, _ in again.ran]
    assert sorted(starts(path)) == [(0, ""), (0, "repeatable"), (1, ""), (1, "repeatable")]
    restarted = {r.seq for r in records_of(path) if isinstance(r.event, ToolCall) and r.event.resumed}
    assert {result.call_seq for result in events_of(path, ToolResult)} == restarted
    assert outcomes_of(path) == ["ok", "ok"]


async def test_a_result_that_stands_is_kept_and_only_the_other_call_is_settled(tmp_path: Path) -> None:
    path = await cut_behind(tmp_path / "a.db", Works("read"), "tool/result", 1)
    again = Works("read")
    await go_on(path, again)
    assert [what for _, what in again.ran] == ["b"]
    assert starts(path) == [(0, ""), (1, ""), (1, "repeatable")]


async def test_what_became_of_a_write_is_unknown_when_nobody_can_tell(tmp_path: Path) -> None:
    path = await cut_behind(tmp_path / "a.db", Works(), "tool/call", 2)
    works = Works()
    model = await go_on(path, works)
    assert (works.ran, outcomes_of(path)) == ([], ["unknown", "unknown"])
    assert "may or may not have taken effect" in events_of(path, ToolResult)[0].text
    assert (starts(path), len(model.requests)) == ([(0, ""), (1, "")], 1)


async def test_a_reconciler_decides_call_by_call(tmp_path: Path) -> None:
    path = await cut_behind(tmp_path / "a.db", Works(), "tool/call", 2)
    works = Works().finding(lambda what: Done(f"{what} was there") if what == "a" else NotDone())
    await go_on(path, works)
    first, second = events_of(path, ToolCall)[:2]
    assert sorted(works.looked) == [(first.invocation_id, {"what": "a"}), (second.invocation_id, {"what": "b"})]
    assert works.ran == [(second.invocation_id, "b")]
    assert starts(path) == [(0, ""), (1, ""), (1, "reconciled")]
    results = sorted(events_of(path, ToolResult), key=lambda result: result.position)
    assert [(r.outcome, r.text, r.told_by) for r in results] == [
        ("ok", "a was there", "reconcile"),
        ("ok", "b acted", ""),
    ]


async def test_what_a_reconciler_finds_may_be_a_failure(tmp_path: Path) -> None:
    path = await cut_behind(tmp_path / "a.db", Works(), "tool/result")
    works = Works().finding(lambda _: Done(ToolOutput(content="refused", is_error=True)))
    await go_on(path, works)
    last = events_of(path, ToolResult)[-1]
    assert (last.outcome, last.text, last.told_by) == ("error", "refused", "reconcile")


async def raising(*_: object, **__: object) -> Any:
    raise ValueError("planted")


async def hanging(*_: object, **__: object) -> Any:
    await trio.sleep_forever()


def saying(answer: object) -> Any:
    async def says(*_: object, **__: object) -> object:
        await trio.lowlevel.checkpoint()
        return answer

    return says


@pytest.mark.parametrize(
    ("reconcile", "error"),
    [
        (saying(Unknown()), None),
        (saying("done"), "returned 'done', which is no Done, NotDone or Unknown"),
        (raising, "ValueError: planted"),
        (hanging, "did not answer within 60 s"),
    ],
)
async def test_a_reconciler_that_cannot_tell_leaves_it_unknown(
    tmp_path: Path, autojump_clock: object, reconcile: Any, error: str | None
) -> None:
    path = await cut_behind(tmp_path / "a.db", Works(), "tool/call", 2)
    works = Works(options={"reconcile": reconcile})
    await go_on(path, works)
    assert (works.ran, outcomes_of(path)) == ([], ["unknown", "unknown"])
    faults = {(fault.hook, fault.error) for fault in events_of(path, PluginFault)}
    assert faults == ({("reconcile act", error)} if error else set())


@pytest.mark.parametrize(
    ("outcome", "result", "runs"),
    [
        ("done", ("ok", "person"), False),
        ("not_done", ("ok", ""), True),
        ("unknown", ("unknown", ""), False),
    ],
)
async def test_a_person_says_what_became_of_a_write(
    tmp_path: Path, outcome: Any, result: tuple[str, str], runs: bool
) -> None:
    path = await cut_behind(tmp_path / "a.db", Works(), "tool/result")
    works = Works()
    async with session_of(path, FakeModel([CALLS, END]), works.tool(), on_crash="continue", approver=True) as session:
        turn = await session.run(wait=False)
        assert turn is not None
        assert (turn.reason, turn.cause) == ("paused", "approval")
        (question,) = session.questions()
        assert (question.about, question.name, question.arguments) == ("outcome", "act", '{"what": "b"}')
        with pytest.raises(UsageError, match="asks how a call ended: say done, not_done or unknown"):
            await session.approve(question.seq)
        with pytest.raises(UsageError, match="outcome must be one of"):
            await session.answer(question.seq, "allowed")  # type: ignore[arg-type]
        assert await session.answer(question.seq, outcome, by="ada", reason="I looked.")
        assert not await session.answer(question.seq, "unknown"), "the first answer counts"
        turn = await session.run()
        assert turn is not None
        assert turn.reason == "completed"
    last = events_of(path, ToolResult)[-1]
    assert (last.outcome, last.told_by) == result
    assert [what for _, what in works.ran] == (["b"] if runs else [])
    assert starts(path)[2:] == ([(1, "answered")] if runs else [])
    if outcome == "done":
        assert last.text == (
            "This call was cut off while it ran. It has taken effect, says ada; what it returned is lost. I looked."
        )
    assert_at_rest(path, FakeModel([]))


@pytest.mark.parametrize("on_crash", ["close", "continue"])
async def test_an_open_question_about_an_outcome_survives_owners_and_a_letter_answers_it(
    tmp_path: Path, on_crash: Any
) -> None:
    path = await cut_behind(tmp_path / "a.db", Works(), "tool/result")
    async with session_of(path, FakeModel([]), Works().tool(), on_crash="continue", approver=True) as session:
        await session.run(wait=False)
    works = Works()
    async with session_of(path, FakeModel([CALLS, END]), works.tool(), on_crash=on_crash, approver=True) as session:
        (question,) = session.questions()
        turn = await session.run(wait=False)
        assert turn is not None
        assert turn.reason == "paused"
    async with open_kernel(path, discover=False) as kernel:
        await kernel.mailbox("s").approve(question.seq)
        await kernel.mailbox("s").answer(question.seq, "not_done", by="ada")
    async with session_of(path, FakeModel([CALLS, END]), works.tool(), on_crash=on_crash, approver=True) as session:
        turn = await session.run()
        assert turn is not None
        assert turn.reason == "completed"
    assert [what for _, what in works.ran] == ["b"]
    assert len(events_of(path, ApprovalAsked)) == 1
    taken = [(event.verb, event.outcome, event.reason) for event in events_of(path, LetterTaken)]
    assert taken == [
        (
            "approve",
            "refused",
            f"the question at seq {question.seq} asks how a call ended: say done, not_done or unknown (answer)",
        ),
        ("answer", "obeyed", ""),
    ]


async def test_without_an_approver_an_open_question_about_an_outcome_stays_unknown(tmp_path: Path) -> None:
    path = await cut_behind(tmp_path / "a.db", Works(), "tool/result")
    async with session_of(path, FakeModel([]), Works().tool(), on_crash="continue", approver=True) as session:
        await session.run(wait=False)
    await go_on(path, Works())
    (answer,) = events_of(path, ApprovalDecided)
    assert (answer.decision, answer.by) == ("unknown", "nobody")
    assert outcomes_of(path) == ["ok", "unknown"]


async def test_cancelling_withdraws_a_question_about_an_outcome(tmp_path: Path) -> None:
    path = await cut_behind(tmp_path / "a.db", Works(), "tool/result")
    async with session_of(path, FakeModel([]), Works().tool(), on_crash="continue", approver=True) as session:
        await session.run(wait=False)
        session.cancel()
        turn = await session.run()
        assert turn is not None
        assert turn.reason == "aborted"
    assert [answer.decision for answer in events_of(path, ApprovalDecided)] == ["cancelled"]
    assert outcomes_of(path) == ["ok", "unknown"]


async def test_a_call_started_on_a_persons_word_and_cut_off_again_is_asked_about_again(tmp_path: Path) -> None:
    path = await cut_behind(tmp_path / "a.db", Works(), "tool/result")
    async with session_of(path, FakeModel([CALLS, END]), Works().tool(), on_crash="continue", approver=True) as session:
        await session.run(wait=False)
        await session.answer(session.questions()[0].seq, "not_done")
        await session.run()
    restarted = next(r.seq for r in records_of(path) if isinstance(r.event, ToolCall) and r.event.resumed)
    cut = tmp_path / "b.db"
    cut_log(path, cut, restarted)
    works = Works()
    async with session_of(cut, FakeModel([CALLS, END]), works.tool(), on_crash="continue", approver=True) as session:
        await session.run(wait=False)
        (question,) = session.questions()
        await session.answer(question.seq, "done")
        await session.run()
    assert (works.ran, outcomes_of(cut)) == ([], ["ok", "ok"])
    assert len(events_of(cut, ApprovalAsked)) == 2


async def test_a_turn_whose_open_calls_all_wait_for_approval_is_suspended(tmp_path: Path) -> None:
    def ask(call: ProposedCall) -> Any:
        return Ask("may it?")

    path = tmp_path / "a.db"
    works = Works()
    options: dict[str, Any] = {"approver": True, "on_crash": "continue"}
    plugins = [Bundle(hooks=[guard(ask)])]
    async with session_of(path, FakeModel([CALLS]), works.tool(), plugins=plugins, **options) as session:
        await session.followup("hi")
        await session.run(wait=False)
    async with session_of(path, FakeModel([CALLS, END]), works.tool(), plugins=plugins, **options) as session:
        turn = await session.run(wait=False)
        assert turn is not None
        assert (turn.reason, len(session.questions())) == ("paused", 2)
        for question in session.questions():
            with pytest.raises(UsageError, match="asks whether a call may start: allow or deny it"):
                await session.answer(question.seq, "done")
            await session.approve(question.seq)
        await session.run()
    assert outcomes_of(path) == ["ok", "ok"]


async def test_a_stream_that_was_cut_off_is_asked_for_again_in_the_same_step(
    tmp_path: Path, autojump_clock: object
) -> None:
    whole, path = tmp_path / "whole.db", tmp_path / "a.db"
    async with session_of(whole, FakeModel([[*words("One, two")[:-1], trio.sleep_forever]])) as session:
        await session.followup("count")
        with trio.move_on_after(0.1):
            await session.run()
    cut_log(whole, path, max(r.seq for r in records_of(whole) if isinstance(r.event, AssistantDelta)))
    model = await go_on(path, Works(), [END])
    first, second = events_of(path, RequestSent)
    assert (first.attempt, second.attempt, first.sha256) == (1, 2, second.sha256)
    assert [event.failure for event in events_of(path, RequestFailed)] == ["interrupted"]
    assert [(event.attempt, event.delay_ms) for event in events_of(path, RequestRetry)] == [(2, 0)]
    assert (len(events_of(path, StepStart)), len(model.requests)) == (1, 1)
    assert any(isinstance(event, AssistantDelta) and event.attempt == 1 for event in events_of(path, AssistantDelta))


def failing_once() -> Callable[[], Any]:
    tries = 0

    async def cue() -> None:
        nonlocal tries
        tries += 1
        await trio.lowlevel.checkpoint()
        if tries == 1:
            raise ProviderError("overloaded", "later")

    return cue


async def test_a_crash_is_no_failure_of_the_provider_and_takes_no_attempt_from_it(tmp_path: Path) -> None:
    path = tmp_path / "0.db"
    async with session_of(path, FakeModel([END])) as session:
        await session.followup("hi")
        await session.run()
    for crash in range(1, 5):
        cut = tmp_path / f"{crash}.db"
        first = next(r.seq for r in records_of(path) if r.epoch == crash and isinstance(r.event, RequestSent))
        cut_log(path, cut, first)
        path = cut
        limits = Limits(attempts_per_step=2)
        await go_on(path, Works(), [[failing_once(), *END]], plugins=[SOON], limits=limits)
    assert [e.failure for e in events_of(path, RequestFailed)].count("interrupted") == 4


async def test_a_tool_that_is_gone_leaves_what_it_did_unknown(tmp_path: Path) -> None:
    for effect, outcome in (("write", "unknown"), ("idempotent", "aborted")):
        path = await cut_behind(tmp_path / f"{effect}.db", Works(effect), "tool/call", 2)  # type: ignore[arg-type]
        model = FakeModel([CALLS, END])
        async with session_of(path, model, on_crash="continue") as session:
            await session.run()
        assert outcomes_of(path) == [outcome, outcome]


async def test_a_tool_that_may_not_be_repeated_any_more_is_not(tmp_path: Path) -> None:
    path = await cut_behind(tmp_path / "a.db", Works("read"), "tool/call", 2)
    works = Works("write")
    await go_on(path, works)
    assert (works.ran, outcomes_of(path)) == ([], ["aborted", "aborted"])


async def test_a_turn_that_a_letter_cancelled_does_not_go_on(tmp_path: Path) -> None:
    path = await cut_behind(tmp_path / "a.db", Works(), "assistant/message")
    async with open_kernel(path, discover=False) as kernel:
        await kernel.mailbox("s").cancel()
    works = Works()
    async with session_of(path, FakeModel([]), works.tool(), on_crash="continue") as session:
        await session.run()
    assert works.ran == []
    assert [end.reason for end in events_of(path, TurnEnd)] == ["aborted"]
    taken = next(r.seq for r in records_of(path) if r.event.kind == "letter/taken")
    cut = tmp_path / "b.db"
    cut_log(path, cut, taken)
    async with session_of(cut, FakeModel([]), works.tool(), on_crash="continue") as session:
        assert await session.run() is None
    assert (works.ran, [end.reason for end in events_of(cut, TurnEnd)]) == ([], ["aborted"])


async def test_nobody_goes_on_by_a_mode_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"on_crash must be one of \('close', 'continue'\), not 'resume'"):
        async with session_of(tmp_path / "a.db", FakeModel([]), on_crash="resume"):  # type: ignore[arg-type]
            pass


def checking(answer: Any) -> Works:
    return Works("idempotent", options={"precheck": answer})


def too_late(what: str) -> str:
    raise ToolError(f"{what}: it is too late")


@pytest.mark.parametrize(
    ("precheck", "told", "fault"),
    [
        (lambda what: f"{what} is closed", "Not run: b is closed", None),
        (lambda context, what: f"{what} {context.position}", "Not run: b 1", None),
        (too_late, "Not run: b: it is too late", None),
        (raising, "could not be checked", "ValueError: planted"),
        (hanging, "could not be checked", "did not answer within 0.05 s"),
        (lambda what: 5, "could not be checked", "returned 5, which is no reason and not None"),
        (lambda what: "", "could not be checked", None),
    ],
)
async def test_what_a_precheck_objects_to_does_not_run_and_the_model_is_told(
    tmp_path: Path, precheck: Any, told: str, fault: str | None
) -> None:
    path = tmp_path / "a.db"
    works = checking(precheck)
    if precheck is hanging:
        works.options["timeout_s"] = 0.05
    async with session_of(path, FakeModel([CALLS, END]), works.tool()) as session:
        await session.followup("hi")
        assert (await session.run()).reason == "completed"  # type: ignore[union-attr]
    assert (works.ran, starts(path), outcomes_of(path)) == ([], [], ["denied", "denied"])
    last = max(events_of(path, ToolResult), key=lambda result: result.position)
    assert told in last.text
    assert {f.error for f in events_of(path, PluginFault)} == ({fault} if fault else set())
    assert_at_rest(path, FakeModel([]))


async def test_a_precheck_is_asked_before_each_start_also_before_a_second_one(tmp_path: Path) -> None:
    asked: list[str] = []

    async def precheck(what: str) -> str | None:
        await trio.lowlevel.checkpoint()
        asked.append(what)
        return "closed" if len(asked) == 3 else None

    works = checking(precheck)
    path = await cut_behind(tmp_path / "a.db", works, "tool/call", 2)
    assert sorted(asked) == ["a", "b"]
    await go_on(path, works)
    assert (len(asked), sorted(outcomes_of(path))) == (4, ["denied", "ok"])
    denied = next(result for result in events_of(path, ToolResult) if result.outcome == "denied")
    assert denied.text == "Not run: closed\nIt was started before, and cut off."
    assert denied.call_seq is not None


async def test_what_an_owner_that_lives_may_still_do_is_not_taken_for_undone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    slow = Works()
    go, began = trio.Event(), trio.Event()

    async def act(what: str) -> str:
        """Act."""
        began.set()
        await go.wait()
        return "late"

    first = Tool(body=act, name="act", effect="write", timeout_s=1000)
    one = [*words("I work."), *calls(("act", {"what": "a"}))]
    works = slow.finding(lambda _: NotDone())
    async with trio.open_nursery() as nursery:

        async def stuck() -> None:
            async with session_of(path, FakeModel([one, END]), first) as session:
                await session.followup("hi")
                with pytest.raises(Fenced):
                    await session.run()

        nursery.start_soon(stuck)
        await began.wait()
        options: dict[str, Any] = {"on_crash": "continue", "take_over": True}
        async with session_of(path, FakeModel([one, END]), works.tool(), **options) as session:
            turn = await session.run()
            assert turn is not None
            assert turn.reason == "completed"
        assert (len(works.looked), works.ran, outcomes_of(path)) == (1, [], ["unknown"])
        go.set()


async def test_a_call_that_started_again_stands_once_in_the_view_of_calls(tmp_path: Path) -> None:
    path = await cut_behind(tmp_path / "a.db", Works("read"), "tool/result", 1)
    for finished in (False, True):
        if finished:
            await go_on(path, Works("read"))
        async with open_kernel(path, discover=False) as kernel:
            result = await kernel.query("SELECT position, outcome, call_seq FROM tool_calls ORDER BY position")
        newest = {
            record.event.position: record.seq for record in records_of(path) if isinstance(record.event, ToolCall)
        }
        assert [tuple(row) for row in result.rows] == [
            (0, "ok", newest[0]),
            (1, "ok" if finished else "open", newest[1]),
        ]
    restarted = next(r.seq for r in records_of(path) if isinstance(r.event, ToolCall) and r.event.resumed)
    cut = tmp_path / "b.db"
    cut_log(path, cut, restarted)
    async with open_kernel(cut, discover=False) as kernel:
        result = await kernel.query("SELECT call_seq, outcome FROM tool_calls WHERE position = 1")
    assert [tuple(row) for row in result.rows] == [(restarted, "open")]


async def test_what_a_hook_has_told_the_model_for_a_step_is_not_told_again(tmp_path: Path) -> None:
    async def remind(_: StepView) -> Append:
        await trio.lowlevel.checkpoint()
        return Append("Be brief.")

    plugins = [Bundle(hooks=[Hook(point="before_step", body=remind, name="reminder")])]
    whole, path = tmp_path / "whole.db", tmp_path / "a.db"
    async with session_of(whole, FakeModel([END]), plugins=plugins) as session:
        await session.followup("hi")
        await session.run()
    told = next(r.seq for r in records_of(whole) if isinstance(r.event, UserMessage) and r.event.source == "plugin")
    cut_log(whole, path, told)
    async with session_of(path, FakeModel([END]), plugins=plugins, on_crash="continue") as session:
        await session.run()
    assert [message.text for message in events_of(path, UserMessage)] == ["hi", "Be brief."]
    assert events_of(path, RequestSent)[0].sha256 == events_of(whole, RequestSent)[0].sha256
