"""A fork of any legal log at any completed turn: legal, and the same to the model."""

from __future__ import annotations

import pytest
from hypothesis import given

import flightlog
from flightlog.core.forking import forked
from flightlog.core.history import History
from flightlog.errors import UsageError
from flightlog.testing import Bundle, FakeModel
from flightlog_hookspecs.events import (
    ApprovalAsked,
    AssistantDelta,
    AssistantMessage,
    InboxSplice,
    Record,
    RequestFailed,
    RequestSent,
    SessionCreated,
    SessionOpened,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
)
from support import files
from support.legal_logs import LegalLog, folded, legal_logs, write

CREATED = SessionCreated(uid="uid of the fork", origin_session="s", origin_uid="uid of s", origin_turn=1)
OPENED = SessionOpened(pid=1, host="here", kernel_version="0")
LEFT_BEHIND = (InboxSplice, AssistantDelta, RequestFailed, ApprovalAsked)


def fork_of(log: LegalLog, turn: int) -> tuple[Record, ...]:
    return forked(log.records, turn, "f", CREATED, OPENED, 7)


def completed(log: LegalLog) -> list[Record]:
    return [record for record in log.records if isinstance(record.event, TurnEnd)]


def seen(records: tuple[Record, ...]) -> list[bytes]:
    """What the model is sent after `records`, as bytes."""
    history = History()
    for record in records:
        history.add(record.event, record.seq)
    return [FakeModel([]).encode(message) for _, message in history.since(0)]


@given(log=legal_logs())
def test_a_fork_is_legal_and_shows_the_model_what_its_origin_did(log: LegalLog) -> None:
    for end in completed(log):
        fork, origin = fork_of(log, end.turn or 0), log.records[: end.seq]
        state = folded(fork)
        assert (state.uid, state.turn, state.turn_open, state.closed) == ("uid of the fork", end.turn, False, True)
        assert (state.next_turn, state.next_step) == ((), ())
        assert state.header == folded(origin).header
        assert seen(fork) == seen(origin)
        assert not any(isinstance(record.event, LEFT_BEHIND) for record in fork)
        for kind in (TurnStart, TurnEnd, ToolResult):
            assert len(of(fork, kind)) == len(of(origin, kind))
        starts = [record.event for record in of(origin, ToolCall) if not record.event.resumed]
        assert [record.event.invocation_id for record in of(fork, ToolCall)] == [call.invocation_id for call in starts]


def of(records: tuple[Record, ...], kind: type) -> list[Record]:
    return [record for record in records if isinstance(record.event, kind)]


@given(log=legal_logs())
def test_a_fork_keeps_the_answered_request_of_each_step_with_its_hash(log: LegalLog) -> None:
    for end in completed(log)[-1:]:
        fork, origin = fork_of(log, end.turn or 0), log.records[: end.seq]
        answered = {(r.turn, r.step, r.event.attempt) for r in of(origin, AssistantMessage)}
        sent = [r for r in of(origin, RequestSent) if (r.turn, r.step, r.event.attempt) in answered]
        kept = of(fork, RequestSent)
        assert [(r.turn, r.step, r.at_us, r.event.sha256, r.event.messages) for r in kept] == [
            (r.turn, r.step, r.at_us, r.event.sha256, r.event.messages) for r in sent
        ]
        assert {r.event.attempt for r in [*kept, *of(fork, AssistantMessage)]} <= {1}


@given(log=legal_logs(moves_max=30))
def test_a_written_fork_verifies_with_every_hash_of_its_requests(log: LegalLog) -> None:
    for end in completed(log)[-1:]:
        with files.in_memory() as folder:
            write(str(folder / "a.db"), [fork_of(log, end.turn or 0)[:1], fork_of(log, end.turn or 0)[1:]])
            with flightlog.open_log(
                folder / "a.db", discover=False, plugins=[Bundle(adapters=[FakeModel([])])]
            ) as file:
                assert file.session("f").verify() == len(fork_of(log, end.turn or 0))


@given(log=legal_logs())
def test_a_point_that_is_not_the_end_of_a_turn_is_refused(log: LegalLog) -> None:
    ends = completed(log)
    for turn in (0, -1, len(ends) + 1, len(ends) + 2):
        with pytest.raises(UsageError, match=f"{len(ends)} completed turns"):
            fork_of(log, turn)


@given(log=legal_logs())
def test_what_happens_after_the_point_makes_no_difference(log: LegalLog) -> None:
    for end in completed(log):
        cut = LegalLog(log.records[: end.seq], (end.seq,))
        assert fork_of(cut, end.turn or 0) == fork_of(log, end.turn or 0)
