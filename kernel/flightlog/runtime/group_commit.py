"""Commits, shared: what several sessions of a kernel append in the same round of the loop is one transaction.

An fsync costs the same for one append and for sixty-four. One session alone never waits for others. On a slow disk
what was committed becomes the sessions' state only once it is durable, and what comes meanwhile is the next round's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import trio
from attrs import define, frozen

from flightlog.core.state import State
from flightlog.runtime.committing import durable, relieved, when_free
from flightlog.store.connection import Busy
from flightlog.store.rows import Encoded
from flightlog.store.store import Blob, Store
from flightlog_hookspecs.events import Record


@frozen
class Reached:
    """How far a session's log has come: what it amounts to, and the seq and digest of its last row."""

    state: State
    seq: int
    digest: bytes


@frozen(kw_only=True)
class Made:
    """An append ready to be committed, and where it leads. Without records there is nothing to commit."""

    records: tuple[Record, ...]
    rows: Sequence[Encoded]
    blobs: Sequence[Blob]
    barrier: bool
    reached: Reached


class Writer(Protocol):
    """The journal of a session."""

    def accept(self, made: Made) -> None:
        """Take note of what is durable now."""


@define(eq=False)
class _Entry:
    """An append that waits for its commit."""

    writer: Writer
    make: Callable[[], Made]
    made: Made | None = None  # once it is committed
    error: BaseException | None = None
    settled: bool = False
    _told: trio.Event | None = None

    def settle(self, error: BaseException | None = None) -> None:
        self.error, self.settled = error, True
        if self._told is not None:
            self._told.set()

    async def wait(self) -> None:
        self._told = trio.Event()
        await self._told.wait()

    def result(self) -> tuple[Record, ...]:
        if self.error is not None:
            raise self.error
        return self.made.records if self.made else ()


class GroupCommit:
    """Commits the appends of all sessions of one kernel, in the order in which they come."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._writers = 0
        self._waiting: list[_Entry] = []
        self._committed: list[_Entry] = []
        self._rounds: trio.Event | None = None

    def join(self) -> None:
        """One more session may append."""
        self._writers += 1

    def leave(self) -> None:
        """One fewer."""
        self._writers -= 1

    async def append(self, writer: Writer, make: Callable[[], Made]) -> tuple[Record, ...]:
        """Commit what `make` makes of the log of `writer` once its turn has come. Returns once it is durable.

        `make` may be called more than once, and may raise to call the append off. A refusal (`Fenced`)
        is its own session's only; any other storage fault stops the store. Cancelling does not interrupt it.
        """
        entry = _Entry(writer, make)
        self._waiting.append(entry)
        try:
            if self._writers <= 1 and self._rounds is None:
                # A commit is shorter than a round of the loop, so there is no checkpoint unless one must wait.
                with suppress(Busy):
                    self._commit()
            if not entry.settled:
                self._begin_rounds()
                with trio.CancelScope(shield=True):
                    await entry.wait()
        finally:
            if entry in self._waiting:  # Ctrl-C, before its turn came
                self._waiting.remove(entry)
        return entry.result()

    async def rest(self) -> None:
        """Return once nothing is under way: a Ctrl-C leaves a commit to itself."""
        while self._rounds is not None:
            await self._rounds.wait()

    def _begin_rounds(self) -> None:
        """Commit in a task of its own: a Ctrl-C between commit and state would leave us behind our own log."""
        if self._rounds is None:
            self._rounds = trio.Event()
            trio.lowlevel.spawn_system_task(self._commit_all)

    async def _commit_all(self) -> None:
        assert self._rounds is not None, "set by who spawned this"
        try:
            while self._waiting or self._committed or self.store.is_full:
                if not self._committed:  # else it was committed by who was alone, on a slow disk
                    await when_free(self.store, self._commit)
                await durable(self.store)
                self._accept()
                await relieved(self.store)
                await trio.lowlevel.checkpoint()  # who is about to append in this round joins
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._rounds.set()
            self._rounds = None

    @trio.lowlevel.enable_ki_protection
    def _commit(self) -> None:
        """Commit the first of what waits of each session as one. Raises `Busy` when nothing was done."""
        try:
            if made := self._made():
                appends = [(one.rows, one.blobs) for _, one in made]
                refused = self.store.commit_group(appends, barrier=any(one.barrier for _, one in made))
                for index, (entry, one) in enumerate(made):
                    entry.made = one
                    if index in refused:
                        entry.settle(refused[index])
                self._committed = [entry for entry, _ in made if not entry.settled]
        finally:
            self._waiting = [entry for entry in self._waiting if not entry.settled and entry.made is None]
        if not self.store.owes_sync:
            self._accept()
        if self._committed or self.store.is_full:
            self._begin_rounds()

    def _made(self) -> list[tuple[_Entry, Made]]:
        """What the first entries of the sessions come to. What a session appends next builds on that."""
        first: dict[Writer, _Entry] = {}
        for entry in self._waiting:
            first.setdefault(entry.writer, entry)
        made: list[tuple[_Entry, Made]] = []
        for entry in first.values():
            try:
                one = entry.make()
            except BaseException as error:  # it is the caller's: what it wants to append is at fault
                entry.settle(error)
                continue
            if one.records:
                made.append((entry, one))
            else:
                entry.settle()
        return made

    @trio.lowlevel.enable_ki_protection
    def _accept(self) -> None:
        """Let what is committed be the state of its sessions."""
        committed, self._committed = self._committed, []
        for entry in committed:
            assert entry.made is not None, "it was committed"
            try:
                entry.writer.accept(entry.made)
            except BaseException as error:  # a listener's: its own session is told
                entry.settle(error)
            else:
                entry.settle()

    def _fail(self, error: BaseException) -> None:
        """Tell all that wait of a fault: the first of it, the others that it has stopped the store."""
        failed, self._waiting, self._committed = [*self._committed, *self._waiting], [], []
        for entry in failed:
            entry.settle(error)
            if self.store.stopped:
                error = self.store.stopped_by()
