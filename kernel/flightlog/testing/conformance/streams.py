"""Rules of what is received: real streams, whole answers or named failures, and nothing left behind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from flightlog.testing.conformance.bench import (
    BLOCK_PROTOCOL,
    RIGHT_ANSWER,
    Bench,
    Outcome,
    difference,
    no_warnings,
    told,
)
from flightlog.testing.conformance.blocks import fault_of
from flightlog.testing.conformance.case import Recording
from flightlog.testing.conformance.server import Answer, Ending
from flightlog_hookspecs import BlockEvent, TextDelta, ThinkingDelta, ToolCallDelta

STREAMING: Final = "words are yielded as they arrive"
PIECES: Final = "the sizes of the pieces change nothing"
NEVER_WRONG: Final = "a stream that breaks is the whole answer or a failure"
RETRYABLE: Final = "a connection that breaks is tried again"
HANGS_UP: Final = "leaving hangs up"
CANCEL: Final = "a cancel gets through and hangs up"

ENDINGS: Final[tuple[Ending, ...]] = ("eof", "cut", "reset")
PIECE_BYTES: Final = 29
"""No frame's length, so that pieces begin and end anywhere in them."""


async def answered(bench: Bench, recording: Recording) -> None:
    """The whole recording comes to its answer by the block protocol, in whatever pieces it arrives."""
    outcome = await bench.attempt(told(recording), to_the_end=True)
    if recording.failure is None and (fault := fault_of(outcome.events, ended=True)):
        raise bench.broken(BLOCK_PROTOCOL, fault)
    _expect(bench, outcome, recording, RIGHT_ANSWER)
    raw = b"".join(frame.raw for frame in recording.frames)
    pieces = [raw[at : at + PIECE_BYTES] for at in range(0, len(raw), PIECE_BYTES)]
    if pieces:
        _expect(bench, await bench.attempt(Answer(chunks=pieces)), recording, PIECES)


def _expect(bench: Bench, outcome: Outcome, recording: Recording, rule: str) -> None:
    """Exactly what was recorded."""
    if recording.failure is not None:
        kind = outcome.failure.kind if outcome.failure else "an answer"
        if kind != recording.failure:
            raise bench.broken(rule, f"it came to {kind}, not to the failure {recording.failure!r}")
    elif outcome.message is None:
        raise bench.broken(rule, f"it came to {outcome.failure}, not to an answer")
    elif differs := difference(outcome.message, recording, usage=True):
        raise bench.broken(rule, differs)


@define
class _Words:
    """What has been yielded so far, and who waits for more."""

    text: str = field(default="", init=False)
    _more: trio.Event = field(factory=trio.Event, init=False)

    def watch(self, events: Sequence[BlockEvent]) -> bool:
        """Take the last event."""
        if isinstance(events[-1], (TextDelta, ThinkingDelta, ToolCallDelta)):
            self.text += events[-1].text
            self._more.set()
            self._more = trio.Event()
        return False

    async def reach(self, chars: int) -> None:
        """Wait until so many have come."""
        while len(self.text) < chars:
            await self._more.wait()


async def streamed(bench: Bench, recording: Recording) -> None:
    """No frame is sent before the words of those before it have been yielded."""
    expected = ["", *accumulate(frame.delta for frame in recording.frames)]
    words, late = _Words(), list[int]()
    scope = trio.CancelScope(deadline=bench.patience() + bench.case.patience_s)

    async def pace(frame: int) -> None:
        with trio.move_on_after(bench.case.patience_s) as waiting:
            await words.reach(len(expected[frame]))
        if waiting.cancelled_caught or not expected[frame].startswith(words.text):
            late.append(frame - 1)
            scope.cancel()
            await trio.sleep_forever()

    await bench.attempt(told(recording, pace=pace), scope=scope, watch=words.watch)
    if late:
        (frame,) = late
        brought = recording.frames[frame].delta
        what = f"it brings {brought!r}; before the next was sent, {words.text!r} had come of {expected[frame + 1]!r}"
        raise bench.broken(STREAMING, what, frame)


async def broken_off(bench: Bench, recording: Recording) -> None:
    """Wherever the stream ends, is cut, reset or damaged, it is the whole answer or a failure with a name."""
    for frame in range(len(recording.frames) + 1):
        for ending in ENDINGS:
            _judge(bench, await bench.attempt(told(recording, ending, frame), frame=frame), recording, frame, ending)
        for garbage in bench.case.garbage:
            raw = [each.raw for each in recording.frames]
            damaged = Answer(chunks=[*raw[:frame], garbage, *raw[frame:]])
            _judge(bench, await bench.attempt(damaged, frame=frame), recording, frame, "garbage")


async def cut_anywhere(bench: Bench, recording: Recording) -> None:
    """The same for every byte that may be the last."""
    raw = b"".join(each.raw for each in recording.frames)
    borders = list(accumulate(len(each.raw) for each in recording.frames))
    for end in range(1, len(raw)):
        frame = sum(border <= end for border in borders)
        outcome = await bench.attempt(Answer(chunks=[raw[:end]]), frame=frame)
        _judge(bench, outcome, recording, frame, f"an end at byte {end}")


def _judge(bench: Bench, outcome: Outcome, recording: Recording, frame: int, how: str) -> None:
    """The recorded answer, or a failure; where nothing but the connection failed, one that is tried again."""
    if outcome.message is not None:
        if recording.failure is not None:
            raise bench.broken(
                NEVER_WRONG, f"after {how}, a failure became an answer: {outcome.message.content}", frame
            )
        if differs := difference(outcome.message, recording):
            raise bench.broken(NEVER_WRONG, f"after {how}, it became another answer: {differs}", frame)
    elif outcome.failure and not (recording.failure or how == "garbage" or outcome.failure.retryable):
        raise bench.broken(RETRYABLE, f"after {how} it is a final failure: {outcome.failure}", frame)


async def stalled(bench: Bench, recording: Recording) -> None:
    """Wherever nothing more comes, the kernel's limit cancels: that gets through, and hangs up."""
    for frame in range(len(recording.frames) + 1):
        await _stall(bench, recording, frame)


async def _stall(bench: Bench, recording: Recording, frame: int) -> None:
    scope = trio.CancelScope()

    async def quiet(chunk: int) -> None:
        if chunk == frame:
            # Wherever the adapter is then, the cancel must do: this only makes it likely that it waits for more.
            await wait_all_tasks_blocked(0.0005)
            scope.cancel()

    outcome = await bench.attempt(told(recording, "stall", frame, pace=quiet), frame=frame, scope=scope)
    if outcome.message is not None:
        _judge(bench, outcome, recording, frame, "a stall")
    await bench.within_patience(bench.server.hung_up.wait, CANCEL, "the connection is still open after a cancel", frame)


async def left(bench: Bench, recording: Recording) -> None:
    """Leaving after any event hangs up, and leaves nothing to the garbage collector."""
    async with no_warnings():
        await _left(bench, recording)
        middle = len(recording.frames) // 2
        await _stall(bench, recording, middle)
        for ending in ENDINGS:
            await bench.attempt(told(recording, ending, middle))


async def _left(bench: Bench, recording: Recording) -> None:
    whole = await bench.attempt(told(recording))
    for count, last in enumerate(whole.events[:-1], 1):

        def enough(events: Sequence[BlockEvent], count: int = count) -> bool:
            return len(events) == count

        outcome = await bench.attempt(told(recording, "stall"), watch=enough)
        if outcome.message is None:
            what = f"the connection is still open though the stream was left after {type(last).__name__} ({count})"
            await bench.within_patience(bench.server.hung_up.wait, HANGS_UP, what)
