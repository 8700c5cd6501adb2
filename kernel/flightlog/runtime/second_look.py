"""A second look at the log before a verdict on it that stays, by a connection that keeps nothing.

A read may bring less than was there, and no error. SQLite takes zeros for the rest and keeps what it brought, so who
has read it once may find a log damaged that is whole, for as long as its connection lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from flightlog.store.replay import replay
from flightlog.store.store import Store
from flightlog_hookspecs.errors import LogCorrupt, StoreError


def lied(store: Store, look: Callable[[Store], object]) -> StoreError:
    """The fault of whoever found something amiss that a second `look` does not find: `store` has stopped at it.

    Raises what `look` raises, if it does find it.
    """
    with closing(Store.open_to_read(store.path)) as afresh:
        look(afresh)
    return store.stop(
        StoreError(
            f"{store.path}: a read brought something else than the file holds, as a second look shows. "
            "Nothing more is written; check the disk, then reopen to resume."
        )
    )


def check_refused(store: Store, session: str, error: LogCorrupt) -> None:
    """Return when it is the log of `session` that is refused, and for good; `error` was what somebody found.

    Raises the `StoreError` that it is if not, and `store` has stopped: a read has lied, or the file is damaged.
    """

    def whole(afresh: Store) -> None:
        if key := afresh.key_of(session):
            replay(afresh, session, *key)

    found: StoreError = error
    if error.session == session:
        try:
            found = lied(store, whole)
        except LogCorrupt as again:
            if again.session == session:
                return
            found = again
    raise store.stop(found) from error
