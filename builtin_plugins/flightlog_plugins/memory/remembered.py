"""What was remembered, by the log: calls of `remember` that ended well, and what came of tasks.

The index holds this and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Final, Literal, Protocol, get_args

from attrs import define, field, frozen

from flightlog_hookspecs.events import (
    AssistantMessage,
    Event,
    Record,
    TaskAmended,
    TaskState,
    TaskSubmitted,
    ToolCall,
    ToolResult,
)

TOOL: Final = "remember"
TEXT_MAX_CHARS: Final = 2000
GOAL_MAX_CHARS: Final = 500
"""As much of a task's goal and parameters is in its conclusion; its result has the rest of `TEXT_MAX_CHARS`."""

Kind = Literal["conclusion", "knowledge", "preference"]


class SessionLog(Protocol):
    """One session of a log, as `flightlog.open_log(path).session(name)` has it."""

    def length(self) -> int:
        """How many records it has."""

    def records(self) -> Iterable[Record]:
        """All its records in order."""


class Log(Protocol):
    """A log to read, as `flightlog.open_log(path)` has it."""

    def names(self) -> Iterable[str]:
        """All its sessions."""

    def session(self, name: str, /) -> SessionLog:
        """One of them."""


class OpenLog(Protocol):
    """Opens the log to read. Called in a thread, also while the log is written."""

    def __call__(self) -> AbstractContextManager[Log]:
        """The log, closed when it is left."""


@frozen(kw_only=True)
class Remembered:
    """A text of at most `TEXT_MAX_CHARS` characters, the session that remembered it first, and when (Unix µs).

    One that `concludes` is what came of the session's task; there is one for each such session, the newest.
    """

    kind: str
    text: str
    session: str
    at_us: int
    concludes: bool = False


def concludes(event: Event) -> bool:
    """Whether something has come of a task: it is completed, or one that repeats waits for its next time."""
    match event:
        case TaskState(state="completed"):
            return True
        case TaskState(state="paused", cause="timer", message=""):
            return True
    return False


@define
class Follower:
    """Finds what was remembered among the records of one session, which it is fed in order."""

    _calls: dict[int, ToolCall] = field(factory=dict, init=False)
    _task: TaskSubmitted | None = field(default=None, init=False)
    _goal: str = field(default="", init=False)
    _words: str = field(default="", init=False)

    def missed(self, record: Record) -> bool:
        """Whether `record` speaks of earlier ones that it was not fed, if it was fed only those that matter."""
        event = record.event
        if isinstance(event, ToolResult):
            return event.call_seq is not None and event.call_seq not in self._calls
        return concludes(event)

    def feed(self, record: Record) -> Remembered | None:
        """What `record` makes remembered, if anything."""
        match record.event:
            case ToolCall(name=name) as call if name == TOOL:
                self._calls[record.seq] = call
            case ToolResult(name=name, call_seq=int(seq), outcome=outcome) if name == TOOL:
                ended = self._calls.pop(seq, None)
                if ended is not None and outcome == "ok":
                    return _meant(ended, record)
            case TaskSubmitted() as task:
                self._task, self._goal = task, _charge(task)
            case TaskAmended() as amended:
                self._goal = _charge(amended)
            case AssistantMessage() as message:
                self._words = message.text.strip()
            case TaskState(state=state) as event if concludes(event) and self._task and self._words:
                if state == "completed" or self._task.every_us is not None:
                    return self._conclusion(record)
        return None

    def _conclusion(self, record: Record) -> Remembered:
        text = f"Task: {self._goal}\nResult: {self._words}"
        return Remembered(
            kind="conclusion",
            text=_keepable(_cut(text, TEXT_MAX_CHARS)),
            session=record.session,
            at_us=record.at_us,
            concludes=True,
        )


def _charge(task: TaskSubmitted | TaskAmended) -> str:
    goal = task.goal if task.parameters == "{}" else f"{task.goal} {task.parameters}"
    return _cut(goal.strip(), GOAL_MAX_CHARS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _meant(call: ToolCall, record: Record) -> Remembered | None:
    """None for a call of another tool of that name, which may have been there before."""
    try:
        match json.loads(call.arguments):
            case {"text": str(text), "kind": str(kind)} if kind in get_args(Kind) and len(text) <= TEXT_MAX_CHARS:
                text = _keepable(text.strip())
                return Remembered(kind=kind, text=text, session=record.session, at_us=record.at_us)
    except (ValueError, RecursionError):
        pass
    return None


def _keepable(text: str) -> str:
    """`text` with what UTF-8 cannot say, half of a pair, as question marks: it is no reason to lose the rest."""
    return text.encode(errors="replace").decode()
