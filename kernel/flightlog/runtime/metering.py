"""Counting an answer as it arrives, so that one which has no end is cut off."""

from __future__ import annotations

from typing import Final

from attrs import define, field

from flightlog.core.budget import charge
from flightlog.core.fitting import state_cost
from flightlog.core.limits import ANSWER_EVENTS_MAX
from flightlog.core.state import NO_USAGE
from flightlog.core.tokens import PER_CHARACTER_MAX, estimate
from flightlog_hookspecs.content import Block, BlockType, FileBlock, TextBlock, ThinkingBlock, ToolCallBlock
from flightlog_hookspecs.errors import ProviderError
from flightlog_hookspecs.events import CHARGED_MAX
from flightlog_hookspecs.stream import Alive, BlockEnd, BlockEvent, Usage

_CHUNK_CHARS: Final = 1024


@define
class Meter:
    """About how many tokens have arrived; `room` is how many may, None for any number.

    An event that is no delta is a token, or an answer that never says anything would have no end. It does not come on
    top of the words: some providers count with each of them. A sign of life is none: nobody asks money for it.
    """

    room: int | None
    said: Usage = field(default=NO_USAGE, init=False)
    """What the provider has counted so far."""
    _tokens: int = field(default=0, init=False)
    _chars: int = field(default=0, init=False)
    _waiting: list[str] = field(factory=list, init=False)
    _streamed: dict[int, int] = field(factory=dict, init=False)
    """How many characters of a block its deltas have brought."""
    _others: int = field(default=0, init=False)
    """How many events were no deltas, or counted for nothing."""
    _silent: int = field(default=0, init=False)
    """How many said only that the model is at work."""

    def take(self, event: BlockEvent, delta: tuple[int, BlockType, str] | None) -> None:
        """Count `event`: as a `delta` what that says, at the end of a block what its deltas have not said.

        Raises `ProviderError(protocol)` for one too many that is no delta.
        """
        if delta:
            index, _, text = delta
            self._streamed[index] = self._streamed.get(index, 0) + len(text)
            self._add(text)
            return
        if isinstance(event, Alive):
            self._silent += 1
        else:
            self._others += 1
        if max(self._others, self._silent) > ANSWER_EVENTS_MAX:
            raise ProviderError("protocol", f"the answer has more than {ANSWER_EVENTS_MAX} events beside its words")
        if isinstance(event, BlockEnd):
            if isinstance(event.block, ThinkingBlock):
                self._tokens += state_cost(event.block)
            if rest := _rest(event.block, self._streamed.pop(event.index, 0)):
                self._add(rest)

    def _add(self, text: str) -> None:
        """Count some words, with others: alone they may be none. Where any number may arrive, only if asked for."""
        self._waiting.append(text)
        self._chars += len(text)
        if self.room is not None and self._chars >= _CHUNK_CHARS:
            self._tokens += estimate("".join(self._waiting))
            self._waiting, self._chars = [], 0

    @property
    def tokens(self) -> int:
        """What has arrived."""
        return max(self._others, self._tokens + (estimate("".join(self._waiting)) if self._waiting else 0))

    def charge(self, asked: int) -> int:
        """What an attempt that failed counts, with its request of about `asked` tokens; 0 if nothing has arrived.

        What its provider says of the request is believed as if it had been answered, and of the answer it may not have
        said all yet.
        """
        said, arrived = self.said, self.tokens
        if not arrived:
            return 0
        sent = said.input_tokens + said.cached_tokens + said.cache_write_tokens
        counted = (sent or asked) + max(said.output_tokens, arrived)
        return min(max(counted, charge(asked, arrived, counted)), CHARGED_MAX)

    @property
    def full(self) -> bool:
        """Whether more has arrived than may. A chunk is looked at once it is there."""
        if self.room is None or max(self._others, self._tokens + self._chars * PER_CHARACTER_MAX) <= self.room:
            return False
        return self.tokens > self.room


def _rest(block: Block, streamed: int) -> str:
    """The words of `block` without the first `streamed` characters. What a call is called comes with no delta."""
    match block:
        case TextBlock() | ThinkingBlock():
            return block.text[streamed:]
        case ToolCallBlock():
            return block.name + block.arguments[streamed:]
        case FileBlock():
            return ""  # no answer holds one
