"""Bugs to plant in the real kernel, each as a context manager: what the laboratory is there to find."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import trio

from flightlog.core import inbox, repair
from flightlog.core.state import Call
from flightlog.runtime.inbox import Accepted
from flightlog.runtime.journal import Journal
from flightlog.runtime.session import Session, Turn
from flightlog.runtime.tool_runner import Runnable, ToolRunner
from flightlog.store import log_file, witness
from flightlog.store.connection import ApswDatabase
from flightlog.store.locks import FileLocks
from flightlog_hookspecs.errors import StoreError
from flightlog_hookspecs.events import ToolCall


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def normal_everywhere() -> Iterator[None]:
    """No commit is synced."""
    begin = ApswDatabase.begin

    def careless(database: ApswDatabase, *, barrier: bool) -> None:
        begin(database, barrier=False)

    with replaced(ApswDatabase, "begin", careless):
        yield


@contextmanager
def normal_for_intents() -> Iterator[None]:
    """A tool's body starts before its `tool/call` is on the disk."""
    append = Journal.append

    async def careless(journal: Journal, *events: Any, barrier: bool = False, **options: Any) -> Any:
        barrier = barrier and not any(isinstance(event, ToolCall) for event in events)
        return await append(journal, *events, barrier=barrier, **options)

    with replaced(Journal, "append", careless):
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

    async def catching_up(session: Session) -> Turn | None:
        for content, key in session.__dict__.pop("late", []):
            await followup(session, content, key=key)
        return await run(session)

    with replaced(Session, "followup", hasty), replaced(Session, "run", catching_up):
        yield


@contextmanager
def tool_before_its_intent() -> Iterator[None]:
    """A body runs, and only then its `tool/call` is written."""
    start, invoke = ToolRunner._start, ToolRunner._invoke

    async def eager(runner: ToolRunner, nursery: trio.Nursery, runnable: list[Runnable], wanted: Sequence[int]) -> None:
        early = runner.__dict__.setdefault("early", {})
        for index in wanted:
            intent = runner._intent(runnable[index])
            early[intent.invocation_id] = await invoke(runner, runnable[index], intent, trio.CancelScope())
        await start(runner, nursery, runnable, wanted)

    async def remembered(runner: ToolRunner, item: Runnable, intent: ToolCall, scope: trio.CancelScope) -> object:
        return runner.__dict__["early"][intent.invocation_id]

    with replaced(ToolRunner, "_start", eager), replaced(ToolRunner, "_invoke", remembered):
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
def repeated_after_a_crash() -> Iterator[None]:
    """Recovery takes every call for one that may be made again, and the model makes it again."""

    def careless(call: Call) -> tuple[str, str]:
        return "aborted", repair.ABORTED

    with replaced(repair, "in_doubt", careless):
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
def witness_of_what_a_killed_process_cached() -> Iterator[None]:
    """Recovery does not bring to the disk what it finds, and names it in the witness."""
    with (
        replaced(FileLocks, "sync", lambda locks: None),
        replaced(log_file, "bring_to_disk", lambda path: None),
    ):
        yield
