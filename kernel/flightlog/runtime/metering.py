"""Counting an answer as it arrives, so that one which has no end is cut off."""

from __future__ import annotations

from typing import Final

from attrs import define, field

from flightlog.core.tokens import PER_CHARACTER_MAX, estimate

_CHUNK_CHARS: Final = 1024


@define
class Meter:
    """About how many tokens have arrived; `room` is how many may, None for any number."""

    room: int | None
    _tokens: int = field(default=0, init=False)
    _chars: int = field(default=0, init=False)
    _waiting: list[str] = field(factory=list, init=False)

    def take(self, text: str) -> None:
        """Count one delta, with others: alone it would be no word. Where any number may arrive, only if asked for."""
        self._waiting.append(text)
        self._chars += len(text)
        if self.room is not None and self._chars >= _CHUNK_CHARS:
            self._tokens += estimate("".join(self._waiting))
            self._waiting, self._chars = [], 0

    @property
    def tokens(self) -> int:
        """What has arrived."""
        return self._tokens + (estimate("".join(self._waiting)) if self._waiting else 0)

    def charge(self, asked: int) -> int:
        """What an answer that was cut off counts with its request of about `asked` tokens; 0 if none of it is there."""
        arrived = self.tokens
        return asked + arrived if arrived else 0

    @property
    def full(self) -> bool:
        """Whether more has arrived than may. A chunk is looked at once it is there."""
        if self.room is None or self._tokens + self._chars * PER_CHARACTER_MAX <= self.room:
            return False
        return self.tokens > self.room
