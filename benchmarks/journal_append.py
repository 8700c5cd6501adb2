"""The journal, everything on, against bare apsw writing the same rows with the same commits.

Everything: legality, fold, codec, hash chain, guards, view indexes, witness, file checks. One event of
500 characters per commit, FULL and NORMAL.
"""

from __future__ import annotations

import time
from pathlib import Path

import trio

import flightlog
from flightlog.runtime.clock import no_boundary
from flightlog.runtime.group_commit import GroupCommit
from flightlog.runtime.recovery import open_session
from flightlog.store.store import Store
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import InboxSplice, SessionCreated
from floor import Floor, Recorder
from side_by_side import Contestant, compare, timed

EVENTS = 1000
TEXT = "The quick brown fox jumps over the lazy dog. " * 11


def splices() -> list[InboxSplice]:
    """A message enters the inbox and is withdrawn again, over and over, so that the inbox stays short."""
    content = text_blocks(TEXT)
    events = []
    for number in range(EVENTS // 2):
        message_id = f"{number:032x}"
        events += [
            InboxSplice(slot="next_turn", start=0, message_id=message_id, cause="accepted", content=content),
            InboxSplice(slot="next_turn", start=0, message_id=message_id, cause="withdrawn", removed=1),
        ]
    return events


async def append_all(folder: Path, barrier: bool) -> float:
    """Append every event on its own; the seconds it took."""
    store = Store.open(str(folder / "log.db"))
    journal = await open_session(
        GroupCommit(store),
        "s",
        created=SessionCreated,
        plugins=(),
        expect=None,
        clock=flightlog.Clock(),
        on_boundary=no_boundary,
    )
    events = splices()
    start = time.perf_counter()
    for event in events:
        await journal.append(event, barrier=barrier)
    seconds = time.perf_counter() - start
    assert journal.seq == EVENTS + 2, "every event is in the log"
    store.close()
    return seconds


def ours(*, barrier: bool) -> Contestant:
    """The journal."""
    return lambda folder: trio.run(append_all, folder, barrier)


def floor(*, barrier: bool) -> Contestant:
    """Bare apsw with the rows that the journal makes."""

    def run(folder: Path) -> float:
        with Recorder(barrier=barrier) as recorder:
            trio.run(append_all, folder, False)
        commits = recorder.commits[-EVENTS:]
        database = Floor(folder)
        seconds = timed(lambda: database.write(commits))
        database.check(EVENTS)
        return seconds

    return run


def main() -> dict[str, float]:
    """Compare, for barrier and for ordinary commits."""
    results = {}
    for name, barrier in (("FULL", True), ("NORMAL", False)):
        ratios = compare(
            f"journal append, {name}, {EVENTS} events, flightlog {flightlog.__version__}",
            "bare apsw",
            {"bare apsw": floor(barrier=barrier), "flightlog journal": ours(barrier=barrier)},
            rounds=3,
            unit="event",
            per=EVENTS,
        )
        results[f"journal append, {name}"] = ratios["flightlog journal"]
    return results


if __name__ == "__main__":
    main()
