"""The kernel for code that blocks: scripts, Django, notebooks, also inside a running event loop.

    with flightlog.sync.open_kernel("agent.db") as kernel:
        with kernel.session("s1", model="scripted:count?to=3") as session:
            session.followup("count to 3")
            turn = session.run()

Names, arguments and errors are those of the trio API, which says what they mean. Everything here may be
used from several threads at once; Ctrl-C in a waiting thread cancels the call it waits for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from datetime import datetime
from itertools import islice
from typing import Any, BinaryIO, Self, TypeVar

from flightlog import api
from flightlog.bridge import Following, TrioThread
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

    def close(self) -> None:
        """Take the plugin back; returns once what runs of it has come to rest."""
        return self._thread.run(self._registration.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
        return self._thread.call(lambda: self._session.token)

    @property
    def pending(self) -> int:
        """How many messages wait in the inbox."""
        return self._thread.call(lambda: self._session.pending)

    def followup(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Accepted:
        """Queue a message for the next turn; durable when it returns."""
        return self._thread.run(lambda: self._session.followup(content, key=key))

    def steer(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Accepted:
        """Queue a message for the next step; durable when it returns."""
        return self._thread.run(lambda: self._session.steer(content, key=key))

    def inject(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Accepted:
        """Lay a message beside the next step; durable when it returns."""
        return self._thread.run(lambda: self._session.inject(content, key=key))

    def edit(self, message_id: str, content: str | tuple[Block, ...]) -> None:
        """Give a message that still waits other content."""
        return self._thread.run(self._session.edit, message_id, content)

    def withdraw(self, message_id: str) -> None:
        """Take back a message that still waits."""
        return self._thread.run(self._session.withdraw, message_id)

    def wake_at(self, when: datetime, content: str | tuple[Block, ...], *, key: str | None = None) -> str:
        """Set a timer: from `when` on, the message is one for the next turn. Returns the timer's name."""
        return self._thread.run(lambda: self._session.wake_at(when, content, key=key))

    def wake_after(self, after_s: float, content: str | tuple[Block, ...], *, key: str | None = None) -> str:
        """As `wake_at`, `after_s` seconds from now."""
        return self._thread.run(lambda: self._session.wake_after(after_s, content, key=key))

    def wake_every(
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
        return self._thread.run(
            lambda: self._session.wake_every(every_s, content, first=first, until=until, times=times, key=key)
        )

    def cancel_timer(self, name: str, by: str = "user") -> bool:
        """Let the timer not fire any more. False when it was not to anyway."""
        return self._thread.run(lambda: self._session.cancel_timer(name, by))

    def timers(self) -> tuple[OpenTimer, ...]:
        """The timers that are still to fire."""
        return self._thread.call(self._session.timers)

    def run(self, *, wait: bool = True, children: bool = False) -> Turn | None:
        """Drive until idle; returns the last turn, None when there was nothing to do."""
        return self._thread.run(lambda: self._session.run(wait=wait, children=children))

    def serve(self) -> None:
        """Run whatever comes in, until interrupted or the session is closed."""
        return self._thread.run(self._session.serve)

    def cancel(self, cause: str = "user", *, now: bool = False, keep_queue: bool = True) -> bool:
        """End the running turn as aborted. False when idle."""
        return self._thread.call(lambda: self._session.cancel(cause, now=now, keep_queue=keep_queue))

    def events(self, after: int = 0, *, deltas: bool = True) -> Iterator[Record]:
        """The records behind seq `after`, then those to come, until the session is closed."""
        return Following(self._thread, lambda: self._session.events(after, deltas=deltas))

    def questions(self) -> list[Question]:
        """The calls that wait for a person's answer, in call order."""
        return self._thread.call(self._session.questions)

    def approve(
        self, seq: int, *, allow: bool = True, by: str = "user", reason: str = "", remember: bool = False
    ) -> bool:
        """Answer the question at `seq`. False when it was settled before."""
        return self._thread.run(
            lambda: self._session.approve(seq, allow=allow, by=by, reason=reason, remember=remember)
        )

    def answer(self, seq: int, outcome: Told, *, by: str = "user", reason: str = "") -> bool:
        """Say how the call ended that the question at `seq` is about. False when it was settled before."""
        return self._thread.run(lambda: self._session.answer(seq, outcome, by=by, reason=reason))

    def register(self, plugin: object) -> Registration:
        """Register `plugin` for this session only; close what this returns to take it back."""
        return Registration(self._thread, self._thread.call(self._session.register, plugin))


class SessionReader:
    """One session, read only. See `flightlog.SessionReader`."""

    def __init__(self, thread: TrioThread, reader: trio_reader.SessionReader) -> None:
        self._thread = thread
        self._reader = reader
        self.session = reader.session

    def _apart(self, work: Callable[[trio_reader.SessionReader], T]) -> T:
        result: T = self._thread.run(trio_reader.apart, self._reader, work)
        return result

    def records(self, *, deltas: bool = False) -> Iterator[Record]:
        """All events in order, each checked before it is yielded."""
        records = self._thread.call(lambda: self._reader.records(deltas=deltas))
        while page := self._thread.call(lambda: list(islice(records, LIVE_PAGE_ROWS))):
            yield from page

    def events(self, after: int = 0, *, deltas: bool = True) -> Iterator[Record]:
        """The records behind seq `after`, then those to come, until the kernel is closed."""
        return Following(self._thread, lambda: self._reader.events(after, deltas=deltas))

    def length(self) -> int:
        """How many events the session has."""
        return self._thread.call(self._reader.length)

    def messages(self) -> list[Message]:
        """What the model would be sent now."""
        return self._apart(lambda reader: reader.messages())

    def data_of(self, file: FileBlock) -> bytes:
        """The bytes of a file in one of its messages."""
        return self._apart(lambda reader: reader.data_of(file))

    def request(self, turn: int, step: int, attempt: int | None = None) -> SentRequest:
        """Exactly what the model saw in that attempt."""
        return self._apart(lambda reader: reader.request(turn, step, attempt))

    def budget(self) -> list[CardUse]:
        """The cards of its budget."""
        return self._apart(lambda reader: reader.budget())

    def usage(self) -> list[Spending]:
        """What it spent by currency."""
        return self._apart(lambda reader: reader.usage())

    def timeline(self) -> list[tuple[int, str, int | None, int | None, str, str | None, str | None]]:
        """The flight log for people."""
        return self._apart(lambda reader: reader.timeline())

    def export(self, target: str | os.PathLike[str] | BinaryIO) -> HeadToken:
        """Write the session as JSONL, hash chain and all."""
        return self._apart(lambda reader: reader.export(target))

    def verify(self) -> int:
        """Check everything that can be checked; returns the number of events."""
        return self._apart(lambda reader: reader.verify())


class Mailbox:
    """Letters to one session, whoever owns it. See `flightlog.Mailbox`."""

    def __init__(self, thread: TrioThread, mailbox: trio_mailbox.Mailbox) -> None:
        self._thread = thread
        self._mailbox = mailbox

    def followup(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Posted:
        """As `Session.followup`."""
        return self._thread.run(lambda: self._mailbox.followup(content, key=key))

    def steer(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Posted:
        """As `Session.steer`."""
        return self._thread.run(lambda: self._mailbox.steer(content, key=key))

    def inject(self, content: str | tuple[Block, ...], *, key: str | None = None) -> Posted:
        """As `Session.inject`."""
        return self._thread.run(lambda: self._mailbox.inject(content, key=key))

    def approve(
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
        return self._thread.run(
            lambda: self._mailbox.approve(seq, allow=allow, by=by, reason=reason, remember=remember, key=key)
        )

    def answer(self, seq: int, outcome: Told, *, by: str = "user", reason: str = "", key: str | None = None) -> Posted:
        """As `Session.answer`."""
        return self._thread.run(lambda: self._mailbox.answer(seq, outcome, by=by, reason=reason, key=key))

    def cancel(
        self, cause: str = "user", *, now: bool = False, keep_queue: bool = True, key: str | None = None
    ) -> Posted:
        """As `Session.cancel`."""
        return self._thread.run(lambda: self._mailbox.cancel(cause, now=now, keep_queue=keep_queue, key=key))

    def pause(self, by: str = "user", *, now: bool = False, key: str | None = None) -> Posted:
        """Let the task rest until it is resumed."""
        return self._thread.run(lambda: self._mailbox.pause(by, now=now, key=key))

    def resume(self, by: str = "user", *, key: str | None = None) -> Posted:
        """Let the task go on that is paused."""
        return self._thread.run(lambda: self._mailbox.resume(by, key=key))

    def amend(
        self,
        *,
        goal: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        by: str = "user",
        key: str | None = None,
    ) -> Posted:
        """Change what the task is to reach."""
        return self._thread.run(lambda: self._mailbox.amend(goal=goal, parameters=parameters, by=by, key=key))

    def grant(self, more: Budget, *, by: str = "user", key: str | None = None) -> Posted:
        """Let the task use more."""
        return self._thread.run(lambda: self._mailbox.grant(more, by=by, key=key))

    def wake_at(
        self, when: datetime, content: str | tuple[Block, ...], *, by: str = "user", key: str | None = None
    ) -> Posted:
        """As `Session.wake_at`."""
        return self._thread.run(lambda: self._mailbox.wake_at(when, content, by=by, key=key))

    def wake_after(
        self, after_s: float, content: str | tuple[Block, ...], *, by: str = "user", key: str | None = None
    ) -> Posted:
        """As `Session.wake_after`."""
        return self._thread.run(lambda: self._mailbox.wake_after(after_s, content, by=by, key=key))

    def wake_every(
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
        return self._thread.run(
            lambda: self._mailbox.wake_every(every_s, content, first=first, until=until, times=times, by=by, key=key)
        )

    def cancel_timer(self, name: str, by: str = "user", *, key: str | None = None) -> Posted:
        """As `Session.cancel_timer`."""
        return self._thread.run(lambda: self._mailbox.cancel_timer(name, by, key=key))

    def waiting(self) -> int:
        """How many letters the session's owner, or its next one, has still to take."""
        return self._thread.run(self._mailbox.waiting)


class Tasks:
    """The tasks of a log. See `flightlog.Tasks`."""

    def __init__(self, thread: TrioThread, tasks: trio_tasks.Tasks) -> None:
        self._thread = thread
        self._tasks = tasks

    def submit(
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
        return self._thread.run(
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

    def list(self, state: TaskStateName | None = None, *, limit: int | None = 100) -> tuple[TaskSummary, ...]:
        """The tasks in `state`, or all, the last submitted first."""
        return self._thread.run(lambda: self._tasks.list(state, limit=limit))

    def show(self, id: str) -> TaskSummary:
        """Task `id` as it stands."""
        return self._thread.run(self._tasks.show, id)

    def report(self, id: str) -> TaskReport:
        """What became of task `id`."""
        return self._thread.run(self._tasks.report, id)

    def pause(self, id: str, by: str = "user", *, now: bool = False, key: str | None = None) -> Posted:
        """Let it rest until it is resumed."""
        return self._thread.run(lambda: self._tasks.pause(id, by, now=now, key=key))

    def resume(self, id: str, by: str = "user", *, key: str | None = None) -> Posted:
        """Let it go on."""
        return self._thread.run(lambda: self._tasks.resume(id, by, key=key))

    def cancel(self, id: str, cause: str = "user", *, now: bool = False, key: str | None = None) -> Posted:
        """End it."""
        return self._thread.run(lambda: self._tasks.cancel(id, cause, now=now, key=key))

    def amend(
        self,
        id: str,
        *,
        goal: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        by: str = "user",
        key: str | None = None,
    ) -> Posted:
        """Change what it is to reach."""
        return self._thread.run(lambda: self._tasks.amend(id, goal=goal, parameters=parameters, by=by, key=key))

    def grant(self, id: str, more: Budget, *, by: str = "user", key: str | None = None) -> Posted:
        """Let it use more."""
        return self._thread.run(lambda: self._tasks.grant(id, more, by=by, key=key))

    def steer(self, id: str, text: str, *, key: str | None = None) -> Posted:
        """Tell the model something at its next step."""
        return self._thread.run(lambda: self._tasks.steer(id, text, key=key))

    def answer(
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
        return self._thread.run(
            lambda: self._tasks.answer(id, seq, verdict, by=by, reason=reason, remember=remember, key=key)
        )

    def wait(self, id: str) -> TaskSummary:
        """Until it has ended or is paused; returns how it stands then."""
        return self._thread.run(self._tasks.wait, id)


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
    ) -> AbstractContextManager[Session]:
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

    @contextmanager
    def _owning(self, context: AbstractAsyncContextManager[trio_session.Session]) -> Iterator[Session]:
        with self._thread.holding(context) as session:
            yield Session(self._thread, session)

    def register(self, plugin: object) -> Registration:
        """Register `plugin` for all sessions; close what this returns to take it back."""
        return Registration(self._thread, self._thread.call(self._kernel.register, plugin))

    def work(
        self,
        *,
        tasks_at_once: int = 4,
        until_idle: bool = False,
        take_over: Collection[str] = (),
        on_problem: OnProblem = ignored,
    ) -> None:
        """Take up tasks and carry them out, until `leave_work` or interrupted."""
        return self._thread.run(
            lambda: self._kernel.work(
                tasks_at_once=tasks_at_once, until_idle=until_idle, take_over=take_over, on_problem=on_problem
            )
        )

    def leave_work(self, *, grace_s: float = 30.0) -> None:
        """Let every `work` of this kernel return, and begin no task any more."""
        return self._thread.call(lambda: self._kernel.leave_work(grace_s=grace_s))

    def read(self, name: str) -> SessionReader:
        """Read session `name` without owning or changing it."""
        return SessionReader(self._thread, self._thread.call(self._kernel.read, name))

    def mailbox(self, name: str) -> Mailbox:
        """Write to session `name`, whoever owns it."""
        return Mailbox(self._thread, self._kernel.mailbox(name))

    def fork(self, source: str, turn: int, name: str, *, title: str = "") -> None:
        """Make session `name` of what the model saw in session `source` up to the end of `turn`."""
        return self._thread.run(lambda: self._kernel.fork(source, turn, name, title=title))

    def fork_task(self, source: str, checkpoint: int, *, id: str | None = None) -> str:
        """Enter a task that goes on from where task `source` stood at a checkpoint; returns its id."""
        return self._thread.run(lambda: self._kernel.fork_task(source, checkpoint, id=id))

    def backup(self, target: str | os.PathLike[str]) -> None:
        """Copy the whole file to the new file `target` while everything goes on."""
        return self._thread.run(self._kernel.backup, target)

    def import_session(self, source: str | os.PathLike[str] | BinaryIO) -> str:
        """Take in a session that `SessionReader.export` wrote; returns its name."""
        return self._thread.run(self._kernel.import_session, source)

    def query(
        self, sql: str, *parameters: Parameter, limit_rows: int = QUERY_MAX_ROWS, limit_s: float = QUERY_MAX_S
    ) -> QueryResult:
        """Run one SELECT over the views and tables of the log."""
        return self._thread.run(lambda: self._kernel.query(sql, *parameters, limit_rows=limit_rows, limit_s=limit_s))


@contextmanager
def open_kernel(
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
) -> Iterator[Kernel]:
    """Open the log at `path`, creating it when missing, and close it and its sessions in the end."""
    thread = TrioThread()
    try:
        with thread.holding(
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
        thread.close()
