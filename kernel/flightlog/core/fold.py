"""fold(state, event) -> state: the meaning of each event, one function per kind.

Assumes the event is legal (see `invariants`); never looks at anything but its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any

from flightlog.core import account as accounts
from flightlog.core import checkpoints
from flightlog.core import task as tasks
from flightlog.core.changed import changed
from flightlog.core.context import told
from flightlog.core.doubt import after_result
from flightlog.core.facts import noted
from flightlog.core.progress import gist, repeats, told_in
from flightlog.core.state import EMPTY, NO_COUNTS, Call, Pending, State, Step
from flightlog.core.timer import Timer, fired
from flightlog_hookspecs.content import TextBlock, ToolCallBlock
from flightlog_hookspecs.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantMessage,
    BudgetGranted,
    CheckpointSkipped,
    CheckpointWritten,
    CompactionEnd,
    CompactionStart,
    Event,
    GoalChecked,
    InboxSplice,
    LetterTaken,
    PluginLoaded,
    PluginUnloaded,
    PluginVersion,
    Record,
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
    ToolResult,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from flightlog_hookspecs.hooks import Failure
from flightlog_hookspecs.stream import Usage


def fold(state: State, event: Event, seq: int, epoch: int, at_us: int = 0) -> State:
    """The state after `event`, which stands at `seq` since `at_us`; 0 where no time is to pass.

    Kinds that change nothing return `state`.
    """
    apply = _APPLY.get(type(event))
    if apply is not None:
        state = apply(state, event, seq, epoch)
    task, account = state.task, state.account
    if task is not None:
        task = tasks.counted(task, event)
    if account is not None:
        account = accounts.counted(account, event, at_us)
    if task is state.task and account is state.account:
        return state
    return changed(state, task=task, account=account)


def folded(records: Iterable[Record]) -> State:
    """What the records of a session come to, from the first one on."""
    state = EMPTY
    for record in records:
        state = fold(state, record.event, record.seq, record.epoch, record.at_us)
    return state


def placed(state: State, event: Event) -> tuple[int | None, int | None]:
    """Turn and step of the row that `event` becomes: the open ones, or those it opens."""
    if type(event) is TurnStart:
        return state.turn + 1, None
    if type(event) is StepStart:
        return state.turn, state.steps + 1
    return state.place


def _created(state: State, event: SessionCreated, seq: int, epoch: int) -> State:
    return changed(state, uid=event.uid, epoch=epoch, parent=event.parent_uid, depth=event.depth, tools=event.tools)


def _opened(state: State, event: SessionOpened, seq: int, epoch: int) -> State:
    step = state.step
    if step is not None and event.lock != state.lock:
        calls = [changed(call, outlived=call.started is not None) for call in step.calls]
        step = changed(step, calls=tuple(calls))
    task = changed(state.task, resynced=False) if state.task else None
    return changed(
        state,
        epoch=epoch,
        closed=False,
        lock=event.lock,
        plugins=event.plugins,
        step=step,
        task=task,
        compaction=None,
    )


def _closed(state: State, event: SessionClosed, seq: int, epoch: int) -> State:
    return changed(state, closed=True)


def _repaired(state: State, event: SessionRepaired, seq: int, epoch: int) -> State:
    step = state.step
    if step is not None:
        calls = [changed(call, doubtful=call.started is None and call.outcome is None) for call in step.calls]
        step = changed(step, calls=tuple(calls))
    return changed(state, closed=True, repair=event.repair, step=step, torn=state.turn_open)


def _splice(state: State, event: InboxSplice, seq: int, epoch: int) -> State:
    before = state.slot(event.slot)
    gone = before[event.start : event.start + event.removed]
    added: tuple[Pending, ...] = ()
    if event.content is not None:
        pending = Pending(message_id=event.message_id, content=event.content, source=event.source, wakes=event.wakes)
        added = (pending,)
    after = before[: event.start] + added + before[event.start + event.removed :]
    claimed = state.claimed + gone if event.cause == "claimed" else state.claimed
    accepted = state.accepted.with_item(event.message_id) if event.cause == "accepted" else state.accepted
    if event.hook and event.cause == "accepted":
        counts = {**state.continued, event.hook: state.continued.get(event.hook, 0) + 1}
        state = changed(state, continued=MappingProxyType(counts))
    if event.slot == "next_turn":
        return changed(state, next_turn=after, claimed=claimed, accepted=accepted)
    return changed(state, next_step=after, claimed=claimed, accepted=accepted)


def _turn_start(state: State, event: TurnStart, seq: int, epoch: int) -> State:
    first = state.task is not None and state.turn == 0  # a task that has just begun has nothing to look at again
    return changed(
        state,
        task=changed(state.task, resynced=True) if first and state.task else state.task,
        turn=state.turn + 1,
        turn_open=True,
        steps=0,
        alike=0,
        last_step=None,
        continued=NO_COUNTS,
        usage=Usage(),
        words=(),
    )


def _turn_end(state: State, event: TurnEnd, seq: int, epoch: int) -> State:
    task = tasks.ended(state.task, event) if state.task else None
    return changed(state, turn_open=False, cancelling=False, torn=False, last_end=event, task=task)


def _step_start(state: State, event: StepStart, seq: int, epoch: int) -> State:
    return changed(state, steps=state.steps + 1, step=Step(number=state.steps + 1, seq=seq))


def _step_end(state: State, event: StepEnd, seq: int, epoch: int) -> State:
    step = _step(state)
    finished = step.message is not None and step.message.finish != "interrupted"
    task = tasks.stepped(state.task, asked=step.attempt > 0, finished=finished) if state.task else None
    again = state.last_step is not None and repeats(state.last_step, step)
    return changed(state, step=None, last_step=step, alike=state.alike + 1 if again else 1, task=task)


def _user_message(state: State, event: UserMessage, seq: int, epoch: int) -> State:
    if event.replaces_from is not None and event.replaces_to is not None:
        return _forgotten(state, event.replaces_from, event.replaces_to)
    step = _step(state)
    step = changed(step, told=told_in(step, event))
    left = tuple(pending for pending in state.claimed if pending.message_id != event.message_id)
    if event.section:
        context = MappingProxyType({**state.context, event.section: told(event.content)})
        rows = MappingProxyType({**state.context_rows, event.section: seq})
        return changed(state, step=step, claimed=left, context=context, context_rows=rows)
    if len(left) == len(state.claimed) and event.source == "plugin":
        step = changed(step, briefed=True)
    return changed(state, step=step, claimed=left)


def _forgotten(state: State, first: int, last: int) -> State:
    """The state once the messages from row `first` to row `last` are out of the model's sight.

    What it was told there of prompt sections, it will have to be told again.
    """
    rows = {section: row for section, row in state.context_rows.items() if not first <= row <= last}
    if len(rows) == len(state.context_rows):
        return state
    context = {section: state.context[section] for section in rows}
    return changed(state, context=MappingProxyType(context), context_rows=MappingProxyType(rows))


def _compaction_start(state: State, event: CompactionStart, seq: int, epoch: int) -> State:
    return changed(state, compaction=event)


def _compaction_end(state: State, event: CompactionEnd, seq: int, epoch: int) -> State:
    compacted = seq if event.outcome == "done" else state.compacted
    return changed(state, compaction=None, compacted=compacted, usage=_with_tokens(state.usage, event))


def _header(state: State, event: RequestHeader, seq: int, epoch: int) -> State:
    task = changed(state.task, rebased="") if state.task else None
    return changed(state, header=event, header_seq=seq, task=task)


def _step(state: State) -> Step:
    assert state.step is not None, "legality guarantees an open step here"
    return state.step


def _sent(state: State, event: RequestSent, seq: int, epoch: int) -> State:
    sent = {"attempt": event.attempt, "attempt_seq": seq, "attempt_epoch": epoch}
    return changed(state, step=changed(_step(state), **sent, phase="open", failed=None, retry=None))


def _failed(state: State, event: RequestFailed, seq: int, epoch: int) -> State:
    step = _step(state)
    if epoch > step.attempt_epoch:
        return changed(state, step=changed(step, phase="failed", failed=event, cut_off=step.cut_off + 1))
    failures = (*step.failures, Failure(model=state.model, kind=event.failure))
    return changed(state, step=changed(step, phase="failed", failed=event, failures=failures))


def _retry(state: State, event: RequestRetry, seq: int, epoch: int) -> State:
    return changed(state, step=changed(_step(state), retry=event))


def _message(state: State, event: AssistantMessage, seq: int, epoch: int) -> State:
    blocks = [block for block in event.content if isinstance(block, ToolCallBlock)]
    calls = tuple(
        Call(position=position, call_id=block.call_id, name=block.name, arguments=block.arguments)
        for position, block in enumerate(blocks)
    )
    step = changed(_step(state), phase="answered", message=event, message_seq=seq, calls=calls)
    words = tuple(block.text for block in event.content if isinstance(block, TextBlock))
    return changed(state, step=step, usage=_with_tokens(state.usage, event), words=words)


def _with_tokens(usage: Usage, event: AssistantMessage | CompactionEnd) -> Usage:
    return Usage(
        input_tokens=usage.input_tokens + event.input_tokens,
        output_tokens=usage.output_tokens + event.output_tokens,
        cached_tokens=usage.cached_tokens + event.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens + event.cache_write_tokens,
    )


def _with_call(state: State, position: int, **changes: Any) -> State:
    step = _step(state)
    calls = list(step.calls)
    calls[position] = changed(calls[position], **changes)
    return changed(state, step=changed(step, calls=tuple(calls)))


def _tool_call(state: State, event: ToolCall, seq: int, epoch: int) -> State:
    start = {"started": event, "started_seq": seq, "started_epoch": epoch}
    return _with_call(state, event.position, **start, asked=None, asked_seq=None, decided=None, outlived=False)


def _tool_result(state: State, event: ToolResult, seq: int, epoch: int) -> State:
    if event.replaces is not None:
        return state
    call = _step(state).calls[event.position]
    if event.outcome == "unknown" or state.doubts:
        state = changed(state, doubts=after_result(state.doubts, call.signature, event.outcome, seq))
    if event.facts:
        state = changed(state, facts=noted(state.facts, event.facts))
    return _with_call(state, event.position, outcome=event.outcome, output=gist(event.content), result_seq=seq)


def _asked(state: State, event: ApprovalAsked, seq: int, epoch: int) -> State:
    state = changed(state, questions=state.questions.with_item(seq))
    if event.about == "outcome":
        state = changed(state, outcome_questions=state.outcome_questions.with_item(seq))
    return _with_call(state, event.position, asked=event, asked_seq=seq)


def _decided(state: State, event: ApprovalDecided, seq: int, epoch: int) -> State:
    call = asked_about(state, event.asked_seq)
    if call is None:
        return state
    if event.remember:
        state = changed(state, remembered=MappingProxyType({**state.remembered, call.name: event.decision}))
    if state.task:
        state = changed(state, task=tasks.answered(state.task))
    return _with_call(state, call.position, decided=event)


def _letter_taken(state: State, event: LetterTaken, seq: int, epoch: int) -> State:
    cancels = state.turn_open and event.verb == "cancel" and event.outcome == "obeyed"
    letters = state.letters.with_item(event.letter_id)
    return changed(state, letters=letters, cancelling=state.cancelling or cancels)


def _spawned(state: State, event: SubagentSpawned, seq: int, epoch: int) -> State:
    return changed(
        state,
        children=MappingProxyType({**state.children, event.child: event}),
        unsettled=(*state.unsettled, event.child),
        assigned=state.assigned.with_item(event.invocation_id),
    )


def _settled(state: State, event: SubagentSettled, seq: int, epoch: int) -> State:
    return changed(state, unsettled=tuple(child for child in state.unsettled if child != event.child))


def _timer_set(state: State, event: TimerSet, seq: int, epoch: int) -> State:
    names = state.timer_names.with_item(event.timer)
    return changed(_with_timer(state, event.timer, Timer(set=event, due_us=event.due_us)), timer_names=names)


def _timer_fired(state: State, event: TimerFired, seq: int, epoch: int) -> State:
    task = tasks.begun_again(state.task) if state.task and event.timer == tasks.GOAL_ID else state.task
    return changed(_with_timer(state, event.timer, fired(state.timers[event.timer], event)), task=task)


def _timer_cancelled(state: State, event: TimerCancelled, seq: int, epoch: int) -> State:
    return _with_timer(state, event.timer, None)


def _with_timer(state: State, name: str, timer: Timer | None) -> State:
    """`state` with this timer still to fire, or none of this name."""
    timers = {**state.timers, name: timer}
    return changed(state, timers=MappingProxyType({key: timer for key, timer in timers.items() if timer}))


def _submitted(state: State, event: TaskSubmitted, seq: int, epoch: int) -> State:
    return changed(state, task=tasks.submitted(event), account=accounts.EMPTY)


def _granted(state: State, event: BudgetGranted, seq: int, epoch: int) -> State:
    return state if state.account else changed(state, account=accounts.EMPTY)


def _task(state: State) -> tasks.Task:
    assert state.task is not None, "legality guarantees a task here"
    return state.task


def _amended(state: State, event: TaskAmended, seq: int, epoch: int) -> State:
    return changed(state, task=tasks.amended(_task(state), event))


def _task_state(state: State, event: TaskState, seq: int, epoch: int) -> State:
    return changed(state, task=tasks.moved(_task(state), event))


def _goal_checked(state: State, event: GoalChecked, seq: int, epoch: int) -> State:
    return changed(state, task=tasks.checked(_task(state), event))


def _checkpoint(state: State, event: CheckpointWritten, seq: int, epoch: int) -> State:
    judged = checkpoints.judged(state, event, seq)
    return changed(state, task=tasks.checkpointed(_task(state), event, seq, judged))


def _skipped(state: State, event: CheckpointSkipped, seq: int, epoch: int) -> State:
    return changed(state, task=tasks.skipping(_task(state), event))


def _resynced(state: State, event: TaskResynced, seq: int, epoch: int) -> State:
    return changed(state, task=tasks.resynced(_task(state), event))


def _loaded(state: State, event: PluginLoaded, seq: int, epoch: int) -> State:
    return changed(state, plugins=(*state.plugins, PluginVersion(name=event.plugin, version=event.version)))


def _unloaded(state: State, event: PluginUnloaded, seq: int, epoch: int) -> State:
    plugins = list(state.plugins)
    plugins.remove(PluginVersion(name=event.plugin, version=event.version))
    return changed(state, plugins=tuple(plugins))


def after(state: State, *events: Event) -> State:
    """`state` after events that will stand somewhere behind it, as far as their rows' numbers do not matter."""
    for event in events:
        state = fold(state, event, 0, state.epoch)
    return state


def asked_about(state: State, asked_seq: int) -> Call | None:
    """The call that the question at `asked_seq` is about, None once the question is settled."""
    calls = state.step.calls if state.step else ()
    return next((c for c in calls if c.asked_seq == asked_seq and c.decided is None and c.outcome is None), None)


_APPLY: dict[type, Callable[[State, Any, int, int], State]] = {
    SessionCreated: _created,
    SessionOpened: _opened,
    SessionClosed: _closed,
    SessionRepaired: _repaired,
    InboxSplice: _splice,
    TurnStart: _turn_start,
    TurnEnd: _turn_end,
    StepStart: _step_start,
    StepEnd: _step_end,
    UserMessage: _user_message,
    RequestHeader: _header,
    RequestSent: _sent,
    RequestFailed: _failed,
    RequestRetry: _retry,
    AssistantMessage: _message,
    ToolCall: _tool_call,
    ToolResult: _tool_result,
    ApprovalAsked: _asked,
    ApprovalDecided: _decided,
    LetterTaken: _letter_taken,
    SubagentSpawned: _spawned,
    SubagentSettled: _settled,
    TimerSet: _timer_set,
    TimerFired: _timer_fired,
    TimerCancelled: _timer_cancelled,
    CompactionStart: _compaction_start,
    CompactionEnd: _compaction_end,
    TaskSubmitted: _submitted,
    BudgetGranted: _granted,
    TaskAmended: _amended,
    TaskState: _task_state,
    GoalChecked: _goal_checked,
    TaskResynced: _resynced,
    CheckpointWritten: _checkpoint,
    CheckpointSkipped: _skipped,
    PluginLoaded: _loaded,
    PluginUnloaded: _unloaded,
}
