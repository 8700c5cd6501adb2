"""The flight log for people: one line an event, runs of streamed deltas as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from attrs import frozen

from flightlog.cli.answered import LATE, Answered
from flightlog.cli.files import said
from flightlog.cli.output import Output
from flightlog.cli.terminal_text import arguments, clock_time, counted, duration, ends, moment, one_line
from flightlog_hookspecs.content import ToolCallBlock, text_of
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
    Record,
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
    UnknownEvent,
    UserMessage,
)

_STYLES: Final = {
    "session": "dim",
    "inbox": "magenta",
    "letter": "magenta",
    "turn": "bold",
    "step": "dim",
    "user": "magenta",
    "request": "blue",
    "assistant": "green",
    "tool": "yellow",
}


_COLUMNS: Final = 45
"""What stands before the description of an event."""
_DESCRIPTION_MAX_CHARS: Final = 72


@frozen(kw_only=True)
class Entry:
    """One line of the timeline: a record, or a run of deltas of one block, which ends at `last_seq`.

    `deltas` are the pieces of the whole run.
    """

    record: Record
    last_seq: int
    deltas: tuple[str, ...] = ()


def condensed(records: Iterable[Record]) -> Iterator[Entry]:
    """The entries of `records`, in order, consecutive deltas of one block as one entry."""
    run: list[Record] = []
    for record in records:
        if run and not _continues(run[-1].event, record.event):
            yield _entry(run)
            run = []
        run.append(record)
    if run:
        yield _entry(run)


def separate(records: Iterable[Record]) -> Iterator[Entry]:
    """One entry a record."""
    return (_entry([record]) for record in records)


def show_entries(entries: Iterable[Entry], output: Output) -> None:
    """Print `entries` in columns: rows, time, turn and step, kind, what happened."""
    show_head(output)
    answered = Answered()
    for entry in entries:
        show_entry(entry, output, answered)


def show_head(output: Output) -> None:
    """Print the names of the columns."""
    output.line((f"{'row':>7} {'time (UTC)':12} {'step':>4} {'event':18} what", "dim"), fit=output.is_terminal)


def show_entry(entry: Entry, output: Output, answered: Answered) -> None:
    """Print one entry, which follows those that `answered` knows of."""
    width = max(20, output.console.width - _COLUMNS) if output.is_terminal else _DESCRIPTION_MAX_CHARS
    record = entry.record
    rows = str(record.seq) if entry.last_seq == record.seq else f"{record.seq}-{entry.last_seq}"
    place = ".".join(str(number) for number in (record.turn, record.step) if number is not None)
    kind = one_line(record.event.kind, 18)
    what = _streamed(entry.deltas, width) if entry.deltas else described(record.event, width)
    if answered.is_late(record.event):
        what = f"{what} \u00b7 {LATE}"
    output.line(
        f"{rows:>7} ",
        (f"{clock_time(record.at_us):12} ", "dim"),
        f"{place:>4} ",
        (f"{kind:18} " if what else kind, _STYLES.get(kind.partition("/")[0], "")),
        what,
        fit=output.is_terminal,
    )


def described(event: Event, width: int = _DESCRIPTION_MAX_CHARS) -> str:
    """What happened, on one line; texts are shown by their beginning and end where `width` is short."""
    match event:
        case SessionCreated():
            return one_line(event.title)
        case SessionOpened():
            return one_line(f"process {event.pid} on {event.host}, flightlog {event.kernel_version}")
        case SessionRepaired():
            return f"{counted(event.dropped, 'row')} left out ({one_line(event.rule)}): {one_line(event.detail)}"
        case InboxSplice(content=None):
            return f"{event.cause}, leaves {event.slot}"
        case InboxSplice():
            return f"{event.cause}, enters {event.slot}: {said(event.content or ())}"
        case LetterTaken():
            return _listed(event.verb, event.outcome, event.reason)
        case TurnEnd():
            return _listed(event.reason, event.cause, event.code, event.message)
        case UserMessage():
            return said(event.content)
        case RequestHeader():
            return f"{one_line(event.head.adapter)}:{one_line(event.head.model)} ({event.reason})"
        case RequestSent():
            sent = counted(event.messages, "message")
            return f"attempt {event.attempt}, {sent}, sha256 {event.sha256[:12]}"
        case RequestFailed():
            return f"attempt {event.attempt}, {event.failure}: {one_line(event.message)}"
        case RequestRetry():
            return f"attempt {event.attempt} follows {announced(event)}"
        case AssistantDelta():
            return _streamed([piece.text for piece in event.pieces], width)
        case AssistantMessage():
            wanted = [one_line(block.name) for block in event.content if isinstance(block, ToolCallBlock)]
            outcome = f"calls {', '.join(wanted)}: " if wanted else f"{event.finish}: "
            return outcome + ends(event.text, max(12, width - len(outcome)))
        case ToolCall():
            return f"{one_line(event.name)}({arguments(event.arguments)})"
        case ToolProgress():
            return f"{one_line(event.name)}: {one_line(event.text)}"
        case ToolResult():
            return f"{event.outcome}: {said(event.content)}"
        case ApprovalAsked():
            about = " (how it ended)" if event.about == "outcome" else ""
            return f"{one_line(event.name)}{about}: {one_line(event.question)}"
        case ApprovalDecided():
            return _listed(f"row {event.asked_seq}", event.decision, f"by {event.by}", event.reason)
        case SubagentSpawned():
            return f"{one_line(event.child)}: {one_line(event.task)}"
        case SubagentSettled():
            return _listed(event.child, event.reason, event.result)
        case TimerSet() | TimerFired() | TimerCancelled():
            return _of_timer(event)
        case TaskSubmitted() | TaskAmended():
            return one_line(event.goal)
        case TaskState():
            again = f"until {moment(event.resume_at_us)}" if event.resume_at_us else ""
            return _listed(event.state, event.cause, event.message, again)
        case GoalChecked():
            return _listed(event.check, "met" if event.met else "not met", event.missing)
        case BudgetGranted() | BudgetCharged() | BudgetAlert() | BudgetDegraded() | ContextBuilt():
            return _of_budget(event)
        case PluginLoaded() | PluginUnloaded():
            return one_line(f"{event.plugin} {event.version}")
        case PluginFault():
            return _listed(event.plugin, event.hook, event.error)
        case CompactionStart():
            by = f" by {one_line(event.model)}" if event.model else ""
            about = f"rows {event.from_seq} to {event.to_seq}{by}, about {counted(event.tokens_before, 'token')} in all"
            return f"{event.level}: {about}"
        case CompactionEnd():
            shorter = f"about {counted(event.tokens_after, 'token')} in all" if event.outcome == "done" else ""
            return _listed(event.outcome, event.message, shorter)
        case CheckpointWritten():
            said_of_it = f"{event.level}, {event.phase}, {counted(event.steps, 'step')}: {one_line(event.summary)}"
            return said_of_it.rstrip(": ")
        case CheckpointSkipped():
            return f"row {event.checkpoint_seq}: {one_line(event.why)}"
        case TaskResynced():
            news = sum(each.came == "changed" for each in event.refreshed)
            changed = one_line(", ".join(event.changed)) or "nothing"
            return f"changed: {changed}; {counted(len(event.refreshed), 'read')} again, {news} with another answer"
        case UnknownEvent():
            return one_line(event.data)
        case _:
            return ""


def _of_timer(event: TimerSet | TimerFired | TimerCancelled) -> str:
    match event:
        case TimerSet():
            again = f"every {duration(event.every_us)}" if event.every_us else ""
            return _listed(event.timer, f"due {moment(event.due_us)}", again, text_of(event.content))
        case TimerFired():
            missed = f"{counted(event.missed, 'run')} missed" if event.missed else ""
            return _listed(event.timer, missed, f"again {moment(event.next_us)}" if event.next_us else "")
        case TimerCancelled():
            return _listed(event.timer, event.by and f"by {event.by}")


def _of_budget(event: BudgetGranted | BudgetCharged | BudgetAlert | BudgetDegraded | ContextBuilt) -> str:
    match event:
        case BudgetGranted():
            return _listed(f"{event.card} {event.most}", event.by and f"by {event.by}")
        case BudgetCharged():
            return f"{one_line(event.card)} {event.amount}"
        case BudgetAlert():
            then = {"goes_on": "", "shed": "the call is left out", "pauses": "it pauses"}[event.then]
            return _listed(event.level, event.message or f"{event.card}: {event.used} of {event.most} are used", then)
        case BudgetDegraded():
            return _listed(event.move, event.reason, event.model, *event.put_off)
        case ContextBuilt():
            fits = f" of {event.most}" if event.most is not None else ""
            return f"attempt {event.attempt}, about {event.tokens}{fits} tokens in {counted(event.messages, 'message')}"


def _listed(*parts: str) -> str:
    return " \u00b7 ".join(one_line(part) for part in parts if part)


def announced(event: RequestRetry) -> str:
    """When the attempt is made, and with which other model, if it is."""
    when = f"in {duration(event.delay_ms * 1000)}" if event.delay_ms else "at once"
    return f"{when} with {one_line(event.model)}" if event.model else when


def _continues(one: Event, other: Event) -> bool:
    return (
        isinstance(one, AssistantDelta)
        and isinstance(other, AssistantDelta)
        and (one.attempt, one.block, one.type) == (other.attempt, other.block, other.type)
    )


def _entry(run: list[Record]) -> Entry:
    deltas = [record.event for record in run if isinstance(record.event, AssistantDelta)]
    return Entry(
        record=run[0],
        last_seq=run[-1].seq,
        deltas=tuple(piece.text for delta in deltas for piece in delta.pieces),
    )


def _streamed(pieces: Sequence[str], width: int) -> str:
    number = f"{len(pieces)}\u00d7 "
    return number + ends("".join(pieces), max(12, width - len(number)))
