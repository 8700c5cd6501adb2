"""The public views once more, as pure functions: what `views.sql` says, said in Python.

Each takes the records of one or several sessions in the order in which they were written, deltas
with their pieces, and returns the rows of the view in the view's column order. `messages`, `inbox`
and `timeline` come in the order of their views; of the others the order says nothing. Tests hold the
two against each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, TypeVar

from flightlog.core.account import EMPTY as EMPTY_ACCOUNT
from flightlog.core.account import Account, counted
from flightlog.core.budget import ONE_CALL
from flightlog.core.canonical import displayed
from flightlog.core.history import Place, place_of
from flightlog.core.limits import BLOB_MIN_BYTES, EXCERPT_CHARS
from flightlog_hookspecs.content import text_of
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
    RequestSent,
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
    UserMessage,
)

Records = Sequence[Record]
Row = tuple[object, ...]
E = TypeVar("E")

_TIMELINE_CHARS: Final = 80


def sessions(records: Records) -> list[Row]:
    """(session, uid, title, created_at, last_at, last_seq, epoch, last_turn, last_reason, parent, depth)."""
    newest = {row[0]: (row[1], row[5]) for row in turns(records)}
    last = {record.session: record for record in records}
    return [
        (
            first.session,
            event.uid,
            displayed(event.title),
            first.at_us,
            last[first.session].at_us,
            last[first.session].seq,
            last[first.session].epoch,
            *newest.get(first.session, (None, None)),
            displayed(event.parent_session) or None,
            event.depth,
        )
        for first, event in _of(records, SessionCreated)
    ]


def turns(records: Records) -> list[Row]:
    """(session, turn, seq, started_at, ended_at, reason, message)."""
    ended: dict[Row, Row] = {
        (end.session, end.turn): (end.at_us, event.reason, _shown(event)) for end, event in _of(records, TurnEnd)
    }
    return [
        (start.session, start.turn, start.seq, start.at_us, *ended.get((start.session, start.turn), _OPEN_TURN))
        for start, _ in _of(records, TurnStart)
    ]


def steps(records: Records) -> list[Row]:
    """(session, turn, step, seq, started_at, ended_at)."""
    ended = {_step(end): end.at_us for end, _ in _of(records, StepEnd)}
    return [(*_step(start), start.seq, start.at_us, ended.get(_step(start))) for start, _ in _of(records, StepStart)]


def messages(records: Records) -> list[Row]:
    """(session, place, position, seq, turn, step, kind, role, message_id, call_id, name, status, text, message).

    In the last column stands the message itself, where the view has the codec's `data`.
    """
    order = _order(records)
    placed = [(place, record) for record in records if (place := place_of(record.event, record.seq))]
    replacing = [(place, record) for place, record in placed if _replaces(record.event)]
    placed = [entry for entry in placed if not any(_covers(newer, *entry) for newer in replacing)]
    placed.sort(key=lambda entry: (order[entry[1].session], *entry[0]))
    return [
        (
            record.session,
            place[0],
            record.event.position if isinstance(record.event, ToolResult) else None,
            *(record.seq, record.turn, record.step, record.event.kind, _role(record.event)),
            displayed(record.event.message_id) if isinstance(record.event, UserMessage) else None,
            displayed(record.event.call_id) if isinstance(record.event, ToolResult) else None,
            *(_name(record.event), _status(record.event), _words(record.event), record.event),
        )
        for place, record in placed
    ]


def inbox(records: Records) -> list[Row]:
    """(session, seq, slot, message_id, at, text)."""
    waiting: dict[Row, Row] = {}
    for record, event in _of(records, InboxSplice):
        key = (record.session, event.message_id)
        if event.content is None:
            del waiting[key]
        else:  # an edited one keeps its place
            shown = (displayed(event.message_id), record.at_us, _shown(event))
            waiting[key] = (record.session, record.seq, event.slot, *shown)
    order = _order(records)
    return sorted(waiting.values(), key=lambda row: (order[row[0]], row[2]))


def requests(records: Records) -> list[Row]:
    """(session, turn, step, attempt, seq, sent_at, model, header_seq, purpose, outcome, settled_at)."""
    models = {(header.session, header.seq): _name(event) for header, event in _of(records, RequestHeader)}
    settled: dict[Row, Row] = {}
    for end, failure in _of(records, RequestFailed):
        settled[*_step(end), failure.attempt] = (failure.failure, end.at_us)
    for end, answer in _of(records, AssistantMessage):
        settled[*_step(end), answer.attempt] = ("answered", end.at_us)
    return [
        (
            *(*_step(sent), event.attempt, sent.seq, sent.at_us),
            *(models[sent.session, event.header_seq], event.header_seq, _status(event)),
            *settled.get((*_step(sent), event.attempt), ("open", None)),
        )
        for sent, event in _of(records, RequestSent)
    ]


def deltas(records: Records) -> list[Row]:
    """(session, turn, step, attempt, block, type, seq, i, at, text)."""
    return [
        (
            *(*_step(record), event.attempt, event.block, event.type, record.seq, i),
            *(record.at_us + piece.at_ms * 1000, displayed(piece.text)),
        )
        for record, event in _of(records, AssistantDelta)
        for i, piece in enumerate(event.pieces)
    ]


def tool_calls(records: Records) -> list[Row]:
    """(session, turn, step, position, call_id, name, effect, call_seq, result_seq, outcome, duration_us, ...).

    The last two are the call's arguments and the words of its result.
    """
    answers: dict[Row, Row] = {}
    unstarted: list[Row] = []
    for record, result in _of(records, ToolResult):
        if result.replaces is not None:
            continue
        answer = (record.seq, result.outcome, result.duration_us)
        if result.call_seq is None:
            call = (*_step(record), result.position, displayed(result.call_id), _name(result))
            unstarted.append((*call, None, None, *answer, None, _shown(result)))
        else:
            answers[record.session, result.call_seq] = (*answer, _shown(result))
    started: dict[Row, Row] = {}  # one that is started again counts once, with its newest start
    for record, event in _of(records, ToolCall):
        call = (*_step(record), event.position, displayed(event.call_id), _name(event))
        *end, text = answers.get((record.session, record.seq), (None, "open", None, None))
        started[*_step(record), event.position] = (*call, event.effect, record.seq, *end, _shown(event), text)
    return [*started.values(), *unstarted]


def approvals(records: Records) -> list[Row]:
    """(session, turn, step, position, seq, call_id, name, guard, question, decision, decided_by, decided_seq)."""
    first: dict[Row, Row] = {}
    for record, answer in _of(records, ApprovalDecided):
        key = (record.session, answer.asked_seq)
        first.setdefault(key, (answer.decision, displayed(answer.by), record.seq))
    return [
        (
            *_step(record),
            asked.position,
            record.seq,
            displayed(asked.call_id),
            _name(asked),
            displayed(asked.guard),
            _shown(asked),
            *first.get((record.session, record.seq), ("open", None, None)),
        )
        for record, asked in _of(records, ApprovalAsked)
    ]


def plugin_errors(records: Records) -> list[Row]:
    """(session, seq, at, turn, step, plugin, hook, error)."""
    return [
        (
            record.session,
            record.seq,
            record.at_us,
            record.turn,
            record.step,
            _name(fault),
            _status(fault),
            _shown(fault),
        )
        for record, fault in _of(records, PluginFault)
    ]


def usage(records: Records) -> list[Row]:
    """(session, turn, attempts, answers, input_tokens, output_tokens, cached_tokens, cache_write_tokens, ...).

    The last two are the cost and its currency.
    """
    forked_at = {record.session: event.origin_turn for record, event in _of(records, SessionCreated)}
    answers = {(*_step(record), event.attempt): event for record, event in _of(records, AssistantMessage)}
    asked: list[tuple[Record, AssistantMessage | CompactionEnd | None]] = [
        (record, answers.get((*_step(record), sent.attempt))) for record, sent in _of(records, RequestSent)
    ]
    asked += [(record, end) for record, end in _of(records, CompactionEnd) if end.asked]
    spent: dict[Row, list[int]] = {}
    for record, answer in asked:
        if (record.turn or 0) <= forked_at[record.session]:
            continue
        amounts: tuple[int, ...] = (1, 0, 0, 0, 0, 0, 0, 0)
        currency = None
        if answer is not None:
            tokens = (answer.input_tokens, answer.output_tokens, answer.cached_tokens, answer.cache_write_tokens)
            cost = answer.cost_pico
            amounts = (1, 1, *tokens, cost or 0, (cost or 0) >> 32)
            currency = answer.price.currency if answer.price and cost is not None else None
        sums = spent.setdefault((record.session, record.turn, currency), [0] * len(amounts))
        sums[:] = map(sum, zip(sums, amounts, strict=True))
    return [
        (session, turn, *counts, None if currency is None or high >= 2 * 10**9 else cost, currency)
        for (session, turn, currency), (*counts, cost, high) in spent.items()
    ]


def timers(records: Records) -> list[Row]:
    """(session, timer, state, due_at, every_us, runs, missed, fired_at, set_at, set_by, text)."""
    firings: dict[Row, list[tuple[Record, TimerFired]]] = {}
    for record, fired in _of(records, TimerFired):
        firings.setdefault((record.session, _name(fired)), []).append((record, fired))
    cancelled = {(record.session, _name(event)) for record, event in _of(records, TimerCancelled)}
    rows: list[Row] = []
    for record, timer in _of(records, TimerSet):
        key = (record.session, _name(timer))
        runs = firings.get(key, [])
        due_us = None if key in cancelled else runs[-1][1].next_us if runs else timer.due_us
        state = "cancelled" if key in cancelled else "fired" if due_us is None else "open"
        missed, fired_us = sum(fired.missed for _, fired in runs), runs[-1][0].at_us if runs else None
        shown = (record.at_us, _status(timer), _shown(timer))
        rows.append((*key, state, due_us, timer.every_us, len(runs), missed, fired_us, *shown))
    return rows


def tasks(records: Records) -> list[Row]:
    """(session, class, state, cause, message, goal_met, goal, model, agent, kernel_version, plugins, phase, ...).

    The others are step_count, max_steps, steps_left, tokens_used, no_progress_count, recoveries, checkpoint,
    fingerprint, submitted_at, changed_at and due_at.
    """
    goals = {record.session: _shown(amended) for record, amended in _of(records, TaskAmended)}
    moves = {record.session: (record, moved) for record, moved in _of(records, TaskState)}
    # Another goal has not been checked yet.
    found = {
        record.session: None if isinstance(record.event, TaskAmended) else int(record.event.met)
        for record in records
        if isinstance(record.event, (TaskAmended, GoalChecked))
    }
    finished = Counter(record.session for record, _ in _of(records, StepEnd))
    recovered = Counter(record.session for record, moved in _of(records, TaskState) if moved.state == "recovering")
    skipped = {(record.session, event.checkpoint_seq) for record, event in _of(records, CheckpointSkipped)}
    sound = [(r, event) for r, event in _of(records, CheckpointWritten) if (r.session, r.seq) not in skipped]
    newest = {r.session: (r.seq, event.phase, event.tokens, event.no_progress) for r, event in sound}
    fingerprints = {record.session: _name(event) for record, event in sound if event.fingerprint}
    versions: dict[object, Row] = {record.session: _versions(opened) for record, opened in _of(records, SessionOpened)}
    rows: list[Row] = []
    for record, task in _of(records, TaskSubmitted):
        session = record.session
        last, at = moves.get(session, (record, None))
        due_us = at.resume_at_us if at else task.due_us
        met = found.get(record.session)
        stands = (at.state, _name(at), _shown(at)) if at else ("pending", None, None)
        checkpoint, phase, tokens, alike = newest.get(session, (None, None, None, None))
        steps = finished[session]
        rows.append(
            (
                *(session, task.task_class, *stands, met, goals.get(session) or _shown(task)),
                *(_name(task), _status(task), *versions.get(session, (None, None)), phase),
                *(steps, task.max_steps, max(0, task.max_steps - steps), tokens, alike, recovered[session]),
                *(checkpoint, fingerprints.get(session), record.at_us, last.at_us, due_us),
            )
        )
    return rows


def checkpoints(records: Records) -> list[Row]:
    """(session, seq, at, turn, step, level, phase, steps, steps_left, tokens, recoveries, action, no_progress, ...).

    The others are fingerprint, history, compaction, summary, skipped, kernel_version and plugins.
    """
    skipped: dict[Row, str | None] = {}
    for record, event in _of(records, CheckpointSkipped):
        skipped.setdefault((record.session, event.checkpoint_seq), _shown(event))
    limits: dict[object, int] = {}
    recovered: Counter[object] = Counter()
    versions: dict[object, Row] = {}
    rows: list[Row] = []
    for record in records:
        session, written = record.session, record.event
        match written:
            case TaskSubmitted():
                limits[session] = written.max_steps
            case TaskState(state="recovering"):
                recovered[session] += 1
            case SessionOpened():
                versions[session] = _versions(written)
            case CheckpointWritten():
                rows.append(
                    (
                        *(session, record.seq, record.at_us, record.turn, record.step, written.level, written.phase),
                        *(written.steps, max(0, limits[session] - written.steps), written.tokens, recovered[session]),
                        *(displayed(written.action) or None, written.no_progress, _name(written)),
                        *(displayed(written.history) or None, written.compaction, _shown(written)),
                        *(skipped.get((session, record.seq)), *versions[session]),
                    )
                )
            case _:
                pass
    return rows


def budgets(records: Records) -> list[Row]:
    """(session, card, most, used, left, warned, exceeded, degraded)."""
    accounts: dict[object, Account] = {}
    granted: dict[tuple[str, str], int] = {}
    alerts: dict[Row, int] = {}
    worked_us: dict[object, int] = {}
    for record in records:
        session, event = record.session, record.event
        accounts[session] = counted(accounts.get(session, EMPTY_ACCOUNT), event)
        match event:
            case BudgetGranted():
                granted[session, displayed(event.card)] = event.most
            case BudgetAlert():
                alerts[session, displayed(event.card), event.level] = record.seq
            case BudgetDegraded():
                alerts[session, "tokens", "degraded"] = record.seq
            case CheckpointWritten():
                worked_us[session] = event.active_us
    rows: list[Row] = []
    for (session, card), most in granted.items():
        used = accounts[session].used_of(card) if card not in ONE_CALL else None
        if card == "active_s":
            used = worked_us.get(session, 0) // 1_000_000
        left = None if used is None else max(0, most - used)
        newest = (alerts.get((session, card, level)) for level in ("warning", "exceeded", "degraded"))
        rows.append((session, card, most, used, left, *newest))
    return rows


def timeline(records: Records) -> list[Row]:
    """(session, seq, at, turn, step, kind, what, status, text)."""
    rows: list[Row] = []
    for record in records:
        event = record.event
        name, status, text = _name(event), _status(event), _shown(event)
        what = status if name is None else name
        at = datetime.fromtimestamp(record.at_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        at += f".{record.at_us // 1000 % 1000:03d}"
        shown = None if text is None else text[:_TIMELINE_CHARS]
        rows.append((record.session, record.seq, at, record.turn, record.step, event.kind, what, status, shown))
    return rows


TWINS: Final[Mapping[str, Callable[[Records], list[Row]]]] = MappingProxyType(
    {
        twin.__name__: twin
        for twin in (
            sessions,
            turns,
            steps,
            messages,
            inbox,
            requests,
            deltas,
            tool_calls,
            approvals,
            plugin_errors,
            usage,
            timers,
            tasks,
            checkpoints,
            budgets,
            timeline,
        )
    }
)
"""The views by name, in the order of `views.sql`."""

_OPEN_TURN: Final[Row] = (None, "open", None)


def _of(records: Records, cls: type[E]) -> Iterator[tuple[Record, E]]:
    for record in records:
        if isinstance(record.event, cls):
            yield record, record.event


def _versions(event: SessionOpened) -> tuple[str, str | None]:
    plugins = ", ".join(f"{plugin.name} {plugin.version}" for plugin in event.plugins)
    return displayed(event.kernel_version), displayed(plugins) or None


def _order(records: Records) -> dict[object, int]:
    """The sessions, numbered as they were created."""
    return {record.session: number for number, (record, _) in enumerate(_of(records, SessionCreated))}


def _step(record: Record) -> Row:
    return record.session, record.turn, record.step


def _words(event: Event) -> str | None:
    """The words of `event` as a text column holds them, None when it has none."""
    match event:
        case UserMessage() | AssistantMessage() | ToolResult():
            return displayed(event.text)
        case InboxSplice():
            return None if event.content is None else displayed(text_of(event.content))
        case TimerSet():
            return displayed(text_of(event.content))
        case ToolCall():
            return displayed(event.arguments) or None
        case ToolProgress():
            return displayed(event.text) or None
        case RequestFailed() | TurnEnd():
            return displayed(event.message) or None
        case ApprovalAsked():
            return displayed(event.question) or None
        case LetterTaken():
            return displayed(event.reason) or None
        case SubagentSpawned():
            return displayed(event.task) or None
        case SubagentSettled():
            return displayed(event.result) or None
        case CompactionStart():
            return displayed(event.instruction) or None
        case CompactionEnd():
            return displayed(event.message) or None
        case TaskSubmitted() | TaskAmended():
            return displayed(event.goal) or None
        case TaskState():
            return displayed(event.message) or None
        case GoalChecked():
            return displayed(event.missing) or None
        case CheckpointWritten():
            return displayed(event.summary) or None
        case CheckpointSkipped():
            return displayed(event.why) or None
        case BudgetAlert():
            return displayed(event.message) or None
        case BudgetDegraded():
            return displayed(event.reason) or None
        case PluginFault():
            return displayed(event.error) or None
        case SessionRepaired():
            return displayed(event.detail) or None
        case _:
            return None


def _shown(event: Event) -> str | None:
    """The words of `event`, only their beginning when they are too large for a row."""
    words = _words(event)
    return words[:EXCERPT_CHARS] if words and len(words.encode()) > BLOB_MIN_BYTES else words


def _replaces(event: Event) -> bool:
    match event:
        case UserMessage(replaces_from=int()) | ToolResult(replaces=int()):
            return True
        case _:
            return False


def _covers(newer: tuple[Place, Record], place: Place, record: Record) -> bool:
    """Whether the message in `newer` stands in place of the one of `record`."""
    if newer[1].session != record.session or newer[1].seq <= record.seq:
        return False
    match newer[1].event:
        case UserMessage(replaces_from=int(first), replaces_to=int(last)):
            return first <= place[0] <= last
        case _:
            return newer[0] == place


def _role(event: Event) -> str | None:
    match event:
        case UserMessage():
            return "user"
        case AssistantMessage():
            return "assistant"
        case ToolResult():
            return "tool"
        case _:
            return None


def _name(event: Event) -> str | None:
    match event:
        case ToolCall() | ToolProgress() | ToolResult() | ApprovalAsked():
            return displayed(event.name)
        case UserMessage():
            return displayed(event.section) or None
        case ApprovalDecided():
            return displayed(event.by)
        case LetterTaken():
            return event.verb
        case SubagentSpawned() | SubagentSettled():
            return displayed(event.child)
        case TimerSet() | TimerFired() | TimerCancelled():
            return displayed(event.timer)
        case CompactionStart():
            return displayed(event.model) or None
        case TaskSubmitted():
            return displayed(event.model)
        case TaskAmended():
            return displayed(event.by)
        case TaskState():
            return displayed(event.cause) or None
        case GoalChecked():
            return displayed(event.check)
        case BudgetGranted() | BudgetCharged() | BudgetAlert():
            return displayed(event.card)
        case BudgetDegraded():
            return event.move
        case ContextBuilt():
            return displayed(event.model)
        case TaskResynced():
            return displayed(event.after)
        case CheckpointWritten():
            return displayed(event.fingerprint) or None
        case SessionOpened():
            return displayed(event.kernel_version)
        case PluginFault() | PluginLoaded() | PluginUnloaded():
            return displayed(event.plugin)
        case AssistantDelta():
            return event.type
        case RequestHeader():
            return displayed(f"{event.head.adapter}:{event.head.model}")
        case SessionCreated():
            return displayed(event.title)
        case _:
            return None


def _status(event: Event) -> str | None:
    match event:
        case UserMessage():
            return event.source
        case AssistantMessage():
            return event.finish
        case ToolCall():
            return event.effect
        case ToolResult():
            return event.outcome
        case InboxSplice():
            return event.cause
        case RequestSent():
            return displayed(event.purpose)
        case RequestHeader():
            return displayed(event.reason)
        case RequestFailed():
            return event.failure
        case TurnEnd():
            return event.reason
        case ApprovalAsked():
            return displayed(event.guard)
        case ApprovalDecided():
            return event.decision
        case LetterTaken():
            return event.outcome
        case SubagentSpawned():
            return displayed(event.subagent)
        case TimerSet() | TimerCancelled():
            return displayed(event.by) or None
        case SubagentSettled():
            return event.reason
        case CompactionStart():
            return event.level
        case CompactionEnd():
            return event.outcome
        case TaskSubmitted():
            return displayed(event.agent) or None
        case TaskState():
            return event.state
        case GoalChecked():
            return "met" if event.met else "missing"
        case BudgetGranted():
            return displayed(event.by) or None
        case BudgetAlert():
            return event.level
        case BudgetDegraded():
            return displayed(event.model) or None
        case TaskResynced():
            return displayed(", ".join(event.changed)) or None
        case CheckpointWritten():
            return event.level
        case SessionOpened():
            return _versions(event)[1]
        case SessionCreated():
            return displayed(event.parent_session) or None
        case PluginLoaded() | PluginUnloaded():
            return displayed(event.version)
        case PluginFault():
            return displayed(event.hook)
        case SessionRepaired():
            return displayed(event.rule)
        case _:
            return None
