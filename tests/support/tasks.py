"""Tasks for tests of the loop: a session that is a task's, entered before anybody owns it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from flightlog import Limits, Session
from flightlog_hookspecs.events import Record, SessionCreated, TaskState, TaskSubmitted
from support.kernels import opened
from support.legal_logs import extended, write

START_US = 1_700_000_000_000_000


def submit(path: str | os.PathLike[str], name: str = "s", **wanted: Any) -> None:
    """Enter a task named `name` into the log at `path`."""
    created = Record(
        session=name, seq=1, at_us=START_US, turn=None, step=None, epoch=0, event=SessionCreated(uid=f"uid of {name}")
    )
    submitted = TaskSubmitted(**{"goal": "look", "model": "fake:m", **wanted})
    write(str(path), [extended([created], submitted)])


@asynccontextmanager
async def task_of(
    path: str | os.PathLike[str],
    model: object,
    *tools: Any,
    wanted: dict[str, Any] | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> AsyncIterator[Session]:
    """The session of a new task that runs, in a kernel of its own, its goal waiting as a message."""
    submit(path, **(wanted or {}))
    async with (
        opened(path, model, *tools, **options) as kernel,
        kernel.session("s", limits=limits, model="fake:m") as s,
    ):
        await s._journal.append(TaskState(state="running"))
        await s.followup("Look.")
        yield s
