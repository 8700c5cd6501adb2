"""Bugs in pure rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flightlog.core import canonical, plan, repair, schedule
from flightlog.core.assembler import Assembler
from flightlog.core.changed import changed
from flightlog.core.state import State
from flightlog_hookspecs.events import Event, StepStart, ToolResult
from flightlog_hookspecs.stream import Finish
from planted import replaced

_SORTED = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"), sort_keys=True
).encode


@contextmanager
def cut_stream_taken_for_success() -> Iterator[None]:
    """A stream that ends without a finish is a short answer."""
    message = Assembler.message

    def cheerful(assembler: Assembler, attempt: int) -> Any:
        if assembler._finish is None:
            assembler._finish = Finish(reason="stop")
        return message(assembler, attempt)

    with replaced(Assembler, "message", cheerful):
        yield


@contextmanager
def only_the_first_open_call_answered() -> Iterator[None]:
    """Closing a turn answers one of its open calls and forgets the others."""
    closing = repair.closing

    def lazy(*arguments: Any) -> tuple[Event, ...]:
        results = 0
        kept: list[Event] = []
        for event in closing(*arguments):
            results += isinstance(event, ToolResult)
            if results <= 1 or not isinstance(event, ToolResult):
                kept.append(event)
        return tuple(kept)

    with replaced(repair, "closing", lazy):
        yield


@contextmanager
def keys_of_json_sorted() -> Iterator[None]:
    """Canonical JSON puts keys in order, and so changes tool schemas on their way to the model."""
    with replaced(canonical, "_ENCODE", _SORTED):
        yield


@contextmanager
def exclusive_call_beside_others() -> Iterator[None]:
    """An exclusive call starts while others run."""
    startable = schedule.startable

    def eager(modes: Any, *arguments: Any) -> tuple[int, ...]:
        return startable(["parallel"] * len(modes), *arguments)

    with replaced(schedule, "startable", eager):
        yield


@contextmanager
def whole_queue_in_one_turn() -> Iterator[None]:
    """A new turn takes all that waits instead of one message."""
    claims = plan._claims

    def greedy(state: State, *, new_turn: bool) -> tuple[Event, ...]:
        first = claims(state, new_turn=new_turn)
        rest = changed(state, next_step=(), next_turn=state.next_turn[1:])
        if not new_turn or not rest.next_turn:
            return first
        more = greedy(rest, new_turn=True)
        starts = [next(i for i, event in enumerate(found) if isinstance(event, StepStart)) for found in (first, more)]
        return (*first[: starts[0]], *more[: starts[1]], *first[starts[0] :], *more[starts[1] + 1 :])

    with replaced(plan, "_claims", greedy):
        yield
