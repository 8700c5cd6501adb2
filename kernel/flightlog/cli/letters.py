"""`flightlog send`, `approve`, `cancel`: write to a session that another process drives, or that waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import click
import trio
from attrs import frozen

from flightlog import Mailbox, Posted, SessionReader
from flightlog.api import open_kernel
from flightlog.cli.exits import FINE
from flightlog.cli.files import attach_option, message_of
from flightlog.cli.json_form import plain
from flightlog.cli.numbers import WholeType
from flightlog.cli.options import db_option, json_option, log_to_read
from flightlog.cli.output import Output
from flightlog.cli.terminal_text import one_line
from flightlog.runtime.reader import check_answer, open_log
from flightlog_hookspecs.content import ToolCallBlock
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import About, ApprovalAsked, ApprovalDecided, AssistantMessage, Told

key_option = click.option("--key", metavar="KEY", help="An idempotency key: sending twice under it is sending once.")


@click.command(short_help="Send a message to a session, whoever drives it.")
@click.argument("session", metavar="ID")
@click.argument("text")
@click.option(
    "--as",
    "way",
    type=click.Choice(["followup", "steer", "inject"]),
    default="followup",
    show_default=True,
    help="A turn of its own, the running turn's next step, or beside whatever comes next.",
)
@attach_option
@key_option
@db_option
@json_option
def send(
    session: str, text: str, way: str, attach: tuple[str, ...], key: str | None, db: str | None, as_json: bool
) -> int:
    """Put TEXT into the mailbox of session ID. It waits there for the session's owner, the next one if need be."""
    message = message_of(text, attach)

    async def post(mailbox: Mailbox) -> Posted:
        send_as = {"followup": mailbox.followup, "steer": mailbox.steer, "inject": mailbox.inject}[way]
        return await send_as(message, key=key)

    return posted(db, session, post, f"{way} sent", as_json=as_json)


@click.command(short_help="Answer a question about a tool call, or list the open ones.")
@click.argument("session", metavar="ID")
@click.argument("seq", metavar="SEQ", type=WholeType(1), required=False)
@click.option("--deny", is_flag=True, help="Deny the call. Default: allow it.")
@click.option("--done", "outcome", flag_value="done", help="The call that was cut off has taken effect.")
@click.option("--not-done", "outcome", flag_value="not_done", help="It has not: let it run.")
@click.option("--unknown", "outcome", flag_value="unknown", help="Nobody can tell.")
@click.option("--remember", is_flag=True, help="Let guards know for later calls of this tool in this session.")
@click.option("--by", metavar="NAME", default="user", show_default=True, help="Who decides.")
@click.option("--reason", metavar="TEXT", default="", help="Why; a denied call's model is told.")
@key_option
@db_option
@json_option
def approve(
    session: str,
    seq: int | None,
    deny: bool,
    outcome: Told | None,
    remember: bool,
    by: str,
    reason: str,
    key: str | None,
    db: str | None,
    as_json: bool,
) -> int:
    """Allow, or deny, the call that session ID asks about in row SEQ. Without SEQ, list its open questions.

    When it asks how a call ended that was cut off, say --done, --not-done or --unknown.

    The answer waits for the session's owner, the next one if need be: `flightlog resume ID --approver`.
    """
    if seq is None:
        if deny or outcome or remember or reason or key:
            raise UsageError("which question? SEQ is missing; without it, the open ones are listed")
        return _listed(session, log_to_read(db), as_json=as_json)

    if outcome and (deny or remember):
        raise UsageError(
            f"--{outcome.replace('_', '-')} says how one call ended; --deny and --remember say nothing of it"
        )

    async def post(mailbox: Mailbox) -> Posted:
        if outcome:
            return await mailbox.answer(seq, outcome, by=by, reason=reason, key=key)
        return await mailbox.approve(seq, allow=not deny, by=by, reason=reason, remember=remember, key=key)

    def check(reader: SessionReader) -> None:
        check_answer(reader, seq, outcome or ("denied" if deny else "allowed"), key)

    said = "answer sent" if outcome else "denial sent" if deny else "approval sent"
    return posted(db, session, post, said, as_json=as_json, check=check)


@click.command(short_help="Cancel a session's running turn.")
@click.argument("session", metavar="ID")
@click.option("--cause", metavar="TEXT", default="user", show_default=True, help="Why; it stands in the log.")
@click.option("--now", is_flag=True, help="Give running tools no time to end by themselves.")
@click.option("--drop-queue", is_flag=True, help="Remove what waits in the inbox, too.")
@key_option
@db_option
@json_option
def cancel(
    session: str, cause: str, now: bool, drop_queue: bool, key: str | None, db: str | None, as_json: bool
) -> int:
    """End the running turn of session ID as aborted. Does nothing when no turn runs."""

    async def post(mailbox: Mailbox) -> Posted:
        return await mailbox.cancel(cause, now=now, keep_queue=not drop_queue, key=key)

    return posted(db, session, post, "cancel sent", as_json=as_json)


def answers(about: About) -> str:
    """What `flightlog approve ID SEQ` takes besides, for a question about that."""
    return "--done|--not-done|--unknown" if about == "outcome" else "[--deny]"


@frozen(kw_only=True)
class OpenQuestion:
    """A question in row `seq` of a session, and the raw arguments its call would run with."""

    session: str
    seq: int
    asked: ApprovalAsked
    arguments: str

    @property
    def form(self) -> dict[str, Any]:
        """It as a JSON value."""
        return {"session": self.session, "seq": self.seq, **plain(self.asked), "arguments": self.arguments}


def open_questions(reader: SessionReader) -> list[OpenQuestion]:
    """The questions of a session that wait for an answer."""
    questions: dict[int, OpenQuestion] = {}
    calls: list[ToolCallBlock] = []
    for record in reader.records():
        if isinstance(record.event, AssistantMessage):
            calls = [block for block in record.event.content if isinstance(block, ToolCallBlock)]
        elif isinstance(record.event, ApprovalAsked):
            asked = record.event
            arguments = asked.arguments or calls[asked.position].arguments
            questions[record.seq] = OpenQuestion(
                session=reader.session, seq=record.seq, asked=asked, arguments=arguments
            )
        elif isinstance(record.event, ApprovalDecided):
            questions.pop(record.event.asked_seq, None)
    return list(questions.values())


def _listed(session: str, path: str, *, as_json: bool) -> int:
    with open_log(path, discover=False) as log:
        questions = open_questions(log.session(session))
    show_questions(session, questions, as_json=as_json)
    return FINE


def show_questions(
    session: str, questions: Sequence[OpenQuestion], *, as_json: bool, answers_of: Callable[[About], str] | None = None
) -> None:
    """Print the open `questions` of `session`: a JSON document each, or some lines with the answers there are."""
    output = Output(as_json=as_json)
    for question in questions:
        if as_json:
            output.json(question.form)
            continue
        asked = question.asked
        output.line((str(question.seq), "bold"), f" {one_line(asked.name)}: {one_line(asked.question, 2000)}")
        if answers_of:
            output.line((f"  {answers_of(asked.about)}", "dim"))
    if not questions and not as_json:
        output.line((f"{one_line(session)}: no open questions", "dim"))


def posted(
    db: str | None,
    session: str,
    post: Callable[[Mailbox], Awaitable[Posted]],
    said: str,
    *,
    as_json: bool,
    check: Callable[[SessionReader], None] | None = None,
) -> int:
    """Write a letter to `session`, and print that it was. `check` looks at the session before, which must be there."""
    path = log_to_read(db)

    async def main() -> Posted:
        async with open_kernel(path, discover=False) as kernel:
            if check is not None:
                check(kernel.read(session))
            return await post(kernel.mailbox(session))

    letter = trio.run(main)
    output = Output(as_json=as_json)
    if as_json:
        ids = {"letter_id": letter.letter_id, "message_id": letter.message_id}
        output.json({"session": session, **ids, **({"timer": letter.timer} if letter.timer else {})})
    elif letter.timer:
        output.line((one_line(session), "bold"), f": {said}, {letter.timer}")
    else:
        output.line((one_line(session), "bold"), f": {said}")
    return FINE
