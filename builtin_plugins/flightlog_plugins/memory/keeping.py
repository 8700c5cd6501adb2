"""Keeping the index behind the log.

It follows what is committed, catches up where it may have missed something, and is made anew when it is unusable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from attrs import define, field, frozen

from flightlog_hookspecs.events import Record, SessionClosed, SessionOpened, ToolCall, ToolResult
from flightlog_plugins.memory.index import Index, Unusable, Writer
from flightlog_plugins.memory.remembered import TOOL, Follower, Log, OpenLog, Remembered

T = TypeVar("T")


def matters(record: Record) -> bool:
    """Whether `Keeper.follow` is to be given it."""
    event = record.event
    return isinstance(event, (SessionOpened, SessionClosed)) or (
        isinstance(event, (ToolCall, ToolResult)) and event.name == TOOL
    )


@define(eq=False)
class Keeper:
    """Keeps `index` behind the log that `open_log` opens. Call it in a thread."""

    index: Index
    open_log: OpenLog
    _followers: dict[str, Follower] = field(factory=dict, init=False)
    """By session, of those of which nothing was missed since this process opened them."""

    def follow(self, record: Record) -> None:
        """Take in a record that matters, of a session of this process, in order. Raises whatever kept it from that.

        The session is then caught up with later, at its end at the latest, or when it is opened again.
        """
        session, event = record.session, record.event
        if isinstance(event, SessionOpened) and self._missed_nothing(session, record.seq - 1):
            self._followers[session] = Follower()
        follower = self._followers.pop(session, None)
        if follower is None or follower.missed(record):
            if isinstance(event, ToolCall):
                return
            follower = self._usable(lambda: self._catch_up(session))
        elif (found := follower.feed(record)) or isinstance(event, SessionClosed):

            def add() -> None:
                with self.index.writing() as writer:
                    if found:
                        writer.add(found)
                    writer.follow(session, record.seq)

            self._usable(add)
        if not isinstance(event, SessionClosed):
            self._followers[session] = follower

    def lost(self, session: str) -> None:
        """Say that a record of `session` may not have been taken in."""
        self._followers.pop(session, None)

    def rebuild(self) -> None:
        """Make the index anew from the log. What the log does not hold any more is in no byte of it."""
        self._rebuild(unless_sound=False)

    def search(self, words: str, *, session: str, beside: str, limit: int) -> list[Remembered]:
        """What fits `words` best."""
        subject = self.index.subject_of(session)
        return self._usable(lambda: self.index.search(words, subject=subject, beside=beside, limit=limit))

    def _missed_nothing(self, session: str, seq: int) -> bool:
        """Whether the index has read `session` up to `seq`; in its first row nothing is remembered."""
        return seq <= 1 or self._usable(lambda: self.index.followed(session)) == seq

    def _usable(self, use: Callable[[], T]) -> T:
        """What `use` returns, on an index that is made anew if it cannot be used."""
        try:
            return use()
        except Unusable:
            self._rebuild(unless_sound=True)
            return use()

    def _catch_up(self, session: str) -> Follower:
        with self.open_log() as log:
            read = _read(log, session)
        with self.index.writing() as writer:
            read.into(writer)
        return read.follower

    def _rebuild(self, *, unless_sound: bool) -> None:
        def fill(writer: Writer) -> None:
            with self.open_log() as log:
                for session in log.names():
                    _read(log, session).into(writer)

        self.index.rebuild(fill, unless_sound=unless_sound)


@frozen
class _Read:
    """What `session` remembered up to row `seq`, and what goes on from there."""

    session: str
    seq: int
    found: list[Remembered]
    follower: Follower

    def into(self, writer: Writer) -> None:
        for found in self.found:
            writer.add(found)
        writer.follow(self.session, self.seq)


def _read(log: Log, session: str) -> _Read:
    """All of a session."""
    follower, seq, remembered = Follower(), 0, []
    for record in log.session(session).records():
        seq = record.seq
        if found := follower.feed(record):
            remembered.append(found)
    return _Read(session, seq, remembered, follower)
