"""The view `messages`, read: what the model is shown, each message with its place."""

from __future__ import annotations

from flightlog.core.history import Place
from flightlog.store.codec import Undecodable, decode_message
from flightlog.store.store import Store
from flightlog_hookspecs.errors import LogCorrupt
from flightlog_hookspecs.events import Message


def shown_messages(
    store: Store, session: str, after_place: int = 0, up_to_place: int | None = None
) -> list[tuple[Place, Message]]:
    """The messages of a session behind `after_place`, in order, with no bytes of files.

    Raises `LogCorrupt` for a row that is not as it was written, as far as that can be seen in it alone.
    """
    found: list[tuple[Place, Message]] = []
    for place, position, seq, kind, text, data in store.read("messages_between", session, after_place, up_to_place):
        try:
            found.append(((place, position), decode_message(kind, text, data, store.blob)))
        except Undecodable as error:
            raise LogCorrupt(session, seq, error.rule, error.detail) from error
    return found
