"""The one function that closes a turn's bracket: for success, error, cancel and crash alike."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import trio

from flightlog.core.canonical import paired
from flightlog.core.inbox import removed
from flightlog.core.repair import Unstarted, closing
from flightlog.core.state import State
from flightlog.runtime.journal import Due, Journal
from flightlog.runtime.transactions import known_ends
from flightlog.store.replay import lone_record
from flightlog.store.rows import EventRow
from flightlog.store.store import Store
from flightlog_hookspecs.content import TextBlock
from flightlog_hookspecs.events import AssistantDelta, TurnEnd


async def close_turn(
    journal: Journal,
    end: TurnEnd,
    unstarted: Unstarted = "aborted",
    dropped: Collection[str] = (),
    following: Sequence[Due] = (),
) -> None:
    """Answer what is unanswered, keep the words that were streamed, close step and turn. Shielded.

    The `dropped` messages leave the inbox with it, and what is `following` stands behind it. One append, so
    a death in the middle leaves the turn as open as before; does nothing when no turn is open and there is
    nothing else to write.
    """
    with trio.CancelScope(shield=True):
        streamed = streamed_text(journal.store, journal.session, journal.key, journal.state)
        known = await known_ends(journal.state, journal.store.path, journal.clock)
        await journal.append(
            lambda state: closing(state, end, streamed, unstarted, known),
            lambda state: removed(state, dropped, "cancelled"),
            *following,
            barrier=True,
            blobs=[each.blob for each in known.values() if each.blob],
        )


def streamed_text(store: Store, session: str, key: int, state: State) -> tuple[TextBlock, ...]:
    """The text of the open attempt as far as it reached the log, one block per streamed block."""
    step = state.step
    if step is None or step.phase != "open":
        return ()
    texts: dict[int, str] = {}
    for row in store.rows(key, after=step.attempt_seq):
        delta = _delta(store, session, row)
        if delta is not None and delta.type == "text":
            texts[delta.block] = texts.get(delta.block, "") + "".join(piece.text for piece in delta.pieces)
    return tuple(TextBlock(text=paired(texts[block])) for block in sorted(texts))


def _delta(store: Store, session: str, row: EventRow) -> AssistantDelta | None:
    if row.kind != "assistant/delta":
        return None
    event = lone_record(store, session, row, deltas=True).event
    assert isinstance(event, AssistantDelta), "the kind decides the class"
    return event
