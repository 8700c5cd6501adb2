"""Listing the sessions of a log: the last used first, and no more work than the list is long.

Work is counted in steps of SQLite's machine, so that nothing here depends on time.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import trio
from attrs import evolve

import flightlog
from flightlog.runtime.reader import LogReader
from flightlog.store.codec import encode
from flightlog.store.statements import statements
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import Record, SessionCreated
from support.agents import look
from support.files import opened
from support.kernels import records_of, session_of


def history(path: Path, *, turns: int = 1, steps: int = 1) -> list[Record]:
    """What a session of that many turns, of that many steps each, consists of."""
    replies = [
        calls(("look", {"where": "there"})) if number % steps else words("Nothing.")
        for number in range(1, 1 + turns * steps)
    ]

    async def work() -> None:
        async with session_of(path, FakeModel(replies), look) as session:
            for _ in range(turns):
                await session.followup("What do you see?")
                await session.run()

    trio.run(work)
    return records_of(path)


def filled(path: Path, sessions: int, records: list[Record]) -> Path:
    """A log at `path` with so many copies of one session, written one after the other."""
    with opened(path) as store:
        store.database.begin(barrier=False)
        for key in range(1, sessions + 1):
            name, uid, digest = f"s{key}", f"uid {key}", b""
            store.database.write("insert_session", [(name, uid)])
            for record in records:
                event = evolve(record.event, uid=uid) if isinstance(record.event, SessionCreated) else record.event
                row = encode(evolve(record, session=name, event=event), key, uid, digest).row
                store.database.write("insert_event", [row])
                digest = row.digest
        store.database.commit()
    return path


def steps_of(path: Path, limit: int = -1) -> int:
    """How many steps SQLite takes to list the sessions of the log at `path`."""
    with flightlog.open_log(path, discover=False) as log:
        connection = log._store.database._connection  # type: ignore[attr-defined]
        steps = count()
        connection.set_progress_handler(lambda: next(steps) < 0, 1)
        log._store.read("sessions_page", limit)
        return next(steps)


@pytest.mark.parametrize("shape", [{"turns": 15}, {"steps": 25}], ids=["many turns", "one long turn"])
def test_listing_takes_the_same_work_however_long_the_sessions_are(tmp_path: Path, shape: dict[str, int]) -> None:
    short, long = history(tmp_path / "short.db"), history(tmp_path / "long.db", **shape)
    assert len(long) > 8 * len(short)
    few = steps_of(filled(tmp_path / "a.db", 20, short))
    assert steps_of(filled(tmp_path / "b.db", 20, long)) <= 1.1 * few


def test_listing_takes_work_in_proportion_to_the_number_of_sessions(tmp_path: Path) -> None:
    records = history(tmp_path / "one.db")
    few = steps_of(filled(tmp_path / "a.db", 40, records))
    assert steps_of(filled(tmp_path / "b.db", 160, records)) <= 4.4 * few


def test_a_page_looks_closely_at_the_sessions_on_it_only(tmp_path: Path) -> None:
    path = filled(tmp_path / "a.db", 160, history(tmp_path / "one.db"))
    assert steps_of(path, limit=5) < steps_of(path) / 3


def test_the_plan_never_goes_through_the_table_of_events_nor_sorts_it(tmp_path: Path) -> None:
    with opened(tmp_path / "a.db") as store:
        connection = store.database._connection  # type: ignore[attr-defined]
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statements()['sessions_page']}", (-1,))]
    scanned = [step for step in plan if step.startswith("SCAN")]
    assert {step.split()[1] for step in scanned} == {"k", "newest"}, "the sessions, and the page of them"
    assert sum("TEMP B-TREE" in step for step in plan) == 1, "the ids of their newest rows"
    assert not any("AUTOMATIC" in step for step in plan)


def test_the_last_written_come_first_whatever_the_clock_said(tmp_path: Path) -> None:
    records = history(tmp_path / "one.db")
    backwards = [evolve(record, at_us=-record.seq) for record in records]
    path = filled(tmp_path / "a.db", 3, backwards)
    with flightlog.open_log(path, discover=False) as log:
        listed = log.sessions()
        assert [summary.session for summary in listed] == ["s3", "s2", "s1"]
        assert [summary.last_seq for summary in listed] == [len(records)] * 3
        assert log.sessions(2) == listed[:2]
        assert log.sessions(0) == []
        refuses(log)


def refuses(log: LogReader) -> None:
    for limit in (-1, True, "all", 1.5):
        with pytest.raises(UsageError, match="limit"):
            log.sessions(limit)  # type: ignore[arg-type]
