"""A frame that says nothing says that the model is still at work; what a proxy sends by itself does not."""

from __future__ import annotations

import pytest

from flightlog.testing.conformance.bench import bench
from flightlog.testing.conformance.case import AdapterCase
from flightlog.testing.conformance.server import Answer
from flightlog_hookspecs import Alive
from support.wire_providers import ANTHROPIC, CHAT, DEEPSEEK, RESPONSES
from support.wire_recordings import CASES
from support.wire_server import sse

SILENT = {
    ANTHROPIC.name: sse({"type": "ping"}),
    CHAT.name: sse({"choices": [{"index": 0, "delta": {}}]}),
    DEEPSEEK.name: sse({"choices": [{"index": 0, "delta": {"content": None}}]}),
    RESPONSES.name: sse({"type": "response.in_progress", "response": {}}),
}
COMMENT = b": keep-alive\n\n"


async def signs_of_life(case: AdapterCase, *between: bytes) -> int:
    """How many an answer has with these frames in it; the answer must be the recorded one."""
    recording = case.recordings[0]
    first, *others = (frame.raw for frame in recording.frames)
    async with bench(case) as playing:
        outcome = await playing.attempt(Answer(chunks=[first, *between, *others]))
    assert outcome.message is not None
    assert outcome.message.finish == recording.finish
    return sum(isinstance(event, Alive) for event in outcome.events)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_each_frame_that_says_nothing_is_one(case: AdapterCase) -> None:
    plain = await signs_of_life(case)
    assert await signs_of_life(case, *[SILENT[case.name]] * 7) == plain + 7


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_comment_is_none(case: AdapterCase) -> None:
    plain = await signs_of_life(case)
    assert await signs_of_life(case, *[COMMENT] * 7) == plain
