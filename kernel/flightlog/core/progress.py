"""Whether a step brought anything new: what it did, what came of it, and how alike two outputs are.

A step repeats the one before it when it made the same calls, got answers that are alike, and was told nothing that
the step before was not told. Calls are the same by tool and key arguments. Of a step without calls, the words count.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from flightlog.core.limits import ALIKE_MAX_CHARS, ALIKE_MIN_RATIO
from flightlog_hookspecs.content import Block, FileBlock, text_of
from flightlog_hookspecs.events import Source, UserMessage

if TYPE_CHECKING:
    from flightlog.core.state import Call, Step

TELLING: Final[frozenset[Source]] = frozenset({"user", "plugin", "resync", "subagent", "timer"})
"""The messages that may bring something new. Prompt sections are rendered for each step, so they do not count."""


def gist(content: Iterable[Block]) -> str:
    """What is kept of a content to compare it with another: its words, or its hash when they are many."""
    blocks = tuple(content)
    text = "\0".join((text_of(blocks), *(block.sha256 for block in blocks if isinstance(block, FileBlock))))
    return text if len(text) <= ALIKE_MAX_CHARS else sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def alike(one: str, other: str) -> bool:
    """Whether two gists say the same: at least `ALIKE_MIN_RATIO` of their characters, in the same order."""
    return one == other or _alike(one, other)


@lru_cache(maxsize=64)
def _alike(one: str, other: str) -> bool:
    """The greedy algorithm of Myers, given up as soon as too much differs: its time is bounded by what may differ."""
    whole = len(one) + len(other)
    differ_max = int((1 - ALIKE_MIN_RATIO) * whole)
    reach = {1: 0}  # by diagonal: how far into `one` a path with so many differences comes at most
    for differing in range(differ_max + 1):
        for diagonal in range(-differing, differing + 1, 2):
            down = diagonal == -differing or (
                diagonal != differing and reach.get(diagonal - 1, -1) < reach.get(diagonal + 1, -1)
            )
            x = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            y = x - diagonal
            while x < len(one) and y < len(other) and one[x] == other[y]:
                x, y = x + 1, y + 1
            reach[diagonal] = x
            if x >= len(one) and y >= len(other):
                return True
    return False


def repeats(before: Step, step: Step) -> bool:
    """Whether `step`, which follows `before`, brought nothing new."""
    if len(before.calls) != len(step.calls) or not set(step.told) <= set(before.told):
        return False
    if not step.calls:
        return alike(_words(before), _words(step))
    return all(_same(*pair) for pair in zip(before.calls, step.calls, strict=True))


def _same(before: Call, call: Call) -> bool:
    """Whether two calls are the same action with the same answer.

    The answer of a read that differs in anything is news: whoever waits for something to happen asks again and again.
    """
    if before.outcome != call.outcome or before.name != call.name:
        return False
    reads = call.started is not None and call.started.effect == "read" and call.outcome == "ok"
    if reads and before.output != call.output:
        return False
    return before.action == call.action and alike(before.output, call.output)  # to compare actions is to parse them


def _words(step: Step) -> str:
    return gist(step.message.content) if step.message else ""


def told_in(step: Step, message: UserMessage) -> tuple[str, ...]:
    """What `step` has been told that may be new, `message` included."""
    return (*step.told, gist(message.content)) if message.source in TELLING else step.told
