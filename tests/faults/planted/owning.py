"""Bugs in who may write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flightlog.runtime import ownership, recovery
from flightlog.runtime.group_commit import Reached
from flightlog.runtime.journal import Journal
from flightlog.store.replay import replay
from flightlog.store.store import SessionKey, Store
from flightlog_hookspecs.errors import Fenced
from planted import replaced


@contextmanager
def fenced_writer_goes_on() -> Iterator[None]:
    """An owner that lost its session reads what the other wrote, and writes behind it."""
    append = Journal.append

    async def stubborn(journal: Journal, *events: Any, **options: Any) -> Any:
        try:
            return await append(journal, *events, **options)
        except Fenced:
            found = replay(journal.store, journal.session, journal.key, journal.uid)
            journal.reached = journal._durable = Reached(found.state, found.seq, found.digest)
            return await append(journal, *events, **options)

    with replaced(Journal, "append", stubborn):
        yield


@contextmanager
def refused_append_acknowledged() -> Iterator[None]:
    """In a group, an append that was refused is told that it is durable like the others."""
    commit_group = Store.commit_group

    def cheerful(store: Store, *arguments: Any, **options: Any) -> Any:
        commit_group(store, *arguments, **options)
        return {}

    with replaced(Store, "commit_group", cheerful):
        yield


@contextmanager
def session_opened_without_its_lock() -> Iterator[None]:
    """Nobody asks whether the session has an owner."""

    def careless(store: Store, session: str, key: SessionKey, *, take_over: bool) -> int:
        return ownership._newest_lock(store, key.key)

    with replaced(recovery, "own", careless):
        yield
