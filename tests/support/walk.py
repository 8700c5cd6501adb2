"""One random walk through the law: the moves a session can make, drawn one by one. See `legal_logs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar, get_args

from attrs import define, evolve, field
from hypothesis import strategies as st

from flightlog.core import checkpoints
from flightlog.core.context import joined
from flightlog.core.fold import asked_about, fold, placed
from flightlog.core.history import EncodedRequest, History, Place
from flightlog.core.invariants import check, check_replacement
from flightlog.core.state import EMPTY, Call, State
from flightlog.core.task import ENDED, FOLLOWING
from flightlog.core.timer import firing, missed_by
from flightlog.testing import FakeModel
from flightlog_hookspecs.content import Block, TextBlock, ThinkingBlock, ToolCallBlock
from flightlog_hookspecs.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantDelta,
    AssistantMessage,
    BudgetAlert,
    BudgetCharged,
    BudgetDegraded,
    BudgetGranted,
    CheckpointLevel,
    CompactionEnd,
    CompactionStart,
    ContextBuilt,
    DeltaPiece,
    Event,
    GoalChecked,
    Head,
    InboxSplice,
    Lent,
    LetterTaken,
    Message,
    PluginFault,
    PluginVersion,
    Record,
    Refresh,
    RequestFailed,
    RequestHeader,
    RequestRetry,
    RequestSent,
    Resumed,
    SessionClosed,
    SessionCreated,
    SessionOpened,
    SessionRepaired,
    Slot,
    Source,
    StepEnd,
    StepStart,
    SubagentSettled,
    SubagentSpawned,
    TaskAmended,
    TaskResynced,
    TaskState,
    TaskSubmitted,
    TimerCancelled,
    TimerSet,
    TokenPrice,
    ToolCall,
    ToolProgress,
    ToolResult,
    ToolSpec,
    TurnEnd,
    TurnStart,
    UnknownEvent,
    UserMessage,
)
from flightlog_hookspecs.tools import REPEATABLE, Effect, Fact
from support import values

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]

START_US = 1_700_000_000_000_000
ADAPTER = "fake"

_words = values.texts()
_facts = st.just(()) | st.lists(
    st.builds(Fact, st.sampled_from(["a", "b", "c d"]), values.texts(large=False)), max_size=3
).map(tuple)
_brief = values.texts(large=False)
_jump_us = st.sampled_from([0, 0, 1, 999, 1000, 1_000_000, -5_000_000, 86_400_000_000])
_sources: st.SearchStrategy[Source] = st.sampled_from(["user", "plugin", "context", "resync", "subagent", "timer"])
_unknown = st.sampled_from(
    [UnknownEvent(kind="test/note", data=data) for data in ("{}", '{"words":"ü"}', '{"long":"' + "x" * 70_000 + '"}')]
)
_heads = st.builds(
    Head,
    adapter=st.just(ADAPTER),
    model=st.sampled_from(["model", "other"]),
    tools=st.sampled_from([(), (ToolSpec(name="look", description="Look.", parameters='{"type":"object"}'),)]),
)
_failures = st.builds(
    RequestFailed,
    attempt=st.just(0),
    failure=st.sampled_from(["auth", "rate_limit", "cut", "empty", "length", "protocol", "interrupted"]),
    message=_words,
    retryable=st.booleans(),
    charged=st.sampled_from([0, 0, 12]),
)
_links: list[dict[str, Any]] = [{}, {}, {"parent_session": "pa\0", "parent_uid": "u", "depth": 2, "tools": ("look",)}]
_prices = st.none() | st.builds(
    TokenPrice,
    currency=st.sampled_from(["USD", "EUR"]),
    input_pico=st.sampled_from([0, 3_000_000, 10**15]),
    output_pico=st.integers(0, 20_000_000),
    cached_pico=st.none() | st.integers(0, 999),
    cache_write_pico=st.none() | st.just(3_750_000),
)
_tasks = st.builds(
    TaskSubmitted,
    goal=_words,
    model=st.sampled_from(["fake:model", "\0"]),
    task_class=st.sampled_from(["core", "normal", "batch"]),
    goal_check=st.sampled_from(["", "seen\0"]),
    due_us=st.none() | st.just(START_US),
    agent=_brief,
)
_cards = st.sampled_from(
    [
        *("tokens", "step_tokens", "summary_tokens", "requests", "requests:fake", "calls", "calls:look", "calls:write"),
        *("retries", "subagents", "active_s", "step_s", "tools_at_once"),
    ]
)
_grants = st.builds(BudgetGranted, card=_cards, most=st.sampled_from([1, 3, 60, 2**40]), by=_brief)
_loans = st.builds(Lent, card=_cards, amount=st.integers(0, 9))
_alerts = st.builds(
    BudgetAlert,
    card=_cards | st.just("rate:tool:look"),
    used=st.integers(0, 9),
    most=st.integers(1, 9),
    level=st.sampled_from(["warning", "exceeded"]),
    then=st.sampled_from(["goes_on", "shed", "pauses"]),
    message=_words,
    resume_at_us=st.none() | st.just(START_US),
)
_moves = st.builds(
    BudgetDegraded,
    move=st.sampled_from(["compress", "shrink", "smaller_model", "pause"]),
    reason=_words,
    context_tokens=st.none() | st.integers(1, 99),
    put_off=st.lists(_brief, max_size=2).map(tuple),
    model=st.sampled_from(["", "fake:other"]),
)
_text_blocks = st.builds(TextBlock, text=_words)
_given_blocks = st.one_of(_text_blocks, _text_blocks, values.files())
"""What users and tools give to a model."""
_thinking_blocks = st.builds(ThinkingBlock, text=_words, replay=_brief)
_call_blocks = st.builds(
    ToolCallBlock,
    call_id=st.sampled_from(["c1", "c1", "c2", "\ud800"]),
    name=st.sampled_from(["look", "write", "no such tool", "\0"]),
    arguments=st.sampled_from(["{}", '{"at":"sky"}', "", "[1]", '{"cut']) | _words,
)


@define
class Walk:
    """A session that is being made, move by move.

    `cuts` are the seqs after which an append ended. The moves follow from `seed` (drawn one by one they
    would all look alike), what they carry is drawn from hypothesis through `draw`.
    """

    draw: Draw[object]
    session: str
    seed: int
    state: State = field(default=EMPTY, init=False)
    records: list[Record] = field(factory=list, init=False)
    cuts: list[int] = field(factory=list, init=False)
    _random: Random = field(init=False)
    _history: History = field(factory=History, init=False)
    _at_us: int = field(default=START_US, init=False)

    def __attrs_post_init__(self) -> None:
        self._random = Random(self.seed)
        origin = self._drawn(st.sampled_from([0, 0, 0, 1, 2]))
        link = self._drawn(st.sampled_from(_links))
        created = SessionCreated(uid=f"uid of {self.session}", title=self._drawn(_brief), origin_turn=origin, **link)
        task = [self._drawn(_tasks), *self._granted()] if self._random.random() < 0.3 else []
        self.append(created, *task)

    def move(self) -> None:
        """Make one of the moves that are possible now."""
        self.append(*self._random.choice(list(self._moves()))())

    def append(self, *events: Event) -> None:
        """Let `events` follow as one append."""
        for event in events:
            place = placed(self.state, event)
            epoch = self.state.epoch + isinstance(event, (SessionCreated, SessionOpened))
            seq = len(self.records) + 1
            check(self.state, event, epoch, place)
            check_replacement(event, self._history)
            self.state = fold(self.state, event, seq, epoch, self._at_us)
            self._history.add(event, seq)
            self.records.append(
                Record(
                    session=self.session,
                    seq=seq,
                    at_us=self._at_us,
                    turn=place[0],
                    step=place[1],
                    epoch=epoch,
                    event=event,
                    ignorable=isinstance(event, UnknownEvent),
                )
            )
        self._at_us += self._drawn(_jump_us)
        self.cuts.append(len(self.records))

    def _drawn(self, strategy: st.SearchStrategy[T]) -> T:
        value: T = self.draw(strategy)  # type: ignore[arg-type,assignment]
        return value

    def _moves(self) -> Iterator[Callable[[], tuple[Event, ...]]]:
        """The moves that are legal now; the likelier ones several times."""
        state = self.state
        if self._random.random() < 0.02:
            yield from [self._repair] * 3
        if state.epoch == 0 or state.closed:
            yield self._reopen
            return
        yield from (self._accept, self._accept, self._take_letter, self._ignorable, self._reopen)
        if state.unsettled:
            yield self._settle
        if state.compaction:
            yield from (*[self._end_compaction] * 6, self._reopen, self._accept)
            return
        if self._may_compact():
            yield self._compact
        if state.task and not state.task.ended:
            yield from (self._move_task, self._move_task, self._amend, self._resync)
            if state.turn_open and state.step is None:
                yield self._check_goal
        if state.account:
            yield from (self._grant, self._alert, self._degrade)
        elif self._random.random() < 0.02:
            yield self._grant
        if self._random.random() < 0.2:
            yield self._set_timer
        if state.timers:
            yield from (self._fire, self._fire, self._cancel_timer)
        if state.task and (place := self._checkpoint_level()):
            yield from [partial(self._checkpoint, place)] * 2
        if self._random.random() < 0.1:
            yield from (self._fault, *([self._decide] if state.questions else []))
        if state.next_turn or state.next_step:
            yield from (self._edit, self._withdraw)
        if not state.turn_open:
            yield from (self._close, *[self._open_turn] * 6)
        elif state.step is None:
            yield from (self._end_turn, *[self._open_step] * 5)
        elif state.step.phase == "open":
            yield from (self._cut_off, self._answer, self._answer, self._fail, self._fail, self._fail)
            yield from (*[self._stream] * 6, *[self._call_tools] * 5)
        else:
            yield self._add_context
            yield from self._moves_in_settled_step(state)

    def _may_compact(self) -> bool:
        step = self.state.step
        return bool(self._covered()) and not (step and (step.phase == "open" or step.unanswered))

    def _compact(self) -> tuple[Event, ...]:
        """A compaction begins, and ends at once or is left open."""
        old = self._covered()
        rows = sorted({place[0] for place, _ in old})
        first, last = sorted((self._drawn(st.sampled_from(rows)), self._drawn(st.sampled_from(rows))))
        header, instruction = self.state.header, self._drawn(_words)
        start = CompactionStart(
            level=self._drawn(st.sampled_from(["prune", "summarise"])) if header else "prune",
            from_seq=first,
            to_seq=last,
            tokens_before=self._drawn(st.integers(0, 10**6)),
            compactor="compaction",
            model=self._drawn(st.sampled_from(["", "fake:model"])),
            instruction=instruction,
            sha256=self._request(header.head).asking(instruction, self._history.until(last))[1] if header else "",
        )
        return (start, *(self._compacted(start) if self._drawn(st.booleans()) else ()))

    def _end_compaction(self) -> tuple[Event, ...]:
        assert self.state.compaction is not None, "asked for an open one only"
        return self._compacted(self.state.compaction)

    def _compacted(self, start: CompactionStart) -> tuple[Event, ...]:
        """The end of a compaction, and before it what it comes to, if it does."""
        outcome = self._drawn(st.sampled_from(["done", "done", "failed", "not_smaller"]))
        end = CompactionEnd(
            outcome=outcome,
            tokens_after=self._drawn(st.integers(0, 10**6)),
            message=self._drawn(_words),
            input_tokens=self._drawn(st.sampled_from([0, 7])),
            charge=self._drawn(st.sampled_from([0, 0, 90])),
            price=self._drawn(_prices),
        )
        if outcome != "done":
            return (end,)
        if start.level == "summarise":
            content = (self._drawn(_text_blocks),)
            place = {"replaces_from": start.from_seq, "replaces_to": start.to_seq}
            return (UserMessage(message_id="summary", content=content, source="summary", **place), end)
        results = [
            evolve(
                message,
                content=(TextBlock(text="short"),),
                replaces=self._history.row(place),
                duration_us=0,
                spill=None,
                facts=(),
            )
            for place, message in self._covered()
            if isinstance(message, ToolResult) and start.from_seq <= place[0] <= start.to_seq
        ]
        return (*results[: self._drawn(st.integers(0, 3))], end)

    def _covered(self) -> list[tuple[Place, Message]]:
        """The messages that a compaction may cover now."""
        before = self.state.step.seq if self.state.step else len(self.records) + 1
        return [(place, message) for place, message in self._history.since(0) if place[0] < before]

    def _moves_in_settled_step(self, state: State) -> Iterator[Callable[[], tuple[Event, ...]]]:
        step = state.step
        assert step is not None, "asked inside a step only"
        if step.unanswered:
            yield from (*[self._start_calls] * 4, *[self._answer_call] * 5)
            if any(call.started for call in step.unanswered):
                yield self._report
            if self._askable():
                yield from [self._ask] * 2
            if self._resumable():
                yield from [self._resume] * 3
            if state.questions:
                yield from [self._decide] * 4
            if self._may_spawn():
                yield from [self._spawn] * 2
            return
        yield from [self._end_step] * (5 if step.phase == "answered" else 1)
        if step.phase in ("none", "failed"):
            yield from (self._change_head, *[self._send] * 8)
        if step.phase == "failed" and step.retry is None:
            yield self._retry

    def _reopen(self) -> tuple[Event, ...]:
        plugins = self._drawn(st.sampled_from([(), (PluginVersion(name="files", version="1"),)]))
        lock = self.state.lock + self._drawn(st.integers(0, 1))
        pid = self._drawn(st.integers(1, 9))
        return (SessionOpened(pid=pid, host="h", kernel_version="0", plugins=plugins, lock=lock),)

    def _close(self) -> tuple[Event, ...]:
        return (SessionClosed(),)

    def _repair(self) -> tuple[Event, ...]:
        dropped = self._drawn(st.integers(0, 9))
        return (SessionRepaired(repair="r", rule="hash-chain", detail=self._drawn(_words), dropped=dropped),)

    def _ignorable(self) -> tuple[Event, ...]:
        return (self._drawn(_unknown),)

    def _accept(self) -> tuple[Event, ...]:
        slot: Slot = self._drawn(st.sampled_from(["next_turn", "next_step"]))
        content = self._drawn(st.lists(_given_blocks, min_size=1, max_size=2).map(tuple))
        message_id = f"m{len(self.records)}"
        return (
            InboxSplice(
                slot=slot,
                start=len(self.state.slot(slot)),
                message_id=message_id,
                cause="accepted",
                content=content,
                source=self._drawn(_sources),
                wakes=self._drawn(st.booleans()),
            ),
        )

    def _take_letter(self) -> tuple[Event, ...]:
        """A letter is taken: its message enters the inbox, or nothing comes of it."""
        taken = LetterTaken(
            letter_id=f"letter {len(self.records)}",
            verb=self._drawn(st.sampled_from(["steer", "approve", "cancel"])),
            outcome=self._drawn(st.sampled_from(["obeyed", "repeated", "refused"])),
            reason=self._drawn(_words),
        )
        return (*self._accept(), taken) if taken.outcome == "obeyed" else (taken,)

    def _move_task(self) -> tuple[Event, ...]:
        assert self.state.task is not None, "asked for a task only"
        following = FOLLOWING[self.state.task.state] - (ENDED if self.state.turn_open else frozenset())
        moved = TaskState(
            state=self._drawn(st.sampled_from(sorted(following))),
            cause=self._drawn(_brief),
            message=self._drawn(_words),
            goal_met=self._drawn(st.none() | st.booleans()),
            resume_at_us=self._drawn(st.none() | st.just(START_US)),
        )
        return (moved,)

    def _granted(self) -> tuple[BudgetGranted, ...]:
        """Some cards, some of them again."""
        return self._drawn(st.lists(_grants, max_size=3).map(tuple))

    def _grant(self) -> tuple[Event, ...]:
        return (self._drawn(_grants), *self._granted())

    def _alert(self) -> tuple[Event, ...]:
        return (self._drawn(_alerts),)

    def _degrade(self) -> tuple[Event, ...]:
        return (self._drawn(_moves),)

    def _check_goal(self) -> tuple[Event, ...]:
        assert self.state.task is not None, "asked for a task only"
        missing = self._drawn(_words)
        checked = GoalChecked(
            check=self.state.task.submitted.goal_check, met=not missing, missing=missing, plugin="p", plugin_version="1"
        )
        return (checked,)

    def _checkpoint_level(self) -> CheckpointLevel | None:
        """The level of the checkpoints that may stand here."""
        state = self.state
        if state.step:
            return "heavy" if state.step.phase == "answered" else None
        return "light" if state.turn_open else "archive"

    def _checkpoint(self, level: CheckpointLevel) -> tuple[Event, ...]:
        """A checkpoint that says what the log says, or one that does not."""
        assert self.state.task is not None, "asked for a task only"
        written = checkpoints.checkpoint(self.state, level, "observe", next_to_do=self._drawn(_brief))
        wrong = self._drawn(st.sampled_from([{}, {}, {}, {"steps": 999}, {"history": "ab"}, {"fingerprint": ""}]))
        return (evolve(written, **wrong),)

    def _resync(self) -> tuple[Event, ...]:
        task = self.state.task
        assert task is not None, "asked for a task only"
        resynced = TaskResynced(
            before=self._drawn(_brief),
            after=self._drawn(_brief),
            changed=self._drawn(st.sampled_from([(), ("goal",), ("system", "tools")])),
            refreshed=self._drawn(st.sampled_from([(), (Refresh(call_seq=9, came="same", answer="ab"),)])),
            checkpoint_seq=task.mark.seq if task.mark else None,
        )
        return (*checkpoints.skipped(self.state), resynced)

    def _amend(self) -> tuple[Event, ...]:
        return (TaskAmended(goal=self._drawn(_words), by=self._drawn(_brief)),)

    def _set_timer(self) -> tuple[Event, ...]:
        every_us = self._drawn(st.none() | st.sampled_from([1_000_000, 86_400_000_000]))
        bounds: dict[str, Any] = {}
        if every_us and self._drawn(st.booleans()):
            bounds = {
                "times": self._drawn(st.integers(1, 3)),
                "until_us": START_US + 10 ** self._drawn(st.integers(9, 13)),
            }
        return (
            TimerSet(
                timer=f"timer {len(self.records)}",
                due_us=START_US + self._drawn(st.integers(0, 10**9)),
                content=(self._drawn(_given_blocks),),
                every_us=every_us,
                by=self._drawn(_brief),
                **bounds,
            ),
        )

    def _fire(self) -> tuple[Event, ...]:
        timer = self.state.timers[self._drawn(st.sampled_from(sorted(self.state.timers)))]
        missed = self._drawn(st.integers(0, min(3, missed_by(timer, timer.due_us + 10**8))))
        return (firing(timer, missed), *self._accept())

    def _cancel_timer(self) -> tuple[Event, ...]:
        timer = self._drawn(st.sampled_from(sorted(self.state.timers)))
        return (TimerCancelled(timer=timer, by=self._drawn(_brief)),)

    def _edit(self) -> tuple[Event, ...]:
        slot, start, message_id = self._waiting()
        content = (self._drawn(_given_blocks),)
        return (InboxSplice(slot=slot, start=start, removed=1, message_id=message_id, cause="edited", content=content),)

    def _withdraw(self) -> tuple[Event, ...]:
        slot, start, message_id = self._waiting()
        cause = self._drawn(st.sampled_from(["withdrawn", "cancelled"]))
        return (InboxSplice(slot=slot, start=start, removed=1, message_id=message_id, cause=cause),)

    def _waiting(self) -> tuple[Slot, int, str]:
        slots: tuple[Slot, ...] = ("next_turn", "next_step")
        places = [(slot, start) for slot in slots for start in range(len(self.state.slot(slot)))]
        slot, start = self._drawn(st.sampled_from(places))
        return slot, start, self.state.slot(slot)[start].message_id

    def _open_turn(self) -> tuple[Event, ...]:
        if self._drawn(st.integers(0, 4)) == 0:
            return (TurnStart(),)
        return (TurnStart(), *self._claims())

    def _open_step(self) -> tuple[Event, ...]:
        return self._claims()

    def _claims(self) -> tuple[Event, ...]:
        """Some waiting messages, from the front or not, and the step they enter."""
        state, splices, entering = self.state, list[Event](), list[Event]()
        while (state.next_turn or state.next_step) and self._drawn(st.booleans()):
            slot: Slot = "next_step" if state.next_step else "next_turn"
            start = self._drawn(st.sampled_from([0, len(state.slot(slot)) - 1]))
            taken = state.slot(slot)[start]
            splice = InboxSplice(slot=slot, start=start, removed=1, message_id=taken.message_id, cause="claimed")
            state = fold(state, splice, 0, state.epoch)
            splices.append(splice)
            entering.append(UserMessage(message_id=taken.message_id, content=taken.content, source=taken.source))
        return (*splices, StepStart(), *entering)

    def _add_context(self) -> tuple[Event, ...]:
        # A plugin names its messages itself, so a name may also be one that waits in the inbox.
        message_id = self._drawn(st.sampled_from(["context", *(p.message_id for p in self.state.next_turn)]))
        content = self._drawn(st.lists(_text_blocks, min_size=1, max_size=2).map(tuple))
        section = self._drawn(st.sampled_from(["", "rules", "workspace"]))
        return (UserMessage(message_id=message_id, content=content, source="context", section=section),)

    def _end_turn(self) -> tuple[Event, ...]:
        reasons = ["completed", "aborted", "error", "max_tokens", "max_steps", "paused", "interrupted"]
        return (TurnEnd(reason=self._drawn(st.sampled_from(reasons)), message=self._drawn(_words)),)

    def _end_step(self) -> tuple[Event, ...]:
        if self._drawn(st.booleans()):
            return (StepEnd(), *self._end_turn())
        return (StepEnd(),)

    def _change_head(self) -> tuple[Event, ...]:
        texts = self._drawn(st.dictionaries(st.sampled_from(["system", "rules", "style"]), _brief, max_size=3))
        system, spans = joined(texts)
        head = evolve(self._drawn(_heads), system=system)
        return (RequestHeader(head=head, reason=self._drawn(st.sampled_from(["first", "model"])), sections=spans),)

    def _send(self) -> tuple[Event, ...]:
        header = () if self.state.header else self._change_head()
        state = self.state if self.state.header else fold(self.state, *header, len(self.records) + 1, 0)
        assert state.header is not None, "it was just made"
        assert state.step is not None, "requests are made inside a step"
        request = self._request(state.header.head)
        sent = RequestSent(
            attempt=state.step.attempt + 1,
            header_seq=state.header_seq,
            messages=len(request.messages),
            sha256=request.digest,
        )
        if state.account is None or not self._drawn(st.booleans()):
            return (*header, sent)
        built = ContextBuilt(
            attempt=sent.attempt,
            model=state.model,
            tokens=self._drawn(st.integers(0, 10**6)),
            head_tokens=self._drawn(st.integers(0, 9)),
            messages=sent.messages,
            most=self._drawn(st.none() | st.integers(1, 10**6)),
        )
        return (*header, built, sent)

    def _request(self, head: Head) -> EncodedRequest:
        request = EncodedRequest(head, FakeModel(()).encode)
        for place, message in self._history.since(0):
            request.add(place, message)
        return request

    def _attempt(self) -> int:
        assert self.state.step is not None, "attempts are made inside a step"
        return self.state.step.attempt

    def _stream(self) -> tuple[Event, ...]:
        pieces = st.builds(DeltaPiece, at_ms=st.sampled_from([0, 3, 50]), text=_words)
        return (
            AssistantDelta(
                attempt=self._attempt(),
                block=self._drawn(st.integers(0, 2)),
                type=self._drawn(st.sampled_from(["text", "text", "thinking", "tool_call"])),
                pieces=self._drawn(st.lists(pieces, min_size=1, max_size=3).map(tuple)),
            ),
        )

    def _answer(self) -> tuple[Event, ...]:
        content = self._drawn(st.lists(_text_blocks | _thinking_blocks, max_size=2).map(tuple))
        finish = self._drawn(st.sampled_from(["stop", "stop", "length", "refusal", "pause"]))
        return (self._message((*content, TextBlock(text="said")), finish),)

    def _call_tools(self) -> tuple[Event, ...]:
        before = self._drawn(st.lists(_text_blocks | _thinking_blocks, max_size=1).map(tuple))
        calls = self._drawn(st.lists(_call_blocks, min_size=1, max_size=4).map(tuple))
        return (self._message((*before, *calls), self._drawn(st.sampled_from(["tool_calls", "stop"]))),)

    def _cut_off(self) -> tuple[Event, ...]:
        return (self._message((TextBlock(text="half a wo"),), "interrupted"),)

    def _message(self, content: tuple[Block, ...], finish: str) -> AssistantMessage:
        tokens = st.sampled_from([0, 0, 1, 2**30]) | st.integers(0, 500)
        return AssistantMessage(
            attempt=self._attempt(),
            content=content,
            finish=finish,  # type: ignore[arg-type]
            input_tokens=self._drawn(tokens),
            output_tokens=self._drawn(tokens),
            cached_tokens=self._drawn(tokens),
            cache_write_tokens=self._drawn(tokens),
            price=self._drawn(_prices),
            replay=self._drawn(_brief),
            charge=self._drawn(st.sampled_from([0, 0, 700])),
        )

    def _fail(self) -> tuple[Event, ...]:
        failed = evolve(self._drawn(_failures), attempt=self._attempt())
        if self._drawn(st.booleans()):
            return (failed, RequestRetry(attempt=failed.attempt + 1, delay_ms=500))
        return (failed,)

    def _retry(self) -> tuple[Event, ...]:
        return (RequestRetry(attempt=self._attempt() + 1, delay_ms=0),)

    def _start_calls(self) -> tuple[Event, ...]:
        """Some of the calls that may start, as one batch; a result when there are none."""
        waiting = [
            call
            for call in self._unanswered()
            if call.started is None and not call.doubtful and (call.asked_seq is None or call.decision == "allowed")
        ]
        if not waiting:
            return self._answer_call()
        return tuple(map(self._started, self._drawn(st.lists(st.sampled_from(waiting), min_size=1, unique=True))))

    def _report(self) -> tuple[Event, ...]:
        """A call that runs says how far it is."""
        call = self._drawn(st.sampled_from([call for call in self._unanswered() if call.started]))
        assert call.started_seq is not None, "it was started"
        words = self._drawn(_words)
        return (
            ToolProgress(
                position=call.position, call_id=call.call_id, name=call.name, call_seq=call.started_seq, text=words
            ),
        )

    def _started(self, call: Call) -> ToolCall:
        state = self.state
        assert state.step is not None, "calls run inside their step"
        effect = self._drawn(st.sampled_from(get_args(Effect)))
        return ToolCall(
            position=call.position,
            call_id=call.call_id,
            name=call.name,
            arguments=call.arguments,
            invocation_id=f"{state.uid}.{state.turn}.{state.steps}.{call.position}",
            message_seq=state.step.message_seq,
            mode=self._drawn(st.sampled_from(["parallel", "exclusive"])),
            effect=effect,
            database="/shop.db" if effect == "transactional" else "",
            plugin="test",
            plugin_version="1",
        )

    def _ask(self) -> tuple[Event, ...]:
        """A question about a call that was not asked about since it was started, if it was."""
        call = self._drawn(st.sampled_from(self._askable()))
        assert self.state.step is not None, "calls run inside their step"
        return (
            ApprovalAsked(
                position=call.position,
                call_id=call.call_id,
                name=call.name,
                message_seq=self.state.step.message_seq,
                question=self._drawn(_words),
                guard=self._drawn(_brief),
                about="outcome" if call.started else "",
            ),
        )

    def _askable(self) -> list[Call]:
        return [
            call
            for call in self._unanswered()
            if call.asked_seq is None and (call.started is None or call.started_epoch < self.state.epoch)
        ]

    def _resumable(self) -> list[Call]:
        """The calls that an earlier owner started and this one may start again."""
        return [
            call
            for call in self._unanswered()
            if call.started
            and call.started_epoch < self.state.epoch
            and (
                call.decision == "not_done"
                if call.asked_seq
                else not call.outlived or call.started.effect in REPEATABLE
            )
        ]

    def _resume(self) -> tuple[Event, ...]:
        """A call that starts again."""
        call = self._drawn(st.sampled_from(self._resumable()))
        assert call.started is not None, "only a started one starts again"
        reasons: list[Resumed] = ["answered"] if call.decision == "not_done" else []
        if call.asked_seq is None and not call.outlived:
            reasons.append("reconciled")
        if call.asked_seq is None and call.started.effect in REPEATABLE:
            reasons.append("repeatable")
        resumed = self._drawn(st.sampled_from(reasons))
        effect = call.started.effect if resumed == "repeatable" else self._drawn(st.sampled_from(["read", "write"]))
        return (evolve(call.started, resumed=resumed, effect=effect, database="", mode="parallel"),)

    def _decide(self) -> tuple[Event, ...]:
        """An answer to any question so far, in time or late; only an open one can be cancelled."""
        asked_seq = self._drawn(st.sampled_from(sorted(self.state.questions)))
        decisions = ["allowed", "allowed", "denied"]
        if asked_seq in self.state.outcome_questions:
            decisions = ["done", "not_done", "not_done", "unknown"]
        if asked_about(self.state, asked_seq):
            decisions.append("cancelled")
        decision = self._drawn(st.sampled_from(decisions))
        return (ApprovalDecided(asked_seq=asked_seq, decision=decision, by=self._drawn(_brief)),)

    def _may_spawn(self) -> list[ToolCall]:
        """The started calls that may give a child a task."""
        calls = [call.started for call in self._unanswered() if call.started]
        return [call for call in calls if call.invocation_id not in self.state.assigned]

    def _spawn(self) -> tuple[Event, ...]:
        """A task for a new child, or for one that had another."""
        call = self._drawn(st.sampled_from(self._may_spawn()))
        settled = [c for c, task in self.state.children.items() if task.background and c not in self.state.unsettled]
        child = self._drawn(st.sampled_from([f"{self.session}/{len(self.records)}", *settled]))
        return (
            SubagentSpawned(
                child=child,
                subagent=self._drawn(_brief),
                depth=self.state.depth + 1,
                invocation_id=call.invocation_id,
                task=self._drawn(_words),
                background=child in settled or self._drawn(st.booleans()),
                steps_per_turn=self._drawn(st.integers(0, 9)),
                until_us=self._drawn(st.sampled_from([0, 1_700_000_000_000_000])),
                tokens=self._drawn(st.none() | st.integers(0, 99)),
                lent=self._drawn(st.lists(_loans, max_size=2).map(tuple)),
            ),
        )

    def _settle(self) -> tuple[Event, ...]:
        child = self._drawn(st.sampled_from(self.state.unsettled))
        settled = SubagentSettled(
            child=child,
            invocation_id=self.state.children[child].invocation_id,
            reason=self._drawn(st.sampled_from(["completed", "aborted", "error", "max_steps", "interrupted"])),
            result=self._drawn(_words),
            charged=self._drawn(st.sampled_from([0, 0, 40])),
        )
        lent = {loan.card for loan in self.state.children[child].lent} if self.state.account else ()
        charged = (
            BudgetCharged(card=card, amount=self._drawn(st.integers(1, 9)), invocation_id=settled.invocation_id)
            for card in lent
        )
        return (*charged, settled, *(self._accept() if self.state.children[child].background else ()))

    def _fault(self) -> tuple[Event, ...]:
        return (PluginFault(plugin="p", hook=self._drawn(_brief), error=self._drawn(_words)),)

    def _answer_call(self) -> tuple[Event, ...]:
        """The result of any unanswered call, whether it was started or not."""
        call = self._drawn(st.sampled_from(self._unanswered()))
        started = ["ok", "ok", "error", "aborted", "unknown", "timeout"]
        outcome = self._drawn(st.sampled_from(started if call.started else ["error", "not_started", "denied"]))
        assert self.state.step is not None, "calls are answered inside their step"
        return (
            ToolResult(
                position=call.position,
                call_id=call.call_id,
                name=call.name,
                message_seq=self.state.step.message_seq,
                outcome=outcome,
                content=self._drawn(st.lists(_given_blocks, max_size=2).map(tuple)),
                call_seq=call.started_seq,
                duration_us=self._drawn(st.integers(0, 10**6)) if call.started else 0,
                facts=self._drawn(_facts) if outcome in ("ok", "error") else (),
            ),
        )

    def _unanswered(self) -> Sequence[Call]:
        assert self.state.step is not None, "calls stand inside their step"
        return self.state.step.unanswered
