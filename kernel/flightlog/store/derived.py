"""The columns of a row that repeat parts of its event, so that views need no JSON.

They are written by the codec and compared with the event whenever a row is read.
"""

from __future__ import annotations

from typing import NamedTuple

from flightlog.core import canonical
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
    LetterTaken,
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
    ToolResult,
    TurnEnd,
    UserMessage,
)


class Derived(NamedTuple):
    """The columns that repeat parts of the event for the views."""

    attempt: int | None = None
    position: int | None = None
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


def derived_from(event: Event) -> Derived:
    """The derived columns of `event`, as the views are to see them."""
    shown = canonical.displayed
    match event:
        case AssistantDelta():
            return Derived(attempt=event.attempt, position=event.block, name=event.type)
        case ToolResult():
            return Derived(
                attempt=event.replaces,
                position=event.position,
                ref_seq=event.call_seq,
                call_id=shown(event.call_id),
                role="tool",
                name=shown(event.name),
                status=event.outcome,
                duration_us=event.duration_us,
            )
        case ToolCall():
            return Derived(
                attempt=1 if event.resumed else None,
                position=event.position,
                call_id=shown(event.call_id),
                name=shown(event.name),
                status=event.effect,
            )
        case UserMessage():
            return Derived(
                ref_seq=event.replaces_to,
                message_id=shown(event.message_id),
                role="user",
                name=shown(event.section) or None,
                status=event.source,
            )
        case AssistantMessage():
            return _spent(event)._replace(attempt=event.attempt, role="assistant", status=event.finish)
        case InboxSplice():
            enters = event.content is not None
            return Derived(
                message_id=shown(event.message_id), slot=event.slot, role="user" if enters else None, status=event.cause
            )
        case RequestSent():
            return Derived(attempt=event.attempt, ref_seq=event.header_seq, status=shown(event.purpose))
        case RequestHeader():
            return Derived(name=shown(f"{event.head.adapter}:{event.head.model}"), status=shown(event.reason))
        case RequestFailed():
            return Derived(attempt=event.attempt, status=event.failure, charged=event.charged or None)
        case RequestRetry():
            return Derived(attempt=event.attempt)
        case ApprovalAsked():
            return Derived(
                position=event.position, call_id=shown(event.call_id), name=shown(event.name), status=shown(event.guard)
            )
        case ApprovalDecided():
            return Derived(ref_seq=event.asked_seq, name=shown(event.by), status=event.decision)
        case LetterTaken():
            return Derived(message_id=shown(event.letter_id), name=event.verb, status=event.outcome)
        case PluginLoaded() | PluginUnloaded():
            return Derived(name=shown(event.plugin), status=shown(event.version))
        case PluginFault():
            return Derived(name=shown(event.plugin), status=shown(event.hook))
        case TurnEnd():
            return Derived(status=event.reason)
        case SessionRepaired():
            return Derived(status=shown(event.rule))
        case SessionOpened():
            return Derived(
                name=shown(event.kernel_version),
                status=shown(", ".join(f"{plugin.name} {plugin.version}" for plugin in event.plugins)) or None,
            )
        case SessionCreated():
            return Derived(
                attempt=event.depth or None,
                position=event.origin_turn or None,
                name=shown(event.title),
                status=shown(event.parent_session) or None,
            )
        case SubagentSpawned():
            return Derived(
                position=event.depth,
                message_id=shown(event.invocation_id),
                name=shown(event.child),
                status=shown(event.subagent),
            )
        case SubagentSettled():
            return Derived(
                message_id=shown(event.invocation_id),
                name=shown(event.child),
                status=event.reason,
                charged=event.charged or None,
            )
        case TimerSet():
            return Derived(
                name=shown(event.timer), status=shown(event.by) or None, duration_us=event.every_us, due_at=event.due_us
            )
        case TimerFired():
            return Derived(position=event.missed, name=shown(event.timer), due_at=event.next_us)
        case TimerCancelled():
            return Derived(name=shown(event.timer), status=shown(event.by) or None)
        case CompactionStart():
            return Derived(
                position=event.from_seq,
                ref_seq=event.to_seq,
                name=shown(event.model) or None,
                status=event.level,
                input_tokens=event.tokens_before,
            )
        case CompactionEnd():
            spent = _spent(event) if event.asked else Derived(charged=event.charged or None)
            return spent._replace(status=event.outcome)
        case TaskSubmitted():
            return Derived(
                attempt=event.max_steps,
                role=event.task_class,
                name=shown(event.model),
                status=shown(event.agent) or None,
                due_at=event.due_us,
            )
        case TaskAmended():
            return Derived(name=shown(event.by))
        case TaskResynced():
            return Derived(
                ref_seq=event.checkpoint_seq,
                name=shown(event.after),
                status=shown(", ".join(event.changed)) or None,
            )
        case CheckpointWritten():
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
        case CheckpointSkipped():
            return Derived(ref_seq=event.checkpoint_seq)
        case TaskState():
            return Derived(
                position=None if event.goal_met is None else int(event.goal_met),
                name=shown(event.cause) or None,
                status=event.state,
                due_at=event.resume_at_us,
            )
        case BudgetGranted():
            return Derived(position=event.most, name=shown(event.card), status=shown(event.by) or None)
        case BudgetAlert():
            return Derived(
                position=event.used,
                name=shown(event.card),
                status=event.level,
                role=event.then,
                due_at=event.resume_at_us,
            )
        case BudgetDegraded():
            return Derived(name=event.move, status=shown(event.model) or None, position=event.context_tokens)
        case ContextBuilt():
            return Derived(
                attempt=event.attempt,
                position=event.messages,
                name=shown(event.model),
                input_tokens=event.tokens,
            )
        case GoalChecked():
            return Derived(position=int(event.met), name=shown(event.check), status="met" if event.met else "missing")
        case _:
            return Derived()


def _spent(event: AssistantMessage | CompactionEnd) -> Derived:
    """What a model counted for its answer, and what that cost."""
    cost = event.cost_pico
    return Derived(
        input_tokens=event.input_tokens,
        output_tokens=event.output_tokens,
        cached_tokens=event.cached_tokens,
        cache_write_tokens=event.cache_write_tokens,
        charged=event.charged or None,
        cost_pico=cost,
        currency=None if cost is None or event.price is None else canonical.displayed(event.price.currency),
    )
