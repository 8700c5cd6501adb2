"""The self-check: what is about to be sent is what the log says, or it is not sent."""

from __future__ import annotations

from collections.abc import Sequence

from flightlog.core.history import Place
from flightlog_hookspecs.errors import InvariantViolation
from flightlog_hookspecs.events import Head, Message, RequestHeader


def assert_request_reconstructable(
    header: RequestHeader | None,
    head: Head,
    in_memory: Sequence[tuple[Place, Message]],
    in_log: Sequence[tuple[Place, Message]],
) -> None:
    """Raise `InvariantViolation` unless head and new messages are exactly what the log holds.

    `in_log` is read through the `messages` view, `in_memory` is the cache; both cover what was added
    since the last request (everything, for the first one after an open), so a long session stays
    linear. Earlier parts were compared then and are sent as the bytes encoded then.
    """
    if header is None:
        raise InvariantViolation("a request without a logged request/header")
    if header.head != head:
        raise InvariantViolation("the request's head differs from the last request/header in the log")
    if len(in_memory) != len(in_log):
        raise InvariantViolation(f"{len(in_memory)} new messages in memory, {len(in_log)} in the log")
    for mine, logged in zip(in_memory, in_log, strict=True):
        if mine != logged:
            raise InvariantViolation(f"the message at place {mine[0]} differs from the log's at {logged[0]}")


def changes(old: RequestHeader | None, new: Head) -> str:
    """What makes `new` a new head generation: "first", or the names of the changed parts, or "".

    Another system text alone does not: what changed in it is said in messages.
    """
    if old is None:
        return "first"
    names = ("adapter", "model", "tools", "parameters")
    return ", ".join(name for name in names if getattr(old.head, name) != getattr(new, name))
