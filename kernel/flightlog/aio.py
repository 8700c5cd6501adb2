"""The kernel under asyncio: FastAPI, aiohttp, any asyncio program.

    async with flightlog.aio.open_kernel("agent.db") as kernel:
        async with kernel.session("s1", model="scripted:count?to=3") as session:
            await session.followup("count to 3")
            turn = await session.run()

Names, arguments and errors are those of the trio API, which says what they mean. Every method is
awaited, also those that are plain functions there; nothing blocks the loop. Cancelling a task cancels
the call it waits for. Tools and adapters stay trio's: they run on the kernel's own thread.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from itertools import islice
from typing import Any, BinaryIO, Self, TypeVar

from flightlog import api
from flightlog.bridge import AsyncFollowing, TrioThread
from flightlog.core.limits import LIVE_PAGE_ROWS, QUERY_MAX_ROWS, QUERY_MAX_S, Limits
from flightlog.core.quotas import NO_BUDGET, NO_QUOTAS, Budget, Quotas
from flightlog.core.report import TaskReport
from flightlog.runtime import mailbox as trio_mailbox
from flightlog.runtime import reader as trio_reader
from flightlog.runtime import registration as trio_registration
from flightlog.runtime import session as trio_session
from flightlog.runtime import tasks as trio_tasks
from flightlog.runtime.approvals import Question
from flightlog.runtime.clock import Boundary, Clock, no_boundary
from flightlog.runtime.inbox import Accepted
from flightlog.runtime.journal import HeadToken
from flightlog.runtime.loops import check_loop
from flightlog.runtime.mailbox import Posted
from flightlog.runtime.plugins import Discover
from flightlog.runtime.reader import CardUse, SentRequest, Spending
from flightlog.runtime.recovery import OnCrash, Verify
from flightlog.runtime.registry import Registry
from flightlog.runtime.session import Turn
from flightlog.runtime.task_summary import TaskSummary
from flightlog.runtime.tasks import NO_PARAMETERS, Verdict
from flightlog.runtime.worker import OnProblem, ignored
from flightlog.store.query import Parameter, QueryResult
from flightlog_hookspecs.content import Block, FileBlock
from flightlog_hookspecs.events import Degradation, Message, Record, SubGoal, TaskClass, TaskStateName, Told
from flightlog_hookspecs.timers import OpenTimer

T = TypeVar("T")


class Registration:
    """A registered plugin: close it, or leave it as a context, to take it back. See `flightlog.Registration`."""

    def __init__(self, thread: TrioThread, registration: trio_registration.Registration) -> None:
        self._thread = thread
        self._registration = registration

    @property
    def name(self) -> str:
        """The plugin's name."""
        return self._registration.name

    @property
    def closed(self) -> bool:
        """Whether the plugin is registered no more."""
        return self._registration.closed

    async def aclose(self) -> None:
        """Take the plugin back; returns once what runs of it has come to rest."""
        return await self._thread.arun(self._registration.aclose)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Session:
    """An owned session. See `flightlog.Session`."""

    def __init__(self, thread: TrioThread, session: trio_session.Session) -> None:
        self._thread = thread
        self._session = session

    @property
    def id(self) -> str:
        """The session's name."""
        return self._session.id

    @property
    def token(self) -> HeadToken:
        """The newest committed row."""
        return self._session.token

    @property
    def pending(self) -> int:
        """How many messages wait in the inbox."""
        return self._session.pending

    async def followup(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Accepted:
        """Queue a message for the next turn; durable when it returns."""
        return await self._thread.arun(lambda: self._session.followup(content, key=key))

    async def steer(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Accepted:
        """Queue a message for the next step; durable when it returns."""
        return await self._thread.arun(lambda: self._session.steer(content, key=key))

    async def inject(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Accepted:
        """Lay a message beside the next step; durable when it returns."""
        return await self._thread.arun(lambda: self._session.inject(content, key=key))

    async def edit(self, message_id: str, content: str | tuple[Block, ...]) -> None:
        """Give a message that still waits other content."""
        return await self._thread.arun(self._session.edit, message_id, content)

    async def withdraw(self, message_id: str) -> None:
        """Take back a message that still waits."""
        return await self._thread.arun(self._session.withdraw, message_id)

    async def wake_at(self, when: datetime, content: str | tuple[Block, ...], *, key: str | None = None) -> str:
        """Set a timer: from `when` on, the message is one for the next turn. Returns the timer's name."""
        return await self._thread.arun(lambda: self._session.wake_at(when, content, key=key))

    async def wake_after(self, after_s: float, content: str | tuple[Block, ...], *, key: str | None = None) -> str:
        """As `wake_at`, `after_s` seconds from now."""
        return await self._thread.arun(lambda: self._session.wake_after(after_s, content, key=key))

    async def wake_every(
        self,
        every_s: float,
        content: str | tuple[Block, ...],
        *,
        first: datetime | None = None,
        until: datetime | None = None,
        times: int | None = None,
        key: str | None = None,
    ) -> str:
        """As `wake_at`, every `every_s` seconds."""
        return await self._thread.arun(
            lambda: self._session.wake_every(every_s, content, first=first, until=until, times=times, key=key)
        )

    async def cancel_timer(self, name: str, by: str = "user") -> bool:
        """Let the timer not fire any more. False when it was not to anyway."""
        return await self._thread.arun(lambda: self._session.cancel_timer(name, by))

    async def timers(self) -> tuple[OpenTimer, ...]:
        """The timers that are still to fire."""
        return await self._thread.acall(self._session.timers)

    async def run(self, *, wait: bool = True, children: bool = False) -> Turn | None:
        """Drive until idle; returns the last turn, None when there was nothing to do."""
        return await self._thread.arun(lambda: self._session.run(wait=wait, children=children))

    async def serve(self) -> None:
        """Run whatever comes in, until cancelled or the session is closed."""
        return await self._thread.arun(self._session.serve)

    async def cancel(self, cause: str = "user", *, now: bool = False, keep_queue: bool = True) -> bool:
        """End the running turn as aborted. False when idle."""
        return await self._thread.acall(lambda: self._session.cancel(cause, now=now, keep_queue=keep_queue))

    def events(self, after: int = 0, *, deltas: bool = True) -> AsyncIterator[Record]:
        """The records behind seq `after`, then those to come, until the session is closed."""
        return AsyncFollowing(self._thread, lambda: self._session.events(after, deltas=deltas))

    async def questions(self) -> list[Question]:
        """The calls that wait for a person's answer, in call order."""
        return await self._thread.acall(self._session.questions)

    async def approve(
        self, seq: int, *, allow: bool = True, by: str = "user", reason: str = "", remember: bool = False
    ) -> bool:
        """Answer the question at `seq`. False when it was settled before."""
        return await self._thread.arun(
            lambda: self._session.approve(seq, allow=allow, by=by, reason=reason, remember=remember)
        )

    async def answer(self, seq: int, outcome: Told, *, by: str = "user", reason: str = "") -> bool:
        """Say how the call ended that the question at `seq` is about. False when it was settled before."""
        return await self._thread.arun(lambda: self._session.answer(seq, outcome, by=by, reason=reason))

    async def register(self, plugin: object) -> Registration:
        """Register `plugin` for this session only; close what this returns to take it back."""
        return Registration(self._thread, await self._thread.acall(self._session.register, plugin))


class SessionReader:
    """One session, read only. See `flightlog.SessionReader`."""

    def __init__(self, thread: TrioThread, kernel: api.Kernel, session: str) -> None:
        self._thread = thread
        self._kernel = kernel
        self.session = session

    def _reader(self) -> trio_reader.SessionReader:
        """The reader, to be made and used on the kernel's thread."""
        return self._kernel.read(self.session)

    async def _apart(self, work: Callable[[trio_reader.SessionReader], T]) -> T:
        return await self._thread.arun(lambda: trio_reader.apart(self._reader(), work))

    async def records(self, *, deltas: bool = False) -> AsyncIterator[Record]:
        """All events in order, each checked before it is yielded."""
        records = await self._thread.acall(lambda: self._reader().records(deltas=deltas))
        while page := await self._thread.acall(lambda: list(islice(records, LIVE_PAGE_ROWS))):
            for record in page:
                yield record

    def events(self, after: int = 0, *, deltas: bool = True) -> AsyncIterator[Record]:
        """The records behind seq `after`, then those to come, until the kernel is closed."""
        return AsyncFollowing(self._thread, lambda: self._reader().events(after, deltas=deltas))

    async def length(self) -> int:
        """How many events the session has."""
        return await self._thread.acall(lambda: self._reader().length())

    async def messages(self) -> list[Message]:
        """What the model would be sent now."""
        return await self._apart(lambda reader: reader.messages())

    async def data_of(self, file: FileBlock) -> bytes:
        """The bytes of a file in one of its messages."""
        return await self._apart(lambda reader: reader.data_of(file))

    async def request(self, turn: int, step: int, attempt: int | None = None) -> SentRequest:
        """Exactly what the model saw in that attempt."""
        return await self._apart(lambda reader: reader.request(turn, step, attempt))

    async def budget(self) -> list[CardUse]:
        """The cards of its budget."""
        return await self._apart(lambda reader: reader.budget())

    async def usage(self) -> list[Spending]:
        """What it spent by currency."""
        return await self._apart(lambda reader: reader.usage())

    async def timeline(self) -> list[tuple[int, str, int | None, int | None, str, str | None, str | None]]:
        """The flight log for people."""
        return await self._apart(lambda reader: reader.timeline())

    async def export(self, target: str | os.PathLike[str] | BinaryIO) -> HeadToken:
        """Write the session as JSONL, hash chain and all."""
        return await self._apart(lambda reader: reader.export(target))

    async def verify(self) -> int:
        """Check everything that can be checked; returns the number of events."""
        return await self._apart(lambda reader: reader.verify())


class Mailbox:
    """Letters to one session, whoever owns it. See `flightlog.Mailbox`."""

    def __init__(self, thread: TrioThread, mailbox: trio_mailbox.Mailbox) -> None:
        self._thread = thread
        self._mailbox = mailbox

    async def followup(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Posted:
        """As `Session.followup`."""
        return await self._thread.arun(lambda: self._mailbox.followup(content, key=key))

    async def steer(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Posted:
        """As `Session.steer`."""
        return await self._thread.arun(lambda: self._mailbox.steer(content, key=key))

    async def inject(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Posted:
        """As `Session.inject`."""
        return await self._thread.arun(lambda: self._mailbox.inject(content, key=key))

    async def approve(
        self,
        seq: int,
        *,
        allow: bool = True,
        by: str = "user",
        reason: str = "",
        remember: bool = False,
        key: str | None = None,
    ) -> Posted:
        """As `Session.approve`."""
        return await self._thread.arun(
            lambda: self._mailbox.approve(seq, allow=allow, by=by, reason=reason, remember=remember, key=key)
        )

    async def answer(
        self, seq: int, outcome: Told, *, by: str = "user", reason: str = "", key: str | None = None
    ) -> Posted:
        """As `Session.answer`."""
        return await self._thread.arun(lambda: self._mailbox.answer(seq, outcome, by=by, reason=reason, key=key))

    async def cancel(
        self, cause: str = "user", *, now: bool = False, keep_queue: bool = True, key: str | None = None
    ) -> Posted:
        """As `Session.cancel`."""
        return await self._thread.arun(lambda: self._mailbox.cancel(cause, now=now, keep_queue=keep_queue, key=key))

    async def pause(self, by: str = "user", *, now: bool = False, key: str | None = None) -> Posted:
        """Let the task rest until it is resumed."""
        return await self._thread.arun(lambda: self._mailbox.pause(by, now=now, key=key))

    async def resume(self, by: str = "user", *, key: str | None = None) -> Posted:
        """Let the task go on that is paused."""
        return await self._thread.arun(lambda: self._mailbox.resume(by, key=key))

    async def amend(
        self,
        *,
        goal: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        by: str = "user",
        key: str | None = None,
    ) -> Posted:
        """Change what the task is to reach."""
        return await self._thread.arun(lambda: self._mailbox.amend(goal=goal, parameters=parameters, by=by, key=key))

    async def grant(self, more: Budget, *, by: str = "user", key: str | None = None) -> Posted:
        """Let the task use more."""
        return await self._thread.arun(lambda: self._mailbox.grant(more, by=by, key=key))

    async def wake_at(
        self, when: datetime, content: str | tuple[Block, ...], *, by: str = "user", key: str | None = None
    ) -> Posted:
        """As `Session.wake_at`."""
        return await self._thread.arun(lambda: self._mailbox.wake_at(when, content, by=by, key=key))

    async def wake_after(
        self, after_s: float, content: str | tuple[Block, ...], *, by: str = "user", key: str | None = None
    ) -> Posted:
        """As `Session.wake_after`."""
        return await self._thread.arun(lambda: self._mailbox.wake_after(after_s, content, by=by, key=key))

    async def wake_every(
        self,
        every_s: float,
        content: str | tuple[Block, ...],
        *,
        first: datetime | None = None,
        until: datetime | None = None,
        times: int | None = None,
        by: str = "user",
        key: str | None = None,
    ) -> Posted:
        """As `Session.wake_every`."""
        return await self._thread.arun(
            lambda: self._mailbox.wake_every(every_s, content, first=first, until=until, times=times, by=by, key=key)
        )

    async def cancel_timer(self, name: str, by: str = "user", *, key: str | None = None) -> Posted:
        """As `Session.cancel_timer`."""
        return await self._thread.arun(lambda: self._mailbox.cancel_timer(name, by, key=key))

    async def waiting(self) -> int:
        """How many letters the session's owner, or its next one, has still to take."""
        return await self._thread.arun(self._mailbox.waiting)


class Tasks:
    """The tasks of a log. See `flightlog.Tasks`."""

    def __init__(self, thread: TrioThread, tasks: trio_tasks.Tasks) -> None:
        self._thread = thread
        self._tasks = tasks

    async def submit(
        self,
        goal: str,
        *,
        model: str | None = None,
        parameters: Mapping[str, Any] = NO_PARAMETERS,
        task_class: TaskClass = "normal",
        system: str = "",
        max_steps: int = 30,
        max_recoveries: int = 5,
        max_input_tokens: int | None = None,
        deadline: datetime | None = None,
        due: datetime | None = None,
        every_s: float | None = None,
        times: int | None = None,
        until: datetime | None = None,
        goal_check: str = "",
        budget: Budget = NO_BUDGET,
        sub_goals: Sequence[str | SubGoal] = (),
        smaller_model: str = "",
        degradation: Sequence[Degradation] = ("compress", "shrink", "smaller_model"),
        key: str | None = None,
        id: str | None = None,
    ) -> str:
        """Enter a task for the next worker; returns its id, durably."""
        return await self._thread.arun(
            lambda: self._tasks.submit(
                goal,
                model=model,
                parameters=parameters,
                task_class=task_class,
                system=system,
                max_steps=max_steps,
                max_recoveries=max_recoveries,
                max_input_tokens=max_input_tokens,
                deadline=deadline,
                due=due,
                every_s=every_s,
                times=times,
                until=until,
                goal_check=goal_check,
                budget=budget,
                sub_goals=sub_goals,
                smaller_model=smaller_model,
                degradation=degradation,
                key=key,
                id=id,
            )
        )

    async def list(self, state: TaskStateName | None = None, *, limit: int | None = 100) -> tuple[TaskSummary, ...]:
        """The tasks in `state`, or all, the last submitted first."""
        return await self._thread.arun(lambda: self._tasks.list(state, limit=limit))

    async def show(self, id: str) -> TaskSummary:
        """Task `id` as it stands."""
        return await self._thread.arun(self._tasks.show, id)

    async def report(self, id: str) -> TaskReport:
        """What became of task `id`."""
        return await self._thread.arun(self._tasks.report, id)

    async def pause(self, id: str, by: str = "user", *, now: bool = False, key: str | None = None) -> Posted:
        """Let it rest until it is resumed."""
        return await self._thread.arun(lambda: self._tasks.pause(id, by, now=now, key=key))

    async def resume(self, id: str, by: str = "user", *, key: str | None = None) -> Posted:
        """Let it go on."""
        return await self._thread.arun(lambda: self._tasks.resume(id, by, key=key))

    async def cancel(self, id: str, cause: str = "user", *, now: bool = False, key: str | None = None) -> Posted:
        """End it."""
        return await self._thread.arun(lambda: self._tasks.cancel(id, cause, now=now, key=key))

    async def amend(
        self,
        id: str,
        *,
        goal: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        by: str = "user",
        key: str | None = None,
    ) -> Posted:
        """Change what it is to reach."""
        return await self._thread.arun(lambda: self._tasks.amend(id, goal=goal, parameters=parameters, by=by, key=key))

    async def grant(self, id: str, more: Budget, *, by: str = "user", key: str | None = None) -> Posted:
        """Let it use more."""
        return await self._thread.arun(lambda: self._tasks.grant(id, more, by=by, key=key))

    async def steer(self, id: str, text: str, *, key: str | None = None) -> Posted:
        """Tell the model something at its next step."""
        return await self._thread.arun(lambda: self._tasks.steer(id, text, key=key))

    async def answer(
        self,
        id: str,
        seq: int,
        verdict: Verdict,
        *,
        by: str = "user",
        reason: str = "",
        remember: bool = False,
        key: str | None = None,
    ) -> Posted:
        """Answer the question in row `seq`."""
        return await self._thread.arun(
            lambda: self._tasks.answer(id, seq, verdict, by=by, reason=reason, remember=remember, key=key)
        )

    async def wait(self, id: str) -> TaskSummary:
        """Until it has ended or is paused; returns how it stands then."""
        return await self._thread.arun(self._tasks.wait, id)


class Kernel:
    """An open log file and everything registered with it. See `flightlog.Kernel`."""

    def __init__(self, thread: TrioThread, kernel: api.Kernel) -> None:
        self._thread = thread
        self._kernel = kernel

    @property
    def registry(self) -> Registry:
        """What the plugins registered."""
        return self._kernel.registry

    @property
    def tasks(self) -> Tasks:
        """The tasks of the log."""
        return Tasks(self._thread, self._kernel.tasks)

    def session(
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
    ) -> AbstractAsyncContextManager[Session]:
        """Own session `name` while the context lasts, creating or resuming it."""
        return self._owning(
            self._kernel.session(
                name,
                model=model,
                system=system,
                title=title,
                limits=limits,
                approver=approver,
                expect=expect,
                take_over=take_over,
                on_crash=on_crash,
                verify=verify,
            )
        )

    @asynccontextmanager
    async def _owning(self, context: AbstractAsyncContextManager[trio_session.Session]) -> AsyncIterator[Session]:
        async with self._thread.aholding(context) as session:
            yield Session(self._thread, session)

    async def register(self, plugin: object) -> Registration:
        """Register `plugin` for all sessions; close what this returns to take it back."""
        return Registration(self._thread, await self._thread.acall(self._kernel.register, plugin))

    async def work(
        self,
        *,
        tasks_at_once: int = 4,
        until_idle: bool = False,
        take_over: Collection[str] = (),
        on_problem: OnProblem = ignored,
    ) -> None:
        """Take up tasks and carry them out, until `leave_work` or interrupted."""
        return await self._thread.arun(
            lambda: self._kernel.work(
                tasks_at_once=tasks_at_once, until_idle=until_idle, take_over=take_over, on_problem=on_problem
            )
        )

    async def leave_work(self, *, grace_s: float = 30.0) -> None:
        """Let every `work` of this kernel return, and begin no task any more."""
        return await self._thread.acall(lambda: self._kernel.leave_work(grace_s=grace_s))

    def read(self, name: str) -> SessionReader:
        """Read session `name` without owning or changing it."""
        return SessionReader(self._thread, self._kernel, name)

    def mailbox(self, name: str) -> Mailbox:
        """Write to session `name`, whoever owns it."""
        return Mailbox(self._thread, self._kernel.mailbox(name))

    async def fork(self, source: str, turn: int, name: str, *, title: str = "") -> None:
        """Make session `name` of what the model saw in session `source` up to the end of `turn`."""
        return await self._thread.arun(lambda: self._kernel.fork(source, turn, name, title=title))

    async def fork_task(self, source: str, checkpoint: int, *, id: str | None = None) -> str:
        """Enter a task that goes on from where task `source` stood at a checkpoint; returns its id."""
        return await self._thread.arun(lambda: self._kernel.fork_task(source, checkpoint, id=id))

    async def backup(self, target: str | os.PathLike[str]) -> None:
        """Copy the whole file to the new file `target` while everything goes on."""
        return await self._thread.arun(self._kernel.backup, target)

    async def import_session(self, source: str | os.PathLike[str] | BinaryIO) -> str:
        """Take in a session that `SessionReader.export` wrote; returns its name."""
        return await self._thread.arun(self._kernel.import_session, source)

    async def query(
        self, sql: str, *parameters: Parameter, limit_rows: int = QUERY_MAX_ROWS, limit_s: float = QUERY_MAX_S
    ) -> QueryResult:
        """Run one SELECT over the views and tables of the log."""
        return await self._thread.arun(
            lambda: self._kernel.query(sql, *parameters, limit_rows=limit_rows, limit_s=limit_s)
        )


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
    """Open the log at `path`, creating it when missing, and close it and its sessions in the end."""
    check_loop("asyncio")
    thread = TrioThread()
    try:
        async with thread.aholding(
            api.open_kernel(
                path,
                discover=discover,
                plugins=plugins,
                workspace=workspace,
                clock=clock,
                on_boundary=on_boundary,
                agent=agent,
                quotas=quotas,
                verify=verify,
                allow_network=allow_network,
            )
        ) as kernel:
            yield Kernel(thread, kernel)
    finally:
        await thread.aclose()
