"""What was remembered, by the log: calls of `remember` that ended well. The index holds this and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Final, Literal, Protocol, get_args

from attrs import define, field, frozen

from flightlog_hookspecs.events import Record, ToolCall, ToolResult

TOOL: Final = "remember"
TEXT_MAX_CHARS: Final = 2000

Kind = Literal["conclusion", "knowledge", "preference"]


class SessionLog(Protocol):
    """One session of a log, as `flightlog.open_log(path).session(name)` has it."""

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
    """A text of at most `TEXT_MAX_CHARS` characters, the session that remembered it first, and when (Unix µs)."""

    kind: str
    text: str
    session: str
    at_us: int


@define
class Follower:
    """Finds what was remembered among the records of one session, which it is fed in order."""

    _calls: dict[int, ToolCall] = field(factory=dict, init=False)

    def missed(self, record: Record) -> bool:
        """Whether `record` is the result of a call that it was not fed."""
        event = record.event
        return isinstance(event, ToolResult) and event.call_seq is not None and event.call_seq not in self._calls

    def feed(self, record: Record) -> Remembered | None:
        """What `record` makes remembered, if anything."""
        match record.event:
            case ToolCall(name=name) as call if name == TOOL:
                self._calls[record.seq] = call
            case ToolResult(name=name, call_seq=int(seq), outcome=outcome) if name == TOOL:
                ended = self._calls.pop(seq, None)
                if ended is not None and outcome == "ok":
                    return _meant(ended, record)
        return None


def _meant(call: ToolCall, record: Record) -> Remembered | None:
    """None for a call of another tool of that name, which may have been there before."""
    try:
        match json.loads(call.arguments):
            case {"text": str(text), "kind": str(kind)} if kind in get_args(Kind) and len(text) <= TEXT_MAX_CHARS:
                return Remembered(kind=kind, text=text.strip(), session=record.session, at_us=record.at_us)
    except (ValueError, RecursionError):
        pass
    return None
