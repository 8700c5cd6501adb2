"""The promises, as pure functions: each yields what is wrong, and nothing when all is well.

| promise | in short |
|---|---|
| P1 | what opens is a prefix, byte for byte, of what was written |
| P2 | all that was acknowledged is in it |
| P3 | a crash alone is never refused, and whatever is refused has a name |
| P4 | recovery closes turns that wait for nobody, or lets them go on; a call or task has one end; twice is once |
| P5 | what may not be repeated takes effect at most once; what may be is the same invocation |
| P6 | whatever took effect has its call in the log |
| P7 | in the end the conversation is that of a run that was never broken, and so is what tools wrote |
| P8 | where nothing was cut off, so is each request, byte for byte |
| P9 | once the file could not be written, nothing is committed or reached until it is opened again |
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import Any, Final, Literal

from attrs import frozen

from flightlog.core.account import EMPTY as NO_ACCOUNT
from flightlog.core.account import Account, counted
from flightlog.core.budget import ANSWER_MIN_TOKENS, QUOTA
from flightlog.core.children import GO_ON as CHILD_GO_ON
from flightlog.core.fold import fold
from flightlog.core.inbox import keyed_id, wakes
from flightlog.core.state import EMPTY, State
from flightlog.runtime.recovery import OnCrash
from flightlog.testing.faults.disk import WORKSPACE, Files
from flightlog.testing.faults.host import GO_ON
from flightlog.testing.faults.workloads import Filing, Judging
from flightlog.testing.faults.world import Committed, Done, Ended, Entered, Fact, Failed, Held, Posted, Reached, Wrong
from flightlog_hookspecs.content import ToolCallBlock
from flightlog_hookspecs.events import (
    ApprovalDecided,
    AssistantDelta,
    AssistantMessage,
    BudgetGranted,
    CompactionEnd,
    CompactionStart,
    ContextBuilt,
    Message,
    Record,
    RequestFailed,
    RequestRetry,
    RequestSent,
    SessionClosed,
    SessionCreated,
    SessionOpened,
    StepEnd,
    StepStart,
    SubagentSettled,
    SubagentSpawned,
    TaskResynced,
    TaskState,
    TaskSubmitted,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from flightlog_hookspecs.tools import REPEATABLE

Promise = Literal["P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9"]
Row = tuple[Any, ...]
"""A row of the table `events`, its columns in order: id, session key, seq, kind, ..., digest."""

_NOWHERE: Final = 2**62
"""The id of a row that never was."""
_WISHES: Final = (GO_ON, CHILD_GO_ON)
_OWN: Final = ("kernel", "resync", "subagent")
"""Who says what a conversation need not hear again, since it depends on the crash, or is judged apart."""
_WORK: Final = (TurnStart, StepStart, RequestSent, ToolCall, TaskResynced)
"""What is done for a task."""
_CUT_OFF: Final = ("not_started", "aborted", "unknown")
_CLOSING: Final = (AssistantMessage, RequestFailed, ToolResult, ApprovalDecided, SubagentSettled, StepEnd, TurnEnd)


@frozen
class Broken:
    """A promise that was not kept, and how."""

    promise: Promise
    how: str


class Unheard(Broken):
    """Words that are in the file, as another promise has it, and that nobody has heard."""


def prefix(found: Sequence[Row], written: Sequence[Row]) -> Iterator[Broken]:
    """P1: the log that opens is a byte-equal prefix of the one that was written."""
    if found != written[: len(found)]:
        wrong = next((i for i, (a, b) in enumerate(zip(found, written, strict=False)) if a != b), len(written))
        yield Broken("P1", f"row {wrong + 1} of the file is not what was written")


@frozen
class Claims:
    """What the log must hold, by how many facts are known: rows, and letters; each list has one entry more.

    `why[n]` is the fact that wants that many rows.
    """

    rows: Sequence[int]
    letters: Sequence[int]
    why: Sequence[Fact | None]


@frozen
class Places:
    """Where in the table things stand, as row ids.

    An event by session and seq, a call's `tool/call` by invocation id, a message's first splice by message id,
    a call's `tool/result` by session and the seq of its `tool/call`.
    """

    events: Mapping[tuple[str, int], int]
    calls: Mapping[str, int]
    messages: Mapping[str, int]
    results: Mapping[tuple[str, int], int]

    def of(self, fact: Fact, *, power: bool) -> int:
        """The row that `fact` claims, 0 for none. When `power` is lost, ordinary commits claim nothing."""
        match fact:
            case Committed():
                return self.events.get((fact.session, fact.seq), _NOWHERE) if fact.barrier or not power else 0
            case Held(token=token, message_id=message_id):
                message = self.messages.get(message_id, _NOWHERE) if message_id else 0
                return max(message, self.events.get((token.session, token.seq), _NOWHERE))
            case Reached():
                return self.events.get((fact.session, fact.seq), _NOWHERE)
            case Done():
                return self.calls.get(call_of(fact, self.calls), _NOWHERE)
            case Entered():
                return self.events.get((fact.session, 2), _NOWHERE)
            case Ended():
                return self.results.get((fact.session, fact.call_seq), _NOWHERE)
            case Posted() | Failed() | Wrong():
                return 0


def call_of(done: Done, calls: Collection[str]) -> str:
    """The invocation id of the call that it was of: a task that goes on asks again for what it has read."""
    first = done.invocation_id.rpartition(".")[0]
    again = done.effect == "read" and done.invocation_id not in calls and first in calls
    return first if again else done.invocation_id


def claims(facts: Sequence[Fact], places: Places, *, power: bool) -> Claims:
    """What `facts` claim, one after the other, after a loss of `power` or a mere kill."""
    rows, letters = [0], [0]
    why: list[Fact | None] = [None]
    posted: set[str] = set()
    for fact in facts:
        wanted = places.of(fact, power=power)
        if isinstance(fact, Posted):
            posted.add(fact.letter_id)
        why.append(fact if wanted > rows[-1] else why[-1])
        rows.append(max(rows[-1], wanted))
        letters.append(len(posted))
    return Claims(rows, letters, why)


def durable(rows: int, letters: int, claimed: Claims, known: int) -> Iterator[Broken]:
    """P2 and P6: a log with so many rows and letters holds all that is claimed once `known` facts are known."""
    if rows < claimed.rows[known]:
        fact = claimed.why[known]
        promise: Promise = "P6" if isinstance(fact, (Done, Reached)) else "P2"
        yield Broken(promise, f"the log ends at row {rows}, before {fact}")
    if letters < claimed.letters[known]:
        yield Broken("P2", f"of {claimed.letters[known]} acknowledged letters {letters} are left")


def tokens(facts: Sequence[Fact], digests: Mapping[tuple[str, int], str]) -> Iterator[Broken]:
    """P2: each row that somebody holds a token of is still the same. `digests` (hex) by session and seq."""
    for fact in facts:
        if isinstance(fact, Held) and digests.get((fact.token.session, fact.token.seq)) != fact.token.digest:
            yield Broken("P2", f"row {fact.token.seq} of {fact.token.session!r} is not the acknowledged one")


def fail_stop(facts: Sequence[Fact]) -> Iterator[Broken]:
    """P9: in one life, whose `facts` these are, a failed write is the end of all writing and reaching out."""
    for after in dropwhile(lambda fact: not isinstance(fact, Failed), facts):
        if isinstance(after, (Committed, Reached)):
            yield Broken("P9", f"the file had failed, and there came {after}")
            return


def streamed(records: Sequence[Record], on_crash: OnCrash = "close") -> Iterator[Broken]:
    """P4: what was streamed is what the answer says, be it whole or cut off. `records` have the texts of deltas.

    Where a turn goes on, what was cut off is asked for again, and stays as evidence only.
    """
    arrived = ""
    for record in records:
        match record.event:
            case RequestSent():
                arrived = ""
            case AssistantDelta(type="text") as delta:
                arrived += "".join(piece.text for piece in delta.pieces)
            case AssistantMessage() as message if message.text != arrived:
                yield Broken("P4", f"streamed was {arrived!r:.80}, and row {record.seq} says {message.text!r:.80}")
            case RequestFailed(failure="interrupted") if arrived.strip() and on_crash == "close":
                yield Broken("P4", f"row {record.seq} drops what was streamed: {arrived!r:.80}")
            case _:
                pass


def recovery(records: Sequence[Record], known: int) -> Iterator[Broken]:
    """P4: behind the first `known` records stand the new owner's mark and what closes the open turn, no more.

    A turn that waits for people, and for nothing else, is not closed. A session that had come to rest may have no
    new owner: nobody opens a child that has settled.
    """
    state = EMPTY
    for record in records[:known]:
        state = fold(state, record.event, record.seq, record.epoch, record.at_us)
    is_open = state.turn_open and not state.suspended
    added = [record.event for record in records[known:] if not isinstance(record.event, SessionCreated)]
    if not added and not is_open:
        return
    if not added or not isinstance(added[0], SessionOpened):
        yield Broken("P4", f"recovery begins with {added[0].kind if added else 'nothing'}")
    for event in added[1:] if is_open else []:
        if not isinstance(event, _CLOSING) or (isinstance(event, AssistantMessage) and not event.interrupted):
            yield Broken("P4", f"recovery adds {event.kind}")
        if isinstance(event, TurnEnd):
            return
    if is_open:
        yield Broken("P4", "recovery leaves the turn open")


def going_on(records: Sequence[Record], known: int) -> Iterator[Broken]:
    """P4: behind the first `known` records an open turn goes on in the step where it was, under the new owner.

    The model is asked again only where its answer is missing, and then at once.
    """
    state = EMPTY
    for record in records[:known]:
        state = fold(state, record.event, record.seq, record.epoch, record.at_us)
    added = [record for record in records[known:] if not isinstance(record.event, SessionCreated)]
    if not added and state.task is not None and state.task.ended:
        return  # nobody takes it up
    if not added or not isinstance(added[0].event, SessionOpened):
        yield Broken("P4", f"recovery begins with {added[0].event.kind if added else 'nothing'}")
    if not state.turn_open or state.cancelling:
        return
    ends = (record.event for record in added if record.turn == state.turn and isinstance(record.event, TurnEnd))
    if (end := next(ends, None)) is not None and end.reason == "interrupted":
        yield Broken("P4", f"turn {state.turn} was closed")
    here = [r.event for r in added if state.step and (r.turn, r.step) == (state.turn, state.step.number)]
    asked = [event for event in here if isinstance(event, (RequestSent, RequestFailed, RequestRetry))]
    if state.step and state.step.phase == "answered" and asked:
        yield Broken("P4", f"step {state.step.number} was answered, and comes to {asked[0].kind}")
    if state.step and state.step.phase == "open":
        match asked[:3]:
            case [RequestFailed(failure="interrupted"), RequestRetry(delay_ms=0), RequestSent()]:
                pass
            case [RequestFailed(failure="interrupted"), RequestRetry(delay_ms=0)] if end and end.cause == QUOTA:
                pass  # what the attempt is taken to have cost has used up a card
            case _:
                yield Broken("P4", f"an attempt was cut off, and comes to {[event.kind for event in asked[:3]]}")


def worked(records: Sequence[Record]) -> Iterator[Broken]:
    """P4: a task ends once, and nothing is done for it then; who takes it up after a death says so before all else.

    Nobody takes up one whose last turn has completed while nothing has come since: that turn was the end of it.
    """
    state, unsaid = EMPTY, False
    for record in records:
        event, task = record.event, state.task
        if task is not None:
            if isinstance(event, SessionOpened):
                unsaid = task.state in ("running", "recovering")
            elif isinstance(event, TaskState):
                unsaid = False
            if task.ended and isinstance(event, (*_WORK, TaskState)):
                yield Broken("P4", f"the task is {task.state}, and row {record.seq} is {event.kind}")
            if unsaid and isinstance(event, _WORK):
                yield Broken("P4", f"row {record.seq} is {event.kind}, and nothing says that the task is recovering")
            if isinstance(event, TaskState) and event.state == "recovering" and _is_over(state):
                yield Broken("P4", f"row {record.seq} takes up a task whose last turn has completed")
        state = fold(state, event, record.seq, record.epoch, record.at_us)
    if state.task is not None and not state.task.ended:
        yield Broken("P4", f"the task is {state.task.state} in the end")


def _is_over(state: State) -> bool:
    end = state.task.end if state.task else None
    waits = state.turn_open or wakes(state) or state.timers or state.unsettled
    return end is not None and end.reason == "completed" and not waits


def one_outcome(records: Sequence[Record]) -> Iterator[Broken]:
    """P4: a call is answered once."""
    answers = Counter(
        (record.turn, record.step, record.event.position)
        for record in records
        if isinstance(record.event, ToolResult) and record.event.replaces is None
    )
    yield from (Broken("P4", f"call {call} has {times} outcomes") for call, times in answers.items() if times > 1)


def shortened(records: Sequence[Record]) -> Iterator[Broken]:
    """P4: a context is the old one or the new one: all that makes it shorter stands together with the end of it."""
    unended = False
    for record in records:
        match record.event:
            case UserMessage(replaces_from=int()) | ToolResult(replaces=int()):
                unended = True
            case CompactionEnd():
                unended = False
            case event if unended:
                yield Broken("P4", f"the context is made shorter by half, and row {record.seq} is {event.kind}")
                unended = False
            case _:
                pass
    if unended:
        yield Broken("P4", "the context is made shorter by half in the end")


def within_budget(records: Sequence[Record]) -> Iterator[Broken]:
    """P5: nothing is begun that a card of the session's budget has no room for by then."""
    account: Account | None = None
    built: ContextBuilt | None = None
    for record in records:
        event = record.event
        if account is None and not isinstance(event, (TaskSubmitted, BudgetGranted)):
            continue
        account = account or NO_ACCOUNT
        needs: dict[str, int] = {}
        match event:
            case ContextBuilt():
                built = event
            case RequestSent():
                tokens = (built.tokens if built else 0) + ANSWER_MIN_TOKENS
                adapter = built.model.partition(":")[0] if built else ""
                needs = {"tokens": tokens, "step_tokens": tokens, "requests": 1, f"requests:{adapter}": 1}
            case CompactionStart(level="summarise"):
                tokens = event.tokens_before
                needs = {"tokens": tokens, "step_tokens": tokens, "summary_tokens": tokens, "requests": 1}
            case ToolCall(resumed=""):
                needs = {"calls": 1, f"calls:{event.name}": 1}
            case SubagentSpawned():
                needs = {"subagents": 1}
        for card, need in needs.items():
            if (left := account.left_of(card)) is not None and need > left:
                yield Broken("P5", f"row {record.seq}, {event.kind}, needs {need} of {card!r}, and {left} are left")
        account = counted(account, event)


def recovered_again(once: Sequence[Row], twice: Sequence[Row]) -> Iterator[Broken]:
    """P4: killed right after recovery and opened again, the log gets nothing but what marks owners."""
    added = {row[3] for row in twice[len(once) :]}
    if twice[: len(once)] != once or added - {SessionOpened.kind, SessionClosed.kind}:
        yield Broken("P4", f"a second recovery adds {sorted(added)}")


def effects(facts: Sequence[Fact], on_crash: OnCrash = "close") -> Iterator[Broken]:
    """P5: a write or external effect happens at most once, by its invocation id and by what it is about.

    Where turns go on, others may be repeated: what is idempotent, as the same invocation. What the workload itself
    knows to be wrong does not happen at all.
    """
    yield from (Broken("P5", fact.how) for fact in facts if isinstance(fact, Wrong))
    done = [fact for fact in facts if isinstance(fact, Done) and fact.effect not in REPEATABLE]
    for what, times in Counter((fact.tool, fact.arguments) for fact in done).items():
        if times > 1:
            yield Broken("P5", f"{what[0]} {what[1]} took effect {times} times")
    goes_on = on_crash == "continue"
    once = done if goes_on else [fact for fact in facts if isinstance(fact, Done)]
    for invocation_id, times in Counter(fact.invocation_id for fact in once).items():
        if times > 1:
            yield Broken("P5", f"call {invocation_id} ran {times} times")
    same = {fact for fact in facts if isinstance(fact, Done) and fact.effect == "idempotent"} if goes_on else set()
    for what, times in Counter((fact.tool, fact.arguments) for fact in same).items():
        if times > 1:
            yield Broken("P5", f"{what[0]} {what[1]} was repeated as another invocation")


def intents(facts: Sequence[Fact], records: Sequence[Record]) -> Iterator[Broken]:
    """P6: each effect has its `tool/call`; P5: each result that says ok has its effect. `records` of all sessions.

    The effect of a call that gave a child a task, or sent it words, is the child's.
    """
    calls = {record.event.invocation_id for record in records if isinstance(record.event, ToolCall)}
    done = {call_of(fact, calls) for fact in facts if isinstance(fact, Done)}
    delegated = {record.event.invocation_id for record in records if isinstance(record.event, SubagentSpawned)}
    delegated |= {invocation_id for invocation_id, _ in _sent(records)}
    yield from (Broken("P6", f"{invocation_id} took effect, and no call says so") for invocation_id in done - calls)
    by_row = {(r.session, r.seq): r.event.invocation_id for r in records if isinstance(r.event, ToolCall)}
    for record in records:
        event = record.event
        if isinstance(event, ToolResult) and event.outcome == "ok" and event.call_seq is not None:
            invocation_id = by_row[record.session, event.call_seq]
            if invocation_id not in done | delegated:
                yield Broken("P5", f"{invocation_id} is reported as done and never took effect")


def tasks(records: Sequence[Record], log: Mapping[str, Sequence[Message]]) -> Iterator[Broken]:
    """P4: the task of a child comes to one end. P7: what its parent sent it, and what came of it, arrives once.

    `records` are the parent's, `log` holds the messages of all sessions. The messages are those of children in the
    background, since a call that waits for its child is answered for both. A child of a call that was cut off may
    never have begun, and one that was ended, by its time limit say, need not have been told.
    """
    told = Counter(message.message_id for message in _said(log[records[0].session]))
    ended = Counter(record.event.invocation_id for record in records if isinstance(record.event, SubagentSettled))
    sent = dict(_sent(records))
    for task in (record.event for record in records if isinstance(record.event, SubagentSpawned)):
        if (times := ended[task.invocation_id]) != 1:
            yield Broken("P4", f"the task {task.task!r} of {task.child!r} has {times} ends")
        if task.background and (times := told[keyed_id(f"{task.invocation_id} settled")]) != 1:
            yield Broken("P7", f"what came of the task {task.task!r} of {task.child!r} was told {times} times")
        if task.background and task.child in log:
            sent[task.invocation_id] = task.child
    aborted = {
        record.event.child
        for record in records
        if isinstance(record.event, SubagentSettled) and record.event.reason == "aborted"
    }
    for invocation_id, child in sent.items():
        times = sum(message.message_id == keyed_id(invocation_id) for message in _said(log.get(child, ())))
        if times > 1 or (not times and child not in aborted):
            kind = Broken if times else Unheard
            yield kind("P7", f"what call {invocation_id} sent to {child!r} was told {times} times")


def _said(messages: Sequence[Message]) -> list[UserMessage]:
    return [message for message in messages if isinstance(message, UserMessage)]


def _sent(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """The calls that say that they sent something to a child in the background: their invocation id, and the child."""
    tasks = [
        record.event for record in records if isinstance(record.event, SubagentSpawned) and record.event.background
    ]
    given, children = {task.invocation_id: task.child for task in tasks}, {task.child for task in tasks}
    calls = {(record.session, record.seq): record.event for record in records if isinstance(record.event, ToolCall)}
    for record in records:
        if isinstance(record.event, ToolResult) and record.event.outcome == "ok" and record.event.call_seq:
            call = calls[record.session, record.event.call_seq]
            child = given.get(call.invocation_id) or json.loads(call.arguments).get("child")
            if child in children:
                yield call.invocation_id, child


def in_background(records: Iterable[Record]) -> frozenset[str]:
    """The subagents that worked in the background for whoever wrote `records`."""
    spawned = (record.event for record in records if isinstance(record.event, SubagentSpawned))
    return frozenset(task.subagent for task in spawned if task.background)


@frozen
class Essence:
    """What a conversation comes to: what was said to it, what came of each call (None: unknown), the last words."""

    said: Counter[str]
    calls: Mapping[tuple[str, str], str | None]
    last: str


def essence(messages: Sequence[Message], background: Collection[str] = ()) -> Essence:
    """A conversation without what a crash or a cancel cut off, and without wishes to go on.

    What a child is called, and at which task it ended, differs from run to run: of subagents in the
    `background`, only the tasks that they were given count. `tasks` judges the rest.
    """
    said: Counter[str] = Counter()
    outcomes: dict[tuple[str, str], str | None] = {}
    waiting: list[ToolCallBlock] = []
    last = ""
    for message in messages:
        match message:
            case UserMessage():
                said[message.text] += message.text not in _WISHES and message.source not in _OWN
            case AssistantMessage():
                waiting = [block for block in message.content if isinstance(block, ToolCallBlock)]
                last = last if message.interrupted else message.text
            case ToolResult():
                call = waiting.pop(0)
                if message.outcome not in ("not_started", "aborted"):
                    vague = message.outcome == "unknown" or message.told_by == "person"
                    arguments = json.loads(call.arguments)
                    text: str | None = message.text
                    if call.name in background:
                        arguments, text = {"task": arguments["task"]}, message.outcome
                    outcomes[call.name, json.dumps(arguments)] = None if vague else text
    return Essence(+said, outcomes, last)


def conversation(messages: Sequence[Message], unbroken: Essence, background: Collection[str] = ()) -> Iterator[Broken]:
    """P7: the conversation comes to what the unbroken one came to; an unknown outcome stands for any."""
    found = essence(messages, background)
    if found.said != unbroken.said:
        yield Broken("P7", f"lost {dict(unbroken.said - found.said)}, doubled {dict(found.said - unbroken.said)}")
    if found.calls.keys() != unbroken.calls.keys():
        yield Broken("P7", f"calls differ: {sorted(found.calls.keys() ^ unbroken.calls.keys())}")
    for call, text in found.calls.items():
        if text is not None and unbroken.calls.get(call, text) not in (text, None):
            yield Broken("P7", f"{call} came to {text!r:.80}")
    if found.last != unbroken.last:
        yield Broken("P7", f"it ended with {found.last!r:.80}")


def files(found: Files, workload: object, records: Sequence[Record] | None = None) -> Iterator[Broken]:
    """P7: the files that tools wrote are whole after a crash, and say in the end what the `records` do."""
    if isinstance(workload, Filing):
        written = {name.removeprefix(WORKSPACE): raw for name, raw in found.items() if name.startswith(WORKSPACE)}
        yield from (Broken("P7", how) for how in workload.look(written, records))


def verdict(workload: object, records: Sequence[Record], done: Sequence[Done]) -> Iterator[Broken]:
    """P7: what came of it in the end is what the workload itself says must have come of it."""
    if isinstance(workload, Judging):
        yield from (Broken("P7", how) for how in workload.verdict(done, records))


def requests(records: Sequence[Record], unbroken: frozenset[str]) -> Iterator[Broken]:
    """P8: until something is cut off, the model is sent what it was sent in the unbroken run. `unbroken`: hashes."""
    for record in records:
        match record.event:
            case RequestSent(sha256=sha256) if sha256 not in unbroken:
                yield Broken("P8", f"the request at row {record.seq} of {record.session!r} was never sent before")
            case AssistantMessage() as message if message.interrupted:
                return
            case ToolResult(outcome=outcome, told_by=told_by) if outcome in _CUT_OFF or told_by == "person":
                return
            case UserMessage() as message if message.text == GO_ON or message.source == "resync":
                return
            case TurnEnd(reason=reason) if reason != "completed":
                return
            case _:
                pass
