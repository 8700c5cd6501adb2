"""What does the journal cost, everything on, against bare apsw writing the same rows and commits?

Everything: legality, fold, codec, hash chain, guards, view indexes, witness, file checks. One event of
500 characters per commit, FULL and NORMAL.
"""

from __future__ import annotations

import time
from pathlib import Path

import trio
from floor import Floor, commit_of
from side_by_side import Contestant, compare, timed

import flightlog
from flightlog.runtime.clock import Clock, no_boundary
from flightlog.runtime.journal import Journal
from flightlog.runtime.recovery import open_session
from flightlog.store.codec import Encoded
from flightlog.store.store import Store
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import InboxSplice

EVENTS = 1000
TEXT = "The quick brown fox jumps over the lazy dog. " * 11


async def journal_in(folder: Path) -> tuple[Store, Journal]:
    store = Store.open(str(folder / "log.db"))
    journal = await open_session(store, "s", title="", plugins=(), expect=None, clock=Clock(), on_boundary=no_boundary)
    return store, journal


def splice(number: int) -> tuple[InboxSplice, InboxSplice]:
    """A message enters the inbox and is withdrawn again, so that the inbox stays short."""
    message_id = f"{number:032x}"
    return (
        InboxSplice(slot="next_turn", start=0, message_id=message_id, cause="accepted", content=text_blocks(TEXT)),
        InboxSplice(slot="next_turn", start=0, message_id=message_id, cause="withdrawn", removed=1),
    )


def ours(*, barrier: bool) -> Contestant:
    async def run(folder: Path) -> float:
        store, journal = await journal_in(folder)
        events = [event for number in range(EVENTS // 2) for event in splice(number)]
        start = time.perf_counter()
        for event in events:
            await journal.append(event, barrier=barrier)
        seconds = time.perf_counter() - start
        assert journal.seq == EVENTS + 2
        store.close()
        return seconds

    return lambda folder: trio.run(run, folder)


def floor(*, barrier: bool) -> Contestant:
    async def rows(folder: Path) -> list[list[Encoded]]:
        store, journal = await journal_in(folder)
        kept: list[list[Encoded]] = []
        commit = store.commit
        store.commit = lambda append, blobs=(), *, barrier: (
            kept.append(list(append)),
            commit(append, blobs, barrier=barrier),
        )[1]  # type: ignore[method-assign]
        for number in range(EVENTS // 2):
            for event in splice(number):
                await journal.append(event)
        store.close()
        return kept

    def run(folder: Path) -> float:
        commits = [commit_of(append, barrier=barrier) for append in trio.run(rows, folder)]
        database = Floor(folder)
        seconds = timed(lambda: database.write(commits))
        database.check(EVENTS)
        return seconds

    return run


def main() -> dict[str, float]:
    """Run both comparisons."""
    results = {}
    for name, barrier in (("FULL", True), ("NORMAL", False)):
        ratios = compare(
            f"journal append, {name}, {EVENTS} events, flightlog {flightlog.__version__}",
            "bare apsw",
            {"bare apsw": floor(barrier=barrier), "flightlog journal": ours(barrier=barrier)},
            rounds=5,
            unit="event",
            per=EVENTS,
        )
        results[f"append {name}"] = ratios["flightlog journal"]
    return results


if __name__ == "__main__":
    main()
