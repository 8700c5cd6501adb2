"""Commits, shared: what several sessions of a kernel append in the same round of the loop is one transaction.

An fsync costs the same for one append and for sixty-four. One session alone never waits for others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import trio
from attrs import define, frozen

from flightlog.core.state import State
from flightlog.runtime.write_lock import when_free
from flightlog.store.codec import Encoded
from flightlog.store.connection import Busy
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
    records: tuple[Record, ...] = ()
    error: BaseException | None = None
    settled: bool = False

    def settle(self, error: BaseException | None = None) -> None:
        self.error, self.settled = error, True

    def result(self) -> tuple[Record, ...]:
        if self.error is not None:
            raise self.error
        return self.records


class GroupCommit:
    """Commits the appends of all sessions of one kernel, in the order in which they come."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._writers = 0
        self._waiting: list[_Entry] = []
        self._turn = trio.Lock()

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
            if self._writers <= 1 and len(self._waiting) == 1:
                # A commit is shorter than a round of the loop, so there is no checkpoint unless one must wait.
                with suppress(Busy):
                    self._commit()
            if not entry.settled:
                with trio.CancelScope(shield=True):
                    await self._settle(entry)
        finally:
            if entry in self._waiting:  # a fault stopped the store, which the others find out by themselves
                self._waiting.remove(entry)
        return entry.result()

    async def _settle(self, entry: _Entry) -> None:
        await trio.lowlevel.checkpoint()  # who is about to append in this round joins
        while not entry.settled:  # each time, an earlier append of its session may have gone first
            async with self._turn:
                if not entry.settled:
                    await when_free(self.store, self._commit)

    @trio.lowlevel.enable_ki_protection  # a Ctrl-C between commit and state would leave us behind our own log
    def _commit(self) -> None:
        """Commit the first of what waits of each session as one. Raises `Busy` when nothing was done."""
        try:
            made = self._made()
            if made:
                appends = [(one.rows, one.blobs) for _, one in made]
                refused = self.store.commit_group(appends, barrier=any(one.barrier for _, one in made))
                for index, (entry, one) in enumerate(made):
                    entry.settle(refused[index]) if index in refused else self._accept(entry, one)
        finally:
            self._waiting = [entry for entry in self._waiting if not entry.settled]

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

    @staticmethod
    def _accept(entry: _Entry, made: Made) -> None:
        entry.records = made.records
        try:
            entry.writer.accept(made)
        except BaseException as error:  # a listener's: its own session is told
            entry.settle(error)
        else:
            entry.settle()
