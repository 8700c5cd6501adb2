"""Frames come out the same however their bytes are cut, and only when they are complete."""

from __future__ import annotations

import re

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from flightlog_hookspecs.errors import ProviderError
from flightlog_plugins.wire import sse
from flightlog_plugins.wire.sse import Frame, SseReader

LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])
WORDS = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)


def frames_of(raw: bytes, cuts: list[int]) -> list[Frame]:
    reader, frames, at = SseReader(), [], 0
    for cut in [*sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]:
        frames += reader.feed(raw[at:cut])
        at = cut
    return frames


@given(st.lists(st.tuples(WORDS, WORDS), max_size=5), LINE_ENDS, st.lists(st.integers(0, 10_000), max_size=20))
def test_frames_are_the_same_however_the_bytes_are_cut(
    events: list[tuple[str, str]], end: str, cuts: list[int]
) -> None:
    raw = "".join(f": keep-alive{end}event: {name}{end}data: {data}{end}{end}" for name, data in events).encode()
    # After a carriage return a reader cannot know yet whether the line end goes on.
    assert frames_of(raw + b"\n", cuts) == [Frame(name, data) for name, data in events]


def test_lines_of_data_are_joined_and_other_fields_ignored() -> None:
    raw = b"id: 1\nretry: 5\ndata:a\ndata:  b\nnonsense\n\n"
    assert frames_of(raw, []) == [Frame("", "a\n b")]


@pytest.mark.parametrize("cuts", [[], [1, 2, 3, 4]], ids=str)
def test_a_mark_of_the_byte_order_is_ignored_at_the_very_beginning_only(cuts: list[int]) -> None:
    mark = "\ufeff".encode()
    raw = mark + b"data: " + mark + b"a\n\n" + mark + b"data: b\n\n"
    assert frames_of(raw, cuts) == [Frame("", "\ufeffa")]
    assert frames_of(b"\n" + raw, cuts) == []


@pytest.mark.parametrize("raw", [b"", b"data: x", b"data: x\n", b"event: x\n\n", b": ping\n\n"])
def test_what_is_not_complete_or_has_no_data_never_comes_out(raw: bytes) -> None:
    assert frames_of(raw, []) == []


def test_bytes_that_are_no_text_are_a_failure() -> None:
    with pytest.raises(ProviderError, match=r"protocol.*UTF-8"):
        frames_of(b"data: \xff\n\n", [])


@pytest.mark.parametrize("piece", [b"x" * 10, b"data: x\n"], ids=["a line", "a frame"])
def test_what_grows_without_end_is_a_failure(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "FRAME_MAX_BYTES", 100)
    with pytest.raises(ProviderError, match=r"protocol.*more than 100 bytes"):
        frames_of(piece * 20, list(range(0, 200, 10)))


@define
class Counting:
    """A pattern that counts the bytes it is shown."""

    pattern: re.Pattern[bytes]
    seen: int = field(default=0, init=False)

    def split(self, raw: bytes) -> list[bytes]:
        self.seen += len(raw)
        return self.pattern.split(raw)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_large_frame_is_looked_at_once_however_small_its_pieces(end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(sse._LINE_END)
    monkeypatch.setattr(sse, "_LINE_END", counting)
    raw = b"data: " + b"x" * 10_000 + end * 2
    assert frames_of(raw + b"\n", list(range(0, len(raw), 10))) == [Frame("", "x" * 10_000)]
    assert counting.seen <= len(raw) + 10
