"""A run that was made shorter, cut after every single row: the context is the old one or the new one, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

import flightlog
from flightlog.core.history import History
from flightlog.testing import Bundle
from flightlog_hookspecs import Compactor, Message
from flightlog_hookspecs.events import CompactionEnd, CompactionStart, Record
from support.conversation import assert_at_rest
from support.cutting import cut_log
from support.kernels import events_of, records_of, session_of
from support.long_work import PRUNES, SUMMARISES, LongWork, looking


def messages_after(records: list[Record]) -> list[Message]:
    history = History()
    for record in records:
        history.add(record.event, record.seq)
    return [message for _, message in history.since(0)]


def rows_inside(records: list[Record]) -> list[int]:
    """The rows that a death can leave as the last one in or around a compaction: an append is there as a whole."""
    starts = [record.seq for record in records if isinstance(record.event, CompactionStart)]
    ends = [record.seq for record in records if isinstance(record.event, CompactionEnd)]
    whole = [start for start, end in zip(starts, ends, strict=True) if records[start - 1].event.level == "summarise"]  # type: ignore[union-attr]
    return sorted({*(start - 1 for start in starts), *whole, *ends, *(end + 1 for end in ends)})


@pytest.mark.parametrize(("compactor", "window"), [(PRUNES, 1400), (SUMMARISES, 800)], ids=["prune", "summarise"])
@pytest.mark.parametrize("on_crash", ["close", "continue"])
async def test_each_cut_shows_the_old_context_or_the_new_one_and_goes_on(
    compactor: Compactor, window: int, on_crash: str, tmp_path: Path
) -> None:
    whole, plugins = tmp_path / "a.db", [Bundle(compactors=[compactor])]
    async with session_of(whole, LongWork(window_tokens=window), looking(600), plugins=plugins) as session:
        await session.followup("go")
        await session.run()
    records = records_of(whole)
    assert events_of(whole, CompactionEnd)
    for rows in rows_inside(records):
        path, model = tmp_path / f"{rows}.db", LongWork(window_tokens=window)
        cut_log(whole, path, rows)
        with flightlog.open_log(path, discover=False, plugins=[Bundle(adapters=[model])]) as log:
            assert log.session("s").messages() == messages_after(records[:rows])
            log.session("s").verify()
        options = {"plugins": plugins, "on_crash": on_crash}
        async with session_of(path, model, looking(600), **options) as session:  # type: ignore[arg-type]
            await session.followup("go on")
            await session.run()
        assert model.sizes
        assert all(size <= window * 0.75 for size in model.sizes)
        assert_at_rest(path, model)
