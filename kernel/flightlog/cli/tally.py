"""What the turns of one run came to, counted from their rows."""

from __future__ import annotations

from attrs import define, field

from flightlog_hookspecs.events import (
    AssistantMessage,
    Record,
    RequestSent,
    SessionOpened,
    StepStart,
    ToolCall,
    TurnEnd,
    TurnStart,
)


@define
class TurnCount:
    """One turn; `end` is None while it is open, times are in Unix microseconds."""

    number: int
    started_us: int
    ended_us: int = 0
    steps: int = 0
    calls: int = 0
    input_tokens: int = 0  # all that was sent, caches included
    output_tokens: int = 0
    costs_pico: dict[str, int] = field(factory=dict)  # by currency
    unpriced: int = 0  # attempts whose cost is not known
    text: str = ""
    end: TurnEnd | None = None

    @property
    def reason(self) -> str:
        """Why it ended, in full."""
        if self.end is None:
            return "open"
        details = ": ".join(filter(None, (self.end.code or self.end.cause, self.end.message)))
        return f"{self.end.reason} ({details})" if details else self.end.reason


@define
class Tally:
    """The turns that ran in this run, in order. Rows of an earlier turn that recovery closed do not count."""

    turns: list[TurnCount] = field(factory=list)

    def take(self, record: Record) -> None:
        """Count `record` in."""
        event = record.event
        if isinstance(event, (TurnStart, SessionOpened)) and record.turn is not None:
            self.turns.append(TurnCount(number=record.turn, started_us=record.at_us))
        turn = self.turns[-1] if self.turns else None
        if turn is None or record.turn != turn.number:
            return
        match event:
            case StepStart():
                turn.steps += 1
            case ToolCall():
                turn.calls += 1
            case RequestSent():
                turn.unpriced += 1
            case AssistantMessage():
                turn.input_tokens += event.input_tokens + event.cached_tokens + event.cache_write_tokens
                turn.output_tokens += event.output_tokens
                turn.text = event.text
                if event.price and (cost := event.cost_pico) is not None:
                    turn.unpriced -= 1
                    turn.costs_pico[event.price.currency] = turn.costs_pico.get(event.price.currency, 0) + cost
            case TurnEnd(reason="interrupted"):
                self.turns.pop()
            case TurnEnd():
                turn.end, turn.ended_us = event, record.at_us

    @property
    def failed(self) -> list[TurnCount]:
        """The turns that did not complete."""
        return [turn for turn in self.turns if turn.end is None or turn.end.reason != "completed"]
