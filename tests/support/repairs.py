"""Repairing for tests: a damaged log is repaired, and what came of it is compared with the log as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import evolve

import flightlog
from flightlog import RepairReport
from flightlog.store.log_file import open_log_file
from flightlog_hookspecs.errors import StoreError
from flightlog_hookspecs.events import Record, SessionCreated, SessionRepaired
from support.files import content, photograph

Content = dict[str, list[Record]]


def uid_of(records: list[Record]) -> str:
    created = records[0].event
    assert isinstance(created, SessionCreated)
    return created.uid


def check_repair(path: Path, whole: Content, durable: dict[str, int]) -> str:
    """Repair the log at `path`, which once said `whole`, and check what came of it."""
    before = photograph(path.parent)
    try:
        dry = flightlog.repair(path)
    except StoreError as error:
        with pytest.raises(type(error)) as caught:
            flightlog.repair(path, dry_run=False)
        assert "flightlog repair" not in str(caught.value), "it recommends what has just been refused"
        left = photograph(path.parent)
        assert {name: left[name] for name in before} == before, "what cannot be repaired was changed"
        return type(error).__name__
    seen = photograph(path.parent)
    assert {name: seen[name] for name in before} == before, "a dry run changed something"
    assert dry.backup is None
    done = flightlog.repair(path, dry_run=False)
    assert (done.sessions, done.letters) == (dry.sessions, dry.letters), "it does what the dry run said"
    assert done.damaged == dry.damaged  # in a file that it may write, SQLite words the problems otherwise
    if done.damaged:
        assert done.backup is not None
        for suffix in ("", "-wal", "-head"):
            if f"{path.name}{suffix}" in before:
                kept = Path(f"{done.backup}{suffix}").read_bytes()
                assert kept == before[f"{path.name}{suffix}"][1], f"the copy of the damaged {suffix or 'file'} differs"
    check_sound(path)
    check_nothing_lost_in_silence(content(path), whole, durable, done)
    assert not flightlog.repair(path).damaged, "a repaired log is sound"
    for name in [name for name in photograph(path.parent) if ".damaged-" in name]:
        (path.parent / name).unlink()
    return "repaired" if done.damaged else "nothing to repair"


def check_sound(path: Path) -> None:
    """The log opens, to read and to write, and all of it can be verified."""
    with flightlog.open_log(path, discover=False) as log:
        log.check_file()
        for name in log.names():
            log.session(name).verify()
    open_log_file(str(path), create=False).close(clean=True)


def check_nothing_lost_in_silence(
    found: Content, whole: Content, durable: dict[str, int], report: RepairReport
) -> None:
    """Each session is a prefix of what it was; one that is shorter says so, in the log or in the report."""
    by_uid = {uid_of(records): records for records in found.values()}
    originals = {uid_of(records): (name, records) for name, records in whole.items()}
    assert by_uid.keys() <= originals.keys()
    losses = {loss.session: loss for loss in report.sessions}
    for uid, (name, records) in originals.items():
        kept = [evolve(record, session=name) for record in by_uid.get(uid, [])]
        last = kept[-1].event if kept else None
        if isinstance(last, SessionRepaired):
            kept.pop()
            loss = losses[by_uid[uid][0].session]
            assert (loss.kept, loss.dropped, loss.seq) == (len(kept), last.dropped, len(kept) + 1)
            assert (loss.rule, loss.detail, loss.digest) == (last.rule, last.detail, last.digest)
            assert os.path.basename(report.backup or "") == last.backup
        elif len(kept) < durable[name]:
            assert not kept, f"{name} was shortened to {len(kept)} rows without a word"
            assert any(loss.kept == 0 for loss in report.sessions) or report.problems, f"{name} vanished"
        assert kept == records[: len(kept)], f"{name} says something else"
