"""What the log cannot keep is refused before anything was written or done, and costs nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flightlog.testing import FakeModel, words
from flightlog_hookspecs.content import TextBlock, ToolCallBlock
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import (
    AssistantDelta,
    AssistantMessage,
    DeltaPiece,
    Head,
    Record,
    RequestHeader,
    RequestSent,
    SessionCreated,
    SessionOpened,
    StepStart,
    TurnStart,
)
from support.kernels import events_of, kinds_of, session_of, verified
from support.legal_logs import extended, write

HIGH, LOW = "\ud83d", "\ude00"


class Words(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(HIGH + LOW, id="a pair written as two characters"),
        pytest.param((TextBlock(text=None),), id="no text"),  # type: ignore[arg-type]
        pytest.param((TextBlock(text=Words("x")),), id="a subclass of str"),
        pytest.param((ToolCallBlock(call_id="c", name="n", arguments={}),), id="arguments that are no text"),  # type: ignore[arg-type]
    ],
)
async def test_a_message_that_cannot_be_kept_is_refused_and_leaves_no_trace(tmp_path: Path, content: Any) -> None:
    path, model = tmp_path / "s.db", FakeModel([words("Fine.")])
    async with session_of(path, model) as session:
        await session.followup("first")
        before = kinds_of(path)
        token = session.token
        with pytest.raises(UsageError):  # BadPayload, or refused as no message at all
            await session.followup(content)
        assert kinds_of(path) == before
        assert session.token == token
        turn = await session.run()
        assert turn is not None
        assert turn.text == "Fine."
    assert verified(path, model)


@pytest.mark.parametrize("text", ["a\0b", HIGH, LOW + HIGH, "\U0010ffff", "x" * 100_000 + "\0", "\0"])
async def test_a_message_of_hostile_text_reaches_the_model_unaltered(tmp_path: Path, text: str) -> None:
    path, model = tmp_path / "s.db", FakeModel([words("Fine.")])
    async with session_of(path, model) as session:
        await session.followup(text)
        await session.run()
    assert model.requests[0][1] == json.dumps(["user", text]).encode()
    assert verified(path, model)


async def test_a_character_cut_in_two_by_a_crash_of_the_stream_is_whole_when_the_session_resumes(
    tmp_path: Path,
) -> None:
    path, model = tmp_path / "s.db", FakeModel([])
    created = Record(session="s", seq=1, at_us=0, turn=None, step=None, epoch=0, event=SessionCreated(uid="uid"))
    records = extended(
        [created],
        SessionOpened(pid=1, host="h", kernel_version="0"),
        TurnStart(),
        StepStart(),
        RequestHeader(head=Head(adapter="fake", model="m"), reason="first"),
        RequestSent(attempt=1, header_seq=5, messages=0, sha256=""),
        AssistantDelta(attempt=1, block=0, type="text", pieces=(DeltaPiece(at_ms=0, text="look: " + HIGH),)),
        AssistantDelta(attempt=1, block=0, type="text", pieces=(DeltaPiece(at_ms=0, text=LOW),)),
    )
    write(str(path), [[record] for record in records])
    async with session_of(path, model):
        pass
    (answer,) = events_of(path, AssistantMessage)
    assert answer.text == "look: 😀"
    assert answer.interrupted
