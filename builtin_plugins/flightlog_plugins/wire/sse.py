"""Server-sent events: from bytes, cut anywhere, to frames."""

from __future__ import annotations

import re
from typing import Final

from attrs import define, field, frozen

from flightlog_hookspecs.errors import ProviderError

FRAME_MAX_BYTES: Final = 32 * 1024 * 1024
"""A frame that grows beyond this is no provider's."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


@frozen
class Frame:
    """One event of a stream: its name ("" for a nameless one) and its data."""

    event: str
    data: str


@define
class SseReader:
    """Feed it what arrives. A frame that is not complete when the stream ends never comes out."""

    _rest: bytearray = field(factory=bytearray, init=False)
    _held: bytes = field(default=b"", init=False)
    _event: str = field(default="", init=False)
    _data: list[str] = field(factory=list, init=False)
    _bytes: int = field(default=0, init=False)
    _codec: str = field(default="utf-8-sig", init=False)
    """A mark of the byte order may stand at the very beginning, where it means nothing."""

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that `chunk` completes. Raises `ProviderError(protocol)` for what is no event stream."""
        self._bytes += len(chunk)
        chunk = self._held + chunk
        # A carriage return at the end may be half of a line end.
        self._held = b"\r" if chunk.endswith(b"\r") else b""
        first, *others = _LINE_END.split(chunk[: len(chunk) - len(self._held)])
        self._rest += first
        frames: list[Frame] = []
        for line in others:
            if frame := self._line(self._rest):
                frames.append(frame)
            self._rest = bytearray(line)
        if frames:
            self._bytes = len(self._rest)
        if self._bytes > FRAME_MAX_BYTES:
            raise ProviderError("protocol", f"the provider sent an event of more than {FRAME_MAX_BYTES} bytes")
        return frames

    def _line(self, line: bytearray) -> Frame | None:
        codec, self._codec = self._codec, "utf-8"
        if not line:
            event, data, self._event, self._data = self._event, self._data, "", []
            return Frame(event, "\n".join(data)) if data else None
        try:
            name, _, value = line.decode(codec).partition(":")
        except UnicodeDecodeError as error:
            raise ProviderError("protocol", f"the provider sent bytes that are not UTF-8: {error.reason}") from None
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        return None  # comments, ids and delays mean nothing here
