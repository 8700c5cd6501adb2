"""The rules as a list of checks, one for each test that a runner should show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

import trio
from attrs import frozen

from flightlog.runtime.error_groups import leaves
from flightlog.testing.conformance import encoding, refusals, streams
from flightlog.testing.conformance.bench import Bench, bench
from flightlog.testing.conformance.case import AdapterCase, Broken, Recording

OfRecording = Callable[[Bench, Recording], Awaitable[None]]
OfAdapter = Callable[[Bench], Awaitable[None]]


ADAPTER: Final[Mapping[str, OfAdapter]] = {"name": encoding.named, "encode": encoding.encoded}
WIRE: Final[Mapping[str, OfAdapter]] = {
    "sent": encoding.sent,
    "refused": refusals.refused,
    "no-stream": refusals.not_a_stream,
}
ANSWER: Final[Mapping[str, OfRecording]] = {"answer": streams.answered}
WIRE_ANSWER: Final[Mapping[str, OfRecording]] = {
    "streaming": streams.streamed,
    "broken-off": streams.broken_off,
    "stalled": streams.stalled,
}
FAILURE: Final[Mapping[str, OfRecording]] = {"failure": streams.answered, "broken-off": streams.broken_off}


@frozen
class Check:
    """One rule, for an adapter or for one of its recordings. Call it; it raises `Broken`.

    `str()` is readable as the id of a test: adapter, rule and recording.
    """

    case: AdapterCase
    rule: str
    of: Callable[[Bench], Awaitable[None]]
    recording: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.case.name, self.rule, self.recording)))

    def __call__(self) -> None:
        """Run it in a loop of its own."""
        trio.run(self._run)

    async def _run(self) -> None:
        try:
            async with bench(self.case) as made:
                made.recording = self.recording
                await self.of(made)
        except BaseExceptionGroup as group:
            broken = [leaf for leaf in leaves(group) if isinstance(leaf, Broken)]
            if not broken:
                raise
            raise broken[0] from broken[0].__cause__


def checks(case: AdapterCase) -> list[Check]:
    """Every check of `case`, those first that are easiest to understand."""
    return list(_checks(case))


def _checks(case: AdapterCase) -> Iterator[Check]:
    for rule, of in ADAPTER.items():
        yield Check(case, rule, of)
    answers = [recording for recording in case.recordings if recording.failure is None]
    wired = [recording for recording in answers if recording.frames]
    if wired:
        for rule, of in WIRE.items():
            yield Check(case, rule, of)
        yield _check(case, "left", streams.left, wired[0])
        yield _check(case, "cut-anywhere", streams.cut_anywhere, min(wired, key=_size))
    for recording in case.recordings:
        of_recording = FAILURE if recording.failure else {**ANSWER, **(WIRE_ANSWER if recording.frames else {})}
        for rule, check in of_recording.items():
            yield _check(case, rule, check, recording)


def _size(recording: Recording) -> int:
    return sum(len(frame.raw) for frame in recording.frames)


def _check(case: AdapterCase, rule: str, of: OfRecording, recording: Recording) -> Check:
    async def check(bench: Bench) -> None:
        await of(bench, recording)

    return Check(case, rule, check, recording.name)
