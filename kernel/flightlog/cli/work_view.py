"""What the tasks of a worker do, as it happens: one line each, with the task before it."""

from __future__ import annotations

from collections.abc import Callable

import trio

from flightlog import Kernel
from flightlog.cli.files import said
from flightlog.cli.live import OUTCOMES, refused
from flightlog.cli.output import Output
from flightlog.cli.task_letters import answers_of
from flightlog.cli.task_styles import STYLES
from flightlog.cli.terminal_text import arguments, duration, one_line
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import (
    ApprovalAsked,
    AssistantMessage,
    LetterTaken,
    Record,
    RequestFailed,
    SessionClosed,
    TaskState,
    ToolCall,
    ToolResult,
)


class WorkView:
    """Follows the tasks that this process works on. `show` gets each record, else they go to `output` as lines."""

    def __init__(self, show: Callable[[Record], None] | None, output: Output) -> None:
        self.failed = False
        self._show = show or self._line
        self._output = output
        self._begun: set[str] = set()
        self._following: set[str] = set()
        self._send, self._receive = trio.open_memory_channel[tuple[str, int]](float("inf"))
        self._idle = trio.Event()

    def on_boundary(self, name: str, session: str, seq: int) -> None:
        """To be given to the kernel: hears of every commit."""
        if name == "committed" and session not in self._begun:
            self._begun.add(session)
            self._send.send_nowait((session, seq))

    async def follow(self, kernel: Kernel) -> None:
        """Show what comes, until cancelled."""
        async with trio.open_nursery() as nursery:
            async for session, seq in self._receive:
                try:
                    await kernel.tasks.show(session)
                except UsageError:
                    continue  # a child's, whose parent tells of it
                self._following.add(session)
                nursery.start_soon(self._follow, kernel, session, seq)

    async def finish(self) -> None:
        """Wait until all is shown that the tasks came to."""
        while self._following or self._receive.statistics().current_buffer_used:
            self._idle = trio.Event()
            with trio.move_on_after(1) as patience:
                await self._idle.wait()
            if patience.cancelled_caught:
                return

    async def _follow(self, kernel: Kernel, session: str, seq: int) -> None:
        reader, rests = kernel.read(session), False
        async for record in reader.events(after=seq - 1, deltas=False):
            self._show(record)
            event = record.event
            if isinstance(event, TaskState):
                self.failed = self.failed or event.state == "failed"
                rests = event.state not in ("running", "recovering")
            if (rests or isinstance(event, SessionClosed)) and record.seq == reader.length():
                break
        self._begun.discard(session)
        self._following.discard(session)
        self._idle.set()

    def _line(self, record: Record) -> None:
        output, task = self._output, (f"{one_line(record.session)} ", "dim")
        match record.event:
            case TaskState() as event:
                why = ": ".join(filter(None, (event.cause, event.message)))
                parts = [(f" ({one_line(why)})", "dim")] if why else []
                output.line(task, (event.state, STYLES.get(event.state, "")), *parts)
            case AssistantMessage() as event if event.text.strip():
                output.line(task, one_line(event.text), fit=True)
            case RequestFailed() as event:
                output.line(task, (f"\u2717 attempt {event.attempt} failed: {one_line(event.message)}", "red"))
            case ApprovalAsked() as event:
                output.line(task, ("? ", "yellow"), one_line(event.question, 2000))
                answer = f"flightlog task answer {record.session} {record.seq} {answers_of(event.about)}"
                output.line((f"  {answer}", "dim"))
            case LetterTaken(outcome="refused") as event:
                output.line(task, (refused(event), "yellow"))
            case ToolCall() as event:
                name = (one_line(event.name), "bold")
                output.line(task, ("\u25b8 ", "cyan"), name, f"({arguments(event.arguments)})", fit=True)
            case ToolResult() as event:
                mark, style = OUTCOMES.get(event.outcome, ("\u2717", "red"))
                took = f" ({duration(event.duration_us)})" if event.duration_us else ""
                output.line(task, (f"{mark} ", style), f"{one_line(event.name)}{took}: {said(event.content)}", fit=True)
