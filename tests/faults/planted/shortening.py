"""Bugs in how a context is made shorter: what is written when, and what may stand for what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attrs import evolve

from flightlog.core import fitting, fold, repair
from flightlog.core.changed import changed
from flightlog.core.state import State
from flightlog.runtime import closing as runtime_closing
from flightlog.runtime.journal import Journal
from flightlog_hookspecs.content import text_blocks
from flightlog_hookspecs.events import AssistantMessage, CompactionEnd, CompactionStart, Event, SessionOpened
from planted import replaced


@contextmanager
def replacements_one_by_one() -> Iterator[None]:
    """What makes a context shorter is committed row by row, and not with the end of it."""
    append = Journal.append

    async def piecemeal(journal: Journal, *events: Any, **options: Any) -> Any:
        if len(events) < 2 or not isinstance(events[-1], CompactionEnd):
            return await append(journal, *events, **options)
        for event in events:
            last = await append(journal, event, **options)
        return last

    with replaced(Journal, "append", piecemeal):
        yield


@contextmanager
def normal_for_summaries() -> Iterator[None]:
    """A model is asked for a summary before its `compaction/start` is on the disk."""
    append = Journal.append

    async def careless(journal: Journal, *events: Any, barrier: bool = False, **options: Any) -> Any:
        asks = len(events) == 1 and isinstance(events[0], CompactionStart)
        return await append(journal, *events, barrier=barrier and not asks, **options)

    with replaced(Journal, "append", careless):
        yield


@contextmanager
def compaction_of_a_dead_owner_still_open() -> Iterator[None]:
    """The next owner takes it that a summary is being written, since nothing has ended it."""
    opened = fold._APPLY[SessionOpened]

    def mindful(state: State, event: SessionOpened, seq: int, epoch: int) -> State:
        return changed(opened(state, event, seq, epoch), compaction=state.compaction)

    fold._APPLY[SessionOpened] = mindful
    try:
        yield
    finally:
        fold._APPLY[SessionOpened] = opened


@contextmanager
def cancelled_compaction_left_open() -> Iterator[None]:
    """A cancel closes the turn and forgets that a summary was being written."""
    closing = repair.closing

    def forgetful(*arguments: Any) -> tuple[Event, ...]:
        return tuple(event for event in closing(*arguments) if not isinstance(event, CompactionEnd))

    with replaced(runtime_closing, "closing", forgetful):
        yield


@contextmanager
def steps_to_keep_replaced_too() -> Iterator[None]:
    """The last finished steps are made shorter like all others."""
    ends = fitting._ends

    def thorough(*arguments: Any) -> list[int]:
        return ends(*arguments[:-1], 0)

    with replaced(fitting, "_ends", thorough):
        yield


@contextmanager
def preamble_of_calls_taken_for_a_summary() -> Iterator[None]:
    """A model that goes on with its work is taken at the words it says before its calls."""
    judged = fitting.judged

    def trusting(answer: AssistantMessage, saved: int) -> Any:
        return judged(evolve(answer, content=text_blocks(answer.text)), saved)

    with replaced(fitting, "judged", trusting):
        yield
