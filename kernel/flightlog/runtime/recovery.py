"""Opening a session to run: own it, read and check all of it, close what a death left open unless it is to go on.

No tool runs here, and nothing is guessed: a log that breaks a rule is refused as it is. Killed
anywhere in here and run again, it reaches the same log.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Literal

import trio
from attrs import evolve

from flightlog.core.limits import LOAD_PAGE_ROWS
from flightlog.core.state import State
from flightlog.runtime.clock import Boundary, Clock
from flightlog.runtime.closing import close_turn
from flightlog.runtime.committing import durably
from flightlog.runtime.feed import Feed
from flightlog.runtime.group_commit import GroupCommit
from flightlog.runtime.journal import HeadToken, Journal
from flightlog.runtime.ownership import busy, own
from flightlog.store.codec import encode
from flightlog.store.replay import Replay, check_ending, replaying
from flightlog.store.rows import Encoded
from flightlog.store.snapshots import Snapshots, restoring
from flightlog.store.store import Blob, NewSession, SessionKey, Store
from flightlog.version import __version__
from flightlog_hookspecs.errors import Fenced, HeadMismatch, SessionBusy, StoreStopped, UsageError
from flightlog_hookspecs.events import PluginVersion, Record, SessionClosed, SessionCreated, SessionOpened, TurnEnd

OnCrash = Literal["close", "continue"]
"""What becomes of a turn that a crash left open: it is closed as interrupted, or goes on."""
Verify = Literal["shown", "full"]
"""Which rows are read and checked before a session goes on: what a model will be shown and all that is new, or all."""
_OPEN_TRIES: Final = 100


async def open_session(
    commits: GroupCommit,
    name: str,
    *,
    created: Callable[..., SessionCreated],
    plugins: Sequence[PluginVersion],
    expect: HeadToken | None,
    clock: Clock,
    on_boundary: Boundary,
    feed: Feed | None = None,
    take_over: bool = False,
    on_crash: OnCrash | None = None,
    verify: Verify = "shown",
) -> Journal:
    """Take ownership of session `name`, and make it ready to run. A new one begins with `created(uid=...)`.

    With `take_over`, from an owner that lives, too: that one can write no more. A turn that a crash left open is
    closed, or left to `plan` with `on_crash` "continue"; one that waits for people stays open either way.

    With `verify` "shown" the rows before the newest snapshot are read and checked as far as the model will be shown
    them; with "full", and where no snapshot is good, all of them.

    Raises `SessionBusy` while another owner lives, `LogCorrupt` or `SchemaTooNew` when the log is refused,
    `HeadMismatch` when it does not hold `expect`.
    """
    store = commits.store
    found = store.key_of(name) or await _create(store, name, created, clock)
    lock = own(store, name, found, take_over=take_over)
    feed = feed or Feed()
    journal: Journal | None = None
    try:
        loaded, snapshots = Replay(session=name, uid=found.uid), Snapshots(found.key, found.uid)
        if verify == "shown":
            for _ in restoring(store, loaded, snapshots):
                await trio.lowlevel.checkpoint()
        await _read_on(store, loaded, found)
        check_ending(loaded)
        if expect:
            check_token(store, name, found, expect)
        opened = evolve(opening(plugins), lock=lock)
        journal = await _owned(
            partial(Journal, commits, found.key, loaded, snapshots, clock, on_boundary, feed),
            opened,
            loaded,
            partial(_read_on, store, loaded, found),
            partial(busy, store, name, found),
        )
        if (end := _end_of(journal.state, on_crash)) is not None:
            await close_turn(journal, end, unstarted="not_started")
    except BaseException:
        if journal:
            journal.leave()
        store.locks.release_session(found.key, lock)
        feed.disown()
        raise
    return journal


def _end_of(state: State, on_crash: OnCrash | None) -> TurnEnd | None:
    """How the turn, if one is open, is to end before anything goes on; None when it is to stay open.

    A turn that was cancelled does not go on. Nor does one that a repair has lost rows of: who knows what they said.
    """
    if state.suspended:
        return None
    if on_crash is None:
        on_crash = "continue" if state.task is not None and not state.task.ended else "close"
    if on_crash == "close" or state.torn:
        return TurnEnd(reason="interrupted")
    return TurnEnd(reason="aborted", cause="user") if state.cancelling else None


async def _owned(
    make_journal: Callable[[], Journal],
    opened: SessionOpened,
    loaded: Replay,
    read_on: Callable[[], Awaitable[None]],
    refusal: Callable[[], SessionBusy],
) -> Journal:
    """The journal of the session with `opened` in it. Raises the `refusal` when another owner was faster.

    Whom we take over from may write until then, so what is `loaded` may have to grow a little more.
    """
    epoch = loaded.state.epoch
    for _ in range(_OPEN_TRIES):
        journal = make_journal()
        try:
            await journal.append(opened, barrier=True)
        except BaseException as error:
            journal.leave()
            if not isinstance(error, Fenced):
                raise
        else:
            return journal
        await read_on()
        if loaded.state.epoch != epoch:
            break
    raise refusal()


async def _read_on(store: Store, loaded: Replay, found: SessionKey) -> None:
    """Read and check the session to its end, while everything else in this kernel goes on."""
    for record in replaying(store, loaded, found.key):
        if record.seq % LOAD_PAGE_ROWS == 0:
            await trio.lowlevel.checkpoint()


def opening(plugins: Sequence[PluginVersion]) -> SessionOpened:
    """That this process takes ownership of a session."""
    return SessionOpened(pid=os.getpid(), host=socket.gethostname(), kernel_version=__version__, plugins=tuple(plugins))


async def close_session(journal: Journal) -> None:
    """Leave the session: mark it as closed unless a turn is open, and give it back.

    After a storage fault there is nothing more to write; whoever met it was told. A session that
    somebody took over is not ours to close.
    """
    try:
        if not journal.state.turn_open:
            with suppress(StoreStopped, Fenced):
                await journal.append(SessionClosed())
    finally:
        journal.leave()
        journal.store.locks.release_session(journal.key, journal.state.lock)
        journal.feed.disown()


def check_token(store: Store, session: str, found: SessionKey, expect: HeadToken) -> None:
    """Raise `HeadMismatch` unless the log holds the row that `expect` names, `UsageError` for another session's."""
    if expect.session != session:
        raise UsageError(f"the token given as `expect` is of session {expect.session!r}, not of {session!r}")
    row = store.row(found.key, expect.seq)
    if row is None or row.digest.hex() != expect.digest:
        raise HeadMismatch(
            f"session {expect.session!r}: the log does not hold row {expect.seq} as it was acknowledged; "
            "it was rolled back or replaced. Restore the newer file."
        )


@trio.lowlevel.enable_ki_protection
async def _create(store: Store, name: str, created: Callable[..., SessionCreated], clock: Clock) -> SessionKey:
    uid = clock.new_id()
    first = Record(
        session=name,
        seq=1,
        at_us=clock.now_us(),
        turn=None,
        step=None,
        epoch=0,
        event=created(uid=uid),
    )
    encoded = encode(first, 0, uid, b"")
    await entered(store, NewSession(name, uid), [encoded])
    found = store.key_of(name)
    assert found is not None, "it was entered, by us or by another process"
    return found


async def entered(store: Store, session: NewSession, rows: Sequence[Encoded], blobs: Sequence[Blob] = ()) -> bool:
    """Enter `session` with its first `rows` as one; False when its name or its uid is there already."""
    return await durably(store, lambda: store.create_session(session, *rows, blobs=blobs))
