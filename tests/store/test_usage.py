"""The usage view: every token once, exact costs, and nothing that another session spent."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from attrs import evolve, fields
from hypothesis import event, given
from hypothesis import strategies as st

import flightlog
from flightlog import Spending
from flightlog.core.forking import forked
from flightlog_hookspecs.events import (
    AssistantMessage,
    CompactionEnd,
    Record,
    RequestSent,
    SessionCreated,
    SessionOpened,
    TurnEnd,
)
from support.files import in_memory, plain
from support.legal_logs import LegalFile, LegalLog, legal_files, legal_logs, write

Sums = Counter[tuple[str, str | None, str]]
"""What was counted, by session, currency and what."""

COUNTS = tuple(field.name for field in fields(Spending) if field.name != "currency")


def spent(path: Path) -> Sums:
    """What the view says of each session, without zeros."""
    sums: Sums = Counter()
    with flightlog.open_log(path, discover=False) as log:
        for name in log.names():
            for row in log.session(name).usage():
                assert (row.cost_pico is None) == (row.currency is None)
                for what in COUNTS:
                    sums[name, row.currency, what] += getattr(row, what) or 0
    return +sums


def counted(records: Iterable[Record]) -> Sums:
    """What the sessions spent, event by event: each answer and summary with its own price, each attempt once."""
    sums: Sums = Counter()
    origins: dict[str, int] = {}
    for record in records:
        if isinstance(record.event, SessionCreated):
            origins[record.session] = record.event.origin_turn
        if record.turn is None or record.turn <= origins[record.session]:
            continue
        if isinstance(record.event, RequestSent):
            sums[record.session, None, "attempts"] += 1
        if isinstance(record.event, CompactionEnd) and record.event.asked:
            sums[record.session, None, "attempts"] += 1
        if isinstance(answer := record.event, (AssistantMessage, CompactionEnd)) and getattr(answer, "asked", True):
            known = answer.price is not None and answer.cost_pico is not None
            currency = answer.price.currency if answer.price and known else None
            sums[record.session, None, "attempts"] -= 1
            for what in COUNTS:
                amount = 1 if what in ("attempts", "answers") else getattr(answer, what) or 0
                sums[record.session, currency, what] += amount
    return +sums


@given(file=legal_files(moves_max=50), data=st.data())
def test_each_token_and_attempt_is_counted_once_also_after_export_import_and_purge(
    file: LegalFile, data: st.DataObject
) -> None:
    with in_memory() as folder:
        path, other = folder / "log.db", folder / "other.db"
        write(str(path), file.appends)
        expected = counted(file.records)
        assert spent(path) == expected
        event(f"{len({currency for _, currency, _ in expected})} currencies")
        names = sorted({record.session for record in file.records})
        moved = data.draw(st.sampled_from(names), label="moved")
        with flightlog.open_log(path, discover=False) as log:
            log.session(moved).export(export := io.BytesIO())
        export.seek(0)
        with flightlog.sync.open_kernel(other, discover=False) as kernel:
            kernel.import_session(export)
        assert spent(other) == Counter({key: count for key, count in expected.items() if key[0] == moved})
        flightlog.purge(path, moved)
        assert spent(path) == Counter({key: count for key, count in expected.items() if key[0] != moved})


@given(log=legal_logs())
def test_a_fork_has_spent_nothing_of_what_its_origin_did(log: LegalLog) -> None:
    ends = [record for record in log.records if isinstance(record.event, TurnEnd)]
    for end in ends[-1:]:
        turn = end.turn or 0
        created = SessionCreated(uid="f", origin_session="s", origin_uid="uid of s", origin_turn=turn)
        fork = forked(log.records, turn, "f", created, SessionOpened(pid=1, host="h", kernel_version="0"), 7)
        with in_memory() as folder:
            write(str(folder / "log.db"), [*log.appends(), fork[:1], fork[1:]])
            assert spent(folder / "log.db") == counted(log.records)


@given(log=legal_logs())
def test_a_session_without_prices_has_one_row_a_turn(log: LegalLog) -> None:
    free = [
        evolve(record, event=evolve(record.event, price=None))
        if isinstance(record.event, (AssistantMessage, CompactionEnd))
        else record
        for record in log.records
    ]
    with in_memory() as folder:
        write(str(folder / "log.db"), [free[:1], free[1:]] if free[1:] else [free])
        with plain(folder / "log.db") as database:
            rows = database.execute("SELECT turn, cost_pico, currency FROM usage").fetchall()
    assert len({turn for turn, _, _ in rows}) == len(rows)
    assert all((cost, currency) == (None, None) for _, cost, currency in rows)
