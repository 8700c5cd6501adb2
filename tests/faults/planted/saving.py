"""Bugs in commits, the witness and what follows a fault of the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import evolve

from flightlog.core import inbox
from flightlog.runtime.group_commit import GroupCommit
from flightlog.runtime.inbox import Accepted
from flightlog.runtime.journal import Journal
from flightlog.runtime.session import Session, Turn
from flightlog.store import log_file, witness
from flightlog.store.connection import ApswDatabase
from flightlog.store.locks import FileLocks
from flightlog.store.log_file import LogFile
from flightlog.store.store import Store
from flightlog_hookspecs.errors import Fenced, StoreError
from flightlog_hookspecs.events import RequestSent, ToolCall, ToolResult
from planted import replaced


@contextmanager
def normal_everywhere() -> Iterator[None]:
    """No commit is synced."""
    begin = ApswDatabase.begin

    def careless(database: ApswDatabase, *, barrier: bool) -> None:
        begin(database, barrier=False)

    with replaced(ApswDatabase, "begin", careless):
        yield


@contextmanager
def _normal_for(kind: type) -> Iterator[None]:
    make = Journal._make

    def careless(journal: Journal, *arguments: Any) -> Any:
        made = make(journal, *arguments)
        careful = not any(isinstance(record.event, kind) for record in made.records)
        return evolve(made, barrier=made.barrier and careful)

    with replaced(Journal, "_make", careless):
        yield


@contextmanager
def normal_for_intents() -> Iterator[None]:
    """A tool's body starts before its `tool/call` is on the disk."""
    with _normal_for(ToolCall):
        yield


@contextmanager
def normal_for_requests() -> Iterator[None]:
    """A model is asked before its `request/sent` is on the disk."""
    with _normal_for(RequestSent):
        yield


@contextmanager
def normal_for_results() -> Iterator[None]:
    """A body has ended, and its `tool/result` is not synced."""
    with _normal_for(ToolResult):
        yield


@contextmanager
def normal_for_letters() -> Iterator[None]:
    """A letter is acknowledged before it is on the disk."""
    post = Store.post

    def careless(store: Store, *letter: Any) -> Any:
        with normal_everywhere():
            return post(store, *letter)

    with replaced(Store, "post", careless):
        yield


@contextmanager
def acknowledged_before_the_commit() -> Iterator[None]:
    """A message is acknowledged first and written when there is something to run."""
    followup, run = Session.followup, Session.run

    async def hasty(session: Session, content: Any, *, key: str | None = None) -> Accepted:
        if key is None:
            return await followup(session, content)
        late = session.__dict__.setdefault("late", [])
        late.append((content, key))
        return Accepted(message_id=inbox.keyed_id(key), token=session.token)

    async def catching_up(session: Session, **options: Any) -> Turn | None:
        for content, key in session.__dict__.pop("late", []):
            await followup(session, content, key=key)
        return await run(session, **options)

    with replaced(Session, "followup", hasty), replaced(Session, "run", catching_up):
        yield


@contextmanager
def two_transactions_instead_of_one() -> Iterator[None]:
    """Every event of an append is committed by itself."""
    commit_group = Store.commit_group

    def piecemeal(store: Store, appends: Sequence[tuple[Sequence[Any], Sequence[Any]]], *, barrier: bool) -> Any:
        for rows, blobs in appends:
            for row in rows:
                if refused := commit_group(store, [([row], blobs)], barrier=barrier):
                    return refused
        return {}

    with replaced(Store, "commit_group", piecemeal):
        yield


@contextmanager
def witness_before_the_commit() -> Iterator[None]:
    """The witness names rows that are not on the disk yet."""
    commit = ApswDatabase.commit

    def hasty(database: ApswDatabase) -> None:
        path = witness.witness_path(database._path)
        if os.path.exists(path):
            ahead = witness.Witness.__new__(witness.Witness)
            ahead._fd = witness.os.open(path, os.O_RDWR)
            ahead.record(database.read("last_id")[0][0])
            witness.os.close(ahead._fd)
        commit(database)

    with replaced(ApswDatabase, "commit", hasty):
        yield


@contextmanager
def witness_of_what_a_killed_process_cached() -> Iterator[None]:
    """Recovery does not bring to the disk what it finds, and names it in the witness."""

    def hasty(path: str, locks: FileLocks, last_id: int, found: int | None) -> witness.Witness:
        return witness.Witness(path, last_id, found)

    with replaced(log_file, "_witness", hasty):
        yield


@contextmanager
def wal_cleaned_away_on_opening() -> Iterator[None]:
    """A -wal that a dead process left behind is taken for rubbish."""
    check = log_file._check_writable

    def tidy(path: str) -> None:
        check(path)
        if os.path.exists(f"{path}-wal"):
            os.unlink(f"{path}-wal")

    with replaced(log_file, "_check_writable", tidy):
        yield


@contextmanager
def storage_error_swallowed() -> Iterator[None]:
    """A commit that failed is taken for one that did not."""
    commit = ApswDatabase.commit

    def cheerful(database: ApswDatabase) -> None:
        try:
            commit(database)
        except StoreError:
            database.rollback()

    with replaced(ApswDatabase, "commit", cheerful):
        yield


@contextmanager
def slow_disk_not_waited_for() -> Iterator[None]:
    """What a commit leaves to a later sync is never synced."""
    with replaced(LogFile, "sync", lambda file: None):
        yield


@contextmanager
def believed_before_its_sync() -> Iterator[None]:
    """On a slow disk what was committed becomes the state at once, and is synced later."""
    commit = GroupCommit._commit

    def hasty(commits: GroupCommit) -> None:
        commit(commits)
        commits._accept()

    with replaced(GroupCommit, "_commit", hasty):
        yield


@contextmanager
def failed_group_taken_for_durable() -> Iterator[None]:
    """A group whose commit fails stops the store, and its appends are told all the same that they are durable."""
    commit_group = Store.commit_group

    def cheerful(store: Store, *arguments: Any, **options: Any) -> Any:
        try:
            return commit_group(store, *arguments, **options)
        except Fenced:
            raise
        except StoreError:
            return {}

    with replaced(Store, "commit_group", cheerful):
        yield


@contextmanager
def store_that_opens_itself_again() -> Iterator[None]:
    """After a fault the next one who writes finds the store willing."""
    check = Store.check_alive

    def forgiving(store: Store, *, in_place: bool = True) -> None:
        store._stopped = None
        check(store, in_place=in_place)

    with replaced(Store, "check_alive", forgiving):
        yield
