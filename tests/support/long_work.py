"""A model with much to do, that writes summaries when it is asked to: for conversations that become too long."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from attrs import define, field

from flightlog.core.fitting import cost, head_cost
from flightlog.testing import Cue, FakeModel, calls, words
from flightlog_hookspecs import AssistantMessage, BlockEvent, Compactor, Message, Request, Tool, Usage, UserMessage
from flightlog_hookspecs.errors import ProviderError
from support.conversation import assert_conversation

INSTRUCTION = "Sum it all up."
SUMMARISES = Compactor(name="sums", instruction=INSTRUCTION, keep_steps=2, note="Look back.")
PRUNES = Compactor(name="prunes", keep_steps=2)


def answers_in(messages: Sequence[Message]) -> int:
    """How many answers there have been, those that a summary covers included."""
    covered = [re.search(r"(\d+) answers", m.text) for m in messages if is_summary(m)]
    return sum(int(found[1]) for found in covered if found) + sum(isinstance(m, AssistantMessage) for m in messages)


def is_summary(message: Message) -> bool:
    """Whether it stands for others."""
    return isinstance(message, UserMessage) and message.source == "summary"


def tokens_of(request: Request) -> int:
    """About how many tokens it has."""
    return head_cost(request.head) + sum(map(cost, request.messages))


@define
class LongWork(FakeModel):
    """Looks `steps` times, then is done. `summary` makes what it answers when it is asked for a summary.

    `sizes` are the tokens of the requests of turns, `asked` how often it was asked for a summary.
    """

    replies: Sequence[Sequence[Cue]] = ()
    steps: int = 12
    summary: Callable[[int], Sequence[Cue]] = lambda answers: words(f"{answers} answers")
    refuses_over: int | None = None
    retryable: bool = False
    counts: float = 0.0
    instruction: str = INSTRUCTION
    sizes: list[int] = field(factory=list, init=False)
    asked: int = field(default=0, init=False)

    @asynccontextmanager
    async def stream(self, request: Request, attempt: int) -> AsyncIterator[AsyncIterator[BlockEvent]]:
        """Play what comes next."""
        self.requests.append(tuple(request.fragments))
        messages, last = request.messages, request.messages[-1]
        assert [index for index, message in enumerate(messages) if is_summary(message)] in ([], [0])
        asked = isinstance(last, UserMessage) and last.source == "kernel" and last.text == self.instruction
        if self.refuses_over is not None and tokens_of(request) > self.refuses_over:
            self.sizes += [] if asked else [tokens_of(request)]
            raise ProviderError("context_overflow", "too long", retryable=self.retryable)
        if asked:
            assert_conversation(messages[:-1])
            self.asked += 1
            yield self._play([*self.summary(answers_in(messages)), Usage(input_tokens=70, output_tokens=7)])
            return
        assert_conversation(messages)
        self.sizes.append(tokens_of(request))
        said = [Usage(input_tokens=int(self.sizes[-1] * self.counts), output_tokens=1)] if self.counts else []
        done = answers_in(messages)
        reply = [*words(f"step {done}"), *calls(("look", {"at": done}))] if done < self.steps else words("done")
        yield self._play([*reply, *said])


def looking(chars: int, looked: list[int] | None = None) -> Tool:
    """A tool whose results have about so many characters. Where it looks is noted in `looked`."""

    async def look(at: int) -> str:
        if looked is not None:
            looked.append(at)
        return "a sky of blue " * (chars // 14)

    return Tool(body=look, name="look", description="Look.", mode="parallel", effect="read")
