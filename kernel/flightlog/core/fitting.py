"""Whether a request fits, and how the conversation can be made shorter: about how many tokens, and where it may be cut.

A conversation is cut between steps only, each an answer with its results and the messages before it: so no call is ever
parted from its result. The open step is not touched.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from attrs import define, evolve, field, frozen

from flightlog.core.history import History, Place
from flightlog.core.limits import Limits
from flightlog.core.tokens import estimate
from flightlog_hookspecs.content import Block, FileBlock, TextBlock, ThinkingBlock, ToolCallBlock, text_blocks
from flightlog_hookspecs.events import (
    AssistantMessage,
    CompactionOutcome,
    Head,
    Message,
    TaskSubmitted,
    ToolResult,
    UserMessage,
)

MESSAGE_TOKENS: Final = 4
"""What a message costs beside its words."""

FILE_TOKENS: Final = 1600
"""What a picture is taken to cost, whatever its size, since providers scale it down; no file but a text costs less."""

TEXT_BYTES: Final = 3
"""So many bytes of a text file are a token: its words are not at hand here, so this is on the safe side."""

PDF_BYTES: Final = 50
"""So many of a document are one. Its pages count, each some 2,000: as scans they are large, as words much smaller."""

OTHER_BYTES: Final = 500
"""So many of any other file are one, as of sound and film; most that is neither is not shown to models at all."""

STATE_CHARS: Final = 5
"""So many characters of a provider's state are a token: encrypted reasoning in base64 was four bytes a token before."""

_TEXTS: Final = frozenset({"application/json", "application/xml", "application/yaml", "application/toml"})

RATIO_MIN: Final = 1.0
RATIO_MAX: Final = 3.0
"""So far a provider's own count corrects the estimates, upwards only: by one that says too little, a request would
outgrow its window, and what it counts at least would become less with what is said of it."""

PRUNE_MIN_TOKENS: Final = 64
"""A result is shortened if that saves so many tokens at least."""

ROOM: Final = 0.8
"""Shortened results are enough when the request then has at most this part of what fits: there will be more steps."""

Entry = tuple[Place, Message]


def head_cost(head: Head) -> int:
    """About how many tokens the head is."""
    tools = (f"{tool.name}\n{tool.description}\n{tool.parameters}" for tool in head.tools)
    return estimate(head.system) + sum(MESSAGE_TOKENS + estimate(tool) for tool in tools)


def cost(message: Message, *, thinking: bool = True) -> int:
    """About how many tokens a message is; without `thinking` it is sent without that."""
    state = len(message.replay) // STATE_CHARS if isinstance(message, AssistantMessage) else 0
    blocks = (block for block in message.content if thinking or not isinstance(block, ThinkingBlock))
    return MESSAGE_TOKENS + state + sum(map(_block_cost, blocks))


def _block_cost(block: Block) -> int:
    match block:
        case TextBlock():
            return estimate(block.text)
        case ThinkingBlock():
            return estimate(block.text) + state_cost(block)
        case ToolCallBlock():
            return MESSAGE_TOKENS + estimate(block.name) + estimate(block.arguments)
        case FileBlock():
            return _file_cost(block)


def state_cost(block: ThinkingBlock) -> int:
    """About how many tokens the provider's state in `block` has beside its text, which most providers repeat in it."""
    return max(0, len(block.replay) - len(block.text)) // STATE_CHARS


def _file_cost(file: FileBlock) -> int:
    kind, size = file.media_type, file.size_bytes
    if kind.startswith("image/"):
        return FILE_TOKENS
    if kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+json", "+xml")):
        return estimate(file.label) + -(-size // TEXT_BYTES)
    return max(FILE_TOKENS, size // (PDF_BYTES if kind == "application/pdf" else OTHER_BYTES))


def room(window: int | None, limits: Limits, task: TaskSubmitted | None) -> int | None:
    """How many tokens a request of `task`, or of none, may have for a model with that window; None if nobody knows."""
    bounds = (
        None if window is None else int(window * limits.input_budget_ratio),
        limits.context_tokens,
        task.max_input_tokens if task else None,
    )
    return min((bound for bound in bounds if bound is not None), default=None)


@define
class Measure:
    """About how many tokens the next request of a session has. Each message is counted once.

    The estimates are corrected by what the newest answer says that its request had, if that is more.
    """

    total: int = field(default=0, init=False)
    _head: Head | None = field(default=None, init=False)
    _head_cost: int = field(default=0, init=False)
    _rewritten_at: int = field(default=0, init=False)
    _costs: list[int] = field(factory=list, init=False)
    _sum: int = field(default=0, init=False)
    _ratio: float = field(default=1.0, init=False)

    def take(self, head: Head, history: History, *, bound_thinking: bool) -> int:
        """The tokens of a request with `head` and the messages in `history`."""
        if head is not self._head:
            self._head, self._head_cost = head, head_cost(head)
        if history.rewritten_at != self._rewritten_at:
            self._rewritten_at, self._costs, self._sum = history.rewritten_at, [], 0
        for place, message in history.since(len(self._costs)):
            older = place[0] < self._rewritten_at
            if isinstance(message, AssistantMessage) and not older:
                self._correct(message)
            self._costs.append(cost(message, thinking=not (older and bound_thinking)))
            self._sum += self._costs[-1]
        self.total = self.corrected(self._head_cost + self._sum)
        return self.total

    @property
    def head(self) -> int:
        """The tokens of the head."""
        return self.corrected(self._head_cost)

    def corrected(self, tokens: int) -> int:
        """An estimate as the provider is likely to count it."""
        return int(tokens * self._ratio)

    def of(self, first: int, end: int) -> int:
        """The tokens of the messages from index `first` to before `end`."""
        return self.corrected(sum(self._costs[first:end]))

    def readable(self, most: int | None) -> int:
        """How many of the first messages a request with `most` tokens has room for; all where that is not known."""
        sizes = list(accumulate(self._costs, initial=self._head_cost))
        return len(self._costs) if most is None else max(0, bisect_right(sizes, most, key=self.corrected) - 1)

    def _correct(self, answer: AssistantMessage) -> None:
        sent = answer.input_tokens + answer.cached_tokens + answer.cache_write_tokens
        estimated = self._head_cost + self._sum
        if sent > 0 and estimated > 0:
            self._ratio = min(max(sent / estimated, RATIO_MIN), RATIO_MAX)


@frozen
class Prune:
    """Say these results in fewer words: each with its row, as it is and as it will be."""

    results: tuple[tuple[int, ToolResult], ...]

    @property
    def rows(self) -> tuple[int, int]:
        """The rows of the first and the last message with such a result."""
        return self.results[0][1].message_seq, self.results[-1][1].message_seq


@frozen
class Summarise:
    """Let a summary of the first `count` messages, which stand in rows `rows[0]` to `rows[1]`, stand for them.

    All that is left of the first `said` messages that ever were is among them.
    """

    rows: tuple[int, int]
    count: int
    said: int


def shorter(history: History, measure: Measure, step_row: int, most: int, wish: Wish) -> Prune | Summarise | None:
    """What makes a request of more than `most` tokens shorter, None when nothing does that `wish` allows.

    Results are shortened where that is enough, and where what is to be said in short is too long for the model to read
    it once more; else as much of it as the model can read is summarised. `step_row` is the row of the open step.
    """
    entries = history.since(0)
    ends = _ends(entries, step_row, wish.keep_steps)
    end = ends[-1] if ends else 0
    results = tuple(_prunable(history, entries[:end], wish.note))
    saved = measure.corrected(sum(cost(old) - cost(new) for _, old, new in results))
    prune = Prune(tuple((row, new) for row, _, new in results)) if results else None
    readable = ends[: bisect_right(ends, measure.readable(wish.window))]
    covered = entries[: readable[-1]] if readable and wish.summarises else []
    told = any(not isinstance(message, UserMessage) or message.source != "summary" for _, message in covered)
    summarise = _summarise(history, covered) if told else None
    if prune and (measure.total - saved <= most * ROOM or summarise is None or summarise.count < end):
        return prune
    return summarise


def _summarise(history: History, covered: list[Entry]) -> Summarise:
    said = max(history.number(place) for place, _ in covered)
    return Summarise((covered[0][0][0], covered[-1][0][0]), len(covered), said)


def least(history: History, measure: Measure, step_row: int, keep_steps: int = 0) -> int:
    """The tokens of a request that has nothing but its head and the open step, which is in row `step_row`.

    And the last `keep_steps` finished ones.
    """
    entries = history.since(0)
    if keep_steps:
        first = (_ends(entries, step_row, keep_steps) or [0])[-1]
    else:
        first = bisect_left(entries, step_row, key=lambda entry: entry[0][0])
    return measure.head + measure.of(first, len(entries))


@frozen(kw_only=True)
class Wish:
    """How a conversation is to be made shorter: the last `keep_steps` finished steps stay as they are.

    `note` follows what a shortened result says, `window` are the tokens that the model can read, None if not known.
    """

    keep_steps: int
    summarises: bool
    note: str = ""
    window: int | None = None


def shortened(result: ToolResult, row: int, number: int, note: str) -> ToolResult:
    """What stands for `result`, which is in that row and was the message with that number."""
    files = sum(isinstance(block, FileBlock) for block in result.content)
    size = f"{len(result.text)} characters" + (f" and {files} files" if files else "")
    words = f"[Left out here to save room: the result of {result.name}, {size}, message {number}.{_said(note)}]"
    return evolve(result, content=text_blocks(words), replaces=row, duration_us=0, spill=None, facts=())


def summary_text(said: int, text: str, note: str) -> str:
    """What the model is told in place of the first `said` messages."""
    return f"[What was said so far, messages 1 to {said}, in short.{_said(note)}]\n\n{text.strip()}"


def judged(answer: AssistantMessage, saved: int) -> tuple[CompactionOutcome, str]:
    """What the model's `answer` is worth as a summary that saves so many tokens, and why.

    A model that calls tools goes on with the work: what it says with that is no summary.
    """
    if any(isinstance(block, ToolCallBlock) for block in answer.content):
        return "failed", "it called tools"
    if answer.finish not in ("stop", "stop_sequence"):
        return "failed", f"it ended with {answer.finish}"
    if not answer.text.strip():
        return "empty", ""
    return ("done", "") if saved > 0 else ("not_smaller", "")


def _said(note: str) -> str:
    return f" {note}" if note else ""


def _prunable(history: History, covered: list[Entry], note: str) -> Iterator[tuple[int, ToolResult, ToolResult]]:
    for place, message in covered:
        if isinstance(message, ToolResult) and message.replaces is None:
            row = history.row(place)
            new = shortened(message, row, history.number(place), note)
            if cost(message) - cost(new) >= PRUNE_MIN_TOKENS:
                yield row, message, new


def _ends(entries: list[Entry], step_row: int, keep_steps: int) -> list[int]:
    """The indexes behind each of the finished steps, but for the last `keep_steps` of them."""
    ends = [index for index in range(1, len(entries) + 1) if _ends_step(entries, index, step_row)]
    if not keep_steps:
        return ends
    # What was said behind the last step is no step: it would be kept in place of what the model has just read.
    steps = [end for end in ends if not isinstance(entries[end - 1][1], UserMessage)]
    last = steps[-keep_steps - 1] if len(steps) > keep_steps else 0
    return [end for end in ends if end <= last]


def _ends_step(entries: list[Entry], end: int, step_row: int) -> bool:
    """Whether a step, or what was said behind the last one, ends before index `end`."""
    place, _ = entries[end - 1]
    if place[0] >= step_row:
        return False
    if end == len(entries) or entries[end][0][0] >= step_row:
        return True
    # Messages of the same place are an answer with its results.
    answered = place[1] > 0 or isinstance(entries[end - 1][1], AssistantMessage)
    return answered and entries[end][0][0] != place[0]
