"""`flightlog task pause, resume, cancel, steer, amend, grant, answer`: what people want of a task."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, get_args

import click
import trio

from flightlog import Posted, Tasks
from flightlog.api import open_kernel
from flightlog.cli.exits import FINE
from flightlog.cli.letters import key_option, open_questions, show_questions
from flightlog.cli.numbers import WholeType
from flightlog.cli.options import db_option, json_option, log_to_read
from flightlog.cli.output import Output
from flightlog.cli.quota_options import budget_of
from flightlog.cli.terminal_text import one_line
from flightlog.runtime.reader import open_log
from flightlog.runtime.tasks import Verdict
from flightlog_hookspecs.errors import UsageError
from flightlog_hookspecs.events import About

by_option = click.option("--by", metavar="NAME", default="user", show_default=True, help="Who wants it.")


@click.command(short_help="Let a task rest until it is resumed.")
@click.argument("task", metavar="ID")
@click.option("--now", is_flag=True, help="Cut off running tools, too. Default: they finish.")
@by_option
@key_option
@db_option
@json_option
def pause(task: str, now: bool, by: str, key: str | None, db: str | None, as_json: bool) -> int:
    """Let task ID rest: its model is cut off at once, its running tools finish."""
    return _posted(db, task, lambda tasks: tasks.pause(task, by, now=now, key=key), "pause sent", as_json=as_json)


@click.command(short_help="Let a paused task go on.")
@click.argument("task", metavar="ID")
@by_option
@key_option
@db_option
@json_option
def resume(task: str, by: str, key: str | None, db: str | None, as_json: bool) -> int:
    """Let the paused task ID go on, as soon as a worker has room for it."""
    return _posted(db, task, lambda tasks: tasks.resume(task, by, key=key), "resume sent", as_json=as_json)


@click.command(short_help="End a task.")
@click.argument("task", metavar="ID")
@click.option("--cause", metavar="TEXT", default="user", show_default=True, help="Why; it stands in the log.")
@click.option("--now", is_flag=True, help="Give running tools no time to end by themselves.")
@key_option
@db_option
@json_option
def cancel(task: str, cause: str, now: bool, key: str | None, db: str | None, as_json: bool) -> int:
    """End task ID as cancelled."""
    return _posted(db, task, lambda tasks: tasks.cancel(task, cause, now=now, key=key), "cancel sent", as_json=as_json)


@click.command(short_help="Tell a task's model something.")
@click.argument("task", metavar="ID")
@click.argument("text")
@key_option
@db_option
@json_option
def steer(task: str, text: str, key: str | None, db: str | None, as_json: bool) -> int:
    """Tell the model of task ID TEXT, at its next step."""
    return _posted(db, task, lambda tasks: tasks.steer(task, text, key=key), "steer sent", as_json=as_json)


@click.command(short_help="Change what a task is to reach.")
@click.argument("task", metavar="ID")
@click.option("--goal", metavar="TEXT", help="What is to be reached from now on.")
@click.option("--parameter", "named", metavar="NAME=VALUE", multiple=True, help="All its parameters. Repeatable.")
@by_option
@key_option
@db_option
@json_option
def amend(
    task: str, goal: str | None, named: tuple[str, ...], by: str, key: str | None, db: str | None, as_json: bool
) -> int:
    """Change the goal of task ID, its parameters or both. Its model is told at its next step."""
    parameters = parameters_of(named) if named else None

    def post(tasks: Tasks) -> Awaitable[Posted]:
        return tasks.amend(task, goal=goal, parameters=parameters, by=by, key=key)

    return _posted(db, task, post, "amendment sent", as_json=as_json)


@click.command(short_help="Let a task use more.")
@click.argument("task", metavar="ID")
@click.argument("cards", metavar="CARD=N…", nargs=-1, required=True)
@by_option
@key_option
@db_option
@json_option
def grant(task: str, cards: tuple[str, ...], by: str, key: str | None, db: str | None, as_json: bool) -> int:
    """Let task ID use N more of each CARD that it was given. One that is paused for want of it goes on."""
    more = budget_of(cards)
    return _posted(db, task, lambda tasks: tasks.grant(task, more, by=by, key=key), "grant sent", as_json=as_json)


@click.command(short_help="Answer a question of a task, or list the open ones.")
@click.argument("task", metavar="ID")
@click.argument("seq", metavar="SEQ", type=WholeType(1), required=False)
@click.argument("verdict", type=click.Choice(get_args(Verdict)), required=False)
@click.option("--remember", is_flag=True, help="Let guards know for later calls of this tool in this task.")
@click.option("--reason", metavar="TEXT", default="", help="Why; a denied call's model is told.")
@by_option
@key_option
@db_option
@json_option
def answer(
    task: str,
    seq: int | None,
    verdict: Verdict | None,
    remember: bool,
    reason: str,
    by: str,
    key: str | None,
    db: str | None,
    as_json: bool,
) -> int:
    """Answer what task ID asks in row SEQ: whether a call may start, or how one ended that was cut off."""
    if seq is None or verdict is None:
        if seq is not None:
            raise UsageError(f"which answer? One of {', '.join(get_args(Verdict))} goes behind SEQ")
        return _listed(db, task, as_json=as_json)

    def post(tasks: Tasks) -> Awaitable[Posted]:
        return tasks.answer(task, seq, verdict, by=by, reason=reason, remember=remember, key=key)

    return _posted(db, task, post, "answer sent", as_json=as_json)


def answers_of(about: About) -> str:
    """The verdicts that a question about that takes."""
    return "done|not_done|unknown" if about == "outcome" else "allow|deny"


def parameters_of(named: Sequence[str]) -> dict[str, Any]:
    """The parameters that NAME=VALUE options give."""
    parameters: dict[str, Any] = {}
    for given in named:
        name, sign, value = given.partition("=")
        if not sign or not name:
            raise UsageError(f"--parameter {given!r} is not NAME=VALUE")
        if name in parameters:
            raise UsageError(f"--parameter {name} is given twice")
        try:
            parameters[name] = json.loads(value)
        except ValueError:
            parameters[name] = value
        except RecursionError:
            raise UsageError(f"--parameter {name} is nested too deeply") from None
    return parameters


def _listed(db: str | None, task: str, *, as_json: bool) -> int:
    with open_log(log_to_read(db), discover=False) as log:
        log.task(task)
        questions = open_questions(log.session(task))
    show_questions(task, questions, as_json=as_json, answers_of=answers_of)
    return FINE


def _posted(db: str | None, task: str, post: Callable[[Tasks], Awaitable[Posted]], said: str, *, as_json: bool) -> int:
    path = log_to_read(db)

    async def main() -> Posted:
        async with open_kernel(path, discover=False) as kernel:
            return await post(kernel.tasks)

    posted = trio.run(main)
    output = Output(as_json=as_json)
    if as_json:
        output.json({"task": task, "letter_id": posted.letter_id})
    else:
        output.line((one_line(task), "bold"), f": {said}")
    return FINE
