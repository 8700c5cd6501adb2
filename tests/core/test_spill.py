from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightlog.core.spill import decode, excerpt
from support import values


@given(values.texts(large=False), st.integers(1, 40))
def test_an_excerpt_is_head_and_tail_and_says_what_is_missing(text: str, max_chars: int) -> None:
    shown = excerpt(text, max_chars, "blob 00")
    if len(text) <= max_chars:
        assert shown == text
        return
    head, tail = max_chars - max_chars // 4, max_chars // 4
    left_out = len(text) - max_chars
    note = f"[... {left_out} characters left out; the whole result is kept as blob 00 ...]"
    assert shown == f"{text[:head]}\n{note}\n{text[len(text) - tail :]}"
    assert len(shown) <= max_chars + len(note) + 2


@pytest.mark.parametrize("max_chars", [1, 2, 3])
def test_an_excerpt_too_short_for_a_tail_has_none(max_chars: int) -> None:
    shown = excerpt("x" * 1000, max_chars, "r")
    assert shown.startswith("x" * max_chars + "\n[... ")
    assert shown.endswith("...]\n")


@pytest.mark.parametrize(
    ("raw", "text", "exact"),
    [
        (b"", "", True),
        ("ä🎉".encode(), "ä🎉", True),
        (b"a\0b", "a\0b", False),
        (b"\xff\xfe", "\ufffd\ufffd", False),
        (b"ok \x80", "ok \ufffd", False),
    ],
)
def test_bytes_are_text_when_they_are_and_a_preview_else(raw: bytes, text: str, exact: bool) -> None:
    assert decode(raw) == (text, exact)
