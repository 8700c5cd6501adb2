"""Each rule of the law by example: what stands in the log, what may not follow, and which rule says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import pytest
from attrs import evolve

from flightlog.core.fold import fold, placed
from flightlog.core.history import History
from flightlog.core.invariants import RULES, Illegal, check, check_replacement
from flightlog.core.state import EMPTY, State
from flightlog_hookspecs.content import ThinkingBlock, ToolCallBlock, text_blocks
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
    Head,
    InboxSplice,
    Lent,
    LetterTaken,
    PluginFault,
    PluginLoaded,
    PluginUnloaded,
    RequestFailed,
    RequestHeader,
    RequestRetry,
    RequestSent,
    SectionSpan,
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
from flightlog_hookspecs.tools import Fact
from support.sample_events import BUILT, CALL, OPENED, SAID, SENT

Log = tuple[Event, ...]
Case = tuple[Sequence[Event], Event]

CREATED = SessionCreated(uid="u")
CLOSED = SessionClosed()
REPAIRED = SessionRepaired(repair="r1", rule="hash-chain", detail="changed", dropped=3)
NOTE = UnknownEvent(kind="test/note", data="{}")
END = TurnEnd(reason="completed")
HEADER = RequestHeader(head=Head(adapter="a", model="m"), reason="first")

REST: Log = (CREATED, OPENED)
ACCEPT = InboxSplice(slot="next_turn", start=0, message_id="m1", cause="accepted", content=text_blocks("hi"))
CLAIM = InboxSplice(slot="next_turn", start=0, removed=1, message_id="m1", cause="claimed")
WITHDRAW = evolve(CLAIM, cause="withdrawn")
ENTER = UserMessage(message_id="m1", content=text_blocks("hi"))
PENDING: Log = (*REST, ACCEPT)
TURN: Log = (*PENDING, TurnStart())
CLAIMED: Log = (*TURN, CLAIM)
CLAIMED_TWO: Log = (
    *PENDING,
    evolve(ACCEPT, slot="next_step", message_id="m2"),
    TurnStart(),
    evolve(CLAIM, slot="next_step", message_id="m2"),
    CLAIM,
    StepStart(),
)
STEP: Log = (*CLAIMED, StepStart(), ENTER)

OPEN: Log = (*STEP, HEADER, SENT)
DELTA = AssistantDelta(attempt=1, block=0, type="text")
FAILED = RequestFailed(attempt=1, failure="cut", message="", retryable=True)
RETRY = RequestRetry(attempt=2, delay_ms=1)
BROKEN: Log = (*OPEN, FAILED)

ASKED = evolve(
    SAID,
    content=(
        ToolCallBlock(call_id="c1", name="look", arguments="{}"),
        ToolCallBlock(call_id="c2", name="look", arguments="{}"),
    ),
    finish="tool_calls",
)
ANSWERED: Log = (*OPEN, SAID)
CALLING: Log = (*OPEN, ASKED)
RESULT = ToolResult(
    position=0, call_id="c1", name="look", message_seq=10, outcome="ok", content=text_blocks("blue"), call_seq=11
)
PROGRESS = ToolProgress(position=0, call_id="c1", name="look", call_seq=11, text="half way")
UNSTARTED = evolve(RESULT, call_seq=None, outcome="not_started")
STARTED: Log = (*CALLING, CALL)
ENDED: Log = (*ANSWERED, StepEnd())
TAKEN_OVER: Log = (*STARTED, OPENED)
REPEATED = evolve(CALL, resumed="repeatable")
WRITING: Log = (*CALLING, evolve(CALL, effect="write"), OPENED)
WRITTEN = evolve(CALL, effect="write", resumed="answered")

QUESTION = ApprovalAsked(position=0, call_id="c1", name="look", message_seq=10, question="may it?", guard="g")
QUESTIONED: Log = (*CALLING, QUESTION)
DOUBT = evolve(QUESTION, about="outcome")
DOUBTED: Log = (*WRITING, DOUBT)
NOTHING = ApprovalDecided(asked_seq=13, decision="not_done", by="ada")
ALLOWED = ApprovalDecided(asked_seq=11, decision="allowed", by="ada")
REFUSED = evolve(ALLOWED, decision="denied")
SETTLED = evolve(ALLOWED, decision="cancelled")
REFUSED_FIRST: Log = (*QUESTIONED, ALLOWED, evolve(CALL, effect="write"))
TAKEN = LetterTaken(letter_id="l1", verb="approve", outcome="obeyed")
TOLD = UserMessage(
    message_id="c1", content=(*text_blocks("now:"), *text_blocks("be brief")), source="context", section="rules"
)
TASK = SubagentSpawned(child="s/a", subagent="a", depth=1, invocation_id="u.1.1.0", task="look")
BESIDE = evolve(TASK, background=True)
LENDING = evolve(TASK, lent=(Lent(card="calls", amount=3),))
CHARGED = BudgetCharged(card="calls", amount=2, invocation_id="u.1.1.0")
CAME = SubagentSettled(child="s/a", invocation_id="u.1.1.0", reason="completed", result="blue")
TWO: Log = (*STARTED, evolve(CALL, position=1, call_id="c2", invocation_id="u.1.1.1"))
AGAIN = {"invocation_id": "u.1.1.1"}
NEXT = evolve(OPENED, lock=1)
LOADED = PluginLoaded(plugin="p", version="1")
GONE = PluginUnloaded(plugin="p", version="1")
SHORTENS = CompactionStart(level="summarise", from_seq=7, to_seq=9, tokens_before=9, compactor="c", model="a:m")
PRUNES = evolve(SHORTENS, level="prune", from_seq=10, to_seq=10, model="")
SHORTER = UserMessage(message_id="s", content=text_blocks("so far"), source="summary", replaces_from=7, replaces_to=9)
SHORT = evolve(RESULT, content=text_blocks("."), replaces=12)
SHORTENED = CompactionEnd(outcome="done")
ALL_CALLED: Log = (*STARTED, RESULT, evolve(UNSTARTED, position=1, call_id="c2"))
OVER: Log = (*ALL_CALLED, StepEnd())
SUBMITTED = TaskSubmitted(goal="look", model="a:m", goal_check="seen")
AMENDED = TaskAmended(goal="look up")
RUNS = TaskState(state="running")
DONE = TaskState(state="completed")
CHECKED = GoalChecked(check="seen", met=True, plugin="p", plugin_version="1")
OF_TASK: Log = (CREATED, SUBMITTED, OPENED)
SET = TimerSet(timer="t", due_us=5, content=text_blocks("up"))
REPEATS = evolve(SET, every_us=1_000_000)
FIRED = TimerFired(timer="t", due_us=5)
FIRED_ON = evolve(FIRED, missed=1, next_us=2_000_005)
STOPPED = TimerCancelled(timer="t")
LIGHT = CheckpointWritten(level="light", phase="think", steps=1)
HEAVY = CheckpointWritten(level="heavy", phase="act", steps=0, summary="Done: nothing. Next: run look.")
ARCHIVE = evolve(HEAVY, level="archive", phase="observe")
ARCHIVED: Log = (*OF_TASK, ARCHIVE)
SKIPPED = CheckpointSkipped(checkpoint_seq=4, why="steps 0, the log says 1")
RESYNC = TaskResynced(before="a", after="a", checkpoint_seq=4)
TASK_STEP: Log = (*OF_TASK, TurnStart(), StepStart(), HEADER)
SENT_BY_TASK = evolve(SENT, header_seq=6)
TASK_ANSWERED: Log = (*TASK_STEP, SENT_BY_TASK, SAID)
GRANTED = BudgetGranted(card="tokens", most=1000)
ALERTED = BudgetAlert(card="tokens", used=900, most=1000, level="warning")
COMPRESSED = BudgetDegraded(move="compress", reason="900 of 1000 tokens are used", context_tokens=50)
FAULT = PluginFault(plugin="p", hook="h", error="broken")

CASES: dict[str, list[Case]] = {
    "created-first": [((), OPENED), ((), NOTE), (REST, CREATED), (REST, evolve(CREATED, uid="v"))],
    "closed": [
        ((CREATED,), ACCEPT),
        ((CREATED,), GRANTED),
        ((*REST, CLOSED), GRANTED),
        ((CREATED,), CLOSED),
        ((CREATED,), NOTE),
        ((*REST, CLOSED), TurnStart()),
        ((*REST, CLOSED), CLOSED),
        ((*REST, CLOSED), NOTE),
        ((*REST, REPAIRED), ACCEPT),
        ((*STEP, REPAIRED), NOTE),
        ((CREATED, REPAIRED), CLOSED),
    ],
    "closed-in-turn": [(TURN, CLOSED), (OPEN, CLOSED)],
    "turn-nested": [(TURN, TurnStart()), (STEP, TurnStart())],
    "turn-outside": [(REST, END), (REST, StepStart()), (PENDING, CLAIM), ((*ENDED, END), END)],
    "turn-step-open": [(STEP, END), (ANSWERED, END)],
    "step-nested": [(STEP, StepStart()), ((*STEP, evolve(ACCEPT, message_id="m2")), evolve(CLAIM, message_id="m2"))],
    "step-outside": [
        (where, event)
        for where in (REST, TURN, ENDED)
        for event in (StepEnd(), ENTER, HEADER, SENT, DELTA, SAID, FAILED, RETRY, CALL, RESULT)
    ],
    "step-unanswered": [
        (CALLING, StepEnd()),
        (STARTED, StepEnd()),
        ((*STARTED, RESULT), StepEnd()),
        ((*CALLING, UNSTARTED), StepEnd()),
    ],
    "step-attempt-open": [(OPEN, StepEnd()), ((*OPEN, DELTA), StepEnd())],
    "splice-range": [
        (REST, WITHDRAW),
        (PENDING, evolve(ACCEPT, message_id="m2", start=2)),
        (PENDING, evolve(ACCEPT, message_id="m2", start=-1)),
        (PENDING, evolve(WITHDRAW, start=1)),
        (PENDING, evolve(WITHDRAW, slot="next_step")),
        (TURN, evolve(CLAIM, start=1)),
    ],
    "splice-shape": [
        (PENDING, evolve(WITHDRAW, removed=2)),
        (PENDING, evolve(WITHDRAW, removed=-1)),
        (PENDING, evolve(WITHDRAW, removed=0)),
        (PENDING, evolve(ACCEPT, content=None)),
        (TURN, evolve(CLAIM, content=text_blocks("other"))),
        (TURN, evolve(CLAIM, content=())),
    ],
    "splice-pending": [(PENDING, ACCEPT), (PENDING, evolve(ACCEPT, slot="next_step")), (TURN, ACCEPT)],
    "splice-names": [
        (PENDING, evolve(WITHDRAW, message_id="m2")),
        (PENDING, evolve(ACCEPT, message_id="m2", removed=1, cause="edited")),
        (TURN, evolve(CLAIM, message_id="m2")),
    ],
    "splice-cause": [
        (PENDING, evolve(ACCEPT, message_id="m2")),
        (PENDING, evolve(ACCEPT, removed=1)),
        (REST, evolve(ACCEPT, cause="edited")),
        *((REST, evolve(ACCEPT, cause=cause)) for cause in ("withdrawn", "cancelled")),
        *((PENDING, evolve(ACCEPT, removed=1, cause=cause)) for cause in ("withdrawn", "cancelled")),
        *((PENDING, evolve(WITHDRAW, cause=cause)) for cause in ("accepted", "edited")),
    ],
    "budget-missing": [
        (REST, ALERTED),
        (REST, COMPRESSED),
        ((*STEP, HEADER), BUILT),
    ],
    "budget-lent": [
        ((*STARTED, LENDING), CHARGED),  # in a session without a budget
        ((*STARTED, GRANTED), CHARGED),
        ((*STARTED, GRANTED, TASK), CHARGED),
        ((*STARTED, GRANTED, LENDING), evolve(CHARGED, card="requests")),
        ((*STARTED, GRANTED, LENDING), evolve(CHARGED, amount=0)),
        ((*STARTED, GRANTED, LENDING), evolve(CHARGED, invocation_id="u.1.1.1")),
        ((*STARTED, GRANTED, LENDING, RESULT, CAME), CHARGED),
    ],
    "budget-card": [
        (REST, evolve(GRANTED, card="money")),
        (REST, evolve(GRANTED, card="calls:")),
        (REST, evolve(GRANTED, card="tokens:look")),
        (OF_TASK, evolve(GRANTED, most=-1)),
        (OF_TASK, evolve(ALERTED, card="money")),
    ],
    "context-place": [
        ((*TASK_STEP, SENT_BY_TASK), evolve(BUILT, attempt=2)),
        (TASK_STEP, evolve(BUILT, attempt=2)),
        (TASK_ANSWERED, evolve(BUILT, attempt=2)),
    ],
    "plugin-loaded": [
        (REST, GONE),
        ((*REST, LOADED, GONE), GONE),
        ((*REST, LOADED), evolve(GONE, version="2")),
    ],
    "letter-once": [
        ((*REST, TAKEN), TAKEN),
        ((*REST, TAKEN, ACCEPT), evolve(TAKEN, verb="cancel", outcome="refused")),
    ],
    "spawned-by-call": [
        (REST, TASK),
        (CALLING, TASK),
        (STARTED, evolve(TASK, **AGAIN)),
        ((*STARTED, RESULT), TASK),
        ((*STARTED, TASK), evolve(TASK, child="s/b")),
        ((*STARTED, TASK, CAME), TASK),
    ],
    "spawned-depth": [(STARTED, evolve(TASK, depth=depth)) for depth in (0, 2)],
    "spawned-twice": [
        ((*TWO, TASK), evolve(TASK, **AGAIN)),
        ((*TWO, BESIDE), evolve(BESIDE, **AGAIN)),
        ((*TWO, TASK, CAME), evolve(BESIDE, **AGAIN)),
        ((*TWO, BESIDE, CAME), evolve(TASK, **AGAIN)),
    ],
    "settled-once": [
        (STARTED, CAME),
        ((*STARTED, TASK, CAME), CAME),
        ((*TWO, TASK), evolve(CAME, **AGAIN)),
        ((*STARTED, TASK), evolve(CAME, child="s/b")),
        ((*TWO, BESIDE, CAME, evolve(BESIDE, **AGAIN)), CAME),
    ],
    "claim-lost": [
        (CLAIMED, TAKEN),
        (CLAIMED, END),
        (CLAIMED, NOTE),
        (CLAIMED, REPAIRED),
        (CLAIMED, WITHDRAW),
        (CLAIMED, evolve(ACCEPT, message_id="m2")),
        (CLAIMED_TWO, ENTER),
        ((*CLAIMED_TWO, evolve(ENTER, message_id="m2")), HEADER),
        *(((*CLAIMED, StepStart()), event) for event in (HEADER, SENT, StepEnd(), evolve(ENTER, message_id="m2"))),
    ],
    "claim-content": [
        ((*CLAIMED, StepStart()), evolve(ENTER, content=text_blocks("ho"))),
        ((*CLAIMED, StepStart()), evolve(ENTER, content=())),
        ((*CLAIMED, StepStart()), evolve(ENTER, source="plugin")),
    ],
    "section-shape": [
        (STEP, evolve(TOLD, source="user")),
        (STEP, evolve(TOLD, content=())),
        (STEP, evolve(TOLD, content=(*TOLD.content, *TOLD.content))),
        (STEP, evolve(TOLD, content=ASKED.content)),
        ((*CLAIMED, StepStart()), evolve(ENTER, section="rules")),
    ],
    "header-spans": [
        (STEP, evolve(HEADER, head=evolve(HEADER.head, system="abc"), sections=spans))
        for spans in (
            (SectionSpan(name="a", start=0, chars=99),),
            (SectionSpan(name="a", start=-1, chars=1),),
            (SectionSpan(name="a", start=0, chars=0),),
            (SectionSpan(name="a", start=0, chars=1), SectionSpan(name="a", start=1, chars=1)),
            (SectionSpan(name="a", start=0, chars=2), SectionSpan(name="b", start=1, chars=1)),
        )
    ],
    "lock": [(REST, evolve(OPENED, lock=2)), (REST, evolve(OPENED, lock=-1)), ((*REST, NEXT), OPENED)],
    "user-during-attempt": [(OPEN, ENTER), ((*OPEN, DELTA), ENTER)],
    "header-late": [(OPEN, HEADER), (ANSWERED, HEADER), (CALLING, HEADER)],
    "header-named": [
        (STEP, SENT),
        ((*STEP, HEADER), evolve(SENT, header_seq=7)),
        ((*STEP, HEADER, HEADER), SENT),
        (BROKEN, evolve(SENT, attempt=2, header_seq=0)),
    ],
    "attempt-number": [
        ((*STEP, HEADER), evolve(SENT, attempt=0)),
        ((*STEP, HEADER), evolve(SENT, attempt=2)),
        (OPEN, evolve(SENT, attempt=2)),
        (ANSWERED, evolve(SENT, attempt=2)),
        (BROKEN, SENT),
        (BROKEN, evolve(SENT, attempt=3)),
    ],
    "attempt-open": [
        (where, event)
        for where in (STEP, BROKEN, ANSWERED)
        for event in (DELTA, SAID, FAILED, evolve(DELTA, attempt=0))
    ]
    + [(OPEN, evolve(event, attempt=attempt)) for event in (DELTA, SAID, FAILED) for attempt in (0, 2)],
    "retry-place": [
        (STEP, RETRY),
        (OPEN, RETRY),
        (ANSWERED, RETRY),
        (BROKEN, evolve(RETRY, attempt=1)),
        (BROKEN, evolve(RETRY, attempt=3)),
        ((*BROKEN, RETRY), RETRY),
    ],
    "answer-empty": [
        (OPEN, evolve(SAID, content=content))
        for content in ((), text_blocks(""), text_blocks(" \n\t\u2003"), (ThinkingBlock(text="hm"),))
    ],
    "calls-truncated": [(OPEN, evolve(ASKED, finish=finish)) for finish in ("length", "refusal", "interrupted")],
    "call-named": [
        (ANSWERED, CALL),
        (ANSWERED, UNSTARTED),
        *(
            (where, evolve(event, **change))
            for where, event in ((CALLING, CALL), (CALLING, UNSTARTED), (STARTED, RESULT))
            for change in (
                {"position": -1},
                {"position": 1},
                {"position": 2},
                {"call_id": "c2"},
                {"name": "write"},
                {"message_seq": 9},
            )
        ),
    ],
    "call-twice": [
        ((*CALLING, REPAIRED, OPENED), CALL),
        (STARTED, CALL),
        ((*STARTED, RESULT), CALL),
        ((*CALLING, UNSTARTED), CALL),
        (TAKEN_OVER, CALL),
        ((*TAKEN_OVER, RESULT), REPEATED),
        ((*CALLING, REPAIRED, OPENED), evolve(REPEATED, resumed="")),
    ],
    "call-resumed": [
        (CALLING, REPEATED),
        (STARTED, REPEATED),
        (TAKEN_OVER, evolve(REPEATED, invocation_id="u.1.1.1")),
        (TAKEN_OVER, evolve(REPEATED, effect="write")),
        (WRITING, WRITTEN),
        (WRITING, evolve(WRITTEN, resumed="repeatable")),
        (WRITING, evolve(WRITTEN, resumed="repeatable", effect="read")),
        (DOUBTED, WRITTEN),
        (DOUBTED, evolve(WRITTEN, resumed="reconciled")),
        ((*DOUBTED, evolve(NOTHING, decision="done")), WRITTEN),
        ((*DOUBTED, evolve(NOTHING, decision="done"), NOTHING), WRITTEN),
        ((*DOUBTED, NOTHING, WRITTEN), WRITTEN),
        ((*DOUBTED, NOTHING, WRITTEN, OPENED), WRITTEN),
        ((*REFUSED_FIRST, OPENED), WRITTEN),
        ((*WRITING[:-1], NEXT), evolve(WRITTEN, resumed="reconciled")),
        ((*WRITING[:-1], NEXT, NEXT), evolve(WRITTEN, resumed="reconciled")),
    ],
    "call-database": [
        (CALLING, evolve(CALL, effect="transactional")),
        (CALLING, evolve(CALL, database="/shop.db")),
    ],
    "result-twice": [((*STARTED, RESULT), RESULT), ((*CALLING, UNSTARTED), UNSTARTED)],
    "call-unapproved": [(QUESTIONED, CALL), ((*QUESTIONED, REFUSED), CALL), ((*QUESTIONED, REFUSED, ALLOWED), CALL)],
    "asked-once": [
        (QUESTIONED, QUESTION),
        (STARTED, QUESTION),
        ((*CALLING, UNSTARTED), QUESTION),
        ((*QUESTIONED, ALLOWED), QUESTION),
        (CALLING, DOUBT),
        (STARTED, DOUBT),
        (TAKEN_OVER, QUESTION),
        (DOUBTED, DOUBT),
        ((*DOUBTED, NOTHING), DOUBT),
        ((*DOUBTED, NOTHING, WRITTEN), DOUBT),
        ((*WRITING, evolve(RESULT, outcome="unknown")), DOUBT),
    ],
    "decided-asked": [
        (CALLING, ALLOWED),
        (QUESTIONED, evolve(ALLOWED, asked_seq=10)),
        ((*QUESTIONED, ALLOWED), SETTLED),
        ((*QUESTIONED, SETTLED), SETTLED),
        ((*DOUBTED, NOTHING, WRITTEN), evolve(NOTHING, decision="cancelled")),
    ],
    "task-submitted": [
        ((CREATED, SUBMITTED), SUBMITTED),
        (REST, SUBMITTED),
        ((CREATED, REPAIRED), SUBMITTED),
    ],
    "task-missing": [
        *((REST, event) for event in (AMENDED, RUNS, ARCHIVE, SKIPPED, RESYNC)),
        ((*REST, TurnStart()), CHECKED),
    ],
    "goal-checked": [
        ((*OF_TASK, RUNS), CHECKED),
        ((*OF_TASK, RUNS, TurnStart(), StepStart()), CHECKED),
        ((*OF_TASK, RUNS, TurnStart()), evolve(CHECKED, check="heard")),
    ],
    "task-state": [
        (OF_TASK, DONE),
        (OF_TASK, evolve(RUNS, state="pending")),
        ((*OF_TASK, RUNS), RUNS),
        ((*OF_TASK, RUNS, DONE), AMENDED),
        *(((*OF_TASK, RUNS, evolve(RUNS, state=end)), RUNS) for end in ("completed", "failed", "cancelled")),
    ],
    "task-ends-in-turn": [
        ((*OF_TASK, RUNS, TurnStart()), evolve(RUNS, state=end)) for end in ("completed", "failed", "cancelled")
    ],
    "decided-kind": [
        *((QUESTIONED, evolve(ALLOWED, decision=decision)) for decision in ("done", "not_done", "unknown")),
        ((*QUESTIONED, ALLOWED), evolve(ALLOWED, decision="done")),
        *((DOUBTED, evolve(NOTHING, decision=decision)) for decision in ("allowed", "denied")),
        ((*DOUBTED, NOTHING), evolve(NOTHING, decision="denied")),
        (DOUBTED, evolve(NOTHING, remember=True)),
    ],
    "result-told": [(CALLING, evolve(UNSTARTED, told_by=told_by)) for told_by in ("reconcile", "person", "done_row")],
    "facts-fit": [
        (STARTED, evolve(RESULT, facts=(Fact("", "blue"),))),
        (STARTED, evolve(RESULT, facts=(Fact("n" * 101, "blue"),))),
        (STARTED, evolve(RESULT, facts=tuple(Fact(f"f{number}", "x") for number in range(51)))),
        (STARTED, evolve(RESULT, facts=(Fact("sky", "x" * 7998),))),
        (
            (*TWO, evolve(RESULT, facts=(Fact("sky", "x" * 7000),))),
            evolve(RESULT, position=1, call_id="c2", call_seq=12, facts=(Fact("sea", "x" * 1000),)),
        ),
        ((*OVER, PRUNES), evolve(SHORT, facts=(Fact("sky", "blue"),))),
    ],
    "timer-set": [
        ((*REST, SET), SET),
        ((*REST, SET, FIRED), SET),
        ((*REST, SET, STOPPED), REPEATS),
        *(
            (REST, evolve(SET, **wrong))
            for wrong in ({"timer": ""}, {"timer": "\0"}, {"due_us": -1}, {"due_us": 2**60})
        ),
        *((REST, evolve(REPEATS, **wrong)) for wrong in ({"every_us": 999_999}, {"times": 0}, {"until_us": 4})),
        *((REST, evolve(SET, **wrong)) for wrong in ({"times": 1}, {"until_us": 9})),
    ],
    "timer-open": [
        (REST, FIRED),
        (REST, STOPPED),
        ((*REST, SET, FIRED), FIRED),
        ((*REST, SET, FIRED), STOPPED),
        ((*REST, SET, STOPPED), FIRED),
        ((*REST, REPEATS, FIRED_ON, STOPPED), STOPPED),
    ],
    "timer-due": [
        ((*REST, SET), evolve(FIRED, due_us=4)),
        ((*REST, SET), evolve(FIRED, missed=1)),
        ((*REST, SET), FIRED_ON),
        ((*REST, REPEATS), FIRED),
        ((*REST, REPEATS, FIRED_ON), FIRED_ON),
        ((*REST, REPEATS), evolve(FIRED_ON, missed=-1, next_us=5)),
        ((*REST, REPEATS), evolve(FIRED_ON, next_us=2_000_006)),
        ((*REST, evolve(REPEATS, times=1)), FIRED_ON),
        ((*REST, evolve(REPEATS, until_us=2_000_004)), FIRED_ON),
        ((*REST, evolve(REPEATS, until_us=2_000_004)), evolve(FIRED_ON, missed=2, next_us=None)),
    ],
    "checkpoint-place": [
        (OF_TASK, LIGHT),
        (OF_TASK, HEAVY),
        ((*OF_TASK, TurnStart()), HEAVY),
        ((*OF_TASK, TurnStart()), ARCHIVE),
        ((*OF_TASK, TurnStart(), StepStart()), LIGHT),
        ((*OF_TASK, TurnStart(), StepStart()), HEAVY),
        (TASK_ANSWERED, ARCHIVE),
    ],
    "checkpoint-named": [
        (ARCHIVED, evolve(SKIPPED, checkpoint_seq=3)),
        (ARCHIVED, evolve(RESYNC, checkpoint_seq=5)),
    ],
    "compaction-place": [
        (OPEN, SHORTENS),
        (CALLING, SHORTENS),
        ((*OVER, SHORTENS), SHORTENS),
    ],
    "compaction-range": [
        (OVER, evolve(SHORTENS, from_seq=0)),
        (OVER, evolve(SHORTENS, to_seq=6)),
        (ALL_CALLED, SHORTENS),
        ((*OVER, SHORTENS), evolve(SHORTER, replaces_to=8)),
        ((*OVER, SHORTENS), evolve(SHORTER, replaces_to=None)),
        ((*OVER, SHORTENS), evolve(SHORTER, source="user")),
        ((*OVER, SHORTENS), evolve(SHORTER, section="rules")),
        ((*OVER, evolve(PRUNES, from_seq=7, to_seq=9)), SHORT),
    ],
    "compaction-open": [
        (OVER, SHORTER),
        (OVER, SHORT),
        (OVER, SHORTENED),
        ((*OVER, SHORTENS), SHORT),
        ((*OVER, PRUNES), SHORTER),
        ((*OVER, SHORTENS, OPENED), SHORTENED),
        ((*OVER, SHORTENS, SHORTENED), SHORTER),
    ],
    "compaction-ends": [
        ((*OVER, SHORTENS), END),
        ((*OVER, SHORTENS), StepStart()),
        ((*OVER, END, SHORTENS), CLOSED),
        ((*OVER, END, SHORTENS), TurnStart()),
        ((*OVER, StepStart(), SHORTENS), SENT),
        ((*OVER, StepStart(), SHORTENS), StepEnd()),
    ],
    "progress-running": [
        (CALLING, PROGRESS),
        ((*STARTED, RESULT), PROGRESS),
        (STARTED, evolve(PROGRESS, call_seq=10)),
        ((*TAKEN_OVER, REPEATED), PROGRESS),
    ],
    "result-call": [
        (CALLING, RESULT),
        (STARTED, UNSTARTED),
        (STARTED, evolve(RESULT, call_seq=10)),
        (STARTED, evolve(RESULT, call_seq=12)),
    ],
}


def state_after(events: Sequence[Event]) -> State:
    state = EMPTY
    for seq, event in enumerate(events, 1):
        follow(state, event)
        state = fold(state, event, seq, epoch_of(state, event))
    return state


def follow(state: State, event: Event) -> None:
    check(state, event, epoch_of(state, event), placed(state, event))


def epoch_of(state: State, event: Event) -> int:
    return state.epoch + isinstance(event, (SessionCreated, SessionOpened))


@pytest.mark.parametrize(
    ("rule", "log", "event"),
    [
        pytest.param(rule, *case, id=f"{rule}-{number}")
        for rule, cases in CASES.items()
        for number, case in enumerate(cases, 1)
    ],
)
def test_what_may_not_follow_is_refused_by_its_rule(rule: str, log: Log, event: Event) -> None:
    state = state_after(log)
    with pytest.raises(Illegal) as refused:
        follow(state, event)
    assert refused.value.rule == rule
    assert RULES[rule] in str(refused.value)


PLACES: dict[type, tuple[Log, Event]] = {
    SessionCreated: ((), CREATED),
    SessionOpened: ((*STARTED,), OPENED),
    SessionClosed: (REST, CLOSED),
    SessionRepaired: (STARTED, REPAIRED),
    InboxSplice: (STEP, evolve(ACCEPT, message_id="m2")),
    TurnStart: (PENDING, TurnStart()),
    TurnEnd: (ENDED, END),
    StepStart: (CLAIMED, StepStart()),
    StepEnd: (ANSWERED, StepEnd()),
    UserMessage: ((*CLAIMED, StepStart()), ENTER),
    RequestHeader: (STEP, HEADER),
    RequestSent: ((*STEP, HEADER), SENT),
    AssistantDelta: (OPEN, DELTA),
    AssistantMessage: (OPEN, SAID),
    RequestFailed: (OPEN, FAILED),
    RequestRetry: (BROKEN, RETRY),
    ToolCall: (CALLING, CALL),
    ToolProgress: (STARTED, PROGRESS),
    ToolResult: (STARTED, RESULT),
    ApprovalAsked: (CALLING, QUESTION),
    ApprovalDecided: (QUESTIONED, ALLOWED),
    LetterTaken: (QUESTIONED, TAKEN),
    SubagentSpawned: (STARTED, TASK),
    SubagentSettled: ((*STARTED, TASK, RESULT), CAME),
    TimerSet: (STARTED, SET),
    TimerFired: ((*REST, REPEATS), FIRED_ON),
    TimerCancelled: ((*STARTED, SET), STOPPED),
    CompactionStart: (OVER, SHORTENS),
    CompactionEnd: ((*OVER, SHORTENS), SHORTENED),
    TaskSubmitted: ((CREATED,), SUBMITTED),
    TaskAmended: (OF_TASK, AMENDED),
    TaskState: (OF_TASK, RUNS),
    GoalChecked: ((*OF_TASK, RUNS, TurnStart()), CHECKED),
    TaskResynced: (ARCHIVED, RESYNC),
    CheckpointWritten: (TASK_ANSWERED, HEAVY),
    CheckpointSkipped: (ARCHIVED, SKIPPED),
    BudgetGranted: ((CREATED, SUBMITTED), GRANTED),
    BudgetCharged: ((*STARTED, GRANTED, LENDING), CHARGED),
    BudgetAlert: (OF_TASK, ALERTED),
    BudgetDegraded: ((*REST, GRANTED), COMPRESSED),
    ContextBuilt: (TASK_STEP, BUILT),
    PluginFault: (STARTED, FAULT),
    PluginLoaded: (REST, LOADED),
    PluginUnloaded: ((*REST, LOADED), GONE),
    UnknownEvent: (STARTED, NOTE),
}
"""For each class of events a log that it may follow."""


@pytest.mark.parametrize("cls", get_args(Event), ids=lambda cls: cls.__name__)
def test_every_event_stands_in_its_place_under_the_current_epoch(cls: type) -> None:
    log, event = PLACES[cls]
    state = state_after(log)
    epoch, (turn, step) = epoch_of(state, event), placed(state, event)
    check(state, event, epoch, (turn, step))
    for other in (epoch - 1, epoch + 1):
        assert rule_of(state, event, other, (turn, step)) == "epoch"
    for place in (((turn or 0) + 1, step), (turn, (step or 0) + 1), (turn, 0), (0, step), (turn and None, step or 1)):
        assert rule_of(state, event, epoch, place) == "place"


def rule_of(state: State, event: Event, epoch: int, place: tuple[int | None, int | None]) -> str | None:
    try:
        check(state, event, epoch, place)
    except Illegal as error:
        return error.rule
    return None


def test_every_rule_has_an_example() -> None:
    # "epoch" and "place" are tried on every class above, "seq-dense" wherever rows are read, "result-replaced" below.
    assert {*CASES, "epoch", "place", "seq-dense", "result-replaced"} == set(RULES)


@pytest.mark.parametrize(
    "change", [{"position": 1}, {"message_seq": 9}, {"call_id": "c2"}, {"outcome": "error"}, {"replaces": 11}]
)
def test_a_shortened_result_stands_for_the_one_that_is_there(change: dict[str, Any]) -> None:
    history = History()
    for seq, event in enumerate(OVER, 1):
        history.add(event, seq)
    check_replacement(SHORT, history)
    with pytest.raises(Illegal, match="result-replaced"):
        check_replacement(evolve(SHORT, **change), history)


@pytest.mark.parametrize("change", [{"from_seq": 8}, {"to_seq": 8}])
def test_a_compaction_covers_from_message_to_message(change: dict[str, Any]) -> None:
    history = History()
    for seq, event in enumerate(OVER, 1):
        history.add(event, seq)
    covers = evolve(SHORTENS, from_seq=7, to_seq=10)
    check_replacement(covers, history)
    with pytest.raises(Illegal, match="compaction-range"):
        check_replacement(evolve(covers, **change), history)


@pytest.mark.parametrize(
    ("log", "event"),
    [
        pytest.param((*REST, CLOSED), OPENED, id="an owner after a clean close"),
        pytest.param(STARTED, OPENED, id="an owner in the middle of a call"),
        pytest.param((CREATED, REPAIRED), OPENED, id="an owner behind a repair"),
        pytest.param((*OPEN, REPAIRED), REPAIRED, id="a second repair"),
        pytest.param((*REST, CLOSED), REPAIRED, id="a repair after a clean close"),
        pytest.param((*STARTED, REPAIRED, OPENED), RESULT, id="a call started before a repair is answered"),
        pytest.param((*OPEN, DELTA), NOTE, id="an unknown kind in the middle of an answer"),
        pytest.param(OPEN, evolve(ACCEPT, message_id="m2"), id="a message is accepted during an answer"),
        pytest.param((*PENDING, WITHDRAW), ACCEPT, id="an id that left may come again"),
        pytest.param(
            PENDING,
            evolve(ACCEPT, removed=1, cause="edited", content=text_blocks("ho")),
            id="a pending message is edited",
        ),
        pytest.param(CALLING, UNSTARTED, id="a call is answered without having started"),
        pytest.param(STARTED, evolve(UNSTARTED, position=1, call_id="c2"), id="a later call is answered first"),
        pytest.param(BROKEN, evolve(SENT, attempt=2), id="a retry that nobody announced"),
        pytest.param(BROKEN, StepEnd(), id="a step ends with a failed request"),
        pytest.param(STEP, StepEnd(), id="a step ends without a request"),
        pytest.param(BROKEN, HEADER, id="the head changes between two attempts"),
        pytest.param(ANSWERED, ENTER, id="context enters behind an answer"),
        pytest.param((*QUESTIONED, ALLOWED), evolve(CALL, invocation_id="u.1.1.0"), id="an allowed call starts"),
        pytest.param((*QUESTIONED, SETTLED), ALLOWED, id="a late answer is recorded"),
        pytest.param(TAKEN_OVER, REPEATED, id="a read is repeated by the next owner"),
        pytest.param((*TAKEN_OVER, REPEATED, OPENED), REPEATED, id="and by the one behind"),
        pytest.param((*TAKEN_OVER, REPEATED), evolve(RESULT, call_seq=13), id="a repeated call is answered"),
        pytest.param(WRITING, evolve(WRITTEN, resumed="reconciled"), id="a write that is not done starts again"),
        pytest.param(WRITING, DOUBT, id="a question about an outcome"),
        pytest.param((*STARTED, NEXT), REPEATED, id="a read is repeated after a take-over"),
        pytest.param((*WRITING[:-1], NEXT), DOUBT, id="a question about the outcome of a call that may still run"),
        pytest.param((*DOUBTED, NOTHING), WRITTEN, id="a write that a person says is not done starts again"),
        pytest.param((*DOUBTED, NOTHING, WRITTEN, OPENED), DOUBT, id="and is asked about when it is cut off again"),
        pytest.param((*REFUSED_FIRST, OPENED), DOUBT, id="an allowed call is asked about once more, when cut off"),
        pytest.param(DOUBTED, evolve(NOTHING, decision="cancelled"), id="a question about an outcome is cancelled"),
        pytest.param((*DOUBTED, NOTHING), evolve(NOTHING, decision="done"), id="a late word on an outcome is recorded"),
        pytest.param(DOUBTED, evolve(RESULT, told_by="person"), id="a person tells how a call ended"),
        pytest.param(STARTED, evolve(RESULT, told_by="reconcile"), id="a reconciler tells how a call ended"),
        pytest.param((*QUESTIONED, REFUSED), UNSTARTED, id="a denied call is answered"),
        pytest.param(PENDING, evolve(ACCEPT, message_id="m2", start=1), id="a second message joins behind the first"),
        pytest.param(PENDING, evolve(WITHDRAW, cause="cancelled"), id="a pending message is cancelled"),
        pytest.param((*REST, TAKEN), evolve(TAKEN, letter_id="l2"), id="the next letter is taken"),
        pytest.param((*OPEN, ACCEPT), TAKEN, id="a letter is taken during an answer"),
        pytest.param((*TWO, BESIDE, CAME), evolve(BESIDE, **AGAIN), id="a settled child gets another task"),
        pytest.param((*STARTED, BESIDE, RESULT), CAME, id="a child settles behind the result of its call"),
        pytest.param((*STARTED, BESIDE), CAME, id="a child settles before the result of its call"),
        pytest.param(REST, FAULT, id="a plugin's fault outside of turns"),
        pytest.param((*TASK_ANSWERED, StepEnd()), LIGHT, id="a light checkpoint behind the end of a step"),
        pytest.param((*ARCHIVED, SKIPPED), SKIPPED, id="a checkpoint that is skipped once more"),
        pytest.param(OF_TASK, evolve(RESYNC, checkpoint_seq=None), id="a task goes on without a checkpoint"),
        pytest.param(OPEN, evolve(SAID, finish="interrupted"), id="an answer is cut off"),
        pytest.param(OPEN, evolve(ASKED, finish="stop"), id="calls that end with stop"),
    ],
)
def test_what_may_follow_is_accepted(log: Log, event: Event) -> None:
    follow(state_after(log), event)


def test_an_unlisted_rule_cannot_be_broken() -> None:
    with pytest.raises(AssertionError, match="unlisted rule"):
        Illegal("no-such-rule", "")
