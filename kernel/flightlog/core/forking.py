"""A fork: what the model saw in the completed turns of a session, as the log of a session of its own.

Kept are the messages with their brackets and numbers, the heads, the tool calls and, of each step's
requests, the answered one as attempt 1; and where the context was made shorter, that it was. The inbox,
deltas, failed attempts, questions to people and owners stay behind. So a fork's next request begins with the
same bytes as the next one of its origin would.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from flightlog.core.account import granted
from flightlog.core.fold import fold, folded, placed
from flightlog.core.invariants import check
from flightlog.core.state import EMPTY, State
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import (
    AssistantMessage,
    BudgetGranted,
    CheckpointWritten,
    CompactionEnd,
    CompactionStart,
    ContextBuilt,
    Event,
    Record,
    RequestHeader,
    RequestSent,
    SessionClosed,
    SessionCreated,
    SessionOpened,
    StepEnd,
    StepStart,
    TaskSubmitted,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    UserMessage,
)

_AS_THEY_ARE = (TurnStart, TurnEnd, StepStart, StepEnd, UserMessage, RequestHeader)


def forked(
    source: Iterable[Record], turn: int, session: str, created: SessionCreated, opened: SessionOpened, at_us: int
) -> tuple[Record, ...]:
    """The whole log of `session`, a fork of the session with the records `source` at the end of `turn`.

    `source` is legal and is read as far as that end. Raises `UsageError` when it is not reached.
    """
    fork = _Fork(session)
    fork.add(created, at_us)
    fork.add(opened, at_us)
    completed = 0
    for record in source:
        fork.take(record)
        if isinstance(record.event, TurnEnd):
            completed = record.turn or 0
            if completed == turn:
                fork.add(SessionClosed(), at_us)
                return tuple(fork.records)
    raise UsageError(
        f"session {created.origin_session!r} has {completed} completed turns, so it cannot be forked "
        f"at the end of turn {turn}"
    )


def forked_task(
    source: Iterable[Record], checkpoint: int, session: str, created: SessionCreated, opened: SessionOpened, at_us: int
) -> tuple[Record, ...]:
    """The whole log of task `session`, a fork of the task with the records `source` at the checkpoint in that row.

    It has the goal and the limits that held there and the steps that were finished by then; a turn that was open is
    interrupted. `source` is legal and is read as far as that row. Raises `UsageError` when no checkpoint stands there,
    and when no step was finished before.
    """
    name, records = created.origin_session, list[Record]()
    for record in source:
        records.append(record)
        if record.seq == checkpoint:
            break
    if not records or not isinstance(records[-1].event, CheckpointWritten):
        raise UsageError(f"row {checkpoint} of {name!r} is no checkpoint of a task")
    finished = [record for record in records if isinstance(record.event, (StepEnd, TurnEnd))]
    if not finished:
        raise UsageError(
            f"no step of task {name!r} was finished before checkpoint {checkpoint}: submit it anew instead"
        )
    last = finished[-1]
    fork = _Fork(session)
    fork.add(evolve(created, origin_turn=last.turn or 0), at_us)
    for event in _submitted_as_of(records):
        fork.add(event, at_us)
    fork.add(opened, at_us)
    for record in records[: last.seq]:
        fork.take(record)
    if isinstance(last.event, StepEnd):
        fork.add(TurnEnd(reason="interrupted", message="the task was forked here"), at_us)
    fork.add(SessionClosed(), at_us)
    return tuple(fork.records)


def _submitted_as_of(records: Iterable[Record]) -> tuple[TaskSubmitted | BudgetGranted, ...]:
    """The task of these records as it would be submitted at their end: with goal and budget of then, due at once."""
    state = folded(records)
    task = state.task
    assert task is not None, "legality: only tasks have checkpoints"
    submitted = evolve(task.submitted, goal=task.goal, parameters=task.parameters, due_us=None)
    return (submitted, *granted(state.account))


class _Fork:
    def __init__(self, session: str) -> None:
        self.records: list[Record] = []
        self._session = session
        self._state: State = EMPTY
        self._moved: dict[int, int] = {}  # rows of the source -> rows of the fork
        self._built: ContextBuilt | None = None  # that of the open attempt
        self._sent: Record | None = None  # the open attempt, kept once it is answered
        self._shortens: Record | None = None  # the open compaction, kept once something is replaced

    def take(self, record: Record) -> None:
        """Take over a row of the source, if the model sees it or it brackets what the model sees."""
        match record.event:
            case RequestSent():
                self._sent = record
                return
            case ContextBuilt() as built:
                self._built = built
                return
            case CompactionStart():
                self._shortens = record
                return
            case AssistantMessage() as message:
                self._take_sent()
                event: Event = evolve(message, attempt=1)
            case ToolCall(resumed=resumed) as call if resumed:
                self._moved[record.seq] = self._start_of(call)
                return
            case ToolCall() as call:
                event = evolve(call, message_seq=self._moved[call.message_seq])
            case ToolResult() as result:
                self._take_shortens(result.replaces)
                event = evolve(
                    result,
                    message_seq=self._moved[result.message_seq],
                    call_seq=self._there(result.call_seq),
                    replaces=self._there(result.replaces),
                )
            case UserMessage(replaces_from=int(first), replaces_to=last) as summary:
                self._take_shortens(first)
                event = evolve(summary, replaces_from=self._there(first), replaces_to=self._there(last))
            case CompactionEnd() as end if self._state.compaction:
                event = end
            case kept if isinstance(kept, _AS_THEY_ARE):
                event = kept
            case _:
                return
        self.add(event, record.at_us)
        self._moved[record.seq] = len(self.records)

    def add(self, event: Event, at_us: int) -> None:
        """Let `event` follow."""
        place, seq = placed(self._state, event), len(self.records) + 1
        epoch = self._state.epoch + isinstance(event, (SessionCreated, SessionOpened))
        check(self._state, event, epoch, place)
        self._state = fold(self._state, event, seq, epoch, at_us)
        turn, step = place
        self.records.append(
            Record(session=self._session, seq=seq, at_us=at_us, turn=turn, step=step, epoch=epoch, event=event)
        )

    def _start_of(self, again: ToolCall) -> int:
        """The row of the fork that a call was started in; here it had one owner, and needs no other start."""
        step = self._state.step
        assert step is not None, "legality: calls stand inside their step"
        seq = step.calls[again.position].started_seq
        assert seq is not None, "legality: only a started call starts again"
        return seq

    def _there(self, row: int | None) -> int | None:
        return None if row is None else self._moved[row]

    def _take_shortens(self, replaces: int | None) -> None:
        """Let the compaction begin by which something replaces row `replaces`, if it does and has not begun."""
        if replaces is None or self._state.compaction:
            return
        assert self._shortens is not None, "legality: nothing is replaced outside of a compaction"
        start = self._shortens.event
        assert isinstance(start, CompactionStart), "nothing else is kept there"
        first, last = self._moved[start.from_seq], self._moved[start.to_seq]
        self.add(evolve(start, from_seq=first, to_seq=last), self._shortens.at_us)

    def _take_sent(self) -> None:
        assert self._sent is not None, "legality: an answer names the open attempt"
        sent = self._sent.event
        assert isinstance(sent, RequestSent), "nothing else is kept there"
        if self._built is not None and self._state.account is not None:
            self.add(evolve(self._built, attempt=1), self._sent.at_us)
        self.add(evolve(sent, attempt=1, header_seq=self._moved[sent.header_seq]), self._sent.at_us)
