"""Legality: whether an event may follow the log so far. The only place that decides it.

It runs on every append and on every load. `RULES` is the whole law; a violation names its rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from flightlog.core import questions
from flightlog.core.budget import is_card
from flightlog.core.context import fits, spans_fit
from flightlog.core.facts import unfit
from flightlog.core.fold import asked_about, placed
from flightlog.core.history import History
from flightlog.core.state import Call, State, Step
from flightlog.core.task import ENDED, FOLLOWING, Task
from flightlog.core.timer import TIME_MAX_US, Timer, firing, missed_by, misset
from flightlog_hookspecs.content import ToolCallBlock
from flightlog_hookspecs.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantDelta,
    AssistantMessage,
    BudgetAlert,
    BudgetCharged,
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
    LetterTaken,
    PluginFault,
    PluginLoaded,
    PluginUnloaded,
    PluginVersion,
    RequestFailed,
    RequestHeader,
    RequestRetry,
    RequestSent,
    SessionClosed,
    SessionCreated,
    SessionOpened,
    SessionRepaired,
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
    ToolProgress,
    ToolResult,
    TurnEnd,
    TurnStart,
    UnknownEvent,
    UserMessage,
)
from flightlog_hookspecs.tools import REPEATABLE

RULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "seq-dense": "seq counts from 1 without a gap or a repeat",
        "created-first": "session/created is the first event and occurs once",
        "lock": "session/opened keeps the number of the session's lock or, taking over, raises it by one",
        "epoch": "session/opened raises the epoch by one; every other event carries the current one",
        "closed": "after session/closed and session/repaired only session/opened or session/repaired may follow",
        "closed-in-turn": "session/closed stands outside of turns",
        "place": "the row's turn and step are those that are open, or those that the event opens",
        "turn-nested": "turn/start stands outside of turns",
        "turn-outside": "turn/end, step/start and claims stand inside an open turn",
        "turn-step-open": "turn/end comes after the last step/end",
        "step-nested": "step/start and claims stand outside of steps",
        "step-outside": "messages, requests and tool events stand inside an open step",
        "step-unanswered": "no step closes with an unanswered call",
        "step-attempt-open": "no step closes while an attempt is open",
        "splice-range": "a splice fits the list it edits",
        "splice-shape": "a splice removes at most one message and removes or inserts one; a claim only removes",
        "splice-pending": "a splice never inserts an id that is pending",
        "splice-names": "a splice names the message it removes",
        "splice-cause": "accepted adds at the end of its slot, edited replaces in place, other causes only remove",
        "budget-missing": "alerts, moves and built contexts stand in a session with a budget",
        "budget-card": "budget/granted and budget/alert name a card, and no less than nothing is granted",
        "budget-lent": "budget/charged names a card that the child of an open task was lent a part of",
        "context-place": "context/built stands before the next attempt of an open step",
        "plugin-loaded": "plugin/unloaded names a plugin that is registered",
        "letter-once": "a letter is taken at most once",
        "spawned-by-call": "a task for a child comes from a started call without a result; each gives one at most",
        "spawned-depth": "a child stands one level below its parent",
        "spawned-twice": "a child is given a task once that before is settled, and only one in the background another",
        "settled-once": "subagent/settled names a task of a child that is not settled yet",
        "timer-set": "a timer is set once under its name, within the bounds of time",
        "timer-open": "timer/fired and timer/cancelled name a timer that is still to fire",
        "timer-due": "a timer fires for the run that is due, and next at a later one of its own; no clock has a say",
        "task-submitted": "task/submitted is the second event and stands before any owner",
        "task-missing": "task events stand in the session of a task",
        "task-state": "a task goes from one state only to those that may follow it, and from an ended one to none",
        "task-ends-in-turn": "a task is completed, failed or cancelled outside of turns",
        "goal-checked": "goal/checked names the check of the task, and stands between the steps of a turn",
        "checkpoint-place": "a light checkpoint stands between steps, a heavy one after an answer, others out of turns",
        "checkpoint-named": "checkpoint/skipped and task/resync name checkpoints of the session",
        "claim-lost": "a claimed message enters a step before anything else happens",
        "claim-content": "a claimed message enters the step unchanged",
        "section-shape": "a message about a prompt section is one of context, in one or two texts",
        "compaction-place": "compaction/start stands where no attempt, call or other compaction is open",
        "compaction-range": "a compaction covers rows before the open step, and what replaces them names just these",
        "compaction-open": "compaction/end, summaries and shortened results stand in an open compaction of their kind",
        "compaction-ends": "no step or turn opens or closes and no request is sent while a compaction is open",
        "result-replaced": "a shortened result stands for the one that is there, of the same call",
        "user-during-attempt": "no user/message while an attempt is open",
        "header-spans": "the sections of a request/header stand in its system text, in order and apart",
        "header-late": "request/header comes before the step's answer and never while an attempt is open",
        "header-named": "request/sent names the newest request/header",
        "attempt-number": "attempts count from 1 in their step, one at a time",
        "attempt-open": "a delta, an answer or a failure names the open attempt",
        "retry-place": "request/retry follows a failed attempt and names the next one",
        "answer-empty": "an assistant/message is never empty",
        "calls-truncated": "only an answer that finished may call tools",
        "call-named": "a tool event names a call of the step's message",
        "call-twice": "a call starts once; never after its result nor where a repair may have lost its start",
        "call-resumed": "a later owner may start a call again, as the same invocation, for a reason that holds",
        "call-database": "a tool/call names a database when its effect is transactional, and only then",
        "progress-running": "tool/progress names the newest start of a call that has no result yet",
        "result-twice": "a tool/result answers exactly one earlier unanswered call",
        "call-unapproved": "a call that was asked about starts only once it is allowed",
        "asked-once": "a call is asked about once before it starts, and once about its outcome under a later owner",
        "decided-asked": "approval/decided names a question; only an open one can be cancelled",
        "decided-kind": "an answer is one that its question allows; one about an outcome is not remembered",
        "facts-fit": "what a result notes has room in the working memory, and is noted once",
        "result-call": "a tool/result names the tool/call it answers, if one was started",
        "result-told": "only how a started call ended is told by somebody else",
    }
)


class Illegal(Exception):
    """An event that breaks `rule`. Becomes `LogCorrupt` on load and `InvariantViolation` live."""

    def __init__(self, rule: str, detail: str) -> None:
        assert rule in RULES, f"unlisted rule {rule}"
        super().__init__(f"{detail} (rule {rule}: {RULES[rule]})")
        self.rule = rule
        self.detail = detail


def check(state: State, event: Event, epoch: int, place: tuple[int | None, int | None]) -> None:
    """Raise `Illegal` unless `event`, written under `epoch` at `place`, may follow `state`."""
    kind = type(event)
    if (kind is SessionCreated) != (not state.uid):
        raise Illegal("created-first", f"{event.kind} at this point")
    if epoch != state.epoch + (kind in _RAISES_EPOCH):
        raise Illegal("epoch", f"epoch {epoch} after epoch {state.epoch}")
    if kind not in _NEEDS_NO_OWNER and (state.epoch == 0 or state.closed):
        raise Illegal("closed", f"{event.kind} while no owner has the session open")
    if state.claimed and kind not in _FOLLOWS_CLAIM:
        raise Illegal("claim-lost", f"{event.kind} before claimed message {state.claimed[0].message_id!r} entered")
    if state.compaction and kind in _ENDS_COMPACTION_FIRST:
        raise Illegal("compaction-ends", f"{event.kind} while a compaction is open")
    _CHECKS[kind](state, event)
    if place != (expected := placed(state, event)):
        raise Illegal("place", f"{event.kind} at turn, step {place}, expected {expected}")


def _anywhere(state: State, event: Event) -> None:
    pass


def _opened(state: State, event: SessionOpened) -> None:
    if event.lock not in (state.lock, state.lock + 1):
        raise Illegal("lock", f"lock {event.lock} after lock {state.lock}")


def _outside_turn(rule: str) -> Callable[[State, Event], None]:
    def checker(state: State, event: Event) -> None:
        if state.turn_open:
            raise Illegal(rule, f"{event.kind} inside turn {state.turn}")

    return checker


def _turn_end(state: State, event: TurnEnd) -> None:
    if not state.turn_open:
        raise Illegal("turn-outside", "turn/end outside a turn")
    if state.step:
        raise Illegal("turn-step-open", f"turn/end while step {state.step.number} is open")


def _step_start(state: State, event: StepStart) -> None:
    if not state.turn_open:
        raise Illegal("turn-outside", "step/start outside a turn")
    if state.step:
        raise Illegal("step-nested", f"step/start inside step {state.step.number}")


def _open_step(state: State, event: Event) -> Step:
    if state.step is None:
        raise Illegal("step-outside", f"{event.kind} outside a step")
    return state.step


def _step_end(state: State, event: StepEnd) -> None:
    step = _open_step(state, event)
    if step.phase == "open":
        raise Illegal("step-attempt-open", f"step/end while attempt {step.attempt} is open")
    if step.unanswered:
        raise Illegal("step-unanswered", f"step/end while call {step.unanswered[0].position} is unanswered")


def _splice(state: State, event: InboxSplice) -> None:
    slot = state.slot(event.slot)
    enters = event.content is not None
    if event.cause == "claimed":
        if not state.turn_open:
            raise Illegal("turn-outside", "a claim outside a turn")
        if state.step:
            raise Illegal("step-nested", f"a claim inside step {state.step.number}")
        if enters:
            raise Illegal("splice-shape", "a claim that inserts")
    elif state.claimed:
        raise Illegal("claim-lost", f"{event.cause} before claimed message {state.claimed[0].message_id!r} entered")
    if event.removed not in (0, 1) or (event.removed == 0 and not enters):
        raise Illegal("splice-shape", f"removes {event.removed} and inserts {enters}")
    if event.start < 0 or event.start + event.removed > len(slot):
        raise Illegal(
            "splice-range", f"start {event.start}, removed {event.removed}, but {event.slot} holds {len(slot)}"
        )
    gone = slot[event.start].message_id if event.removed else None
    if gone is not None and gone != event.message_id:
        raise Illegal("splice-names", f"names {event.message_id!r} but removes {gone!r}")
    if enters and gone is None:
        pending = (*state.next_turn, *state.next_step, *state.claimed)
        if any(other.message_id == event.message_id for other in pending):
            raise Illegal("splice-pending", f"message {event.message_id!r} is already pending")
    if event.cause == "accepted":
        fits = event.removed == 0 and event.start == len(slot)
    else:
        fits = event.removed == 1 and enters == (event.cause == "edited")
    if not fits:
        raise Illegal("splice-cause", f"{event.cause} removes {event.removed} and inserts {enters} at {event.start}")


def _letter_taken(state: State, event: LetterTaken) -> None:
    if event.letter_id in state.letters:
        raise Illegal("letter-once", f"letter {event.letter_id!r} was taken before")


def _spawned(state: State, event: SubagentSpawned) -> None:
    calls = state.step.unanswered if state.step else ()
    by_call = any(call.started is not None and call.started.invocation_id == event.invocation_id for call in calls)
    if not by_call or event.invocation_id in state.assigned:
        raise Illegal("spawned-by-call", f"no open call {event.invocation_id!r} is still to give a task")
    if event.depth != state.depth + 1:
        raise Illegal("spawned-depth", f"depth {event.depth} below depth {state.depth}")
    before = state.children.get(event.child)
    if event.child in state.unsettled or (before and not (before.background and event.background)):
        raise Illegal("spawned-twice", f"child {event.child!r} was given a task before")


def _settled(state: State, event: SubagentSettled) -> None:
    open_task = state.children[event.child].invocation_id if event.child in state.unsettled else None
    if open_task != event.invocation_id:
        raise Illegal("settled-once", f"child {event.child!r} has no open task {event.invocation_id!r}")


def _timer_set(state: State, event: TimerSet) -> None:
    if event.timer in state.timer_names:
        raise Illegal("timer-set", f"timer {event.timer!r} was set before")
    if wrong := misset(event):
        raise Illegal("timer-set", wrong)


def _open_timer(state: State, event: TimerFired | TimerCancelled) -> Timer:
    if event.timer not in state.timers:
        raise Illegal("timer-open", f"timer {event.timer!r} is not still to fire")
    return state.timers[event.timer]


def _timer_fired(state: State, event: TimerFired) -> None:
    timer = _open_timer(state, event)
    if not 0 <= event.missed <= missed_by(timer, TIME_MAX_US) or event != firing(timer, event.missed):
        raise Illegal("timer-due", f"timer {event.timer!r} is due at {timer.due_us}")


def _submitted(state: State, event: TaskSubmitted) -> None:
    if state.epoch != 0 or state.closed or state.task is not None:
        raise Illegal("task-submitted", "task/submitted at this point")


def _of_task(
    state: State, event: TaskAmended | TaskState | GoalChecked | TaskResynced | CheckpointWritten | CheckpointSkipped
) -> Task:
    if state.task is None:
        raise Illegal("task-missing", f"{event.kind} in a session without a task")
    return state.task


def _amended(state: State, event: TaskAmended) -> None:
    if (task := _of_task(state, event)).ended:
        raise Illegal("task-state", f"task/amended once it was {task.state}")


def _task_state(state: State, event: TaskState) -> None:
    task = _of_task(state, event)
    if event.state not in FOLLOWING[task.state]:
        raise Illegal("task-state", f"{event.state} after {task.state}")
    if event.state in ENDED and state.turn_open:
        raise Illegal("task-ends-in-turn", f"{event.state} inside turn {state.turn}")


def _goal_checked(state: State, event: GoalChecked) -> None:
    task = _of_task(state, event)
    if not state.turn_open or state.step is not None or event.check != task.submitted.goal_check:
        raise Illegal("goal-checked", f"goal check {event.check!r} of a task with {task.submitted.goal_check!r}")


def _checkpoint(state: State, event: CheckpointWritten) -> None:
    _of_task(state, event)
    match event.level:
        case "light":
            stands = state.turn_open and state.step is None
        case "heavy":
            stands = state.step is not None and state.step.phase == "answered"
        case "archive":
            stands = not state.turn_open
    if not stands:
        raise Illegal("checkpoint-place", f"a {event.level} checkpoint at turn, step {state.place}")


def _names_checkpoint(state: State, event: CheckpointSkipped | TaskResynced) -> None:
    known = _of_task(state, event).checkpoints
    if event.checkpoint_seq is not None and event.checkpoint_seq not in known:
        raise Illegal("checkpoint-named", f"{event.kind} names row {event.checkpoint_seq}, which is no checkpoint")


def _granted(state: State, event: BudgetGranted) -> None:
    if state.closed or (state.epoch == 0 and state.task is None):
        raise Illegal("closed", "budget/granted while no owner has the session open")
    if not is_card(event.card) or event.most < 0:
        raise Illegal("budget-card", f"{event.most} of {event.card!r} are granted")


def _charged(state: State, event: BudgetCharged) -> None:
    open_tasks = [state.children[child] for child in state.unsettled]
    lent = {loan.card for task in open_tasks if task.invocation_id == event.invocation_id for loan in task.lent}
    if state.account is None or event.card not in lent or event.amount <= 0:
        raise Illegal("budget-lent", f"{event.amount} of {event.card!r} are charged for {event.invocation_id!r}")


def _of_budget(state: State, event: BudgetAlert | BudgetDegraded | ContextBuilt) -> None:
    if state.account is None:
        raise Illegal("budget-missing", f"{event.kind} in a session without a budget")


def _alert(state: State, event: BudgetAlert) -> None:
    _of_budget(state, event)
    if not is_card(event.card) and not event.card.startswith(("rate:", "pool:")):
        raise Illegal("budget-card", f"an alert about {event.card!r}")


def _context_built(state: State, event: ContextBuilt) -> None:
    _of_budget(state, event)
    step = _open_step(state, event)
    if step.phase in ("open", "answered") or event.attempt != step.attempt + 1:
        raise Illegal("context-place", f"for attempt {event.attempt} after attempt {step.attempt} ({step.phase})")


def _unloaded(state: State, event: PluginUnloaded) -> None:
    if PluginVersion(name=event.plugin, version=event.version) not in state.plugins:
        raise Illegal("plugin-loaded", f"plugin {event.plugin!r} {event.version} is not registered")


def _compaction_start(state: State, event: CompactionStart) -> None:
    step = state.step
    if state.compaction or (step and (step.phase == "open" or step.unanswered)):
        raise Illegal("compaction-place", "compaction/start at this point")
    if event.level == "summarise" and state.header is None:
        raise Illegal("compaction-place", "a summary is asked for without a head")
    if not 0 < event.from_seq <= event.to_seq or (step and event.to_seq >= step.seq):
        raise Illegal("compaction-range", f"covers rows {event.from_seq} to {event.to_seq}")


def _open_compaction(state: State, event: Event, level: str) -> CompactionStart:
    if state.compaction is None or level not in ("", state.compaction.level):
        raise Illegal("compaction-open", f"{event.kind} outside of a compaction of its kind")
    return state.compaction


def _summary(state: State, event: UserMessage) -> None:
    start = _open_compaction(state, event, "summarise")
    if (start.from_seq, start.to_seq, "summary", "") != (
        event.replaces_from,
        event.replaces_to,
        event.source,
        event.section,
    ):
        raise Illegal("compaction-range", f"stands for rows {event.replaces_from} to {event.replaces_to}")


def check_replacement(event: Event, history: History) -> None:
    """Raise `Illegal` unless what `event` is to replace, if it does, stands there now.

    The one part of the law that takes the messages, and not the state alone.
    """
    if isinstance(event, CompactionStart):
        if gone := [row for row in (event.from_seq, event.to_seq) if history.at((row, 0)) is None]:
            raise Illegal("compaction-range", f"no message stands at row {gone[0]}")
        return
    if not isinstance(event, ToolResult) or event.replaces is None:
        return
    place = (event.message_seq, event.position + 1)
    old = history.at(place)
    same = ("call_id", "name", "outcome", "call_seq")
    if not isinstance(old, ToolResult) or any(getattr(old, name) != getattr(event, name) for name in same):
        raise Illegal("result-replaced", f"call {event.position} of row {event.message_seq} has no such result")
    if event.replaces != history.row(place):
        raise Illegal("result-replaced", f"the result at {place} is that of row {history.row(place)}")


def _user_message(state: State, event: UserMessage) -> None:
    if event.source == "summary" or event.replaces_from is not None or event.replaces_to is not None:
        _summary(state, event)
        return
    step = _open_step(state, event)
    if step.phase == "open":
        raise Illegal("user-during-attempt", f"user/message while attempt {step.attempt} is open")
    if event.section and not fits(event):
        raise Illegal("section-shape", f"message {event.message_id!r} says nothing of section {event.section!r}")
    if state.claimed:
        pending = state.claimed[0]
        if pending.message_id != event.message_id:
            raise Illegal("claim-lost", f"{event.message_id!r} before claimed message {pending.message_id!r}")
        if (pending.content, pending.source, "") != (event.content, event.source, event.section):
            raise Illegal("claim-content", f"message {event.message_id!r} differs from what was accepted")


def _header(state: State, event: RequestHeader) -> None:
    step = _open_step(state, event)
    if step.phase in ("open", "answered"):
        raise Illegal("header-late", f"request/header while the step's request is {step.phase}")
    if not spans_fit(event):
        raise Illegal("header-spans", f"the sections {[span.name for span in event.sections]} do not fit")


def _sent(state: State, event: RequestSent) -> None:
    step = _open_step(state, event)
    if step.phase in ("open", "answered") or event.attempt != step.attempt + 1:
        raise Illegal("attempt-number", f"attempt {event.attempt} after attempt {step.attempt} ({step.phase})")
    if state.header is None or event.header_seq != state.header_seq:
        raise Illegal("header-named", f"names the header at seq {event.header_seq}, newest is {state.header_seq}")


def _attempt(state: State, event: AssistantDelta | AssistantMessage | RequestFailed) -> None:
    step = _open_step(state, event)
    if step.phase != "open" or event.attempt != step.attempt:
        raise Illegal(
            "attempt-open", f"{event.kind} for attempt {event.attempt}; last is {step.attempt} ({step.phase})"
        )


def _message(state: State, event: AssistantMessage) -> None:
    _attempt(state, event)
    has_calls = any(isinstance(block, ToolCallBlock) for block in event.content)
    if not has_calls and not event.text.strip():
        raise Illegal("answer-empty", "assistant/message without words and without calls")
    if has_calls and event.finish not in ("tool_calls", "stop"):
        raise Illegal("calls-truncated", f"tool calls in an answer that ended with {event.finish!r}")


def _retry(state: State, event: RequestRetry) -> None:
    step = _open_step(state, event)
    if step.phase != "failed" or step.retry is not None or event.attempt != step.attempt + 1:
        raise Illegal("retry-place", f"request/retry for attempt {event.attempt} after {step.attempt} ({step.phase})")


def _call(state: State, event: ToolCall | ToolResult | ApprovalAsked) -> Call:
    step = _open_step(state, event)
    if step.message_seq != event.message_seq:
        raise Illegal("call-named", f"{event.kind} for call {event.position} of the message at seq {event.message_seq}")
    return _named_call(step, event)


def _named_call(step: Step, event: ToolCall | ToolProgress | ToolResult | ApprovalAsked) -> Call:
    if not 0 <= event.position < len(step.calls):
        raise Illegal("call-named", f"{event.kind} for call {event.position} of the message at seq {step.message_seq}")
    call = step.calls[event.position]
    if (call.call_id, call.name) != (event.call_id, event.name):
        raise Illegal("call-named", f"{event.kind} names {event.name!r} {event.call_id!r}, the message {call.name!r}")
    return call


def _tool_call(state: State, event: ToolCall) -> None:
    call = _call(state, event)
    if call.outcome:
        raise Illegal("call-twice", f"call {event.position} already has the outcome {call.outcome!r}")
    if (event.effect == "transactional") != bool(event.database):
        raise Illegal("call-database", f"call {event.position}, {event.effect}, names the database {event.database!r}")
    if call.started or event.resumed:
        if objection := _not_again(state, call, event):
            rule = "call-resumed" if event.resumed else "call-twice"
            raise Illegal(rule, f"call {event.position}, started at seq {call.started_seq}: {objection}")
        return
    if call.doubtful:
        raise Illegal("call-twice", f"call {event.position} may have been started in a row that was lost")
    if call.asked_seq and call.decision != "allowed":
        raise Illegal(
            "call-unapproved", f"call {event.position} was asked about at seq {call.asked_seq}: {call.decision}"
        )


def _not_again(state: State, call: Call, event: ToolCall) -> str:
    """Why `event` may not start `call` again; "" when it may."""
    if call.started is None:
        return "it was not"
    if state.epoch <= call.started_epoch:
        return "its owner is still the same"
    if event.invocation_id != call.started.invocation_id:
        return f"as {event.invocation_id!r} it would be another one than {call.started.invocation_id!r}"
    match event.resumed:
        case "":
            return "nothing says why it may start again"
        case "repeatable" if not {event.effect, call.started.effect} <= REPEATABLE:
            return f"its effect is {call.started.effect!r}, now {event.effect!r}"
        case "answered" if call.decision != "not_done":
            return f"asked about its outcome, nobody said 'not_done' but {call.decision!r}"
        case "reconciled" if call.outlived and call.started.effect != "transactional":  # a database takes one of both
            return "its owner lived as the session was taken over, so it may still run"
        case "repeatable" | "reconciled" if call.asked_seq is not None:
            return f"a person was asked at seq {call.asked_seq}"
        case _:
            return ""


def _tool_progress(state: State, event: ToolProgress) -> None:
    call = _named_call(_open_step(state, event), event)
    if call.outcome or call.started_seq != event.call_seq:
        raise Illegal("progress-running", f"call {event.position}, started in row {event.call_seq}")


def _tool_result(state: State, event: ToolResult) -> None:
    if event.replaces is not None:
        start = _open_compaction(state, event, "prune")
        if not start.from_seq <= event.message_seq <= start.to_seq:
            raise Illegal("compaction-range", f"a result of row {event.message_seq}")
        if event.facts:
            raise Illegal("facts-fit", f"what stands for the result in row {event.replaces} notes something")
        return
    call = _call(state, event)
    if call.outcome:
        raise Illegal("result-twice", f"call {event.position} already has the outcome {call.outcome!r}")
    if event.call_seq != call.started_seq:
        raise Illegal("result-call", f"names the tool/call at seq {event.call_seq}, it is at {call.started_seq}")
    if event.told_by and not call.started:
        raise Illegal("result-told", f"call {event.position} never started, but {event.told_by!r} told how it ended")
    if event.facts and (why := unfit(state.facts, event.facts)):
        raise Illegal("facts-fit", why)


_RAISES_EPOCH: Final = frozenset({SessionCreated, SessionOpened})
_NEEDS_NO_OWNER: Final = _RAISES_EPOCH | {SessionRepaired, TaskSubmitted, BudgetGranted}
_ENDS_COMPACTION_FIRST: Final = frozenset({TurnStart, TurnEnd, StepStart, StepEnd, RequestSent, SessionClosed})
_FOLLOWS_CLAIM: Final = frozenset({InboxSplice, StepStart, UserMessage})


def _asked(state: State, event: ApprovalAsked) -> None:
    call = _call(state, event)
    if call.asked_seq or call.outcome:
        raise Illegal("asked-once", f"call {event.position} was asked about or answered before")
    if bool(call.started) != (event.about == "outcome") or (call.started and state.epoch <= call.started_epoch):
        raise Illegal("asked-once", f"a question about {event.about or 'its start'!r}, and it was started")


def _decided(state: State, event: ApprovalDecided) -> None:
    if event.asked_seq not in state.questions:
        raise Illegal("decided-asked", f"no question stands at seq {event.asked_seq}")
    if event.decision == "cancelled" and asked_about(state, event.asked_seq) is None:
        raise Illegal("decided-asked", f"the question at seq {event.asked_seq} is not open")
    if why := questions.objection(state, event.asked_seq, event.decision):
        raise Illegal("decided-kind", f"{event.decision!r}, but {why}")
    if event.remember and event.decision not in ("allowed", "denied"):
        raise Illegal("decided-kind", f"{event.decision!r} about one call, to be remembered for others")


_CHECKS: dict[type, Callable[[State, Any], object]] = {
    SessionCreated: _anywhere,
    SessionOpened: _opened,
    UnknownEvent: _anywhere,
    SessionClosed: _outside_turn("closed-in-turn"),
    SessionRepaired: _anywhere,
    InboxSplice: _splice,
    TurnStart: _outside_turn("turn-nested"),
    TurnEnd: _turn_end,
    StepStart: _step_start,
    StepEnd: _step_end,
    UserMessage: _user_message,
    RequestHeader: _header,
    RequestSent: _sent,
    RequestFailed: _attempt,
    RequestRetry: _retry,
    AssistantDelta: _attempt,
    AssistantMessage: _message,
    ToolCall: _tool_call,
    ToolProgress: _tool_progress,
    ToolResult: _tool_result,
    ApprovalAsked: _asked,
    ApprovalDecided: _decided,
    LetterTaken: _letter_taken,
    SubagentSpawned: _spawned,
    SubagentSettled: _settled,
    TimerSet: _timer_set,
    TimerFired: _timer_fired,
    TimerCancelled: _open_timer,
    CompactionStart: _compaction_start,
    CompactionEnd: lambda state, event: _open_compaction(state, event, ""),
    TaskSubmitted: _submitted,
    TaskAmended: _amended,
    TaskState: _task_state,
    GoalChecked: _goal_checked,
    TaskResynced: _names_checkpoint,
    CheckpointWritten: _checkpoint,
    CheckpointSkipped: _names_checkpoint,
    BudgetGranted: _granted,
    BudgetCharged: _charged,
    BudgetAlert: _alert,
    BudgetDegraded: _of_budget,
    ContextBuilt: _context_built,
    PluginLoaded: _anywhere,
    PluginUnloaded: _unloaded,
    PluginFault: _anywhere,
}
