"""One small log of nearly everything: every kind, hostile words, large payloads, what finished out of order."""

from __future__ import annotations

from attrs import evolve

from flightlog_hookspecs.content import TextBlock, ThinkingBlock, ToolCallBlock, text_blocks
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
    DeltaPiece,
    Event,
    GoalChecked,
    Head,
    InboxSplice,
    PluginFault,
    PluginVersion,
    Record,
    Refresh,
    RequestFailed,
    RequestHeader,
    RequestRetry,
    RequestSent,
    SessionCreated,
    SessionOpened,
    SessionRepaired,
    StepEnd,
    StepStart,
    TaskAmended,
    TaskResynced,
    TaskState,
    TaskSubmitted,
    TimerCancelled,
    TimerFired,
    TimerSet,
    TokenPrice,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    UnknownEvent,
    UserMessage,
)
from support.legal_logs import extended

UID = "u" * 32
TASK = (TextBlock(text="look at the sky"),)
ASKED = (
    ThinkingBlock(text="hm"),
    TextBlock(text="I will look. "),
    TextBlock(text=""),
    ToolCallBlock(call_id="c1", name="look", arguments='{"at":"sky"}'),
    ToolCallBlock(call_id="c2", name="look", arguments=""),
)
PRICE = TokenPrice(currency="USD", input_pico=3_000_000, output_pico=15_000_000)
CALL = ToolCall(
    position=0,
    call_id="c1",
    name="look",
    arguments='{"at":"sky"}',
    invocation_id=f"{UID}.1.1.0",
    message_seq=17,
    mode="parallel",
    effect="read",
    plugin="p",
    plugin_version="1",
)
RESULT = ToolResult(
    position=0,
    call_id="c1",
    name="look",
    message_seq=17,
    outcome="ok",
    content=(TextBlock(text="b" * 70_000),),
    call_seq=21,
    duration_us=5,
)
EVENTS: tuple[Event, ...] = (
    SessionOpened(pid=1, host="h", kernel_version="0"),
    InboxSplice(slot="next_turn", start=0, message_id="m1", cause="accepted", content=TASK),
    InboxSplice(slot="next_step", start=0, message_id="m2", cause="accepted", content=(TextBlock(text="\0"),)),
    TurnStart(),
    InboxSplice(slot="next_turn", start=0, removed=1, message_id="m1", cause="claimed"),
    StepStart(),
    UserMessage(message_id="m1", content=TASK),
    RequestHeader(head=Head(adapter="a", model="m", system="s" * 70_000), reason="first"),
    RequestSent(attempt=1, header_seq=9, messages=1, sha256="00"),
    AssistantDelta(
        attempt=1, block=0, type="text", pieces=(DeltaPiece(at_ms=0, text="I"), DeltaPiece(at_ms=3, text=" w"))
    ),
    RequestFailed(attempt=1, failure="cut", message="gone", retryable=True),
    RequestRetry(attempt=2, delay_ms=500),
    RequestSent(attempt=2, header_seq=9, messages=1, sha256="00"),
    AssistantDelta(
        attempt=2, block=0, type="text", pieces=(DeltaPiece(at_ms=0, text="I\0"), DeltaPiece(at_ms=1, text="!"))
    ),
    UnknownEvent(kind="newer/thing", data='{"a":1}'),
    AssistantMessage(attempt=2, content=ASKED, finish="tool_calls", input_tokens=9, output_tokens=4, price=PRICE),
    ApprovalAsked(position=0, call_id="c1", name="look", message_seq=17, question="\0 may it?", guard="ask"),
    ApprovalDecided(asked_seq=18, decision="allowed", by="ada"),
    PluginFault(plugin="p", hook="h", error="broken"),
    CALL,
    RESULT,
    evolve(RESULT, position=1, call_id="c2", outcome="not_started", call_seq=None, duration_us=0, content=()),
    ApprovalDecided(asked_seq=18, decision="denied", by="bob"),  # too late to count
    InboxSplice(slot="next_turn", start=0, message_id="m3", cause="accepted", content=TASK),
    UserMessage(message_id="m3", content=TASK, source="context"),  # a plugin's, which took a name that waits
    StepEnd(),
    StepStart(),
    RequestSent(attempt=1, header_seq=9, messages=5, sha256="00"),
    AssistantMessage(attempt=1, content=(TextBlock(text="bl\ud800e"),), finish="stop"),
    StepEnd(),
    TurnEnd(reason="error", code="x", message="wh\0t"),
    SessionRepaired(
        repair="r", rule="seq-dense", detail="seq 40 follows 34", dropped=3, digest="ab", backup="log.db.1"
    ),
)


def _records(session: str, uid: str, *events: Event) -> tuple[Record, ...]:
    """`events` behind the creation of `session`."""
    created = Record(
        session=session,
        seq=1,
        at_us=1_700_000_000_000_000,
        turn=None,
        step=None,
        epoch=0,
        event=SessionCreated(uid=uid, title="t"),
    )
    return tuple(
        evolve(record, ignorable=isinstance(record.event, UnknownEvent)) for record in extended([created], *events)
    )


RECORDS = _records("s", UID, *EVENTS)
TASK_RECORDS = _records(
    "task",
    "v" * 32,
    TaskSubmitted(
        goal="look at every star\0", model="a:m", goal_check="seen", agent="sky 1", due_us=1_700_000_000_000_001
    ),
    SessionOpened(pid=1, host="h", kernel_version="0", plugins=(PluginVersion(name="files", version="1"),)),
    TaskState(state="running"),
    CheckpointWritten(
        level="archive", phase="observe", steps=9, history="ab", fingerprint="cd", summary="Next: look\0"
    ),
    BudgetGranted(card="tokens", most=9, by="ada\0"),
    BudgetAlert(card="tokens", used=8, most=9, level="warning", message="much \0"),
    BudgetDegraded(move="smaller_model", reason="8 of 9\0", model="a:s", put_off=("the sun",)),
    TurnStart(),
    StepStart(),
    TaskState(state="recovering", cause="crash"),
    CheckpointSkipped(checkpoint_seq=5, why="steps 9, the log says 0\0"),
    StepEnd(),
    GoalChecked(check="seen", met=False, missing="the sun \0", plugin="p", plugin_version="1"),
    CheckpointWritten(level="light", phase="think", steps=1, recoveries=1, action="0d", compaction=3),
    TaskResynced(before="cd", after="ef", changed=("goal", "tools"), refreshed=(Refresh(call_seq=3, came="failed"),)),
    TaskAmended(goal="look at the sun", by="ada"),
    GoalChecked(check="seen", met=True, plugin="p", plugin_version="1"),
    TimerSet(timer="t 1", due_us=1_700_000_000_000_003, content=text_blocks("up\0"), every_us=2_000_000, by="ada"),
    TimerFired(timer="t 1", due_us=1_700_000_000_000_003, missed=2, next_us=1_700_000_006_000_003),
    TimerCancelled(timer="t 1", by="\0"),
    TurnEnd(reason="paused"),
    TaskState(state="paused", cause="person", message="by \0", goal_met=False, resume_at_us=1_700_000_000_000_002),
)
