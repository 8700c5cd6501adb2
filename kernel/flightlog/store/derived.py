"""The columns of a row that repeat parts of its event, so that views need no JSON.

They are written by the codec and compared with the event whenever a row is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from flightlog.core.canonical import displayed as shown
from flightlog.core.history import place_of
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
    Message,
    PluginFault,
    PluginLoaded,
    PluginUnloaded,
    RequestFailed,
    RequestHeader,
    RequestRetry,
    RequestSent,
    SessionCreated,
    SessionOpened,
    SessionRepaired,
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
    UserMessage,
)


class Derived(NamedTuple):
    """The columns that repeat parts of the event for the views, in the order of a row."""

    attempt: int | None = None
    position: int | None = None
    place: int | None = None
    ref_seq: int | None = None
    call_id: str | None = None
    message_id: str | None = None
    slot: str | None = None
    role: str | None = None
    name: str | None = None
    status: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    charged: int | None = None
    cost_pico: int | None = None
    currency: str | None = None
    duration_us: int | None = None
    due_at: int | None = None


def derived_from(event: Event, seq: int) -> Derived:
    """The derived columns of `event`, which stands at `seq`, as the views are to see them."""
    columns = _COLUMNS.get(type(event))
    return columns(event, seq) if columns else _NOTHING


def _assistant_delta(event: AssistantDelta, seq: int) -> Derived:
    return Derived(attempt=event.attempt, position=event.block, name=event.type)


def _tool_result(event: ToolResult, seq: int) -> Derived:
    return Derived(
        attempt=event.replaces,
        position=event.position,
        place=_place(event, seq),
        ref_seq=event.call_seq,
        call_id=shown(event.call_id),
        role="tool",
        name=shown(event.name),
        status=event.outcome,
        duration_us=event.duration_us,
    )


def _tool_call(event: ToolCall, seq: int) -> Derived:
    return Derived(
        attempt=1 if event.resumed else None,
        position=event.position,
        call_id=shown(event.call_id),
        name=shown(event.name),
        status=event.effect,
    )


def _tool_progress(event: ToolProgress, seq: int) -> Derived:
    return Derived(
        position=event.position, ref_seq=event.call_seq, call_id=shown(event.call_id), name=shown(event.name)
    )


def _user_message(event: UserMessage, seq: int) -> Derived:
    return Derived(
        place=_place(event, seq),
        ref_seq=event.replaces_to,
        message_id=shown(event.message_id),
        role="user",
        name=shown(event.section) or None,
        status=event.source,
    )


def _assistant_message(event: AssistantMessage, seq: int) -> Derived:
    return _spent(event, attempt=event.attempt, place=_place(event, seq), role="assistant", status=event.finish)


def _inbox_splice(event: InboxSplice, seq: int) -> Derived:
    enters = event.content is not None
    return Derived(
        message_id=shown(event.message_id), slot=event.slot, role="user" if enters else None, status=event.cause
    )


def _request_sent(event: RequestSent, seq: int) -> Derived:
    return Derived(attempt=event.attempt, ref_seq=event.header_seq, status=shown(event.purpose))


def _request_header(event: RequestHeader, seq: int) -> Derived:
    return Derived(name=shown(f"{event.head.adapter}:{event.head.model}"), status=shown(event.reason))


def _request_failed(event: RequestFailed, seq: int) -> Derived:
    return Derived(attempt=event.attempt, status=event.failure, charged=event.charged or None)


def _request_retry(event: RequestRetry, seq: int) -> Derived:
    return Derived(attempt=event.attempt)


def _approval_asked(event: ApprovalAsked, seq: int) -> Derived:
    return Derived(
        position=event.position, call_id=shown(event.call_id), name=shown(event.name), status=shown(event.guard)
    )


def _approval_decided(event: ApprovalDecided, seq: int) -> Derived:
    return Derived(ref_seq=event.asked_seq, name=shown(event.by), status=event.decision)


def _letter_taken(event: LetterTaken, seq: int) -> Derived:
    return Derived(message_id=shown(event.letter_id), name=event.verb, status=event.outcome)


def _plugin(event: PluginLoaded | PluginUnloaded, seq: int) -> Derived:
    return Derived(name=shown(event.plugin), status=shown(event.version))


def _plugin_fault(event: PluginFault, seq: int) -> Derived:
    return Derived(name=shown(event.plugin), status=shown(event.hook))


def _turn_end(event: TurnEnd, seq: int) -> Derived:
    return Derived(status=event.reason)


def _session_repaired(event: SessionRepaired, seq: int) -> Derived:
    return Derived(status=shown(event.rule))


def _session_opened(event: SessionOpened, seq: int) -> Derived:
    return Derived(
        name=shown(event.kernel_version),
        status=shown(", ".join(f"{plugin.name} {plugin.version}" for plugin in event.plugins)) or None,
    )


def _session_created(event: SessionCreated, seq: int) -> Derived:
    return Derived(
        attempt=event.depth or None,
        position=event.origin_turn or None,
        name=shown(event.title),
        status=shown(event.parent_session) or None,
    )


def _subagent_spawned(event: SubagentSpawned, seq: int) -> Derived:
    return Derived(
        position=event.depth,
        message_id=shown(event.invocation_id),
        name=shown(event.child),
        status=shown(event.subagent),
    )


def _subagent_settled(event: SubagentSettled, seq: int) -> Derived:
    return Derived(
        message_id=shown(event.invocation_id),
        name=shown(event.child),
        status=event.reason,
        charged=event.charged or None,
    )


def _timer_set(event: TimerSet, seq: int) -> Derived:
    return Derived(
        name=shown(event.timer), status=shown(event.by) or None, duration_us=event.every_us, due_at=event.due_us
    )


def _timer_fired(event: TimerFired, seq: int) -> Derived:
    return Derived(position=event.missed, name=shown(event.timer), due_at=event.next_us)


def _timer_cancelled(event: TimerCancelled, seq: int) -> Derived:
    return Derived(name=shown(event.timer), status=shown(event.by) or None)


def _compaction_start(event: CompactionStart, seq: int) -> Derived:
    return Derived(
        position=event.from_seq,
        ref_seq=event.to_seq,
        name=shown(event.model) or None,
        status=event.level,
        input_tokens=event.tokens_before,
    )


def _compaction_end(event: CompactionEnd, seq: int) -> Derived:
    if not event.asked:
        return Derived(status=event.outcome, charged=event.charged or None)
    return _spent(event, status=event.outcome)


def _task_submitted(event: TaskSubmitted, seq: int) -> Derived:
    return Derived(
        attempt=event.max_steps,
        role=event.task_class,
        name=shown(event.model),
        status=shown(event.agent) or None,
        due_at=event.due_us,
    )


def _task_amended(event: TaskAmended, seq: int) -> Derived:
    return Derived(name=shown(event.by))


def _task_resynced(event: TaskResynced, seq: int) -> Derived:
    return Derived(
        ref_seq=event.checkpoint_seq,
        name=shown(event.after),
        status=shown(", ".join(event.changed)) or None,
    )


def _checkpoint_written(event: CheckpointWritten, seq: int) -> Derived:
    return Derived(
        attempt=event.no_progress,
        position=event.steps,
        ref_seq=event.compaction,
        call_id=shown(event.action) or None,
        message_id=shown(event.history) or None,
        role=event.phase,
        name=shown(event.fingerprint) or None,
        status=event.level,
        input_tokens=event.tokens,
        duration_us=event.active_us,
    )


def _checkpoint_skipped(event: CheckpointSkipped, seq: int) -> Derived:
    return Derived(ref_seq=event.checkpoint_seq)


def _task_state(event: TaskState, seq: int) -> Derived:
    return Derived(
        position=None if event.goal_met is None else int(event.goal_met),
        name=shown(event.cause) or None,
        status=event.state,
        due_at=event.resume_at_us,
    )


def _budget_granted(event: BudgetGranted, seq: int) -> Derived:
    return Derived(position=event.most, name=shown(event.card), status=shown(event.by) or None)


def _budget_charged(event: BudgetCharged, seq: int) -> Derived:
    return Derived(position=event.amount, message_id=shown(event.invocation_id), name=shown(event.card))


def _budget_alert(event: BudgetAlert, seq: int) -> Derived:
    return Derived(
        position=event.used,
        name=shown(event.card),
        status=event.level,
        role=event.then,
        due_at=event.resume_at_us,
    )


def _budget_degraded(event: BudgetDegraded, seq: int) -> Derived:
    return Derived(name=event.move, status=shown(event.model) or None, position=event.context_tokens)


def _context_built(event: ContextBuilt, seq: int) -> Derived:
    return Derived(
        attempt=event.attempt,
        position=event.messages,
        name=shown(event.model),
        input_tokens=event.tokens,
    )


def _goal_checked(event: GoalChecked, seq: int) -> Derived:
    return Derived(position=int(event.met), name=shown(event.check), status="met" if event.met else "missing")


def _place(event: Message, seq: int) -> int:
    place = place_of(event, seq)
    assert place is not None, "every message has a place"
    return place[0]


def _spent(event: AssistantMessage | CompactionEnd, **others: Any) -> Derived:
    """What a model counted for its answer, and what that cost, beside the `others`."""
    cost = event.cost_pico
    return Derived(
        **others,
        input_tokens=event.input_tokens,
        output_tokens=event.output_tokens,
        cached_tokens=event.cached_tokens,
        cache_write_tokens=event.cache_write_tokens,
        charged=event.charged or None,
        cost_pico=cost,
        currency=None if cost is None or event.price is None else shown(event.price.currency),
    )


_NOTHING: Final = Derived()
_COLUMNS: Final[dict[type, Callable[[Any, int], Derived]]] = {
    AssistantDelta: _assistant_delta,
    ToolResult: _tool_result,
    ToolCall: _tool_call,
    ToolProgress: _tool_progress,
    UserMessage: _user_message,
    AssistantMessage: _assistant_message,
    InboxSplice: _inbox_splice,
    RequestSent: _request_sent,
    RequestHeader: _request_header,
    RequestFailed: _request_failed,
    RequestRetry: _request_retry,
    ApprovalAsked: _approval_asked,
    ApprovalDecided: _approval_decided,
    LetterTaken: _letter_taken,
    PluginLoaded: _plugin,
    PluginUnloaded: _plugin,
    PluginFault: _plugin_fault,
    TurnEnd: _turn_end,
    SessionRepaired: _session_repaired,
    SessionOpened: _session_opened,
    SessionCreated: _session_created,
    SubagentSpawned: _subagent_spawned,
    SubagentSettled: _subagent_settled,
    TimerSet: _timer_set,
    TimerFired: _timer_fired,
    TimerCancelled: _timer_cancelled,
    CompactionStart: _compaction_start,
    CompactionEnd: _compaction_end,
    TaskSubmitted: _task_submitted,
    TaskAmended: _task_amended,
    TaskResynced: _task_resynced,
    CheckpointWritten: _checkpoint_written,
    CheckpointSkipped: _checkpoint_skipped,
    TaskState: _task_state,
    BudgetGranted: _budget_granted,
    BudgetCharged: _budget_charged,
    BudgetAlert: _budget_alert,
    BudgetDegraded: _budget_degraded,
    ContextBuilt: _context_built,
    GoalChecked: _goal_checked,
}
