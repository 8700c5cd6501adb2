"""The public surface: open a kernel, hold a session, read a log."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import BinaryIO, get_args

import trio

from flightlog.core.context import HOST_SECTION, given
from flightlog.core.limits import QUERY_MAX_ROWS, QUERY_MAX_S, Limits
from flightlog.core.quotas import NO_QUOTAS, Quotas
from flightlog.runtime.approvals import Approvals
from flightlog.runtime.arriving import checked_name, fork_session, fork_task, import_session
from flightlog.runtime.child_opening import House
from flightlog.runtime.children import Children
from flightlog.runtime.clock import Boundary, Clock, no_boundary
from flightlog.runtime.committing import leave_syncs
from flightlog.runtime.driver import Driver
from flightlog.runtime.error_groups import beside, single_error
from flightlog.runtime.feed import Feeds
from flightlog.runtime.gate import Gate
from flightlog.runtime.goal_checking import GoalChecks
from flightlog.runtime.group_commit import GroupCommit
from flightlog.runtime.hooks import Hooks
from flightlog.runtime.journal import HeadToken, Journal
from flightlog.runtime.letters import Postman
from flightlog.runtime.loops import check_loop
from flightlog.runtime.mailbox import Mailbox
from flightlog.runtime.plugins import Discover, load_plugins, register
from flightlog.runtime.querying import Queries
from flightlog.runtime.reader import SessionReader, log_path_of, path_of, reader_of
from flightlog.runtime.recovery import OnCrash, Verify, close_session, open_session
from flightlog.runtime.redacting import Redacting
from flightlog.runtime.registration import Registration
from flightlog.runtime.registry import Registry
from flightlog.runtime.services import serve
from flightlog.runtime.session import Session
from flightlog.runtime.surroundings import Surroundings
from flightlog.runtime.task_run import STAGES, TaskRun
from flightlog.runtime.tasks import DEFAULT_MODEL, Tasks
from flightlog.runtime.waking import Timers
from flightlog.runtime.worker import OnProblem, Workers, ignored
from flightlog.store.backup import back_up
from flightlog.store.log_file import protected_paths
from flightlog.store.query import Parameter, QueryResult
from flightlog.store.store import Store
from flightlog_hookspecs.errors import SessionBusy, UsageError
from flightlog_hookspecs.events import SessionCreated


class Kernel:
    """An open log file and everything registered with it. Made by `open_kernel`; one trio thread."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        workspace: str,
        clock: Clock,
        on_boundary: Boundary,
        agent: str = "",
        quotas: Quotas = NO_QUOTAS,
        verify: Verify = "shown",
    ) -> None:
        leave_syncs(store)
        self._store = store
        self._workspace = workspace
        self._clock = clock
        self._on_boundary = on_boundary
        self._verify = verify
        self._threads = trio.CapacityLimiter(math.inf)  # each session bounds its own: see Limits.parallel_tools
        self._open: set[str] = set()
        self._feeds = Feeds()
        self._queries = Queries(store)
        self._postman = Postman(store)
        self._commits = GroupCommit(store)
        self._gate = Gate(store, clock, quotas)
        self._background: trio.Nursery
        self._serving = trio.Event()
        self.registry = registry
        self.tasks = Tasks(store, registry, clock, agent)
        self._workers = Workers(store, registry, clock, self._gate, self._task)

    @asynccontextmanager
    async def session(
        self,
        name: str,
        *,
        model: str | None = None,
        system: str | None = None,
        title: str = "",
        limits: Limits | None = None,
        approver: bool = False,
        expect: HeadToken | None = None,
        take_over: bool = False,
        on_crash: OnCrash | None = None,
        verify: Verify | None = None,
    ) -> AsyncIterator[Session]:
        """Own session `name` while the context lasts, creating or resuming it.

        `model` is "adapter:model"; `system` comes before the registered prompt sections. None stands for
        what the session had last, or in a new one for the offline "scripted:echo" and no text.

        With `on_crash="close"` what a crash left open is closed first: calls that may have taken effect become
        `unknown`, streamed words stay as an interrupted answer. With "continue" it stays open, and `run` goes on in the
        step where it was: an open request is sent again, an open call is settled by its effect. None is "continue" for
        the session of a task that has not ended, and "close" for all others.

        With `approver`, calls that a guard
        wants a person to decide about wait for `Session.approve`; without, they are denied. With `expect`, a log that
        was rolled back is refused. With `take_over`, an owner that is stuck loses the session: its open calls are in
        doubt, as after a crash, and what it still tries to write is refused (`Fenced`).

        Before it goes on, its log is checked: with `verify="shown"` each row that the model will be shown, and all that
        were written since the last snapshot of the session; with "full" all rows, which takes the longer the more there
        are. Where there is no snapshot, it is always all of them. None stands for what the kernel was opened with; that
        holds for tasks and children, too. `flightlog verify` and `SessionReader.verify` check everything without
        opening it.

        Raises `UsageError`, `SessionBusy` while another owner lives, `LogCorrupt`, `SchemaTooNew`,
        `HeadMismatch`.
        """
        checked_name(name)
        self._store.check_process()
        _check_types(system=(system, str), title=(title, str), limits=(limits, Limits), expect=(expect, HeadToken))
        if on_crash not in (None, *get_args(OnCrash)):
            raise UsageError(f"on_crash must be one of {get_args(OnCrash)}, not {on_crash!r}")
        _check_verify(self._verify if verify is None else verify)
        async with self._owned(
            name,
            created=partial(SessionCreated, title=title),
            model=model,
            system=system,
            limits=limits or Limits(),
            approver=approver,
            outer=self.registry,
            expect=expect,
            take_over=take_over,
            on_crash=on_crash,
            verify=verify,
        ) as (session, _):
            yield session

    @asynccontextmanager
    async def _owned(
        self,
        name: str,
        *,
        created: Callable[..., SessionCreated],
        model: str | None,
        system: str | None,
        limits: Limits,
        approver: bool,
        outer: Registry,
        expect: HeadToken | None = None,
        take_over: bool = False,
        on_crash: OnCrash | None = None,
        verify: Verify | None = None,
        hands_over: bool = False,
    ) -> AsyncIterator[tuple[Session, Journal]]:
        """`session` for the kernel itself: a session inside the scope `outer`, which begins with `created(uid=...)`."""
        if model is not None or self._store.key_of(name) is None:
            outer.adapter_of(DEFAULT_MODEL if model is None else model)
        if name in self._open:
            raise SessionBusy(f"session {name!r} is already open in this kernel")
        self._open.add(name)
        try:
            await self._serving.wait()
            journal = await open_session(
                self._commits,
                name,
                created=created,
                plugins=outer.versions,
                expect=expect,
                clock=self._clock,
                on_boundary=self._on_boundary,
                feed=self._feeds.of(name),
                take_over=take_over,
                on_crash=on_crash,
                verify=verify or self._verify,
            )
            try:
                session = self._session(
                    journal,
                    model,
                    system,
                    limits,
                    approver=approver,
                    outer=outer,
                    on_crash=on_crash,
                    hands_over=hands_over,
                )
            except BaseException:
                with trio.CancelScope(shield=True):
                    await close_session(journal)
                raise
            try:
                self._background.start_soon(session.observe)
                self._postman.add(session)
                await session.take_letters()
                yield session, journal
            finally:
                with trio.CancelScope(shield=True):
                    self._postman.remove(session)
                    try:
                        await session.close()
                        await close_session(journal)
                        await session.observed()
                    finally:
                        await session.release()
        finally:
            self._open.discard(name)

    def _session(
        self,
        journal: Journal,
        model: str | None,
        system: str | None,
        limits: Limits,
        *,
        approver: bool,
        outer: Registry,
        on_crash: OnCrash | None,
        hands_over: bool,
    ) -> Session:
        state = journal.state
        wish = state.task.submitted if state.task else None
        if model is None:
            model = state.own_model or (wish.model if wish else DEFAULT_MODEL)
        if system is None:
            system = given(state).get(HOST_SECTION, wish.system if wish and not state.header else "")
        outer.adapter_of(model)
        registry = Registry(outer=outer, allowed=state.tools)
        redacting = Redacting(registry)
        house = House(
            registry=registry,
            model=model,
            limits=limits,
            approver=approver,
            on_crash=on_crash,
            hands_over=hands_over,
            open=self._owned,
            start_soon=self._background.start_soon,
            redact=redacting.text,
        )
        around = Surroundings(
            registry=registry,
            limits=limits,
            redacting=redacting,
            hooks=Hooks(registry, self._threads, redacting),
            goal_checks=GoalChecks(
                registry=registry, threads=self._threads, redacting=redacting, workspace=self._workspace
            ),
            approvals=Approvals(journal, has_approver=approver),
            children=Children(journal, house),
            timers=Timers(journal, limits),
            gate=self._gate,
            threads=self._threads,
            workspace=self._workspace,
            protected=protected_paths(self._store.path),
            hands_over=hands_over,
        )
        return Session(journal, Driver(journal, around, model=model, system=system), around)

    def register(self, plugin: object) -> Registration:
        """Register `plugin` for all sessions; close what this returns to take it back.

        What it changes in the head of a session takes effect at its next turn. Raises `PluginError`, and
        nothing is registered.
        """
        self._store.check_process()
        return register(self.registry, plugin)

    def mailbox(self, name: str) -> Mailbox:
        """Write to session `name`, whoever owns it, and also when nobody does or it does not exist yet."""
        checked_name(name)
        return Mailbox(self._store, name, self._clock)

    async def deliver(self) -> None:
        """Run services, hand letters to the sessions that this kernel owns, let hooks watch them, until cancelled.

        `open_kernel` runs it.
        """
        with single_error():
            async with trio.open_nursery() as nursery:
                self._background = nursery
                serve(self.registry, nursery)
                self._serving.set()
                await self._postman.run()

    async def work(
        self,
        *,
        tasks_at_once: int = 4,
        until_idle: bool = False,
        take_over: Collection[str] = (),
        on_problem: OnProblem = ignored,
    ) -> None:
        """Take up tasks and carry them out, `tasks_at_once` at a time, until `leave_work` or cancelled.

        First those that a dead worker left, then by class and order of submission; batch tasks leave the last place to
        others. Any number of workers, in any processes, share the tasks of a file. With `until_idle` it returns once
        there is nothing to do right now. A task in `take_over` is taken from its owner, who is alive but stuck. What
        goes wrong with one task fails that task only; one that cannot be opened here is left alone and told to
        `on_problem(task, error)`. Cancelled, it leaves its tasks to the next worker as they are. Raises `UsageError`
        before any work when what is to be taken over is no task, `StoreError` when the log cannot be written.
        """
        await self._workers.work(
            tasks_at_once=tasks_at_once, until_idle=until_idle, take_over=take_over, on_problem=on_problem
        )

    def leave_work(self, *, grace_s: float = 30.0) -> None:
        """Let every `work` of this kernel return, and begin no task any more, for good.

        Each task finishes the step it is in, for at most `grace_s` seconds, and waits for the next worker then.
        """
        self._workers.leave(grace_s)

    @asynccontextmanager
    async def _task(self, name: str, limits: Limits, *, take_over: bool) -> AsyncIterator[TaskRun]:
        """Own the session of task `name` while the context lasts, as its worker."""
        async with self._owned(
            name,
            created=SessionCreated,
            model=None,
            system=None,
            limits=limits,
            approver=True,
            outer=self.registry,
            take_over=take_over,
            on_crash="continue",
            hands_over=True,
        ) as (session, journal):
            yield TaskRun(session, journal, STAGES)

    def read(self, name: str) -> SessionReader:
        """Read session `name` without owning or changing it. Raises `UsageError` when there is none."""
        return reader_of(self._store, name, self.registry, self._feeds)

    async def query(
        self, sql: str, *parameters: Parameter, limit_rows: int = QUERY_MAX_ROWS, limit_s: float = QUERY_MAX_S
    ) -> QueryResult:
        """Run one SELECT over the views and tables of the log, with `?` for each parameter.

        In a thread, so that nothing here waits for it, on one snapshot of what is committed. More than
        `limit_rows` rows are cut off (`complete` is False). Raises `UsageError` for SQL that is wrong or
        does more than read, `LimitExceeded` when it takes longer than `limit_s` seconds.
        """
        return await self._queries.run(sql, parameters, limit_rows=limit_rows, limit_s=limit_s)

    async def close(self) -> None:
        """End what reads here. Called by the context manager, once the sessions are closed."""
        self._feeds.close()
        await self.registry.close()
        await self._queries.close()
        await self._commits.rest()

    async def fork(self, source: str, turn: int, name: str, *, title: str = "") -> None:
        """Make session `name` of what the model saw in session `source` up to the end of `turn`.

        It has the same turns, messages and tool results under a uid of its own, and its next request
        begins with the same bytes; it inherits no inbox. `source` may be running, and is not changed.
        Raises `UsageError` when `turn` is open or was never reached, or when `name` exists.
        """
        checked_name(name)
        reader = self.read(source)
        await fork_session(self._store, reader, turn, name, title, self.registry.versions, self._clock)

    async def fork_task(self, source: str, checkpoint: int, *, id: str | None = None) -> str:
        """Enter a task that goes on from where task `source` stood at the checkpoint in that row; returns its id.

        It has the goal and the limits that held there and the steps that were finished by then, which count for it,
        under a uid of its own; it is pending, was never recovered, and inherits no inbox. `source` may be running or
        have ended, and is not changed. Raises `UsageError` when there is no such task, when row `checkpoint` is no
        checkpoint (the view `checkpoints` lists them), when no step was finished before it, or when there is a
        session `id`.
        """
        await self.tasks.show(source)  # raises when there is none
        name = f"task-{self._clock.new_id()[-12:]}" if id is None else checked_name(id)
        await fork_task(self._store, self.read(source), checkpoint, name, self.registry.versions, self._clock)
        return name

    async def backup(self, target: str | os.PathLike[str]) -> None:
        """Copy the whole file to the new file `target` (mode 0600) while everything goes on.

        The copy opens as one that was closed cleanly. Raises `UsageError` when something is there.
        """
        self._store.check_process()
        path = log_path_of("target", target)
        await trio.to_thread.run_sync(back_up, self._store.path, path, limiter=self._threads)

    async def import_session(self, source: str | os.PathLike[str] | BinaryIO) -> str:
        """Take in a session that `SessionReader.export` wrote, hash chain and all; returns its name.

        All of it is read and checked first, then committed as one. Raises `ImportRefused` naming the
        line, `UsageError` when its name or its uid is here already.
        """
        return await import_session(self._store, source)


@asynccontextmanager
async def open_kernel(
    path: str | os.PathLike[str],
    *,
    discover: Discover = True,
    plugins: Sequence[object] = (),
    workspace: str | os.PathLike[str] | None = None,
    clock: Clock | None = None,
    on_boundary: Boundary = no_boundary,
    agent: str = "",
    quotas: Quotas = NO_QUOTAS,
    verify: Verify = "shown",
    allow_network: bool = False,
) -> AsyncIterator[Kernel]:
    """Open the log at `path`, creating it (mode 0600) when missing.

    `plugins` are modules or objects with hooks; with `discover`, installed entry points of the group
    "flightlog" join them, a broken one being left out and listed in `kernel.registry.problems`; it may
    name those that are to be loaded, as may the variable FLIGHTLOG_LOAD_PLUGINS (comma-separated).
    `workspace` is the folder tools may work in; None gives them none. `agent` is the name and version of
    the host's own program, which stands in each task that it submits. `quotas` bound what all sessions of the file use
    together, in every kernel that is given the same. `verify` says how much of a session is checked before it goes on,
    see `Kernel.session`. A file on a network file system is refused unless `allow_network`: SQLite's locks do not hold
    there between machines, and a lost lock is a lost log. `clock` and `on_boundary` are for tests. Raises a
    `StoreError` that says what is wrong with the file, `PluginError` for a broken plugin that was passed in.
    """
    check_loop("trio")
    folder = path_of("workspace", workspace) if workspace is not None else ""
    _check_types(clock=(clock, Clock), agent=(agent, str), quotas=(quotas, Quotas))
    _check_verify(verify)
    if folder and not os.path.isdir(folder):
        raise UsageError(f"workspace {folder} is not a folder")
    registry = load_plugins(discover=discover, plugins=plugins)
    store = Store.open(log_path_of("path", path), allow_network=allow_network)
    kernel = Kernel(store, registry, folder, clock or Clock(), on_boundary, agent, quotas, verify)
    try:
        async with beside(kernel.deliver):
            try:
                yield kernel
            finally:
                with trio.CancelScope(shield=True):
                    await kernel.close()  # services are left while their task goes on
    finally:
        store.close()


def _check_verify(given: object) -> None:
    if given not in get_args(Verify):
        raise UsageError(f"verify must be one of {get_args(Verify)}, not {given!r}")


def _check_types(**given: tuple[object, type]) -> None:
    """Refuse what would otherwise fail in the middle of a turn. None stands for a default."""
    for name, (value, wanted) in given.items():
        if value is not None and not isinstance(value, wanted):
            raise UsageError(f"{name} must be a {wanted.__name__}, not {type(value).__name__}")
