"""Who drives a session: a lock that dies with its process, and an epoch that fences whoever has lost it.

The newest session/opened names the lock that its owner holds. Taking over from an owner that still
lives, though it may be stuck, is to hold the next lock and to name it: the epoch that this raises
refuses whatever the old owner still tries to write, and its open calls are in doubt.
"""

from __future__ import annotations

from datetime import UTC, datetime

from flightlog.store.codec import Undecodable, decode
from flightlog.store.store import SessionKey, Store
from flightlog_hookspecs.errors import SessionBusy
from flightlog_hookspecs.events import Record, SessionOpened


def own(store: Store, session: str, key: SessionKey, *, take_over: bool) -> int:
    """Take the lock of session `session`; returns its number. With `take_over`, from an owner that lives, too.

    Raises `SessionBusy` while another owner lives, or has just won the race for it.
    """
    number = _newest_lock(store, key.key)
    if not store.locks.own_session(key.key, number):
        if not take_over:
            raise busy(store, session, key)
        number += 1
        if not store.locks.own_session(key.key, number):
            raise busy(store, session, key)
    if _newest_lock(store, key.key) not in (number, number - 1):
        store.locks.release_session(key.key, number)
        raise busy(store, session, key)
    return number


def is_driven(store: Store, key: int) -> bool:
    """Whether somebody drives session `key` right now."""
    return store.locks.session_owned(key, _newest_lock(store, key))


def busy(store: Store, session: str, key: SessionKey) -> SessionBusy:
    """That somebody else drives the session, who, and since when."""
    opened = _newest_owner(store, key.key)
    if opened is None:
        return SessionBusy(f"session {session!r} is being created by another process. Try again.")
    owner = opened.event
    assert isinstance(owner, SessionOpened), "nothing else is looked for"
    since = f"{datetime.fromtimestamp(opened.at_us / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return SessionBusy(
        f"session {session!r} is driven by process {owner.pid} on {owner.host} since {since}. It can be read; to run "
        "it here, end that process first or, if it is stuck, take the session over (take_over=True, --take-over)."
    )


def _newest_lock(store: Store, key: int) -> int:
    opened = _newest_owner(store, key)
    return opened.event.lock if opened and isinstance(opened.event, SessionOpened) else 0


def _newest_owner(store: Store, key: int) -> Record | None:
    """The newest session/opened; None when there is none, or none that can be read: who opens it will say so."""
    seq = store.read("last_opened", key)[0][0]
    row = store.row(key, seq) if seq is not None else None
    try:
        return decode(row, "", store.blob) if row else None
    except Undecodable:
        return None
