"""The rules of an adapter as a list of checks, those first that are easiest to understand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from flightlog.testing.conformance import encoding, refusals, streams
from flightlog.testing.conformance.bench import Bench, bench
from flightlog.testing.conformance.case import AdapterCase, Recording
from flightlog.testing.conformance.check import Check

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


RULES: Final = frozenset({*ADAPTER, *WIRE, *ANSWER, *WIRE_ANSWER, *FAILURE, "left", "cut-anywhere"})
"""The ids of all that there are."""


def adapter_checks(case: AdapterCase) -> Iterator[Check]:
    """Every check of `case`."""
    for rule, of in ADAPTER.items():
        yield _check(case, rule, of)
    answers = [recording for recording in case.recordings if recording.failure is None]
    wired = [recording for recording in answers if recording.frames]
    if wired:
        for rule, of in WIRE.items():
            yield _check(case, rule, of)
        yield _check_of(case, "left", streams.left, wired[0])
        yield _check_of(case, "cut-anywhere", streams.cut_anywhere, min(wired, key=_size))
    for recording in case.recordings:
        of_recording = FAILURE if recording.failure else {**ANSWER, **(WIRE_ANSWER if recording.frames else {})}
        for rule, check in of_recording.items():
            yield _check_of(case, rule, check, recording)


def _size(recording: Recording) -> int:
    return sum(len(frame.raw) for frame in recording.frames)


def _check_of(case: AdapterCase, rule: str, of: OfRecording, recording: Recording) -> Check:
    async def check(bench: Bench) -> None:
        await of(bench, recording)

    return _check(case, rule, check, recording.name)


def _check(case: AdapterCase, rule: str, of: OfAdapter, recording: str = "") -> Check:
    async def check() -> None:
        async with bench(case) as made:
            made.recording = recording
            await of(made)

    return Check(case.name, rule, check, recording)
