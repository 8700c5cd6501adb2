"""Sessions that enter the file whole: imported from elsewhere, or forked from another."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, BinaryIO

import trio
from attrs import evolve

from flightlog.core.forking import forked, forked_task
from flightlog.core.limits import SESSION_NAME_MAX_CHARS
from flightlog.runtime.clock import Clock
from flightlog.runtime.reader import SessionReader, apart, file_of, path_of
from flightlog.runtime.recovery import entered, opening
from flightlog.store.codec import encoded_log
from flightlog.store.connection import translated
from flightlog.store.store import NewSession, Store
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import PluginVersion, Record, SessionCreated

if TYPE_CHECKING:
    from flightlog.store.importing import Imported


async def import_session(store: Store, source: str | os.PathLike[str] | BinaryIO) -> str:
    """Enter the session in the export `source`; returns its name. See `Kernel.import_session`."""
    found = await trio.to_thread.run_sync(_read, source)
    checked_name(found.session.name)
    if not await entered(store, found.session, found.rows, found.blobs):
        raise exists_already(store, found.session)
    return found.session.name


def check_export(source: str | os.PathLike[str] | BinaryIO) -> None:
    """Raise as `Kernel.import_session` does for what cannot be taken in, wherever to."""
    checked_name(_read(source).session.name)


async def fork_session(
    store: Store,
    source: SessionReader,
    turn: int,
    name: str,
    title: str,
    plugins: Sequence[PluginVersion],
    clock: Clock,
) -> None:
    """Enter a fork of `source` as session `name`. See `Kernel.fork`."""
    created = evolve(_created(source, clock), title=title, origin_turn=turn)
    opened, at_us = opening(plugins), clock.now_us()
    await _enter(store, source, name, created.uid, lambda rows: forked(rows, turn, name, created, opened, at_us))


async def fork_task(
    store: Store,
    source: SessionReader,
    checkpoint: int,
    name: str,
    plugins: Sequence[PluginVersion],
    clock: Clock,
) -> None:
    """Enter a fork of the task `source` as task `name`. See `Kernel.fork_task`."""
    created, opened, at_us = _created(source, clock), opening(plugins), clock.now_us()
    await _enter(
        store, source, name, created.uid, lambda rows: forked_task(rows, checkpoint, name, created, opened, at_us)
    )


def _created(source: SessionReader, clock: Clock) -> SessionCreated:
    """The first row of a fork of `source`, but for where it was made."""
    first = next(source.records()).event
    assert isinstance(first, SessionCreated), "no log begins otherwise"
    return SessionCreated(
        uid=clock.new_id(),
        origin_session=source.session,
        origin_uid=source.uid,
        depth=first.depth,
        tools=first.tools,
    )


async def _enter(
    store: Store, source: SessionReader, name: str, uid: str, fork: Callable[[Iterable[Record]], Iterable[Record]]
) -> None:
    """Enter what `fork` makes of the records of `source` as session `name`."""
    rows = await apart(source, lambda reader: encoded_log(fork(reader.records()), uid))
    session = NewSession(name, uid)
    if not await entered(store, session, rows):
        raise exists_already(store, session)


def checked_name(name: object) -> str:
    """`name` as a session's. Raises `UsageError` when it cannot be one."""
    if not isinstance(name, str) or not 0 < len(name) <= SESSION_NAME_MAX_CHARS or not name.isprintable():
        raise UsageError(f"a session name is 1 to {SESSION_NAME_MAX_CHARS} printable characters, not {name!r}")
    return name


def exists_already(store: Store, session: NewSession) -> UsageError:
    """Why `session` could not be entered."""
    if store.key_of(session.name):
        return UsageError(f"there is a session {session.name!r} in {store.path} already")
    there = store.name_of(session.uid)
    return UsageError(f"{session.name!r} is in {store.path} already, as {there!r}: they have the same uid")


def _read(source: str | os.PathLike[str] | BinaryIO) -> Imported:
    from flightlog.store.importing import imported

    if not isinstance(source, (str, os.PathLike)):
        return imported(file_of("source", source, "readline"))
    path = path_of("source", source)
    try:
        file = open(path, "rb")  # noqa: SIM115  closed below, where its errors are no usage errors
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    with file:
        try:
            return imported(file)
        except OSError as error:
            raise translated(error, path) from error
