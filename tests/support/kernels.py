"""Kernels for tests: one call to open, short ways to look at a log, and a database that fails on demand."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar

import trio
from attrs import define, evolve, field

import flightlog
from flightlog import Kernel, Limits, Quotas, Session
from flightlog.core.quotas import NO_QUOTAS
from flightlog.runtime.clock import Boundary, Clock, no_boundary
from flightlog.runtime.recovery import OnCrash
from flightlog.store.connection import Database, Row, Value
from flightlog.testing import Bundle, fixed_clock
from flightlog_hookspecs import Tool
from flightlog_hookspecs.errors import DiskFull
from flightlog_hookspecs.events import Event, Record, ToolResult
from flightlog_plugins.retry import Retry

E = TypeVar("E", bound=Event)
_ids = count(1)


def new_id() -> str:
    """An id that no other kernel of this process has used: logs are opened again by further kernels."""
    return f"{next(_ids):032x}"


RETRY = Retry(random=lambda: 1.0)
"""Retries without chance, after 0.5 s, 1 s, 2 s, ..."""
SOON = Retry(base_s=0.0, max_s=0.0)
"""Retries at once, for tests in real time."""

Path = str | os.PathLike[str]
Fails = Callable[[bool, Sequence[Sequence[Any]]], bool]


@asynccontextmanager
async def opened(
    path: Path,
    model: object,
    *tools: Tool,
    sections: Sequence[Any] = (),
    plugins: Sequence[object] = (),
    clock: Clock | None = None,
    on_boundary: Boundary = no_boundary,
    workspace: Path | None = None,
    quotas: Quotas = NO_QUOTAS,
) -> AsyncIterator[Kernel]:
    """A kernel with `model` (or several), `tools` and `plugins`, and nothing discovered: so nothing is retried."""
    models = model if isinstance(model, (list, tuple)) else [model]
    bundle = Bundle(adapters=models, tools=tools, sections=sections)
    async with flightlog.open_kernel(
        path,
        discover=False,
        plugins=[bundle, *plugins],
        clock=clock or evolve(fixed_clock(), new_id=new_id),
        on_boundary=on_boundary,
        workspace=workspace,
        quotas=quotas,
    ) as kernel:
        yield kernel


@asynccontextmanager
async def session_of(
    path: Path,
    model: object,
    *tools: Tool,
    name: str = "s",
    limits: Limits | None = None,
    approver: bool = False,
    on_crash: OnCrash = "close",
    take_over: bool = False,
    **options: Any,
) -> AsyncIterator[Session]:
    """Session `name` of a kernel of its own, on the model "fake:m"."""
    async with (
        opened(path, model, *tools, **options) as kernel,
        kernel.session(
            name, model="fake:m", limits=limits, approver=approver, on_crash=on_crash, take_over=take_over
        ) as s,
    ):
        yield s


def records_of(path: Path, name: str = "s", *, deltas: bool = False) -> list[Record]:
    """All records of a session, each checked, read from outside."""
    with flightlog.open_log(path, discover=False) as log:
        return list(log.session(name).records(deltas=deltas))


def kinds_of(path: Path, name: str = "s") -> list[str]:
    """The kinds of a session's events in order, without the deltas, whose number depends on timing."""
    return [record.event.kind for record in records_of(path, name) if record.event.kind != "assistant/delta"]


def events_of(path: Path, kind: type[E], name: str = "s") -> list[E]:
    """The events of one class in order."""
    return [record.event for record in records_of(path, name) if isinstance(record.event, kind)]


def outcomes_of(path: Path, name: str = "s") -> list[str]:
    """The outcomes of all tool results, in the order of the calls."""
    with flightlog.open_log(path, discover=False) as log:
        return [message.outcome for message in log.session(name).messages() if isinstance(message, ToolResult)]


def verified(path: Path, *models: object, name: str = "s") -> int:
    """Verify a session from outside, every request's hash included; returns the number of events."""
    with flightlog.open_log(path, discover=False, plugins=[Bundle(adapters=models)]) as log:
        log.check_file()
        return log.session(name).verify()


def trio_clock(start_us: int = 1_700_000_000_000_000) -> Clock:
    """A wall clock that follows trio's, so that a mock clock moves both."""

    def elapsed_us() -> int:
        return round(trio.current_time() * 1_000_000)

    return Clock(now_us=lambda: start_us + elapsed_us(), monotonic_us=elapsed_us, new_id=new_id)


@define
class FaultyDatabase(Database):
    """Passes everything on to `inner`, but the commit that `fails` chooses raises.

    `fails(barrier, rows)` is asked at each commit; `rows` are the event rows it would make durable.
    With `lost=False` the rows reach the disk all the same: a fault that is reported too late.
    """

    inner: Database
    fails: Fails = lambda barrier, rows: False
    lost: bool = True
    faults: int = field(default=0, init=False)
    commits: int = field(default=0, init=False)
    _barrier: bool = field(default=False, init=False)
    _rows: list[Sequence[Any]] = field(factory=list, init=False)

    def read(self, name: str, *arguments: Value) -> list[Row]:
        return self.inner.read(name, *arguments)

    def write(self, name: str, rows: Iterable[Sequence[Value]]) -> list[Row]:
        rows = list(rows)
        if name == "insert_event":
            self._rows += rows
        return self.inner.write(name, rows)

    def begin(self, *, barrier: bool) -> None:
        self._barrier, self._rows = barrier, []
        self.inner.begin(barrier=barrier)

    def commit(self) -> None:
        self.commits += 1
        if not self.fails(self._barrier, self._rows):
            self.inner.commit()
            return
        self.faults += 1
        if not self.lost:
            self.inner.commit()
        raise DiskFull("planted: the disk is full")

    def rollback(self) -> None:
        self.inner.rollback()

    def close(self) -> None:
        self.inner.close()


def plant(kernel: Kernel, fails: Fails, *, lost: bool = True) -> FaultyDatabase:
    """Put a `FaultyDatabase` under `kernel`."""
    store = kernel._store
    store.database = faulty = FaultyDatabase(inner=store.database, fails=fails, lost=lost)
    return faulty


def committing(kind: str, occurrence: int = 1) -> Fails:
    """For `plant`: fail the commit that holds the `occurrence`-th event of `kind`."""
    seen = 0

    def fails(barrier: bool, rows: Sequence[Sequence[Any]]) -> bool:
        nonlocal seen
        before = seen
        seen += sum(row[2] == kind for row in rows)
        return before < occurrence <= seen

    return fails
