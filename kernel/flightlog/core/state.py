"""The state a session is in: what folding its log yields. Immutable, so an append can be tried."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from attrs import frozen

from flightlog.core.account import Account
from flightlog.core.doubt import NO_DOUBTS, Signature, signature
from flightlog.core.facts import NO_FACTS
from flightlog.core.growing_set import GrowingSet
from flightlog.core.task import Task
from flightlog.core.timer import Timer
from flightlog_hookspecs.content import Block
from flightlog_hookspecs.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantMessage,
    CompactionStart,
    Decision,
    PluginVersion,
    RequestFailed,
    RequestHeader,
    RequestRetry,
    Source,
    SubagentSpawned,
    ToolCall,
    TurnEnd,
)
from flightlog_hookspecs.hooks import Failure
from flightlog_hookspecs.stream import Usage
from flightlog_hookspecs.tools import Outcome

NO_USAGE: Final = Usage()
NO_QUESTIONS: Final[GrowingSet[int]] = GrowingSet()
NO_IDS: Final[GrowingSet[str]] = GrowingSet()
NO_DECISIONS: Final[Mapping[str, Decision]] = MappingProxyType({})
NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})
NO_CONTEXT: Final[Mapping[str, str]] = MappingProxyType({})
NO_TIMERS: Final[Mapping[str, Timer]] = MappingProxyType({})
NO_CHILDREN: Final[Mapping[str, SubagentSpawned]] = MappingProxyType({})
AttemptPhase = Literal["none", "open", "failed", "answered"]


@frozen(kw_only=True)
class Pending:
    """A message in the inbox. One that does not wake waits until another does."""

    message_id: str
    content: tuple[Block, ...]
    source: Source
    wakes: bool = True


@frozen(kw_only=True, slots=False)
class Call:
    """A call of the step's assistant message. Answered once `outcome` is set, by row `result_seq`.

    `output` is the gist of its result.

    `started` is its newest start, in row `started_seq` by the owner of `started_epoch`. `asked` is the question about
    it since then, in row `asked_seq`, and `decided` the answer to that. An `outlived` one was started by an owner
    that lived as the session was taken from it, so it may still run. A `doubtful` one was not started in the rows that
    a repair kept, but may have been in those that were lost.
    """

    position: int
    call_id: str
    name: str
    arguments: str
    started: ToolCall | None = None
    started_seq: int | None = None
    started_epoch: int = 0
    asked: ApprovalAsked | None = None
    asked_seq: int | None = None
    decided: ApprovalDecided | None = None
    outcome: Outcome | None = None
    outlived: bool = False
    output: str = ""
    result_seq: int | None = None
    doubtful: bool = False

    @property
    def decision(self) -> Decision | None:
        """The answer to the question about it, if there is one."""
        return self.decided.decision if self.decided else None

    @property
    def wanted(self) -> str:
        """The arguments to run it with: its own, unless guards gave it others."""
        if self.started:
            return self.started.arguments
        return self.asked.arguments if self.asked and self.asked.arguments else self.arguments

    @property
    def signature(self) -> Signature:
        """What makes another call the same one: the tool, and the arguments it ran or would have run with."""
        return signature(self.name, self.wanted)

    @property
    def action(self) -> Signature:
        """The same by the key arguments of its tool alone, where that has named some."""
        return (self.name, self.started.key) if self.started and self.started.key else self.signature


@frozen(kw_only=True, slots=False)
class Step:
    """The open step, opened in row `seq`. `attempt` is the number of the last request sent in it, 0 for none yet.

    The owner of `attempt_epoch` sent it. `briefed` says that hooks have told the model something for the step, `told`
    holds the gists of the messages that entered it and may have brought something new. `failures` holds an entry for
    each attempt that failed, in order; `failed` is the last attempt's. The `cut_off` attempts that ended with their
    owner are not among them: nobody failed.
    """

    number: int
    seq: int = 0
    attempt: int = 0
    attempt_seq: int = 0
    attempt_epoch: int = 0
    briefed: bool = False
    phase: AttemptPhase = "none"
    failed: RequestFailed | None = None
    failures: tuple[Failure, ...] = ()
    cut_off: int = 0
    retry: RequestRetry | None = None
    message: AssistantMessage | None = None
    message_seq: int = 0
    calls: tuple[Call, ...] = ()
    told: tuple[str, ...] = ()

    @property
    def unanswered(self) -> tuple[Call, ...]:
        """The calls still without a result, in call order."""
        return tuple(call for call in self.calls if call.outcome is None)


@frozen(kw_only=True, slots=False)
class State:
    """A session at one point of its log.

    `steps` counts the steps of the current turn, `alike` the last of them that did the same and brought nothing new;
    `claimed` holds messages taken from the inbox whose `user/message` has not been seen yet (empty between appends);
    `questions` the rows of all approvals ever asked, `outcome_questions` of those about outcomes, `letters` the ids of
    all letters ever taken, `accepted` those of all messages ever accepted; `cancelling` says that a letter cancels the
    open turn, `torn` that a repair has lost rows of it; `context` what messages last said of each prompt section ("":
    that it no longer applies), each in its row of `context_rows`; `compaction` is the one under way, `compacted` the
    row in which the newest was done; `continued` how often each hook has had the current turn go on; `words` are those
    of its last answer, block by block;
    `lock` numbers the session's lock that its owner holds; `plugins` are those registered; `remembered` holds
    what a person decided about a tool, to be remembered; `doubts` the calls whose outcome nobody knows, each
    with the row of its result; `facts` are what tools have noted, text by name; `repair` is the id of the last repair;
    `depth` and `tools` are those of `session/created`, `parent` is the uid of the parent there; `children` holds the
    newest task of each child ever, `unsettled` the names of those of whose task nothing has come yet, and `assigned`
    the invocation ids of all tasks; `timers` are those still to fire, in the order in which they were set, and
    `timer_names` the names of all ever set; `task` is what the session is for, None when it is no task's;
    `account` is that of its budget, None when it has none.
    """

    uid: str = ""
    parent: str = ""
    depth: int = 0
    tools: tuple[str, ...] | None = None
    epoch: int = -1
    lock: int = 0
    closed: bool = False
    repair: str = ""
    next_turn: tuple[Pending, ...] = ()
    next_step: tuple[Pending, ...] = ()
    claimed: tuple[Pending, ...] = ()
    turn: int = 0
    turn_open: bool = False
    steps: int = 0
    alike: int = 0
    step: Step | None = None
    last_step: Step | None = None
    questions: GrowingSet[int] = NO_QUESTIONS
    outcome_questions: GrowingSet[int] = NO_QUESTIONS
    letters: GrowingSet[str] = NO_IDS
    accepted: GrowingSet[str] = NO_IDS
    cancelling: bool = False
    torn: bool = False
    plugins: tuple[PluginVersion, ...] = ()
    remembered: Mapping[str, Decision] = NO_DECISIONS
    doubts: Mapping[Signature, int] = NO_DOUBTS
    facts: Mapping[str, str] = NO_FACTS
    children: Mapping[str, SubagentSpawned] = NO_CHILDREN
    unsettled: tuple[str, ...] = ()
    assigned: GrowingSet[str] = NO_IDS
    timers: Mapping[str, Timer] = NO_TIMERS
    timer_names: GrowingSet[str] = NO_IDS
    task: Task | None = None
    account: Account | None = None
    header: RequestHeader | None = None
    header_seq: int = 0
    context: Mapping[str, str] = NO_CONTEXT
    context_rows: Mapping[str, int] = NO_COUNTS
    compaction: CompactionStart | None = None
    compacted: int | None = None
    continued: Mapping[str, int] = NO_COUNTS
    usage: Usage = NO_USAGE
    words: tuple[str, ...] = ()
    last_end: TurnEnd | None = None

    def task_of(self, invocation_id: str) -> SubagentSpawned | None:
        """The task that this call has given, unless its child had another one since."""
        return next((task for task in self.children.values() if task.invocation_id == invocation_id), None)

    def slot(self, name: Literal["next_turn", "next_step"]) -> tuple[Pending, ...]:
        """The messages waiting in inbox slot `name`, first in line first."""
        return self.next_turn if name == "next_turn" else self.next_step

    @property
    def invocations(self) -> str:
        """What the invocation ids of calls made now begin with. Calls in rows that were lost had another."""
        return f"{self.uid}.{self.repair}" if self.repair else self.uid

    @property
    def text(self) -> str:
        """The model's last words."""
        return "".join(self.words)

    @property
    def model(self) -> str:
        """The newest head's, as "adapter:model"; "" before the first."""
        return f"{self.header.head.adapter}:{self.header.head.model}" if self.header else ""

    @property
    def own_model(self) -> str:
        """The one that the session was opened with last, whichever serves; "" before the first head."""
        return (self.header.instead_of if self.header else "") or self.model

    @property
    def suspended(self) -> bool:
        """Whether the open turn waits for answers about calls, and nothing in it is in doubt or was cancelled."""
        calls = self.step.unanswered if self.step else ()
        asked = any(call.asked_seq is not None for call in calls)
        in_doubt = any((call.started and call.asked_seq is None) or call.doubtful for call in calls)
        return asked and not self.cancelling and not in_doubt

    @property
    def place(self) -> tuple[int | None, int | None]:
        """Turn and step that an event appended now belongs to."""
        return (self.turn if self.turn_open else None, self.step.number if self.step else None)


EMPTY = State()
