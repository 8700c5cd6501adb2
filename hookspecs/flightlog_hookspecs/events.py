"""The events: every kind of row the log can hold, one frozen class each.

The place of an event (session, seq, turn, step, time, epoch) is the envelope's business, not the
event's. User messages, assistant messages and tool results *are* the messages a model is sent:
there is no second form of them.

A default may never change once released: rows leave fields at their default unwritten.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from attrs import field, frozen

from flightlog_hookspecs.content import Block, BlockType, text_of
from flightlog_hookspecs.errors import FailureKind
from flightlog_hookspecs.stream import FinishReason
from flightlog_hookspecs.tools import Effect, Fact, Mode, Outcome

Slot = Literal["next_turn", "next_step"]
Source = Literal["user", "plugin", "context", "resync", "subagent", "timer", "kernel", "summary"]
CompactionLevel = Literal["prune", "summarise"]
CompactionOutcome = Literal["done", "not_smaller", "empty", "failed"]
SpliceCause = Literal["accepted", "claimed", "withdrawn", "edited", "cancelled"]
Verb = Literal[
    "followup",
    "steer",
    "inject",
    "approve",
    "answer",
    "cancel",
    "pause",
    "resume",
    "amend",
    "set_timer",
    "cancel_timer",
    "grant",
]
LetterOutcome = Literal["obeyed", "repeated", "refused"]
TurnEndReason = Literal[
    "completed",
    "aborted",
    "error",
    "blocked",
    "max_tokens",
    "max_steps",
    "no_progress",
    "deadline",
    "paused",
    "interrupted",
]
Told = Literal["done", "not_done", "unknown"]
"""What a person says about the outcome of a call."""
Decision = Literal["allowed", "denied", "cancelled", Told]
About = Literal["", "outcome"]
Resumed = Literal["", "repeatable", "reconciled", "answered"]
ToldBy = Literal["", "reconcile", "person", "done_row"]
TaskClass = Literal["core", "normal", "batch"]
TaskStateName = Literal["pending", "running", "recovering", "paused", "completed", "failed", "cancelled"]
CheckpointLevel = Literal["light", "heavy", "archive"]
Phase = Literal["observe", "think", "act"]
"""What a task is doing: looking at what came, waiting for the model, running tools."""
Refreshed = Literal["same", "changed", "failed"]
CHARGED_MAX: Final = 2**40
"""An answer counts so many tokens at most, whatever its provider says."""
AnswerFinish = Literal[FinishReason, "interrupted"]
AlertLevel = Literal["warning", "exceeded"]
AlertThen = Literal["goes_on", "shed", "pauses"]
Degradation = Literal["compress", "shrink", "smaller_model"]
Move = Literal[Degradation, "pause"]
"""What is done for a task that runs out of tokens."""


@frozen(kw_only=True)
class PluginVersion:
    """A plugin as it was when the session was opened."""

    name: str
    version: str


@frozen(kw_only=True)
class SessionCreated:
    """Identity of a session; always seq 1. `uid` is random and never reused.

    A fork names its origin: the session, its uid, and the turn at whose end it was forked. A child names
    its parent. It stands `depth` levels below a session without a parent, and whoever opens it, it may use only
    the `tools` of these names; None for all. A fork of a child keeps these two.
    """

    kind: ClassVar[Literal["session/created"]] = "session/created"
    uid: str
    title: str = ""
    origin_session: str = ""
    origin_uid: str = ""
    origin_turn: int = 0
    parent_session: str = ""
    parent_uid: str = ""
    depth: int = 0
    tools: tuple[str, ...] | None = None


@frozen(kw_only=True)
class SessionOpened:
    """A process took ownership. The row's epoch is the fencing token: last epoch + 1.

    `lock` numbers the lock of the session that its owner holds. It rises by one when the session was
    taken over from an owner that still holds the one before.
    """

    kind: ClassVar[Literal["session/opened"]] = "session/opened"
    pid: int
    host: str
    kernel_version: str
    plugins: tuple[PluginVersion, ...] = ()
    lock: int = 0


@frozen(kw_only=True)
class SessionClosed:
    """The owner left cleanly, with no turn open."""

    kind: ClassVar[Literal["session/closed"]] = "session/closed"


@frozen(kw_only=True)
class SessionRepaired:
    """The rows from here on were lost: the file was damaged, and a repair kept what was sound before them.

    This row has the seq of the first one lost. `dropped` rows could still be read and were left out, since
    the first of them, whose digest (hex) is `digest` if it could be read, broke `rule`. Rule "rows-gone":
    rows of the file are gone, and nobody can tell whose they were; maybe none of this session.

    `repair` is the random id of the repair, the same in all sessions of the file; the invocation ids of
    later calls hold it, so that none equals that of a lost one. The damaged file was kept as `backup`.
    """

    kind: ClassVar[Literal["session/repaired"]] = "session/repaired"
    repair: str
    rule: str
    detail: str
    dropped: int = 0
    digest: str = ""
    backup: str = ""


@frozen(kw_only=True)
class InboxSplice:
    """One change of an inbox slot: at `start`, `removed` messages leave and at most one enters.

    `message_id` names the message that enters or, when none enters, the one that leaves. A message
    enters with its blocks in full; one that does not wake (`wakes` false) waits until another does.
    `hook` names the hook that wants a turn to go on for it, behind its plugin.
    """

    kind: ClassVar[Literal["inbox/splice"]] = "inbox/splice"
    slot: Slot
    start: int
    message_id: str
    cause: SpliceCause
    removed: int = 0
    content: tuple[Block, ...] | None = None
    source: Source = "user"
    wakes: bool = True
    hook: str = ""


@frozen(kw_only=True)
class TurnStart:
    """Opens the bracket of a turn; the row's `turn` is its number, 1, 2, 3, ..."""

    kind: ClassVar[Literal["turn/start"]] = "turn/start"


@frozen(kw_only=True)
class TurnEnd:
    """Closes the bracket. `cause` explains aborted and paused; `code` and `message` explain error."""

    kind: ClassVar[Literal["turn/end"]] = "turn/end"
    reason: TurnEndReason
    cause: str = ""
    code: str = ""
    message: str = ""


@frozen(kw_only=True)
class StepStart:
    """Opens a step: one model request and the tools it calls; numbered 1, 2, 3, ... in its turn."""

    kind: ClassVar[Literal["step/start"]] = "step/start"


@frozen(kw_only=True)
class StepEnd:
    """Closes a step: its request is settled and every call in it is answered."""

    kind: ClassVar[Literal["step/end"]] = "step/end"


@frozen(kw_only=True)
class UserMessage:
    """Input that entered a step: from now on the model sees it.

    With source "context" and a `section`, the model is told what that prompt section says now: the
    last of two text blocks is its text; a single block says that it no longer applies.

    One of source "summary" stands for all messages from row `replaces_from` to row `replaces_to`, in their place: those
    stay in the log, and the model is sent this instead from now on.
    """

    kind: ClassVar[Literal["user/message"]] = "user/message"
    message_id: str
    content: tuple[Block, ...]
    source: Source = "user"
    section: str = ""
    replaces_from: int | None = None
    replaces_to: int | None = None

    @property
    def text(self) -> str:
        """The message's words."""
        return text_of(self.content)


@frozen(kw_only=True)
class ToolSpec:
    """A tool as the model sees it; `parameters` is the JSON Schema as canonical JSON text."""

    name: str
    description: str
    parameters: str


@frozen(kw_only=True)
class Head:
    """What stands before the messages of a request; `parameters` is canonical JSON text."""

    adapter: str
    model: str
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    parameters: str = "{}"


@frozen(kw_only=True)
class SectionSpan:
    """Where the text of a prompt section stands in the system text: `chars` characters from `start`."""

    name: str
    start: int
    chars: int


@frozen(kw_only=True)
class RequestHeader:
    """A new head generation, verbatim. `reason` names what changed against the one before.

    `sections` say which prompt section each part of the system text is; the host's own is "system". Where another
    model serves in place of the session's own, `instead_of` is that one ("adapter:model").
    """

    kind: ClassVar[Literal["request/header"]] = "request/header"
    head: Head
    reason: str
    sections: tuple[SectionSpan, ...] = ()
    instead_of: str = ""


@frozen(kw_only=True)
class RequestSent:
    """An attempt is about to be sent.

    The request is the head at `header_seq` and the `messages` messages visible at this row;
    `sha256` (hex) covers the bytes the adapter encoded for exactly those.
    """

    kind: ClassVar[Literal["request/sent"]] = "request/sent"
    attempt: int
    header_seq: int
    messages: int
    sha256: str
    purpose: str = "turn"


@frozen(kw_only=True)
class DeltaPiece:
    """One delta as it arrived, `at_ms` milliseconds after its row's time (never before it)."""

    at_ms: int
    text: str


@frozen(kw_only=True)
class AssistantDelta:
    """What arrived of one block since the last flush; evidence, not part of the conversation.

    The pieces stand in a side table. Readers that do not need them get `pieces=()`.
    """

    kind: ClassVar[Literal["assistant/delta"]] = "assistant/delta"
    attempt: int
    block: int
    type: BlockType
    pieces: tuple[DeltaPiece, ...] = ()


@frozen(kw_only=True)
class TokenPrice:
    """What one token of each kind costs, in 10^-12 of the currency; None where nobody said.

    The same numbers are millionths of the currency for a million tokens.
    """

    currency: str
    input_pico: int
    output_pico: int
    cached_pico: int | None = None
    cache_write_pico: int | None = None


@frozen(kw_only=True)
class AssistantMessage:
    """The complete answer of one attempt; `interrupted` marks text cut off by a cancel or a crash.

    Tokens are counted once each, as in `Usage`; an answer without any was not counted. `price` is the one
    that held as the request was sent. `charge` is the least that it counts in a session with a budget, in tokens:
    what the kernel has estimated, in case that nobody has counted them.
    """

    kind: ClassVar[Literal["assistant/message"]] = "assistant/message"
    attempt: int
    content: tuple[Block, ...]
    finish: AnswerFinish
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    replay: str = ""
    price: TokenPrice | None = None
    charge: int = 0

    @property
    def counted(self) -> int:
        """All tokens of it that its provider has counted, whatever it says."""
        return sum(_amounts(self))

    @property
    def charged(self) -> int:
        """The tokens that count for a budget."""
        return _charged(self)

    @property
    def cost_pico(self) -> int | None:
        """What it cost, in 10^-12 of the price's currency, below 2^63; None where that is not known."""
        return None if self.interrupted else _cost_pico(self)

    @property
    def interrupted(self) -> bool:
        """True when a cancel or a crash cut this message off."""
        return self.finish == "interrupted"

    @property
    def text(self) -> str:
        """The message's words."""
        return text_of(self.content)


@frozen(kw_only=True)
class RequestFailed:
    """An attempt ended badly. Its deltas stay as evidence; nothing of it reaches the conversation.

    `charged` are the tokens that it counts in a session with a budget: what its provider had counted by then, and an
    estimate of the rest; 0 where nothing had come of it.
    """

    kind: ClassVar[Literal["request/failed"]] = "request/failed"
    attempt: int
    failure: FailureKind
    message: str
    retryable: bool
    charged: int = 0


@frozen(kw_only=True)
class RequestRetry:
    """The next attempt will be made after `delay_ms` milliseconds, with `model` ("adapter:model") if one is named."""

    kind: ClassVar[Literal["request/retry"]] = "request/retry"
    attempt: int
    delay_ms: int
    model: str = ""


@frozen(kw_only=True)
class ToolCall:
    """A body is about to run: committed before it starts.

    `position` is the call's place in its message, from 0; `message_seq` is that message's row. `key` holds the key
    arguments in canonical JSON, keys sorted, where the tool has named some: calls with the same are the same action.
    `database` is where a transactional one takes effect, "" for all others.

    A call that an earlier owner started and that has no result may start again, as the same invocation. `resumed`
    says why: its effect is "repeatable", or it has none yet, as its tool ("reconciled") or a person ("answered") knows.
    """

    kind: ClassVar[Literal["tool/call"]] = "tool/call"
    position: int
    call_id: str
    name: str
    arguments: str
    invocation_id: str
    message_seq: int
    mode: Mode
    effect: Effect
    plugin: str
    plugin_version: str
    resumed: Resumed = ""
    key: str = ""
    database: str = ""


@frozen(kw_only=True)
class ToolProgress:
    """How far a running body says it is. People see it and the model does not; it changes nothing.

    `call_seq` is the row of its `tool/call`. Of words that come faster than they are written, the newest stand.
    """

    kind: ClassVar[Literal["tool/progress"]] = "tool/progress"
    position: int
    call_id: str
    name: str
    call_seq: int
    text: str


@frozen(kw_only=True)
class Spill:
    """Where a result that was too long to show stands in full."""

    sha256: str
    bytes: int
    binary: bool = False


@frozen(kw_only=True)
class ToolResult:
    """The answer to one call, committed when its body ended; what the model is shown.

    `call_seq` is the row of the newest `tool/call`, None when no body ran. `duration_us` is microseconds.
    Of a call that was cut off, `told_by` says who knew how it ended, when the body itself could not say any more.
    One that `replaces` the result in that row says the same in fewer words, and the model is sent it instead from now
    on. `facts` are those that the call has the session keep in its working memory.
    """

    kind: ClassVar[Literal["tool/result"]] = "tool/result"
    position: int
    call_id: str
    name: str
    message_seq: int
    outcome: Outcome
    content: tuple[Block, ...]
    call_seq: int | None = None
    duration_us: int = 0
    spill: Spill | None = None
    told_by: ToldBy = ""
    replaces: int | None = None
    facts: tuple[Fact, ...] = ()

    @property
    def text(self) -> str:
        """The result's words."""
        return text_of(self.content)


@frozen(kw_only=True)
class ApprovalAsked:
    """A guard wants a person to decide about a call before it starts.

    `arguments` are those that it will run with when a guard has changed them, else "". One `about` the "outcome"
    wants to know whether a call that was cut off has taken effect.
    """

    kind: ClassVar[Literal["approval/asked"]] = "approval/asked"
    position: int
    call_id: str
    name: str
    message_seq: int
    question: str
    guard: str
    arguments: str = ""
    about: About = ""


@frozen(kw_only=True)
class ApprovalDecided:
    """The answer to the question at `asked_seq`. The first one counts, a later one is only recorded.

    Before a start it is "allowed" or "denied"; about an outcome it is "done", "not_done" or "unknown". A question that
    needs no answer any more is "cancelled".

    One to `remember` tells guards about later calls of the same tool in this session.
    """

    kind: ClassVar[Literal["approval/decided"]] = "approval/decided"
    asked_seq: int
    decision: Decision
    by: str
    reason: str = ""
    remember: bool = False


@frozen(kw_only=True)
class LetterTaken:
    """The owner has read a letter of the mailbox; never again. What it did stands before it in the same append.

    `outcome` is "repeated" when its message had been accepted before under the same key, "refused"
    when it could not be obeyed, and then `reason` says why.
    """

    kind: ClassVar[Literal["letter/taken"]] = "letter/taken"
    letter_id: str
    verb: Verb
    outcome: LetterOutcome
    reason: str = ""


@frozen(kw_only=True)
class Lent:
    """So much of a card of a budget, lent to a child."""

    card: str
    amount: int


@frozen(kw_only=True)
class SubagentSpawned:
    """Session `child` is about to be given `task`, and to be created unless it was before.

    `subagent` is what it was called by, `invocation_id` that of the call, `depth` the child's. Unless in the
    `background`, the call waits for it. `steps_per_turn` bounds its turns if it is not 0. At `until_us` (Unix
    microseconds, 0 for never) the time of one in the background is up. `tokens` is what it may use of the budget of
    its parent for this task, None where there is none; `lent` is what it may use of the other cards.
    """

    kind: ClassVar[Literal["subagent/spawned"]] = "subagent/spawned"
    child: str
    subagent: str
    depth: int
    invocation_id: str
    task: str
    background: bool = False
    steps_per_turn: int = 0
    until_us: int = 0
    tokens: int | None = None
    lent: tuple[Lent, ...] = ()


@frozen(kw_only=True)
class SubagentSettled:
    """What came of the task that `child` was given by the call `invocation_id`.

    `reason` is how the child's last turn ended, "interrupted" also when a crash cut off the call that waited
    for it; `result` is what the model is told. `charged` are the tokens that it has used for it, as far as a budget
    counts them; all it was given where nobody knows.
    """

    kind: ClassVar[Literal["subagent/settled"]] = "subagent/settled"
    child: str
    invocation_id: str
    reason: TurnEndReason
    result: str = ""
    charged: int = 0


@frozen(kw_only=True)
class TimerSet:
    """A message is to enter the inbox at `due_us` (Unix microseconds), and then again every `every_us` microseconds.

    One that repeats ends when it has fired `times` times and when its next run would come after `until_us`; None for no
    such bound. `timer` names it, once in a session; `by` says who wanted it.
    """

    kind: ClassVar[Literal["timer/set"]] = "timer/set"
    timer: str
    due_us: int
    content: tuple[Block, ...]
    every_us: int | None = None
    until_us: int | None = None
    times: int | None = None
    by: str = ""


@frozen(kw_only=True)
class TimerFired:
    """The timer's message enters the inbox, in the same append, for the run that was due at `due_us`.

    Further `missed` runs had come due by then: they are done with, too. `next_us` is when it fires again, None when it
    never does.
    """

    kind: ClassVar[Literal["timer/fired"]] = "timer/fired"
    timer: str
    due_us: int
    missed: int = 0
    next_us: int | None = None


@frozen(kw_only=True)
class TimerCancelled:
    """The timer does not fire any more. What it fired before stays in the inbox."""

    kind: ClassVar[Literal["timer/cancelled"]] = "timer/cancelled"
    timer: str
    by: str = ""


@frozen(kw_only=True)
class CompactionStart:
    """The context is about to be made shorter: nothing has changed for the model yet.

    To "summarise", `model` is asked for a summary of the messages from row `from_seq` to row `to_seq`: with the head
    and these messages as they are now and the `instruction` behind them. `sha256` (hex) covers the bytes that are sent.
    To "prune", results in that range are said in fewer words, and nobody is asked. Tokens are estimates.
    """

    kind: ClassVar[Literal["compaction/start"]] = "compaction/start"
    level: CompactionLevel
    from_seq: int
    to_seq: int
    tokens_before: int
    compactor: str
    model: str = ""
    instruction: str = ""
    sha256: str = ""


@frozen(kw_only=True)
class CompactionEnd:
    """What came of it. When "done", what replaces the old messages stands before it in the same append.

    Tokens are estimates, but for those that the model counted for its summary. `charge` as for `AssistantMessage`.
    """

    kind: ClassVar[Literal["compaction/end"]] = "compaction/end"
    outcome: CompactionOutcome
    tokens_after: int = 0
    message: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    price: TokenPrice | None = None
    charge: int = 0

    @property
    def counted(self) -> int:
        """All tokens of it that its provider has counted, whatever it says."""
        return sum(_amounts(self))

    @property
    def charged(self) -> int:
        """The tokens that count for a budget."""
        return _charged(self)

    @property
    def asked(self) -> bool:
        """Whether a model was asked, and said what that took."""
        return any(_amounts(self))

    @property
    def cost_pico(self) -> int | None:
        """What the summary cost, as for `AssistantMessage`."""
        return _cost_pico(self)


def _amounts(asked: AssistantMessage | CompactionEnd) -> tuple[int, int, int, int]:
    return asked.input_tokens, asked.output_tokens, asked.cached_tokens, asked.cache_write_tokens


def _charged(asked: AssistantMessage | CompactionEnd) -> int:
    """Bounded, so that nonsense of a provider can be added up."""
    return min(max(asked.charge, asked.counted, 0), CHARGED_MAX)


def _cost_pico(asked: AssistantMessage | CompactionEnd) -> int | None:
    price, amounts = asked.price, _amounts(asked)
    if price is None or not any(amounts) or min(amounts) < 0:
        return None
    cost = 0
    prices = (price.input_pico, price.output_pico, price.cached_pico, price.cache_write_pico)
    for tokens, pico in zip(amounts, prices, strict=True):
        if tokens and pico is None:
            return None
        cost += tokens * (pico or 0)
    return cost if 0 <= cost < 2**63 else None


@frozen
class SubGoal:
    """A part of a task's goal. One that is not `core` is put off when the task runs out of tokens."""

    text: str
    core: bool = field(default=False, kw_only=True)


@frozen(kw_only=True)
class TaskSubmitted:
    """The session is a task's, whose id is the session's name: always row 2, and durable before anybody owns it.

    `goal` is what is to be reached, with `parameters` in canonical JSON; `goal_check` names the check that alone
    decides whether it is, "" for none. `model` is "adapter:model", `system` the host's part of the system text.

    All its turns together have at most `max_steps` steps, and it fails after `max_recoveries` recoveries in a row
    without a finished step, or is paused after more hand-overs in which one was left in the middle. Times are Unix
    microseconds: it does not begin before `due_us` nor go on after `deadline_us`. `agent` is the name and version of
    the host's own program, for those who ask later.

    With `every_us` its goal is to be reached again after so many microseconds, `times` times in all and not after
    `until_us`, None for no such bound; its steps are counted anew each time.

    Each of its requests has at most `max_input_tokens`, beside what its model and its worker allow.

    `degradation` is what is done for it, in this order, as its tokens run out: `smaller_model` is the one that serves
    then, "" for none. It is paused in the end.
    """

    kind: ClassVar[Literal["task/submitted"]] = "task/submitted"
    goal: str
    model: str
    parameters: str = "{}"
    system: str = ""
    task_class: TaskClass = "normal"
    goal_check: str = ""
    max_steps: int = 30
    max_recoveries: int = 5
    due_us: int | None = None
    deadline_us: int | None = None
    agent: str = ""
    every_us: int | None = None
    until_us: int | None = None
    times: int | None = None
    sub_goals: tuple[SubGoal, ...] = ()
    smaller_model: str = ""
    degradation: tuple[Degradation, ...] = ("compress", "shrink", "smaller_model")
    max_input_tokens: int | None = None


@frozen(kw_only=True)
class TaskAmended:
    """A person has changed what is to be reached: from now on it is this `goal` with these `parameters`."""

    kind: ClassVar[Literal["task/amended"]] = "task/amended"
    goal: str
    parameters: str = "{}"
    by: str = ""


@frozen(kw_only=True)
class TaskState:
    """Where the task stands from now on, and why.

    `cause` is for programs, `message` for people. `goal_met` is what the goal check said, None where nobody asked one.
    A paused one goes on by itself at `resume_at_us` (Unix microseconds), if that is set.
    """

    kind: ClassVar[Literal["task/state"]] = "task/state"
    state: TaskStateName
    cause: str = ""
    message: str = ""
    goal_met: bool | None = None
    resume_at_us: int | None = None


@frozen(kw_only=True)
class GoalChecked:
    """The model of a task has stopped, and the goal check `check` of `plugin` has looked whether its goal is `met`.

    If it is not, `missing` is what the model is told. Several may follow each other: only the last one counts.
    """

    kind: ClassVar[Literal["goal/checked"]] = "goal/checked"
    check: str
    met: bool
    missing: str = ""
    plugin: str
    plugin_version: str


@frozen(kw_only=True)
class CheckpointWritten:
    """How far the task has come at this row, by the log's own count. It refers to rows and repeats none.

    `steps` are the finished ones of all turns, `calls` the tool bodies started, `tokens` all that answers counted,
    `recoveries` how often it was taken up from a dead worker; `action` tells what the last step called (16 hex digits
    of a sha256), `no_progress` how many steps did the same and brought nothing new, `active_us` how many microseconds
    were worked on it on this day (UTC).

    A light one has no more. The others have the `fingerprint` of what the work is based on, the `history` (sha256, in
    hex) of what the model sees, the row of the `compaction` in force, the rows of the `results` of the open step, and
    a `summary`: what was done and what is next, in a few words.
    """

    kind: ClassVar[Literal["checkpoint/written"]] = "checkpoint/written"
    level: CheckpointLevel
    phase: Phase
    steps: int
    calls: int = 0
    tokens: int = 0
    recoveries: int = 0
    action: str = ""
    no_progress: int = 0
    fingerprint: str = ""
    history: str = ""
    compaction: int | None = None
    results: tuple[int, ...] = ()
    summary: str = ""
    active_us: int = 0


@frozen(kw_only=True)
class CheckpointSkipped:
    """The checkpoint in row `checkpoint_seq` disagrees with the log, so the one before it was gone on from."""

    kind: ClassVar[Literal["checkpoint/skipped"]] = "checkpoint/skipped"
    checkpoint_seq: int
    why: str


@frozen(kw_only=True)
class Refresh:
    """A read whose result the model still sees, of the call in row `call_seq`, and what came of asking again.

    `answer` tells what it answers now (16 hex digits of a sha256), "" when it failed.
    """

    call_seq: int
    came: Refreshed
    answer: str = ""


@frozen(kw_only=True)
class TaskResynced:
    """The task goes on under another owner, or after a pause: what it is based on and what it has read were looked at.

    `before` is the fingerprint that the log has, `after` the one of now; where they differ, `changed` names the parts
    ("goal", "parameters", "system", "tools", "model"), the open turn was closed as interrupted, and a new head starts
    the next one. `refreshed` are the reads that were asked for again, newest first, `left_out` counts those beyond the
    bound. `checkpoint_seq` is the checkpoint that it goes on from, None when none was sound.
    """

    kind: ClassVar[Literal["task/resync"]] = "task/resync"
    before: str
    after: str
    changed: tuple[str, ...] = ()
    refreshed: tuple[Refresh, ...] = ()
    left_out: int = 0
    checkpoint_seq: int | None = None


@frozen(kw_only=True)
class BudgetGranted:
    """The session may use `most` of what `card` counts, from its first row on, and no more.

    Tokens, counts, or seconds where the name ends in `_s`. What was done as a card ran out is taken back.
    """

    kind: ClassVar[Literal["budget/granted"]] = "budget/granted"
    card: str
    most: int
    by: str = ""


@frozen(kw_only=True)
class BudgetCharged:
    """A child has used so much of what it was lent of a card, for the task of the call that settles now."""

    kind: ClassVar[Literal["budget/charged"]] = "budget/charged"
    card: str
    amount: int
    invocation_id: str


@frozen(kw_only=True)
class BudgetAlert:
    """Much of a card is used ("warning"), or something needs more than is left of it ("exceeded").

    It warns once, and of what is counted by the day or by the step once in each. Where it is exceeded, the
    session goes on, the call that needs it is "shed" (the model is told), or the session pauses, and goes on by itself
    at `resume_at_us` (Unix microseconds), if that is set.
    """

    kind: ClassVar[Literal["budget/alert"]] = "budget/alert"
    card: str
    used: int
    most: int
    level: AlertLevel
    then: AlertThen = "goes_on"
    message: str = ""
    resume_at_us: int | None = None


@frozen(kw_only=True)
class BudgetDegraded:
    """As its tokens run out, the task goes on with less: what was done about it, and the `reason`.

    To "compress", its requests are to have at most `context_tokens` from now on, as far as that can be. To "shrink",
    the `put_off` sub-goals wait until more is granted. With a "smaller_model", that `model` serves.
    """

    kind: ClassVar[Literal["budget/degraded"]] = "budget/degraded"
    move: Move
    reason: str
    context_tokens: int | None = None
    put_off: tuple[str, ...] = ()
    model: str = ""


@frozen(kw_only=True)
class ContextBuilt:
    """What request `attempt` of the step will have, in a session with a budget: about so many `tokens`.

    `head_tokens` of them are before the `messages` messages. At most `most` may be, None where nobody knows.
    """

    kind: ClassVar[Literal["context/built"]] = "context/built"
    attempt: int
    model: str
    tokens: int
    head_tokens: int
    messages: int
    most: int | None = None


@frozen(kw_only=True)
class PluginLoaded:
    """A plugin was registered while the session was open."""

    kind: ClassVar[Literal["plugin/loaded"]] = "plugin/loaded"
    plugin: str
    version: str


@frozen(kw_only=True)
class PluginUnloaded:
    """A plugin was taken back while the session was open."""

    kind: ClassVar[Literal["plugin/unloaded"]] = "plugin/unloaded"
    plugin: str
    version: str


@frozen(kw_only=True)
class PluginFault:
    """A plugin's hook raised, hung or broke the contract; it cost only what `hook` was asked about."""

    kind: ClassVar[Literal["plugin/error"]] = "plugin/error"
    plugin: str
    hook: str
    error: str


@frozen(kw_only=True)
class UnknownEvent:
    """A row of a kind this version does not know, marked ignorable by its writer; kept, skipped."""

    kind: str
    data: str


Event = (
    SessionCreated
    | SessionOpened
    | SessionClosed
    | SessionRepaired
    | InboxSplice
    | TurnStart
    | TurnEnd
    | StepStart
    | StepEnd
    | UserMessage
    | RequestHeader
    | RequestSent
    | AssistantDelta
    | AssistantMessage
    | RequestFailed
    | RequestRetry
    | ToolCall
    | ToolProgress
    | ToolResult
    | ApprovalAsked
    | ApprovalDecided
    | LetterTaken
    | SubagentSpawned
    | SubagentSettled
    | TimerSet
    | TimerFired
    | TimerCancelled
    | CompactionStart
    | CompactionEnd
    | TaskSubmitted
    | TaskAmended
    | TaskState
    | GoalChecked
    | TaskResynced
    | CheckpointWritten
    | CheckpointSkipped
    | BudgetGranted
    | BudgetCharged
    | BudgetAlert
    | BudgetDegraded
    | ContextBuilt
    | PluginLoaded
    | PluginUnloaded
    | PluginFault
    | UnknownEvent
)
Message = UserMessage | AssistantMessage | ToolResult


@frozen(kw_only=True)
class Record:
    """An event in its place in the log.

    `seq` counts from 1 without gaps within the session and is the only order; `at_us` is the wall
    clock in Unix microseconds and may jump. `turn` and `step` are None outside of one.
    """

    session: str
    seq: int
    at_us: int
    turn: int | None
    step: int | None
    epoch: int
    event: Event
    ignorable: bool = False
