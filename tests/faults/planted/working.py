"""Bugs in how workers carry out tasks: what is taken up, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flightlog.core.changed import changed
from flightlog.core.state import State
from flightlog.core.task_flow import Action, Since, flow
from flightlog.runtime import task_run
from flightlog.runtime.clearing import Clearing, Settled, Start
from flightlog.store.store import Store
from planted import replaced
from planted.saving import normal_everywhere


@contextmanager
def submission_not_synced() -> Iterator[None]:
    """A task is acknowledged before it is on the disk."""
    create = Store.create_session

    def careless(store: Store, *arguments: Any, **options: Any) -> Any:
        with normal_everywhere():
            return create(store, *arguments, **options)

    with replaced(Store, "create_session", careless):
        yield


@contextmanager
def recovery_that_nobody_mentions() -> Iterator[None]:
    """A worker goes on with what a dead one has left, and does not write that the task is recovering."""

    def silent(state: State, now_us: int, since: Since, **options: Any) -> Action:
        return flow(state, now_us, "write" if since == "claim" else since, **options)

    with replaced(task_run, "flow", silent):
        yield


@contextmanager
def completed_turn_taken_for_an_interrupted_one() -> Iterator[None]:
    """The task's end is written apart from its turn's: a worker that finds the latter only has the task run again."""

    def forgetful(state: State, now_us: int, since: Since, **options: Any) -> Action:
        if since == "claim" and state.task is not None and not state.task.ended:
            state = changed(state, task=changed(state.task, end=None))
        return flow(state, now_us, since, **options)

    with replaced(task_run, "flow", forgetful):
        yield


@contextmanager
def precheck_skipped_on_resume() -> Iterator[None]:
    """What the model has called for in an earlier life starts without its precheck."""
    checked = Clearing._checked

    async def trusting(clearing: Clearing, start: Start) -> Start | Settled:
        state = clearing._journal.state
        assert state.step is not None
        return start if state.step.attempt_epoch < state.epoch else await checked(clearing, start)

    with replaced(Clearing, "_checked", trusting):
        yield
