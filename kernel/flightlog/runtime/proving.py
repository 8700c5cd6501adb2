"""The request, encoded, and proven to be what the log says. See `assert_request_reconstructable`."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from flightlog.core.history import EncodedRequest, Place
from flightlog.core.limits import PROVE_PAGE_MESSAGES
from flightlog.core.request import assert_request_reconstructable
from flightlog.runtime.journal import Journal
from flightlog.runtime.plugins import bound_thinking, encoder
from flightlog.runtime.second_look import lied
from flightlog.store.replay import lone_record, whole
from flightlog.store.shown import shown_messages
from flightlog.store.store import Store
from flightlog_hookspecs.adapters import Adapter
from flightlog_hookspecs.errors import InvariantViolation, LogCorrupt
from flightlog_hookspecs.events import Head, Message, RequestHeader


class Proof:
    """Encodes and proves the requests of one session, each part of them once."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._encoded: EncodedRequest | None = None
        self._proven_header: RequestHeader | None = None

    async def encoded(self, adapter: Adapter, head: Head) -> EncodedRequest:
        """The request that is about to be sent. Raises `InvariantViolation` unless the log yields the same.

        Raises `StoreError`, and has stopped the store, when it does so only on a second look: a read has lied.

        In pages, with a look at the rest of the world in between: the first request after an opening
        covers the whole conversation. Nothing that a model sees is written meanwhile.
        """
        journal = self._journal
        encoded, self._encoded = self._encoded, None  # an encoder that fails halfway leaves nothing to build on
        rewritten_at = journal.history.rewritten_at
        if encoded is None or (encoded.head, encoded.rewritten_at) != (head, rewritten_at):
            # A new head generation, or a shorter context: compared and encoded afresh.
            encoded = EncodedRequest(head, encoder(adapter), rewritten_at, bound_thinking(adapter))
        while True:
            known = len(encoded.messages)
            page = journal.history.page(known, PROVE_PAGE_MESSAGES)
            after = journal.history.place(known - 1) if known else 0
            is_last = known + len(page) == len(journal.history)
            logged = self._proven(head, page, after, None if is_last else page[-1][0][0])
            for (place, message), (_, read) in zip(page, logged, strict=True):
                encoded.add(place, message, whole(journal.store, journal.session, read))
            if is_last:
                break
            await trio.lowlevel.checkpoint()
        self._encoded = encoded
        return encoded

    def _proven(
        self, head: Head, page: Sequence[tuple[Place, Message]], after: int, up_to: int | None
    ) -> list[tuple[Place, Message]]:
        """What the log says of `page`, which is the same. A verdict that it is not ends the turn for good."""

        def look(store: Store) -> list[tuple[Place, Message]]:
            logged = shown_messages(store, self._journal.session, after, up_to)
            assert_request_reconstructable(self._logged_header(store), head, page, logged)
            return logged

        try:
            return look(self._journal.store)
        except (InvariantViolation, LogCorrupt) as error:
            raise lied(self._journal.store, look) from error

    def _logged_header(self, store: Store) -> RequestHeader | None:
        """The header in force as the log has it, read once per generation; None when there is none."""
        journal = self._journal
        header = journal.state.header
        if header is None or header is not self._proven_header:
            row = store.row(journal.key, journal.state.header_seq)
            event = lone_record(store, journal.session, row).event if row else None
            if event != header or not isinstance(event, RequestHeader):
                return event if isinstance(event, RequestHeader) else None
            self._proven_header = header
        return header
