"""Bugs in what reaches the world: tools, their results, cancels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import trio
from attrs import evolve

from flightlog.core import repair
from flightlog.core.resuming import Forget
from flightlog.core.state import Call
from flightlog.runtime import clearing, driver, tool_runner
from flightlog.runtime.clearing import Runnable
from flightlog.runtime.journal import Journal
from flightlog.runtime.tool_checks import ToolChecks
from flightlog.runtime.tool_output import Rendered, failed
from flightlog.runtime.tool_runner import ToolRunner
from flightlog_hookspecs import NotDone, Tool
from flightlog_hookspecs.errors import StoreError
from flightlog_hookspecs.events import Resumed, ToolCall
from flightlog_hookspecs.tools import NOBODY
from planted import replaced


@contextmanager
def tool_before_its_intent() -> Iterator[None]:
    """A body runs, and only then its `tool/call` is written."""
    start, invoke = ToolRunner._start, ToolRunner._invoke

    async def eager(runner: ToolRunner, nursery: trio.Nursery, runnable: list[Runnable], wanted: Sequence[int]) -> None:
        early = runner.__dict__.setdefault("early", {})
        for index in wanted:
            intent = runner._intent(runnable[index])
            early[intent.invocation_id] = await invoke(runner, runnable[index], intent, trio.CancelScope(), NOBODY)
        await start(runner, nursery, runnable, wanted)

    async def remembered(runner: ToolRunner, item: Runnable, intent: ToolCall, *_: object) -> object:
        return runner.__dict__["early"][intent.invocation_id]

    with replaced(ToolRunner, "_start", eager), replaced(ToolRunner, "_invoke", remembered):
        yield


@contextmanager
def repeated_after_a_crash() -> Iterator[None]:
    """Recovery takes every call for one that may be made again, and the model makes it again."""

    def careless(call: Call) -> tuple[str, str]:
        return "aborted", repair.ABORTED

    with replaced(repair, "in_doubt", careless):
        yield


@contextmanager
def run_again_unreconciled() -> Iterator[None]:
    """A turn that goes on takes a call that was cut off for one that has not taken effect, and asks nobody."""

    async def hopeful(checks: ToolChecks, *_: object) -> NotDone:
        return NotDone()

    with replaced(ToolChecks, "finding", hopeful):
        yield


@contextmanager
def cut_off_call_told_to_be_safe() -> Iterator[None]:
    """A turn that goes on tells the model of each call that was cut off that it may be made again."""

    def lost(call: Call, tool: Tool | None, *, approver: bool) -> Forget:
        return Forget()

    with replaced(clearing, "verdict_on", lost), replaced(repair, "in_doubt", lambda _: ("aborted", repair.ABORTED)):
        yield


@contextmanager
def invocation_ids_of_a_process() -> Iterator[None]:
    """Calls are numbered by a counter that begins anew in every process."""
    intent = ToolRunner._intent

    def counted(runner: ToolRunner, item: Runnable, resumed: Resumed = "") -> ToolCall:
        numbers = runner._journal.store.__dict__.setdefault("numbers", count(1))
        return evolve(intent(runner, item, resumed), invocation_id=f"call {next(numbers)}")

    with replaced(ToolRunner, "_intent", counted):
        yield


@contextmanager
def tool_repeated_when_its_result_could_not_be_saved() -> Iterator[None]:
    """A storage fault behind a body is met by trying all of it again."""
    run_body = ToolRunner._run_body

    async def retrying(runner: ToolRunner, *arguments: Any) -> None:
        try:
            await run_body(runner, *arguments)
        except StoreError:
            runner._journal.store._stopped = None
            await run_body(runner, *arguments)

    with replaced(ToolRunner, "_run_body", retrying):
        yield


@contextmanager
def result_let_go_when_it_could_not_be_saved() -> Iterator[None]:
    """A storage fault behind a body costs its result only: the store stays open, and the loop goes on."""
    append = Journal.append

    async def careless(journal: Journal, *events: Any, **options: Any) -> Any:
        try:
            return await append(journal, *events, **options)
        except StoreError:
            if not _is_end_of_a_body(events):
                raise
            journal.store._stopped = None
            return ()

    with replaced(Journal, "append", careless):
        yield


@contextmanager
def result_saved_a_moment_later() -> Iterator[None]:
    """A result waits for a tenth of a second, to be saved together with those that come meanwhile."""
    append = Journal.append

    async def thrifty(journal: Journal, *events: Any, **options: Any) -> Any:
        if _is_end_of_a_body(events):
            await trio.sleep(0.1)
        return await append(journal, *events, **options)

    with replaced(Journal, "append", thrifty):
        yield


def _is_end_of_a_body(events: Sequence[Any]) -> bool:
    """Whether the result of a body is to be written: it is made of the state that it follows."""
    return any(isinstance(event, partial) and event.func is tool_runner._noting for event in events)


@contextmanager
def result_held_behind_a_slow_sibling() -> Iterator[None]:
    """Results are written together, once all bodies that run have ended."""
    append = Journal.append

    async def patient(journal: Journal, *events: Any, **options: Any) -> Any:
        if len(events) != 1 or not _is_end_of_a_body(events):
            return await append(journal, *events, **options)
        held, all_ended = journal.__dict__.setdefault("held", ([], trio.Event()))
        held.append(events[0])
        assert journal.state.step is not None
        if len(held) < sum(call.started is not None for call in journal.state.step.unanswered):
            await all_ended.wait()
            return ()
        del journal.__dict__["held"]
        await append(journal, *held, barrier=True)
        all_ended.set()
        return ()

    with replaced(Journal, "append", patient):
        yield


@contextmanager
def cancelled_write_told_to_be_safe() -> Iterator[None]:
    """A body that a cancel cut off is reported as safe to repeat, whatever it does."""

    async def careless(runner: ToolRunner, *_: object) -> Rendered:
        return failed(repair.ABORTED, "aborted")

    with replaced(ToolRunner, "_cut_off", careless):
        yield


@contextmanager
def cancelled_turn_left_open() -> Iterator[None]:
    """A cancel ends the loop, and nobody closes the turn."""
    end_for = driver._end_for

    def careless(errors: list[BaseException], *arguments: Any, **options: Any) -> Any:
        cancelled = all(isinstance(error, trio.Cancelled) for error in errors)
        return None if cancelled else end_for(errors, *arguments, **options)

    with replaced(driver, "_end_for", careless):
        yield
