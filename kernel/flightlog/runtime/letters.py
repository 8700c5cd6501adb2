"""Letters, read: the owner turns them into events, in order, each exactly once.

A letter's events and the `letter/taken` that names it are one append, so a death leaves it either as
it was posted or taken. What goes on in memory (a cancel, an answer that a call waits for) follows the
append at once; a death in between ends that turn and that call anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

import trio

from flightlog.core.letters import Answer, Letter, Pause, Report, Stop, Words, taking
from flightlog.core.limits import Limits
from flightlog.core.state import State
from flightlog.core.task import PAUSED_BY_PERSON
from flightlog.runtime.approvals import Approvals
from flightlog.runtime.clock import Strides
from flightlog.runtime.driver import Driver
from flightlog.runtime.inbox import Inbox
from flightlog.runtime.journal import Journal
from flightlog.store.letter_codec import checked_files, decode_letter
from flightlog.store.store import Store
from flightlog_hookspecs.errors import (
    Fenced,
    ForkedProcess,
    InvariantViolation,
    LogCorrupt,
    StoreError,
    StoreStopped,
)
from flightlog_hookspecs.events import Event, LetterTaken, Record

POLL_S: Final = 0.02
"""How often the file is asked whether a letter has come: seldom enough to cost nothing, often enough to answer."""


class Letterbox:
    """The letters to one owned session."""

    def __init__(self, journal: Journal, inbox: Inbox, driver: Driver, approvals: Approvals, limits: Limits) -> None:
        self._journal = journal
        self._inbox = inbox
        self._driver = driver
        self._approvals = approvals
        self._limits = limits
        self._taken = 0
        self._under_way: trio.Event | None = None

    async def take(self) -> bool:
        """Take all letters that wait. True when there were any.

        May be called while it runs, and then waits for that: a letter that the file says is taken may not have been
        obeyed yet. Raises `LogCorrupt` for a letter that is not as it was posted.
        """
        while self._under_way is not None:
            await self._under_way.wait()
        done = self._under_way = trio.Event()
        try:
            return await self._take()
        finally:
            self._under_way = None
            done.set()

    async def _take(self) -> bool:
        journal, any_taken = self._journal, False
        for row in journal.store.letters(journal.key, journal.session, self._taken):
            letter = decode_letter(row)
            checked_files(letter, journal.session, journal.store.blob)
            records = await journal.append(partial(self._due, letter), barrier=True)
            if records:
                self._taken = letter.number
                self._obey(letter, records)
                any_taken = True
        return any_taken

    def _due(self, letter: Letter, state: State) -> Sequence[Event]:
        if state.closed or letter.uid in state.letters:
            return ()
        earlier = self._inbox.first_splice(letter.message_id) if isinstance(letter.body, Words) else None
        return taking(state, letter, earlier, self._limits)

    def _obey(self, letter: Letter, records: Sequence[Record]) -> None:
        """What the letter asks for beside the log."""
        taken = records[-1].event
        assert isinstance(taken, LetterTaken), "it closes the append"
        if taken.outcome != "obeyed":
            return
        if isinstance(letter.body, Stop):
            self._driver.cancel(letter.body.cause, now=letter.body.now)
        elif isinstance(letter.body, Pause) and self._driver.drives:  # else the open turn is there for who resumes it
            self._driver.pause(PAUSED_BY_PERSON, now=letter.body.now)
        elif isinstance(letter.body, (Answer, Report)):
            self._approvals.tell()


class Reader(Protocol):
    """Who can take letters: an owned session."""

    async def take_letters(self) -> None:
        """Take all that wait."""

    def fence(self, error: Exception) -> None:
        """Nothing more can be taken, because of `error`."""


class Postman:
    """Looks for letters to the owned sessions of a kernel."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sessions: list[Reader] = []
        self._seen = 0
        self._somebody = trio.Event()

    def add(self, session: Reader) -> None:
        """Look for letters to `session` from now on."""
        self._sessions.append(session)
        self._somebody.set()

    def remove(self, session: Reader) -> None:
        """Leave the letters to `session` to its next owner. Does nothing when that was done before."""
        if session in self._sessions:
            self._sessions.remove(session)
        if not self._sessions:
            self._somebody = trio.Event()

    async def run(self) -> None:
        """Look for letters, until cancelled or until the store has stopped (whoever met the fault was told)."""
        strides = Strides(POLL_S)
        try:
            while True:
                await self._somebody.wait()
                try:
                    await self._look()
                except (LogCorrupt, ForkedProcess):
                    raise
                except StoreError:
                    if self._store.stopped:
                        raise
                    # Only a read failed. Nothing was changed, so look again; a turn that needs it is told.
                await strides.pause()
        except StoreStopped as error:
            for session in tuple(self._sessions):
                session.fence(error)  # who waits for messages would otherwise wait for ever

    async def _look(self) -> None:
        self._store.check_alive(in_place=False)
        newest = self._store.read("last_letter")[0][0]
        if newest != self._seen:
            for session in tuple(self._sessions):
                await self._take(session)
            self._seen = newest

    async def _take(self, session: Reader) -> None:
        try:
            await session.take_letters()
        except (Fenced, LogCorrupt, InvariantViolation) as error:  # one session's; the others' letters are taken
            self.remove(session)
            session.fence(error)
