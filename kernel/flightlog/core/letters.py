"""Letters: what others want of a session, and the events by which its owner takes them.

| verb     | in the session                              | events before letter/taken           | outcome  |
|----------|---------------------------------------------|--------------------------------------|----------|
| a message| nothing was sent under its key before       | inbox/splice                         | obeyed   |
| a message| the same was sent under its key before      |                                      | repeated |
| a message| another one was sent under its key before   |                                      | refused  |
| an answer| the question is open                        | approval/decided                     | obeyed   |
| an answer| the question was settled before             | approval/decided, without effect     | refused  |
| an answer| the question asks for something else        |                                      | refused  |
| an answer| there was no such question                  |                                      | refused  |
| cancel   | a turn is open                              | the queue leaves, unless it is kept  | obeyed   |
| cancel   | idle, and messages wait that are not kept   | the queue leaves                     | obeyed   |
| cancel   | idle otherwise, in a task's session         | its timers, a checkpoint, task/state | obeyed   |
| cancel   | idle otherwise                              |                                      | refused  |
| pause    | its task has not ended and is not paused    | task/state paused                    | obeyed   |
| resume   | its task is paused                          | task/state pending                   | obeyed   |
| amend    | its task has not ended                      | task/amended, the model is told      | obeyed   |
| pause, resume, amend | otherwise                       |                                      | refused  |
| grant    | its task has these cards and has not ended  | budget/granted, what was put off     | obeyed   |
| grant    | otherwise                                   |                                      | refused  |
| set_timer| none of its name was set before             | timer/set                            | obeyed   |
| set_timer| it was set before                           |                                      | repeated |
| set_timer| there are too many, or it can be none       |                                      | refused  |
| cancel_timer | it is still to fire                     | timer/cancelled                      | obeyed   |
| cancel_timer | otherwise                               |                                      | refused  |

A message to a task whose goal was not delivered yet has the goal enter the inbox first.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from attrs import evolve, frozen

from flightlog.core import checkpoints, inbox, task_flow
from flightlog.core.budget import missing, spillover
from flightlog.core.fold import after, asked_about
from flightlog.core.limits import Limits
from flightlog.core.questions import objection
from flightlog.core.state import State
from flightlog.core.task import PAUSED_BY_PERSON, Task
from flightlog.core.timer import keyed_name, timer_name
from flightlog.core.waking import Wake, cancel_all, refusal, wanted
from flightlog_hookspecs.content import Block, text_blocks
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import (
    ApprovalDecided,
    BudgetGranted,
    Event,
    InboxSplice,
    LetterTaken,
    TaskAmended,
    TaskState,
    TimerCancelled,
    Told,
    Verb,
)


@frozen(kw_only=True)
class Words:
    """A message for the inbox: followup, steer and inject."""

    content: tuple[Block, ...]


@frozen(kw_only=True)
class Answer:
    """The answer to the question at `asked_seq`, whether a call may start."""

    asked_seq: int
    allow: bool
    by: str
    reason: str = ""
    remember: bool = False

    @property
    def decided(self) -> ApprovalDecided:
        """What it is in the log."""
        return ApprovalDecided(
            asked_seq=self.asked_seq,
            decision="allowed" if self.allow else "denied",
            by=self.by,
            reason=self.reason,
            remember=self.remember,
        )


@frozen(kw_only=True)
class Report:
    """The answer to the question at `asked_seq`, how a call ended."""

    asked_seq: int
    outcome: Told
    by: str
    reason: str = ""

    @property
    def decided(self) -> ApprovalDecided:
        """What it is in the log."""
        return ApprovalDecided(asked_seq=self.asked_seq, decision=self.outcome, by=self.by, reason=self.reason)


@frozen(kw_only=True)
class Stop:
    """The wish to end the running turn."""

    cause: str
    now: bool = False
    keep_queue: bool = True


@frozen(kw_only=True)
class Pause:
    """The wish that a task rests until it is resumed. With `now`, running tools get no time to end by themselves."""

    by: str
    now: bool = False


@frozen(kw_only=True)
class Resume:
    """The wish that a paused task goes on."""

    by: str


@frozen(kw_only=True)
class Amend:
    """What a task is to reach from now on; None for what stays as it was."""

    by: str
    goal: str | None = None
    parameters: str | None = None


@frozen(kw_only=True)
class CardGrant:
    """So much more of a card."""

    card: str
    more: int


@frozen(kw_only=True)
class Grant:
    """The wish that a task may use more."""

    by: str
    cards: tuple[CardGrant, ...]


@frozen(kw_only=True)
class CancelTimer:
    """The wish that a timer does not fire any more."""

    timer: str
    by: str


Body = Words | Answer | Report | Stop | Pause | Resume | Amend | Wake | CancelTimer | Grant
BODIES: Final[Mapping[Verb, type[Body]]] = MappingProxyType(
    {
        "followup": Words,
        "steer": Words,
        "inject": Words,
        "approve": Answer,
        "answer": Report,
        "cancel": Stop,
        "pause": Pause,
        "resume": Resume,
        "amend": Amend,
        "set_timer": Wake,
        "cancel_timer": CancelTimer,
        "grant": Grant,
    }
)


@frozen(kw_only=True)
class Letter:
    """A letter as its owner reads it, posted at `at_us`. `number` is its place among all letters of the file."""

    number: int
    uid: str
    key: str | None
    verb: Verb
    body: Body
    at_us: int = 0

    @property
    def message_id(self) -> str:
        """The id of the message it brings, known to its sender before anybody reads it.

        Only of a message that its sender wrote: a key stands for that one, and what the kernel has to tell beside has
        the uid.
        """
        return self.uid if self.key is None else inbox.keyed_id(self.key)

    @property
    def timer(self) -> str:
        """The name of the timer it sets, known to its sender before anybody reads it."""
        return timer_name(self.uid) if self.key is None else keyed_name(self.key)


def taking(state: State, letter: Letter, earlier: InboxSplice | None, limits: Limits) -> tuple[Event, ...]:
    """The events by which the owner takes `letter`, to be written as one append behind `state`.

    `earlier` is the splice that first accepted `letter.message_id`, None when none did.
    """
    match letter:
        case Letter(verb="followup" | "steer" | "inject" as way, body=Words(content=content)):
            goal = task_flow.goal(state)
            splice = inbox.accepted(after(state, *goal), way, letter.message_id, content)
            try:
                repeated = inbox.is_repeat(splice, earlier)
            except UsageError as error:
                return (_taken(letter, str(error)),)
            return (_repeated(letter),) if repeated else (*goal, splice, _taken(letter))
        case Letter(body=Answer(decided=decided) | Report(decided=decided)):
            if why := objection(state, decided.asked_seq, decided.decision):
                return (_taken(letter, why),)
            late = asked_about(state, decided.asked_seq) is None
            return (decided, _taken(letter, "the question was settled before" if late else ""))
        case Letter(body=Stop() as stop):
            dropped = () if stop.keep_queue else inbox.removed(state, inbox.waiting(state), "cancelled")
            if state.task and not state.task.ended and not state.turn_open:
                ended = TaskState(state="cancelled", cause=stop.cause)
                return (*dropped, *cancel_all(state, "task"), *checkpoints.moved(state, ended), _taken(letter))
            idle = not state.turn_open and not dropped
            return (*dropped, _taken(letter, "nothing was running" if idle else ""))
        case Letter(body=Pause() | Resume() | Amend() as wish):
            if state.task is None:
                return (_taken(letter, "this session is no task's"),)
            return _of_task(state, state.task, letter, wish)
        case Letter(body=Grant() as grant):
            return _granted(state, letter, grant)
        case Letter(body=Wake() as wish):
            if letter.timer in state.timer_names:
                return (_repeated(letter),)
            timer = wanted(wish, letter.timer, letter.at_us)
            why_not = refusal(state, timer, limits.timers_open)
            return (_taken(letter, why_not),) if why_not else (timer, _taken(letter))
        case Letter(body=CancelTimer(timer=name, by=by)):
            if name not in state.timers:
                return (_taken(letter, f"timer {name!r} is not still to fire"),)
            return (TimerCancelled(timer=name, by=by), _taken(letter))
        case _:
            raise AssertionError("the codec gives each verb its own body")


def _of_task(state: State, task: Task, letter: Letter, wish: Pause | Resume | Amend) -> tuple[Event, ...]:
    if task.ended:
        return (_taken(letter, f"the task is {task.state}"),)
    match wish:
        case Pause():
            if task.state == "paused" and task.at.cause == PAUSED_BY_PERSON:
                return (_taken(letter, "the task is paused already"),)
            return (TaskState(state="paused", cause=PAUSED_BY_PERSON, message=f"by {wish.by}"), _taken(letter))
        case Resume():
            if task.state != "paused":
                return (_taken(letter, f"the task is not paused, it is {task.state}"),)
            return (TaskState(state="pending", cause="resumed", message=f"by {wish.by}"), _taken(letter))
        case Amend():
            goal = task.goal if wish.goal is None else wish.goal
            parameters = task.parameters if wish.parameters is None else wish.parameters
            amended = TaskAmended(goal=goal, parameters=parameters, by=wish.by)
            return (amended, *task_flow.news_of(state, amended, letter.uid), _taken(letter))


def _granted(state: State, letter: Letter, grant: Grant) -> tuple[Event, ...]:
    """More of the cards, and the sub-goals that were put off for want of tokens."""
    account = state.account
    if account is None or (state.task is not None and state.task.ended):
        return (_taken(letter, f"the task is {state.task.state}" if state.task else "this session has no budget"),)
    if why := missing((each.card for each in grant.cards), account.cards):
        return (_taken(letter, why),)
    granted = tuple(
        BudgetGranted(card=each.card, most=account.cards[each.card] + each.more, by=grant.by) for each in grant.cards
    )
    words = spillover(account) if any(each.card == "tokens" for each in grant.cards) else ""
    splice = inbox.accepted(state, "steer", letter.uid, text_blocks(words)) if words else None
    return (*granted, *([evolve(splice, source="resync")] if splice else []), _taken(letter))


def _taken(letter: Letter, why_not: str = "") -> LetterTaken:
    return LetterTaken(
        letter_id=letter.uid, verb=letter.verb, outcome="refused" if why_not else "obeyed", reason=why_not
    )


def _repeated(letter: Letter) -> LetterTaken:
    return LetterTaken(letter_id=letter.uid, verb=letter.verb, outcome="repeated")
