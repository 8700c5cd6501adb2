"""A result that is too long to show: the model gets its beginning and end, the log keeps it whole."""

from __future__ import annotations

from flightlog.core.canonical import is_faithful


def excerpt(text: str, max_chars: int, reference: str) -> str:
    """At most about `max_chars` characters of `text`: three quarters head, one quarter tail.

    `reference` says where the whole text can be found. A shorter text is returned as it is.
    """
    if len(text) <= max_chars:
        return text
    tail = max_chars // 4
    head = max_chars - tail
    left_out = len(text) - head - tail
    note = f"[... {left_out} characters left out; the whole result is kept as {reference} ...]"
    return f"{text[:head]}\n{note}\n{text[len(text) - tail :]}"


def decode(raw: bytes) -> tuple[str, bool]:
    """Bytes as text, and whether that is exact (UTF-8 without NUL). Otherwise it is a rough preview."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return raw.decode(errors="replace"), False
    return text, is_faithful(text)
