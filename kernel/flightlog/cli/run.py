"""`flightlog run` and `flightlog resume`: drive a session from the terminal."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from signal import SIGINT, SIGTERM
from typing import Any, Final, TypeVar, get_args

import click
import trio
from attrs import frozen

from flightlog import Clock, Kernel, Question
from flightlog.api import open_kernel
from flightlog.cli.answered import Answered
from flightlog.cli.exits import FAILED, FINE, TERMINATED
from flightlog.cli.files import attach_option, message_of
from flightlog.cli.interruption import Interruption
from flightlog.cli.json_form import plain, record_form
from flightlog.cli.letters import answers
from flightlog.cli.live import LiveView, status_line
from flightlog.cli.model_option import addressed
from flightlog.cli.options import db_option, is_found_unaided, json_option, log_to_read, log_to_write
from flightlog.cli.output import Output, complain
from flightlog.cli.schema_option import values, wanting
from flightlog.cli.tally import Tally
from flightlog.cli.terminal_text import counted
from flightlog.cli.verify_option import verify_option
from flightlog.runtime.reader import settled_questions
from flightlog.runtime.recovery import OnCrash, Verify
from flightlog_hookspecs.content import Block
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import ApprovalAsked, Record, TurnEnd

_PAUSED: Final = TurnEnd(reason="paused", cause="approval")

F = TypeVar("F", bound=Callable[..., Any])


@frozen(kw_only=True)
class Order:
    """What the user asked for. `model` and `system` are None where the session's own are wanted.

    `schema` is the file with the one that answers are to fit, None where any words will do.
    """

    db: str
    session: str
    message: tuple[Block, ...] | None
    model: str | None
    system: str | None
    workspace: str | None
    schema: str | None
    as_json: bool
    take_over: bool
    on_crash: OnCrash | None
    verify: Verify
    approver: bool
    waits: bool

    def resume_command(self, *text: str) -> str:
        """How to go on with the session from a shell."""
        options = [("--db", None if is_found_unaided(self.db) else self.db), ("--workspace", self.workspace)]
        options.append(("--schema", self.schema))
        given = [part for name, value in options if value for part in (name, value)]
        given += ["--approver"] if self.approver else []
        given += ["--on-crash", self.on_crash] if self.on_crash else []
        given += ["--verify", self.verify] if self.verify != "shown" else []
        return shlex.join(["flightlog", "resume", self.session, *text, *given])

    def approve_command(self, seq: int) -> str:
        """How to answer the question in row `seq` from a shell."""
        db = [] if is_found_unaided(self.db) else ["--db", self.db]
        return shlex.join(["flightlog", "approve", self.session, str(seq), *db])


def _model_options(command: F) -> F:
    decorators = (
        click.option("--model", metavar="ADAPTER:MODEL", help="Default: the session's last one, else scripted:echo."),
        click.option("--base-url", metavar="URL", help="Where the model is; the same as ?base_url=URL in its name."),
        click.option("--system", metavar="TEXT", help="The system text. Default: the session's last one, else none."),
        click.option(
            "--workspace",
            metavar="DIR",
            type=click.Path(exists=True, file_okay=False),
            help="The folder tools may work in. Default: none.",
        ),
        click.option(
            "--schema",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False),
            help="Answers are JSON that fits this JSON Schema; print nothing else.",
        ),
        click.option(
            "--approver", is_flag=True, help="A call may wait for `flightlog approve`. Default: it is denied."
        ),
        click.option(
            "--no-wait", is_flag=True, help="The same, but leave a turn that waits for later, and exit with 1."
        ),
        click.option("--take-over", is_flag=True, help="Take the session from an owner that is stuck."),
        click.option(
            "--on-crash",
            type=click.Choice(get_args(OnCrash)),
            help="Close a turn that a crash left open, or continue it from the step where it was. "
            "Default: close, but for tasks.",
        ),
        verify_option,
        db_option,
        json_option,
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


@click.command(short_help="Deliver a message and run the session.")
@click.argument("text")
@click.option("--session", metavar="ID", help="The session to create or go on with. Default: a new one.")
@attach_option
@_model_options
def run(
    text: str,
    session: str | None,
    attach: tuple[str, ...],
    model: str | None,
    base_url: str | None,
    system: str | None,
    workspace: str | None,
    schema: str | None,
    approver: bool,
    no_wait: bool,
    take_over: bool,
    on_crash: OnCrash | None,
    verify: Verify,
    db: str | None,
    as_json: bool,
) -> int:
    """Deliver TEXT to a session and run it until it is idle.

    Ctrl+C cancels the turn and keeps what is queued; a second one cuts off running tools and leaves.
    """
    order = Order(
        db=log_to_write(db),
        session=session if session is not None else _new_name(),
        message=message_of(text, attach),
        model=addressed(model, base_url),
        system=system,
        workspace=workspace,
        schema=schema,
        as_json=as_json,
        take_over=take_over,
        on_crash=on_crash,
        verify=verify,
        approver=approver or no_wait,
        waits=not no_wait,
    )
    return trio.run(_carry_out, order)


@click.command(short_help="Recover a session and run it.")
@click.argument("session", metavar="ID")
@click.argument("text", required=False)
@_model_options
def resume(
    session: str,
    text: str | None,
    model: str | None,
    base_url: str | None,
    system: str | None,
    workspace: str | None,
    schema: str | None,
    approver: bool,
    no_wait: bool,
    take_over: bool,
    on_crash: OnCrash | None,
    verify: Verify,
    db: str | None,
    as_json: bool,
) -> int:
    """Recover session ID, deliver what is pending and TEXT, run it until it is idle.

    Ctrl+C cancels the turn and keeps what is queued; a second one cuts off running tools and leaves.
    """
    order = Order(
        db=log_to_read(db),
        session=session,
        message=None if text is None else message_of(text, ()),
        model=addressed(model, base_url),
        system=system,
        workspace=workspace,
        schema=schema,
        as_json=as_json,
        take_over=take_over,
        on_crash=on_crash,
        verify=verify,
        approver=approver or no_wait,
        waits=not no_wait,
    )
    return trio.run(_carry_out_on_existing, order)


async def _carry_out(order: Order) -> int:
    return await _drive(order, must_exist=False)


async def _carry_out_on_existing(order: Order) -> int:
    return await _drive(order, must_exist=True)


async def _drive(order: Order, *, must_exist: bool) -> int:
    """Run the session under the watch of signals; returns the exit code."""
    output = Output(as_json=order.as_json, outlives_reader=True)
    interruption = Interruption()
    with trio.open_signal_receiver(SIGINT, SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interruption.watch, signals)
            code: int | None = None
            with interruption.scope:
                code = await _session(order, output, interruption, must_exist=must_exist)
            nursery.cancel_scope.cancel()
    if code is None:
        queued = f"it is queued: {order.resume_command()}" if interruption.accepted else "it was not accepted"
        complain(f"left before the message ran; {queued}" if order.message else "left before anything ran")
        code = FAILED
    return TERMINATED if interruption.exit_code == TERMINATED else code


async def _session(order: Order, output: Output, interruption: Interruption, *, must_exist: bool) -> int:
    tally = Tally()

    def show(record: Record) -> None:
        tally.take(record)
        if order.as_json:
            output.json(record_form(record))
        elif order.schema is None:
            view.show(record)
        elif isinstance(record.event, ApprovalAsked):
            complain(f"{record.event.question} {order.approve_command(record.seq)} {answers(record.event.about)}")

    wanted = [wanting(order.schema)] if order.schema is not None else []
    async with open_kernel(order.db, workspace=order.workspace, verify=order.verify) as kernel:
        for problem in kernel.registry.problems:
            complain(problem.said)
        before = await _length(kernel, order.session, must_exist=must_exist)
        settled = settled_questions(kernel.read(order.session), before) if before else ()
        view = LiveView(output, order.approve_command, Answered(settled))
        async with (
            trio.open_nursery() as nursery,  # which ends once all is shown
            kernel.session(
                order.session,
                model=order.model,
                system=order.system,
                approver=order.approver,
                take_over=order.take_over,
                on_crash=order.on_crash,
            ) as session,
        ):
            nursery.start_soon(_follow, session.events(after=before), show)
            async with AsyncExitStack() as registered:
                for plugin in wanted:
                    await registered.enter_async_context(session.register(plugin))
                interruption.session = session
                if order.message is not None:
                    await session.followup(order.message)
                    interruption.accepted = True
                await session.run(wait=order.waits, children=True)
                interruption.session = None
            pending, questions = session.pending, session.questions()
    cut_short = interruption.exit_code is not None and pending > 0
    return _conclude(order, output, tally, pending, questions, cut_short=cut_short)


async def _follow(events: AsyncIterator[Record], show: Callable[[Record], None]) -> None:
    """Show each record as it comes. What is shown is durable."""
    async for record in events:
        show(record)


def _conclude(
    order: Order, output: Output, tally: Tally, pending: int, questions: list[Question], *, cut_short: bool
) -> int:
    """Say how it went; returns the exit code. `cut_short`: a signal kept queued messages from running."""
    code = FINE if not tally.failed and not cut_short else FAILED
    if order.as_json:
        output.json(_result(order, tally, pending, questions))
    elif order.schema is not None:
        for value in values(tally.turns):
            output.json(value)
    else:
        for turn in tally.turns:
            if turn.end is not None:
                status_line(output, order.session, turn)
        if not tally.turns:
            output.line((f"nothing to do: session {order.session} is idle", "dim"))
    if code != FINE:
        for turn in tally.failed:
            if turn.end is not None:
                complain(f"turn {turn.number} ended as {turn.reason}")
            for question in questions if turn.end is None else ():
                answer = f"{order.approve_command(question.seq)} {answers(question.about)}"
                complain(f"turn {turn.number} waits for an answer about {question.name}: {answer}")
        queued = f"{counted(pending, 'message')} still queued. " if pending else ""
        complain(f"{queued}To go on: {order.resume_command(*([] if pending or questions else ['continue']))}")
    return code


def _result(order: Order, tally: Tally, pending: int, questions: list[Question]) -> dict[str, Any]:
    turns = [
        {
            "turn": turn.number,
            "text": turn.text,
            "steps": turn.steps,
            "calls": turn.calls,
            "input_tokens": turn.input_tokens,
            "output_tokens": turn.output_tokens,
            "costs_pico": turn.costs_pico,
            "unpriced": turn.unpriced,
            **{name: value for name, value in plain(turn.end or _PAUSED).items() if name != "kind"},
        }
        for turn in tally.turns
    ]
    return {
        "kind": "result",
        "session": order.session,
        "turns": turns,
        **({"outputs": values(tally.turns)} if order.schema is not None else {}),
        "pending": pending,
        "questions": plain(questions),
    }


async def _length(kernel: Kernel, session: str, *, must_exist: bool) -> int:
    """The session's last row, 0 when it is new. One that only has letters exists."""
    try:
        reader = kernel.read(session)
    except UsageError:
        if must_exist and not await kernel.mailbox(session).waiting():
            raise
        return 0
    return reader.length()


def _new_name() -> str:
    """A name for a session that nobody has named: the day, and enough to be its own."""
    from datetime import datetime

    clock = Clock()
    day = datetime.fromtimestamp(clock.now_us() / 1_000_000).astimezone()
    return f"{day:%Y%m%d}-{clock.new_id()[:6]}"
