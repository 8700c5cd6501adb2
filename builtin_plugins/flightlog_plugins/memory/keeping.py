"""Keeping the index behind the log.

It follows what is committed, catches up where it may have missed something, and is made anew when it is unusable. What
a process that was killed had no time for, the next one makes up for: of a session as that is opened again, and of all
others before anything is looked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import TypeVar

from attrs import define, field, frozen

from flightlog_hookspecs.events import Record, SessionClosed, SessionOpened, ToolCall, ToolResult
from flightlog_plugins.memory.interface import IndexWriter, MemoryIndex, Unusable
from flightlog_plugins.memory.remembered import TOOL, Follower, Log, OpenLog, Remembered, concludes

T = TypeVar("T")


def matters(record: Record) -> bool:
    """Whether `Keeper.follow` is to be given it."""
    event = record.event
    if isinstance(event, (ToolCall, ToolResult)):
        return event.name == TOOL
    return isinstance(event, (SessionOpened, SessionClosed)) or concludes(event)


@define(eq=False)
class Keeper:
    """Keeps `index` behind the log that `open_log` opens. Call it in a thread.

    Memories are by subject, which `subject_of` tells by the session's name.
    """

    index: MemoryIndex
    open_log: OpenLog
    subject_of: Callable[[str], str]
    _followers: dict[str, Follower] = field(factory=dict, init=False)
    """By session, of those of which nothing was missed since this process opened them."""
    _looked: bool = field(default=False, init=False)
    _looking: Lock = field(factory=Lock, init=False)

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
                        writer.add(found, self.subject_of(session))
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
        self._look(session)
        subject = self.subject_of(session)
        return self._usable(lambda: self.index.search(words, subject=subject, beside=beside, limit=limit))

    def _missed_nothing(self, session: str, seq: int) -> bool:
        """Whether the index has read `session` up to `seq`; in its first two rows nothing is remembered."""
        return seq <= 2 or self._usable(self.index.followed).get(session, 0) >= seq

    def _look(self, session: str) -> None:
        """Once in this process, catch up with what others have missed, maybe in sessions that nobody opens again.

        Not with `session`, which is open here, so that its own end or beginning sees to it. One that cannot be read is
        left out, and the error is raised once all others were: it costs one search.
        """
        if self._looked or not self._looking.acquire(blocking=False):
            return
        try:
            followed = self._usable(self.index.followed)
            unread: Exception | None = None
            with self.open_log() as log:
                for other in log.names():
                    if other != session and log.session(other).length() > followed.get(other, 0):
                        try:
                            self._usable(partial(self._write, _read(log, other)))
                        except Exception as error:
                            unread = unread or error
            self._looked = True
        finally:
            self._looking.release()
        if unread is not None:
            raise unread

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
        self._write(read)
        return read.follower

    def _write(self, read: _Read) -> None:
        with self.index.writing() as writer:
            self._take_in(read, writer)

    def _rebuild(self, *, unless_sound: bool) -> None:
        def fill(writer: IndexWriter) -> None:
            with self.open_log() as log:
                for session in log.names():
                    self._take_in(_read(log, session), writer)

        self.index.rebuild(fill, unless_sound=unless_sound)

    def _take_in(self, read: _Read, writer: IndexWriter) -> None:
        for found in read.found:
            writer.add(found, self.subject_of(read.session))
        writer.follow(read.session, read.seq)


@frozen
class _Read:
    """What `session` remembered up to row `seq`, and what goes on from there."""

    session: str
    seq: int
    found: list[Remembered]
    follower: Follower


def _read(log: Log, session: str) -> _Read:
    """All of a session."""
    follower, seq, remembered = Follower(), 0, []
    for record in log.session(session).records():
        seq = record.seq
        if found := follower.feed(record):
            remembered.append(found)
    return _Read(session, seq, remembered, follower)
