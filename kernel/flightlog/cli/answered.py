"""Which answers count: the first to a question does, a later one stands in the log without effect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from flightlog_hookspecs.events import ApprovalDecided, Event

LATE: Final = "too late and without effect"


class Answered:
    """The questions that were answered as far as a log was read."""

    def __init__(self, settled: Iterable[int] = ()) -> None:
        self._seqs = set(settled)

    def is_late(self, event: Event) -> bool:
        """Take note of the next event; True when it answers a question that was answered before."""
        if not isinstance(event, ApprovalDecided):
            return False
        late = event.asked_seq in self._seqs
        self._seqs.add(event.asked_seq)
        return late
