"""What became of a task, from its log alone: step by step, what it cost, why it stopped, and what nobody knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from attrs import evolve, frozen

from flightlog.core.doubt import signature
from flightlog.core.fold import folded
from flightlog_hookspecs.content import ToolCallBlock
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantMessage,
    Decision,
    GoalChecked,
    PluginFault,
    Record,
    RequestSent,
    SessionOpened,
    StepEnd,
    StepStart,
    TaskState,
    TaskStateName,
    TaskSubmitted,
    ToldBy,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnEndReason,
)
from flightlog_hookspecs.tools import Fact, Outcome

E = TypeVar("E")
Place = tuple[int | None, int | None, int]
"""Turn, step and position: a call."""


@frozen(kw_only=True)
class CallReport:
    """A call of a step. `outcome` is None while it is open; `told_by` says who knew it, "" for the call itself."""

    name: str
    arguments: str
    outcome: Outcome | None = None
    told_by: ToldBy = ""
    duration_us: int = 0
    result: str = ""


@frozen(kw_only=True)
class StepReport:
    """A step: what the model said and called, and what that took. `duration_us` is None while it is open.

    From a death to the next owner nobody worked: that time is in no step.

    `costs_pico` is 10^-12 of each currency; `unpriced` attempts are in none of them.
    """

    turn: int
    step: int
    model_said: str = ""
    calls: tuple[CallReport, ...] = ()
    attempts: int = 0
    unpriced: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    costs_pico: tuple[tuple[str, int], ...] = ()
    duration_us: int | None = None


@frozen(kw_only=True)
class Answer:
    """What a person said: to the question in row `asked_seq`, in row `seq`."""

    asked_seq: int
    seq: int
    decision: Decision
    by: str
    reason: str = ""


@frozen(kw_only=True)
class DoubtReport:
    """A call that was cut off: nobody knew by itself how it ended. `seq` is the row of its result.

    `outcome` is "unknown" where nobody could tell; else `told_by` says who could. `answers` are what people said
    about it, then and about later calls of the same kind; `called_again` are the outcomes of those.
    """

    seq: int
    turn: int
    step: int
    name: str
    arguments: str
    outcome: Outcome
    told_by: ToldBy
    answers: tuple[Answer, ...] = ()
    called_again: tuple[Outcome, ...] = ()


@frozen(kw_only=True)
class OpenQuestion:
    """A question in row `seq` that nobody has answered."""

    seq: int
    name: str
    question: str


@frozen(kw_only=True)
class Move:
    """That the task came into another state, in row `seq`, at `at_us` (Unix microseconds)."""

    seq: int
    at_us: int
    state: TaskStateName
    cause: str = ""
    message: str = ""


@frozen(kw_only=True)
class TurnReport:
    """How a turn ended."""

    turn: int
    reason: TurnEndReason
    cause: str = ""
    code: str = ""
    message: str = ""


@frozen(kw_only=True)
class CheckReport:
    """What the goal check found after `step` steps of `turn`."""

    turn: int
    step: int
    check: str
    met: bool
    missing: str = ""


@frozen(kw_only=True)
class TaskReport:
    """All there is to say about a task. Times are Unix microseconds; what stands in tuples is in order.

    `moves` begin with "pending", at its submission; the last one is where it stands. `goal_met` is what its check has
    found last about this goal. `facts` are what its tools have noted and stands, `put_off` the sub-goals that wait for
    more tokens, `faults` those of plugins: "plugin hook: error".
    """

    task: str
    goal: str
    parameters: str
    model: str
    agent: str
    goal_check: str
    goal_met: bool | None
    max_steps: int
    moves: tuple[Move, ...]
    steps: tuple[StepReport, ...]
    turns: tuple[TurnReport, ...]
    checks: tuple[CheckReport, ...]
    doubts: tuple[DoubtReport, ...]
    questions: tuple[OpenQuestion, ...]
    facts: tuple[Fact, ...]
    put_off: tuple[str, ...]
    faults: tuple[str, ...]
    costs_pico: tuple[tuple[str, int], ...]
    unpriced: int

    @property
    def at(self) -> Move:
        """Where it stands."""
        return self.moves[-1]

    @property
    def recoveries(self) -> tuple[Move, ...]:
        """When it was taken up from where a dead worker had left it."""
        return tuple(move for move in self.moves if move.state == "recovering")


def report_of(records: Iterable[Record]) -> TaskReport:
    """The report on the task whose session's records these are. Raises `UsageError` when it is no task's."""
    log = list(records)
    first = next(_of(log, TaskSubmitted), None)
    if first is None:
        raise UsageError(f"session {log[0].session!r} is no task's" if log else "there are no records")
    submission, submitted = first
    steps, state = tuple(_steps(log)), folded(log)
    assert state.task is not None, "it was submitted"
    return TaskReport(
        task=submission.session,
        goal=state.task.goal,
        parameters=state.task.parameters,
        model=submitted.model,
        agent=submitted.agent,
        goal_check=submitted.goal_check,
        goal_met=state.task.goal_met,
        max_steps=submitted.max_steps,
        moves=(Move(seq=submission.seq, at_us=submission.at_us, state="pending"), *_moves(log)),
        steps=steps,
        turns=tuple(
            TurnReport(turn=record.turn or 0, reason=end.reason, cause=end.cause, code=end.code, message=end.message)
            for record, end in _of(log, TurnEnd)
        ),
        checks=tuple(_checks(log)),
        doubts=tuple(_doubts(log)),
        questions=tuple(_open_questions(log)),
        facts=tuple(Fact(name=name, text=text) for name, text in state.facts.items()),
        put_off=state.account.put_off if state.account else (),
        faults=tuple(f"{fault.plugin} {fault.hook}: {fault.error}" for _, fault in _of(log, PluginFault)),
        costs_pico=_sum(steps),
        unpriced=sum(step.unpriced for step in steps),
    )


def _of(log: Sequence[Record], cls: type[E]) -> Iterator[tuple[Record, E]]:
    for record in log:
        if isinstance(record.event, cls):
            yield record, record.event


def _moves(log: Sequence[Record]) -> Iterator[Move]:
    for record, event in _of(log, TaskState):
        yield Move(seq=record.seq, at_us=record.at_us, state=event.state, cause=event.cause, message=event.message)


def _steps(log: Sequence[Record]) -> Iterator[StepReport]:
    step, begun_us, last_us = None, 0, 0
    for record in log:
        match record.event:
            case StepStart():
                step, begun_us = StepReport(turn=record.turn or 0, step=record.step or 0), record.at_us
            case SessionOpened():
                begun_us += record.at_us - last_us
            case RequestSent() if step:
                step = evolve(step, attempts=step.attempts + 1, unpriced=step.unpriced + 1)
            case AssistantMessage() as message if step:
                step = _answered(step, message)
            case ToolCall() as call if step:
                step = _with_call(step, call.position, arguments=call.arguments)
            case ToolResult() as result if step:
                ended = {"outcome": result.outcome, "told_by": result.told_by, "duration_us": result.duration_us}
                step = _with_call(step, result.position, **ended, result=result.text)
            case StepEnd() if step:
                yield evolve(step, duration_us=record.at_us - begun_us)
                step = None
        last_us = record.at_us
    if step:
        yield step


def _answered(step: StepReport, message: AssistantMessage) -> StepReport:
    blocks = [block for block in message.content if isinstance(block, ToolCallBlock)]
    cost = message.cost_pico
    priced = message.price is not None and cost is not None
    return evolve(
        step,
        model_said=message.text,
        calls=tuple(CallReport(name=block.name, arguments=block.arguments) for block in blocks),
        input_tokens=step.input_tokens + message.input_tokens,
        output_tokens=step.output_tokens + message.output_tokens,
        costs_pico=((message.price.currency, cost),) if message.price and cost is not None else (),
        unpriced=step.unpriced - priced,
    )


def _with_call(step: StepReport, position: int, **changes: object) -> StepReport:
    calls = list(step.calls)
    calls[position] = evolve(calls[position], **changes)  # type: ignore[arg-type]
    return evolve(step, calls=tuple(calls))


def _sum(steps: Iterable[StepReport]) -> tuple[tuple[str, int], ...]:
    sums: dict[str, int] = {}
    for step in steps:
        for currency, pico in step.costs_pico:
            sums[currency] = sums.get(currency, 0) + pico
    return tuple(sorted(sums.items()))


def _checks(log: Sequence[Record]) -> Iterator[CheckReport]:
    steps = 0
    for record in log:
        match record.event:
            case StepStart():
                steps = record.step or 0
            case GoalChecked(check=check, met=met, missing=missing):
                yield CheckReport(turn=record.turn or 0, step=steps, check=check, met=met, missing=missing)


def _place(record: Record, event: ApprovalAsked | ToolCall | ToolResult) -> Place:
    return record.turn, record.step, event.position


def _answers(log: Sequence[Record]) -> dict[Place, list[Answer]]:
    """What people said about each call; the first answer to a question counts."""
    places = {record.seq: _place(record, asked) for record, asked in _of(log, ApprovalAsked)}
    answers: dict[Place, list[Answer]] = {}
    settled: set[int] = set()
    for record, said in _of(log, ApprovalDecided):
        if said.asked_seq not in settled and said.decision != "cancelled":
            answer = Answer(
                asked_seq=said.asked_seq, seq=record.seq, decision=said.decision, by=said.by, reason=said.reason
            )
            answers.setdefault(places[said.asked_seq], []).append(answer)
        settled.add(said.asked_seq)
    return answers


def _doubts(log: Sequence[Record]) -> Iterator[DoubtReport]:
    answers = _answers(log)
    arguments: dict[Place, str] = {}
    results: list[tuple[Record, ToolResult, str]] = []
    for record in log:
        match record.event:
            case AssistantMessage() as message:
                blocks = [block for block in message.content if isinstance(block, ToolCallBlock)]
                arguments |= {(record.turn, record.step, n): block.arguments for n, block in enumerate(blocks)}
            case ToolCall() as call:
                arguments[_place(record, call)] = call.arguments
            case ToolResult() as result:
                results.append((record, result, arguments[_place(record, result)]))
    for number, (record, result, raw) in enumerate(results):
        if result.outcome != "unknown" and not result.told_by:
            continue
        same = signature(result.name, raw)
        again = (
            [(row, other) for row, other, its in results[number + 1 :] if signature(other.name, its) == same]
            if result.outcome == "unknown"
            else []
        )
        said = [*answers.get(_place(record, result), ())]
        for row, other in again:
            said += answers.get(_place(row, other), ())
        yield DoubtReport(
            seq=record.seq,
            turn=record.turn or 0,
            step=record.step or 0,
            name=result.name,
            arguments=raw,
            outcome=result.outcome,
            told_by=result.told_by,
            answers=tuple(said),
            called_again=tuple(other.outcome for _, other in again),
        )


def _open_questions(log: Sequence[Record]) -> Iterator[OpenQuestion]:
    settled = {said.asked_seq for _, said in _of(log, ApprovalDecided)}
    answered = {_place(record, result): record.seq for record, result in _of(log, ToolResult)}
    for record, asked in _of(log, ApprovalAsked):
        if record.seq not in settled and _place(record, asked) not in answered:
            yield OpenQuestion(seq=record.seq, name=asked.name, question=asked.question)
