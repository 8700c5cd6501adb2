"""Legal logs are accepted, and whatever is done to one of their rows is refused by the rule that fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from attrs import evolve
from hypothesis import event, given
from hypothesis import strategies as st

from flightlog.core.fold import asked_about, fold
from flightlog.core.invariants import Illegal, check
from flightlog.core.state import EMPTY, State
from flightlog.core.task import FOLLOWING
from flightlog_hookspecs.content import ToolCallBlock, text_blocks
from flightlog_hookspecs.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantDelta,
    AssistantMessage,
    BudgetAlert,
    BudgetDegraded,
    BudgetGranted,
    CheckpointSkipped,
    CheckpointWritten,
    CompactionEnd,
    CompactionStart,
    ContextBuilt,
    Event,
    GoalChecked,
    InboxSplice,
    Record,
    RequestFailed,
    RequestHeader,
    RequestRetry,
    RequestSent,
    SessionCreated,
    SessionOpened,
    StepEnd,
    StepStart,
    SubagentSettled,
    SubagentSpawned,
    TaskAmended,
    TaskResynced,
    TaskState,
    TaskSubmitted,
    TimerCancelled,
    TimerFired,
    TimerSet,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    UnknownEvent,
    UserMessage,
)
from support.legal_logs import LegalLog, broken_rule, folded, legal_logs

Change = tuple[str, Event, set[str]]
"""What was changed, the event after it, and the rules that may refuse it."""


@given(legal_logs())
def test_a_legal_log_is_accepted_at_every_length(log: LegalLog) -> None:
    assert broken_rule(log.records) is None
    event(f"{len(log.records) // 20 * 20} rows or more")


def states_of(records: Sequence[Record]) -> Iterator[tuple[State, Record]]:
    """Each record with the state before it."""
    state = EMPTY
    for record in records:
        yield state, record
        state = fold(state, record.event, record.seq, record.epoch, record.at_us)


def refusal(state: State, record: Record) -> str | None:
    try:
        check(state, record.event, record.epoch, (record.turn, record.step))
    except Illegal as error:
        return error.rule
    return None


@given(legal_logs())
def test_a_changed_envelope_is_refused(log: LegalLog) -> None:
    for state, record in states_of(log.records):
        for epoch in (record.epoch - 1, record.epoch + 1):
            assert refusal(state, evolve(record, epoch=epoch)) == "epoch"
        for turn in {(record.turn or 0) + 1, 0, None} - {record.turn}:
            assert refusal(state, evolve(record, turn=turn)) == "place"
        for step in {(record.step or 0) + 1, 0, None} - {record.step}:
            assert refusal(state, evolve(record, step=step)) == "place"


@given(legal_logs(), st.data())
def test_a_gap_a_repeat_and_a_swap_of_rows_are_refused(log: LegalLog, data: st.DataObject) -> None:
    records = list(log.records)
    at = data.draw(st.integers(0, len(records) - 1))
    if at < len(records) - 1:
        assert broken_rule(records[:at] + records[at + 1 :]) == "seq-dense"
        assert broken_rule([*records[:at], records[at + 1], records[at], *records[at + 2 :]]) == "seq-dense"
    assert broken_rule([*records[: at + 1], *records[at:]]) == "seq-dense"
    assert broken_rule([*records[:at], evolve(records[at], seq=0), *records[at + 1 :]]) == "seq-dense"


@given(legal_logs())
def test_a_changed_event_is_refused_where_it_stands(log: LegalLog) -> None:
    for state, record in states_of(log.records):
        for what, changed, rules in changes(state, record.event):
            rule = refusal(state, evolve(record, event=changed))
            assert rule in rules, f"{what} of {record.event.kind} at seq {record.seq}: {rule}"


def changes(state: State, original: Event) -> Iterator[Change]:
    """Every change to `original` that must be refused right there."""
    match original:
        case InboxSplice():
            yield from splice_changes(state, original)
        case UserMessage(replaces_from=int(first), replaces_to=int(last)):
            yield "replaces from", evolve(original, replaces_from=first + 1), {"compaction-range"}
            yield "replaces to", evolve(original, replaces_to=last - 1), {"compaction-range"}
            yield "source", evolve(original, source="user"), {"compaction-range"}
        case UserMessage() if state.claimed:
            yield "message id", evolve(original, message_id="other"), {"claim-lost"}
            yield "content", evolve(original, content=(*original.content, *text_blocks("!"))), {"claim-content"}
            source = "plugin" if original.source == "user" else "user"
            yield "source", evolve(original, source=source), {"claim-content"}
        case RequestSent():
            for attempt in (original.attempt - 1, original.attempt + 1, 0):
                yield "attempt", evolve(original, attempt=attempt), {"attempt-number"}
            for header in (original.header_seq - 1, original.header_seq + 1, 0):
                yield "header", evolve(original, header_seq=header), {"header-named"}
        case AssistantDelta() | RequestFailed():
            for attempt in (original.attempt - 1, original.attempt + 1):
                yield "attempt", evolve(original, attempt=attempt), {"attempt-open"}
        case RequestRetry():
            for attempt in (original.attempt - 1, original.attempt + 1):
                yield "attempt", evolve(original, attempt=attempt), {"retry-place"}
        case AssistantMessage():
            for attempt in (original.attempt - 1, original.attempt + 1):
                yield "attempt", evolve(original, attempt=attempt), {"attempt-open"}
            for content in ((), text_blocks(" \n")):
                yield "content", evolve(original, content=content), {"answer-empty"}
            if any(isinstance(block, ToolCallBlock) for block in original.content):
                yield "finish", evolve(original, finish="length"), {"calls-truncated"}
        case ToolCall():
            yield from call_changes(state, original)
            if original.resumed:
                yield "resumed", evolve(original, resumed=""), {"call-twice"}
                yield "invocation id", evolve(original, invocation_id="another"), {"call-resumed"}
            else:
                yield "resumed", evolve(original, resumed="reconciled"), {"call-resumed"}
        case ApprovalAsked():
            yield from call_changes(state, original)
            yield "about", evolve(original, about="" if original.about else "outcome"), {"asked-once"}
        case ApprovalDecided():
            for seq in (original.asked_seq - 1, original.asked_seq + 1, 0):
                if seq not in state.questions:
                    yield "asked seq", evolve(original, asked_seq=seq), {"decided-asked"}
            other = "allowed" if original.asked_seq in state.outcome_questions else "done"
            yield "decision", evolve(original, decision=other, remember=False), {"decided-kind"}
        case ToolResult(replaces=int()):
            yield "replaces", evolve(original, replaces=None), {"step-outside", "call-named", "result-twice"}
        case ToolResult():
            yield from call_changes(state, original)
            if original.call_seq is None:
                yield "told by", evolve(original, told_by="person"), {"result-told"}
            for seq in {None, (original.call_seq or 0) + 1, (original.call_seq or 2) - 1} - {original.call_seq}:
                yield "call seq", evolve(original, call_seq=seq), {"result-call"}
        case _:
            pass


def splice_changes(state: State, original: InboxSplice) -> Iterator[Change]:
    slot = state.slot(original.slot)
    yield "start", evolve(original, start=len(slot) + 1), {"splice-range"}
    yield "start", evolve(original, start=-1), {"splice-range"}
    yield "removed", evolve(original, removed=2), {"splice-shape"}
    if original.removed:
        yield "message id", evolve(original, message_id="other"), {"splice-names"}
        yield "start", evolve(original, start=len(slot)), {"splice-range"}
        yield "removed", evolve(original, removed=0), {"splice-shape", "splice-pending"}
    else:
        yield "content", evolve(original, content=None), {"splice-shape"}
        for other in (*state.next_turn, *state.next_step):
            yield "message id", evolve(original, message_id=other.message_id), {"splice-pending"}
        yield "removed", evolve(original, removed=1), {"splice-range", "splice-names"}
    if original.cause == "claimed":
        yield "content", evolve(original, content=text_blocks("more")), {"splice-shape"}
    else:
        cause = evolve(original, cause="claimed")
        if not state.turn_open or state.step:
            yield "cause", cause, {"turn-outside", "step-nested"}


def call_changes(state: State, original: ToolCall | ToolResult | ApprovalAsked) -> Iterator[Change]:
    assert state.step is not None, "calls stand inside their step"
    for position, call in enumerate(state.step.calls):
        if (call.call_id, call.name) != (original.call_id, original.name):
            yield "position", evolve(original, position=position), {"call-named"}
    for position in (-1, len(state.step.calls)):
        yield "position", evolve(original, position=position), {"call-named"}
    yield "call id", evolve(original, call_id=original.call_id + "x"), {"call-named"}
    yield "name", evolve(original, name=original.name + "x"), {"call-named"}
    for seq in (original.message_seq - 1, original.message_seq + 1, 0):
        yield "message seq", evolve(original, message_seq=seq), {"call-named"}


TWICE: dict[str, str | None] = {
    "session/created": "created-first",
    "session/opened": "epoch",
    "session/closed": "closed",
    "turn/start": "turn-nested",
    "turn/end": "turn-outside",
    "step/start": "step-nested",
    "step/end": "step-outside",
    "request/header": None,
    "request/sent": "attempt-number",
    "assistant/delta": None,
    "assistant/message": "attempt-open",
    "request/failed": "attempt-open",
    "request/retry": "retry-place",
    "tool/call": "call-twice",
    "tool/result": "result-twice",
    "approval/asked": "asked-once",
    "plugin/error": None,
    "session/repaired": None,
    "letter/taken": "letter-once",
    "subagent/spawned": "spawned-by-call",
    "subagent/settled": "settled-once",
    "timer/set": "timer-set",
    "timer/cancelled": "timer-open",
    "compaction/start": "compaction-place",
    "compaction/end": "compaction-open",
    "task/submitted": "task-submitted",
    "task/amended": None,
    "goal/checked": None,
    "budget/granted": None,
    "budget/alert": None,
    "budget/degraded": None,
    "context/built": None,
    "task/resync": None,
    "checkpoint/written": None,
    "checkpoint/skipped": None,
}
"""The rule that refuses an event behind itself; None where it may be repeated."""


@given(legal_logs())
def test_an_event_written_twice_is_refused(log: LegalLog) -> None:
    for state, record in states_of(log.records):
        after = fold(state, record.event, record.seq, record.epoch, record.at_us)
        match record.event:
            case UserMessage() | UnknownEvent() | ToolResult(replaces=int()):
                continue
            case InboxSplice(removed=1):
                # Behind an edit the same edit fits; else the message is gone, or another has moved up.
                rules = {None} if record.event.content is not None else {"splice-range", "splice-names"}
            case InboxSplice():
                rules = {"splice-pending"}
            case ToolCall(resumed=resumed) if resumed:
                rules = {"call-resumed"}
            case ApprovalDecided():
                rules = {"decided-asked" if record.event.decision == "cancelled" else None}
            case TimerFired():
                rules = {"timer-due" if record.event.next_us else "timer-open"}
            case TaskState(state=state_name):
                rules = {None if state_name in FOLLOWING[state_name] else "task-state"}
            case _:
                rules = {TWICE[record.event.kind]}
        assert refusal(after, record) in rules, record.event.kind


REFERENCES = ("header_seq", "message_seq", "call_seq", "asked_seq", "checkpoint_seq")


def renumbered(records: Sequence[Record]) -> list[Record]:
    """`records` as somebody leaves them who closes the gaps and corrects every reference to a row."""
    new = {record.seq: seq for seq, record in enumerate(records, 1)}

    def moved(event: Event) -> Event:
        names = [
            name
            for name in ("header_seq", "message_seq", "call_seq", "asked_seq", "checkpoint_seq")
            if getattr(event, name, None)
        ]
        return evolve(event, **{name: new.get(getattr(event, name), 0) for name in names})

    return [evolve(record, seq=new[record.seq], event=moved(record.event)) for record in records]


OPENS_OR_CLOSES: dict[str, set[str]] = {
    "session/created": {"created-first"},
    "session/opened": {"epoch"},
    "turn/start": {"turn-outside", "place", "checkpoint-place", "goal-checked"},
    "turn/end": {"turn-nested", "closed-in-turn", "place", "checkpoint-place", "task-ends-in-turn"},
    "step/start": {"step-outside", "turn-outside", "place", "checkpoint-place"},
    "step/end": {"step-nested", "turn-step-open", "place", "checkpoint-place", "goal-checked"},
}
"""What refuses the row behind a lost bracket, whatever it is."""

OF_A_BUDGET = (BudgetAlert, BudgetDegraded, ContextBuilt)

AFTER_ATTEMPT: dict[str, str] = {
    "user/message": "user-during-attempt",
    "request/header": "header-late",
    "request/sent": "attempt-number",
    "context/built": "context-place",
    "request/retry": "retry-place",
    "step/end": "step-attempt-open",
    "tool/call": "call-named",
    "tool/result": "call-named",
    "approval/asked": "call-named",
    "checkpoint/written": "checkpoint-place",
}
"""What refuses a row of the same step when the end of the attempt before it is lost."""


OF_A_TASK = (TaskAmended, TaskState, GoalChecked, TaskResynced, CheckpointWritten, CheckpointSkipped)
GOES_ON = {"turn/start", "turn/end", "step/start", "step/end", "request/sent", "session/closed"}
"""What nothing of goes on before an open compaction has ended."""


def traces(state: State, lost: Record, rest: Sequence[Record]) -> set[str]:
    """The rules that notice that `lost` is missing before `rest`; empty when nothing needs to."""
    in_step = [record for record in rest if (record.turn, record.step) == (lost.turn, lost.step)]
    match lost.event:
        case _ if not rest:
            return set()
        case UserMessage():
            return {"claim-lost"} if state.claimed else set()
        case InboxSplice(removed=0, message_id=name, slot=slot):
            leaves = [r for r in rest if isinstance(r.event, InboxSplice) and r.event.removed and r.event.slot == slot]
            gone = any(record.event.message_id == name for record in leaves)
            return {"splice-range", "splice-names"} if gone else set()
        case RequestHeader():
            named = any(isinstance(r.event, RequestSent) and r.event.header_seq == lost.seq for r in rest)
            return {"header-named"} if named else set()
        case RequestSent(attempt=attempt):
            return {"attempt-open"} if any(getattr(r.event, "attempt", 0) == attempt for r in in_step) else set()
        case AssistantMessage() | RequestFailed():
            later = [AFTER_ATTEMPT[record.event.kind] for record in in_step if record.event.kind in AFTER_ATTEMPT]
            return set(later[:1])
        case SubagentSpawned(invocation_id=task):
            settled = any(isinstance(r.event, SubagentSettled) and r.event.invocation_id == task for r in rest)
            return {"settled-once"} if settled else set()
        case SubagentSettled(child=child):
            again = any(isinstance(r.event, SubagentSpawned) and r.event.child == child for r in rest)
            return {"spawned-twice"} if again else set()
        case TimerSet(timer=timer):
            needed = any(isinstance(r.event, (TimerFired, TimerCancelled)) and r.event.timer == timer for r in rest)
            return {"timer-open"} if needed else set()
        case TimerFired(timer=timer):
            again = any(isinstance(r.event, TimerFired) and r.event.timer == timer for r in rest)
            return {"timer-due"} if again else set()
        case CompactionStart():
            ended = next(
                (r for r in rest if isinstance(r.event, (CompactionStart, CompactionEnd, SessionOpened))), None
            )
            return {"compaction-open"} if ended and isinstance(ended.event, CompactionEnd) else set()
        case CompactionEnd():
            goes_on = next((r for r in rest if r.event.kind in GOES_ON or isinstance(r.event, SessionOpened)), None)
            return COMPACTION if goes_on and not isinstance(goes_on.event, SessionOpened) else set()
        case TaskSubmitted():
            if isinstance(rest[0].event, BudgetGranted):
                return {"closed"}
            if any(isinstance(r.event, BudgetGranted) for r in rest):
                return set()  # then it has a budget all the same
            needed = any(isinstance(r.event, OF_A_TASK) for r in rest)
            return {"task-missing", "budget-missing"} if needed else set()
        case BudgetGranted() if state.account is None:
            first = next((r.event for r in rest if isinstance(r.event, (BudgetGranted, *OF_A_BUDGET))), None)
            return {"budget-missing"} if isinstance(first, OF_A_BUDGET) else set()
        case CheckpointWritten():
            named = any(getattr(r.event, "checkpoint_seq", None) == lost.seq for r in rest)
            return {"checkpoint-named"} if named else set()
        case TaskState():
            assert state.task is not None, "the log was legal"
            then = next((r.event.state for r in rest if isinstance(r.event, TaskState)), None)
            return {"task-state"} if then and then not in FOLLOWING[state.task.state] else set()
        case ToolCall():
            return traces_of_start(lost, lost.event, in_step)
        case ApprovalAsked():
            return {"decided-asked"} if decided(rest, lost.seq) else set()
        case ApprovalDecided(asked_seq=asked_seq):
            call = asked_about(state, asked_seq)
            started = call and any(isinstance(r.event, ToolCall) and r.event.position == call.position for r in in_step)
            rule = "call-resumed" if asked_seq in state.outcome_questions else "call-unapproved"
            return {rule} if started and not decided(rest, asked_seq) else set()
        case ToolResult():
            return {"step-unanswered"} if any(isinstance(r.event, StepEnd) for r in in_step) else set()
        case _:
            return OPENS_OR_CLOSES.get(lost.event.kind, set())


def traces_of_start(lost: Record, start: ToolCall, in_step: Sequence[Record]) -> set[str]:
    """The rules that notice that a start of a call is missing."""
    if start.resumed:  # then there is another
        named = any(isinstance(r.event, ToolResult) and r.event.call_seq == lost.seq for r in in_step)
        return {"result-call", "call-resumed", "asked-once"} if named else set()
    rules = set()
    for record in in_step:
        match record.event:
            case ToolResult(position=position) if position == start.position:
                rules.add("result-call")
            case ToolCall(position=position) if position == start.position:
                rules.add("call-resumed")
            case ApprovalAsked(position=position) if position == start.position:
                rules.add("asked-once")
            case SubagentSpawned(invocation_id=task) if task == start.invocation_id:
                rules.add("spawned-by-call")
    return rules


COMPACTION = {"compaction-place", "compaction-range", "compaction-open", "compaction-ends"}
"""What may notice a loss first where a compaction follows: it counts rows, and stands only between requests."""


def shortens(event: Event) -> bool:
    return isinstance(event, (CompactionStart, CompactionEnd))


def decided(records: Sequence[Record], asked_seq: int) -> bool:
    return any(isinstance(r.event, ApprovalDecided) and r.event.asked_seq == asked_seq for r in records)


@given(legal_logs())
def test_a_row_lost_without_a_gap_is_noticed_by_what_needs_it(log: LegalLog) -> None:
    for index, (state, record) in enumerate(states_of(log.records)):
        rules = traces(state, record, log.records[index + 1 :])
        rule = broken_rule(renumbered([*log.records[:index], *log.records[index + 1 :]]))
        if rules:
            rules = rules | COMPACTION if any(shortens(r.event) for r in log.records[index:]) else rules
            assert rule in rules, f"{record.event.kind} at seq {record.seq} was lost: {rule}"


def depends(after: Record, before: Record) -> bool:
    """Whether `after`, the next row, is legal only behind `before`."""
    match before.event, after.event:
        case (TurnStart() | StepStart() | SessionCreated() | SessionOpened(), _) | (_, TurnEnd() | StepEnd()):
            return True
        case RequestSent() | AssistantDelta(), AssistantMessage() | RequestFailed():
            return True
        case RequestSent(), AssistantDelta():
            return True
        case ToolCall(), ToolResult(call_seq=seq):
            return seq == before.seq
        case ApprovalAsked(), ApprovalDecided(asked_seq=seq):
            return seq == before.seq
        case ApprovalAsked() | ApprovalDecided(), ToolCall():
            return False  # an approval may concern another call
        case _:
            return False


@given(legal_logs())
def test_a_row_cannot_change_places_with_one_it_depends_on(log: LegalLog) -> None:
    for index, (before, after) in enumerate(pairwise(log.records)):
        if depends(after, before):
            swapped = [*log.records[:index], after, before, *log.records[index + 2 :]]
            assert broken_rule(renumbered(swapped)) is not None, f"{before.event.kind} and {after.event.kind}"


@given(legal_logs())
def test_renumbering_a_legal_log_changes_nothing(log: LegalLog) -> None:
    assert renumbered(log.records) == list(log.records)


@given(legal_logs())
def test_folding_is_a_function_of_the_log(log: LegalLog) -> None:
    states = [state for state, _ in states_of(log.records)]
    assert states == [state for state, _ in states_of(log.records)]
    for state, record in zip(states, log.records, strict=True):
        assert folded(log.records[: record.seq - 1]) == state
