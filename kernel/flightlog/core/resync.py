"""What a task looks at again before it goes on: what it is based on, what it was doing, and what it has read.

It follows from the log whether that is due, so no owner can forget it; and all that comes of it is one append, so a
crash leaves it as due as before. What was recorded is never replaced: the model is told what is otherwise now.

| the turn           | what it is based on | then                                                               |
|--------------------|---------------------|--------------------------------------------------------------------|
| open, in a step    | the same            | messages enter the step, behind the results of its calls           |
| open, between steps| the same            | messages wait for the next step, and bring none about              |
| open               | changed             | the turn is closed as interrupted; messages wait, and open another |
| closed             |                     | messages wait, and open a turn                                     |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from attrs import evolve, frozen

from flightlog.core import checkpoints, inbox
from flightlog.core.checkpoints import basis_of, clipped, summary
from flightlog.core.doubt import Signature, signature
from flightlog.core.fingerprint import DIGITS, Basis
from flightlog.core.fold import fold
from flightlog.core.history import answer_digest
from flightlog.core.limits import RESYNC_ANSWER_MAX_CHARS, RESYNC_GOAL_MAX_CHARS
from flightlog.core.repair import closing
from flightlog.core.state import State
from flightlog.core.task import Task
from flightlog_hookspecs.content import Block, FileBlock, TextBlock, ToolCallBlock, text_blocks
from flightlog_hookspecs.events import (
    AssistantMessage,
    Event,
    Message,
    Refresh,
    Refreshed,
    TaskResynced,
    ToolResult,
    TurnEnd,
    UserMessage,
)

GOES_ON: Final = "This task goes on now."
CHANGED: Final = "what the task is based on has changed: "


def due(state: State) -> bool:
    """Whether the task has to look at things again before anything else is done for it."""
    task = state.task
    return task is not None and task.state in ("running", "recovering") and not task.resynced and state.turn > 0


@frozen(kw_only=True)
class Read:
    """A result that the model sees, of a call that can be asked again; in row `call_seq` the call stands."""

    call_seq: int
    result: ToolResult
    arguments: str


@frozen(kw_only=True)
class Answer:
    """What came of asking again: the new `content`, or the `error` that there was none for."""

    read: Read
    content: tuple[Block, ...] = ()
    error: str = ""

    @property
    def digest(self) -> str:
        """What tells this answer from another."""
        return answer_digest(self.content)[:DIGITS]

    def came(self, task: Task) -> Refreshed:
        """What it is beside what the model was told last."""
        if self.error:
            return "failed"
        told = task.reread.get(self.read.call_seq) or answer_digest(self.read.result.content)[:DIGITS]
        return "same" if self.digest == told else "changed"


def reads(messages: Sequence[Message], refreshable: Collection[str]) -> list[Read]:
    """The visible results of tools that are `refreshable`, newest first: of equal calls the newest only.

    Those that were left out to save room are not visible.
    """
    newest: dict[Signature, Read] = {}
    asked: tuple[ToolCallBlock, ...] = ()
    for message in messages:
        if isinstance(message, AssistantMessage):
            asked = tuple(block for block in message.content if isinstance(block, ToolCallBlock))
        elif isinstance(message, ToolResult) and message.call_seq is not None and message.outcome in ("ok", "error"):
            arguments = asked[message.position].arguments
            if message.name in refreshable and message.replaces is None:
                key = signature(message.name, arguments)
                newest.pop(key, None)
                newest[key] = Read(call_seq=message.call_seq, result=message, arguments=arguments)
    return list(reversed(newest.values()))


def basis_before(state: State) -> Basis:
    """What the work is based on in the log: the head as it was logged last, the goal as the last checkpoint has it.

    So a head that was logged since, of another model for one, is none that has changed behind the log's back.
    """
    assert state.task is not None, "only a task's work has a basis"
    goal, parameters = state.task.charge
    return evolve(basis_of(state), goal=goal, parameters=parameters)


def basis_now(state: State, head: Basis) -> Basis:
    """What it is based on now, where a request would have this `head`."""
    log = basis_of(state)
    if state.header is None:
        return log
    serving = log.model if state.header.instead_of == head.model else head.model
    return evolve(log, system=head.system, tools=head.tools, model=serving)


def resynced(
    state: State, head: Basis, answers: Sequence[Answer], left_out: int, new_id: Callable[[], str]
) -> tuple[Event, ...]:
    """All that comes of it, to be written as one append behind `state`; nothing when it is not due any more."""
    task = state.task
    if task is None or not due(state):  # a letter has paused it meanwhile
        return ()
    before, now = basis_before(state), basis_now(state, head)
    # What was found to be changed before is so until the next head is logged.
    changed = () if task.rebased == now.fingerprint else before.changes(now)
    came = {answer.read.call_seq: answer.came(task) for answer in answers}
    events: list[Event] = [*checkpoints.skipped(state)]
    if changed:
        end = TurnEnd(reason="interrupted", message=CHANGED + ", ".join(changed))
        events += closing(state, end, (), "aborted")
    contents = _contents(state, task, changed, answers, came, left_out)
    events += _entering(state, contents, new_id, cut=bool(changed))
    refreshed = TaskResynced(
        before=before.fingerprint,
        after=now.fingerprint,
        changed=changed,
        refreshed=tuple(
            Refresh(call_seq=seq, came=came[seq], answer="" if answer.error else answer.digest)
            for answer in answers
            for seq in [answer.read.call_seq]
        ),
        left_out=left_out,
        checkpoint_seq=task.mark.seq if task.mark else None,
    )
    return (*events, refreshed)


def _entering(
    state: State, contents: Sequence[tuple[Block, ...]], new_id: Callable[[], str], *, cut: bool
) -> list[Event]:
    """How messages with these `contents` reach the model; the turn was `cut` off if it was open."""
    if state.step is not None and not cut:
        return [UserMessage(message_id=new_id(), content=content, source="resync") for content in contents]
    wakes = cut or not state.turn_open
    events: list[Event] = []
    for content in contents:
        splice = inbox.accepted(state, "steer" if wakes else "inject", new_id(), content)
        events.append(evolve(splice, source="resync"))
        state = fold(state, events[-1], 0, state.epoch)
    return events


def _contents(
    state: State,
    task: Task,
    changed: Sequence[str],
    answers: Sequence[Answer],
    came: Mapping[int, Refreshed],
    left_out: int,
) -> list[tuple[Block, ...]]:
    """What the model is told: first what it was doing, unless it knows that from the last time, then what is news."""
    contents: list[tuple[Block, ...]] = []
    if changed or not task.recalled:
        contents.append(text_blocks(recollection(state, changed)))
    elif not (state.turn_open or inbox.wakes(state)):
        contents.append(text_blocks(GOES_ON))  # in short: one that is paused again and again would not fit in the end
    contents += [_news(answer) for answer in reversed(answers) if came[answer.read.call_seq] == "changed"]
    stale = [answer for answer in answers if answer.error and answer.read.call_seq not in task.stale]
    if stale or (left_out and not task.recalled):
        contents.append(text_blocks(_stale(stale, left_out)))
    return contents


def recollection(state: State, changed: Sequence[str] = ()) -> str:
    """What the task in `state` is about and how far it has come, in a few words and from the log alone."""
    task = state.task
    assert task is not None, "there is nothing to recall of a session without a task"
    lines = ["This task goes on after an interruption.", f"Goal: {clipped(task.goal, RESYNC_GOAL_MAX_CHARS)}"]
    if task.parameters != "{}":
        lines.append(f"Parameters: {clipped(task.parameters, RESYNC_GOAL_MAX_CHARS)}")
    if unsaid := _unsaid(state):
        lines += ["What you have noted:", *(f"- {name}: {text}" for name, text in unsaid.items())]
    lines.append(summary(state, "ask the model" if changed else None))
    if changed:
        lines.append(f"What has changed meanwhile: {', '.join(changed)}. What was under way then was cut off.")
    return "\n".join(lines)


def _unsaid(state: State) -> dict[str, str]:
    """The facts that no prompt section tells the model, each as its name, a colon and its text."""
    said = "\n".join(state.context.values()).casefold()
    return {name: text for name, text in state.facts.items() if f"{name}: {text}".casefold() not in said}


def _news(answer: Answer) -> tuple[Block, ...]:
    read = answer.read
    text = "".join(
        block.text if isinstance(block, TextBlock) else f"[{block.label}]"
        for block in answer.content
        if isinstance(block, (TextBlock, FileBlock))
    )
    if len(text) > RESYNC_ANSWER_MAX_CHARS:
        text = clipped(text, RESYNC_ANSWER_MAX_CHARS) + "\n[cut off here: call it again for the rest]"
    call = clipped(f"{read.result.name}({read.arguments})", RESYNC_GOAL_MAX_CHARS)
    return text_blocks(f"The answer of {call}, a call in row {read.call_seq}, is out of date. It is now:\n{text}")


def _stale(failed: Sequence[Answer], left_out: int) -> str:
    lines = ["These answers may be out of date; call again before you rely on them:"]
    for answer in failed:
        read = answer.read
        lines.append(clipped(f"{read.result.name}({read.arguments}), row {read.call_seq}: {answer.error}", 300))
    if left_out:
        lines.append(f"{left_out} older ones that were not asked for again")
    return "\n".join(lines)
