"""A running turn as a person watches it: words as they come, calls, and one line when it is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flightlog.cli.answered import LATE, Answered
from flightlog.cli.files import said
from flightlog.cli.letters import answers
from flightlog.cli.output import Output
from flightlog.cli.tally import TurnCount
from flightlog.cli.terminal_text import arguments, cost, counted, duration, one_line
from flightlog.cli.timeline import announced
from flightlog_hookspecs.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantDelta,
    AssistantMessage,
    LetterTaken,
    Record,
    RequestFailed,
    RequestRetry,
    RequestSent,
    ToolCall,
    ToolProgress,
    ToolResult,
    TurnEnd,
    TurnStart,
)

OUTCOMES: Final = {"ok": ("\u2713", "green"), "unknown": ("?", "yellow"), "aborted": ("-", "yellow")}
_REASONS: Final = {"completed": "bold green", "aborted": "bold yellow", "interrupted": "bold yellow"}


class LiveView:
    """Shows records on `output`. Calls, failures and the like stand on lines of their own."""

    def __init__(self, output: Output, approve_command: Callable[[int], str], answered: Answered) -> None:
        self._output = output
        self._approve_command = approve_command
        self._answered = answered
        self._in_turn = False
        self._streamed = ""

    def show(self, record: Record) -> None:
        """Show `record`, which follows the one shown last."""
        output = self._output
        match record.event:
            case TurnStart():
                self._in_turn = True
            case RequestSent():
                self._in_turn, self._streamed = True, ""
            case AssistantDelta() as event:
                self._delta(event)
            case AssistantMessage() as event if self._in_turn:
                self._message(event)
            case AssistantMessage() as event:
                output.line(
                    (f"\u21bb kept {counted(len(event.text), 'character')} of the answer that was cut off", "dim")
                )
            case RequestFailed() as event if self._in_turn:
                output.line((f"\u2717 attempt {event.attempt} failed: {one_line(event.message)}", "red"))
            case RequestRetry() as event:
                output.line((f"\u21bb attempt {event.attempt} {announced(event)}", "dim"))
            case ApprovalAsked() as event:
                output.line(("? ", "yellow"), one_line(event.question, 2000))
                output.line((f"  {self._approve_command(record.seq)} {answers(event.about)}", "dim"))
            case ApprovalDecided() as event:
                late = f", {LATE}" if self._answered.is_late(event) else ""
                output.line(("? ", "yellow"), f"{event.decision} by {one_line(event.by)}{late}")
            case LetterTaken(outcome="refused") as event:
                output.line((refused(event), "yellow"))
            case ToolCall() as event:
                output.line(
                    ("\u25b8 ", "cyan"), (one_line(event.name), "bold"), f"({arguments(event.arguments)})", fit=True
                )
            case ToolProgress() as event:
                output.line((f"  \u2026 {one_line(event.name)}: {one_line(event.text)}", "dim"), fit=True)
            case ToolResult() as event:
                mark, style = OUTCOMES.get(event.outcome, ("\u2717", "red"))
                took = f" ({duration(event.duration_us)})" if event.duration_us else ""
                output.line((f"  {mark} ", style), f"{one_line(event.name)}{took}: {said(event.content)}", fit=True)
            case TurnEnd(reason="interrupted"):
                output.line((f"\u21bb turn {record.turn} was cut off; it is closed as interrupted", "dim"))
            case TurnEnd():
                self._in_turn = False
                output.end_line()

    def _delta(self, event: AssistantDelta) -> None:
        text = "".join(piece.text for piece in event.pieces)
        if event.type == "text":
            self._streamed += text
            self._output.stream(text)
        elif event.type == "thinking" and self._output.is_terminal:
            self._output.stream(text, "dim italic")

    def _message(self, event: AssistantMessage) -> None:
        if event.text.startswith(self._streamed):
            self._output.stream(event.text.removeprefix(self._streamed))
        self._output.end_line()


def refused(event: LetterTaken) -> str:
    """What people are told of a letter that was refused."""
    return f"\u2717 {event.verb} was refused: {one_line(event.reason, 2000)}"


def status_line(output: Output, session: str, turn: TurnCount) -> None:
    """One line about a turn that ended."""
    assert turn.end is not None, "only a closed turn has a status"
    parts = [
        counted(turn.steps, "step"),
        *([counted(turn.calls, "call")] if turn.calls else []),
        f"{turn.input_tokens:,} in, {turn.output_tokens:,} out",
        *([cost(turn.costs_pico, turn.unpriced)] if turn.costs_pico else []),
        duration(turn.ended_us - turn.started_us),
        f"session {one_line(session)}",
    ]
    output.line(
        (f"turn {turn.number} {turn.end.reason}", _REASONS.get(turn.end.reason, "bold red")),
        (" \u00b7 " + " \u00b7 ".join(parts), "dim"),
    )
