"""`flightlog task`: submit tasks, look at them, wait for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Final, get_args

import click
import trio
from rich.table import Table
from rich.text import Text

from flightlog import SubGoal, TaskSummary
from flightlog.api import open_kernel
from flightlog.cli.exits import FAILED, FINE
from flightlog.cli.json_form import plain
from flightlog.cli.letters import key_option, open_questions
from flightlog.cli.model_option import addressed
from flightlog.cli.moments import MomentType, SpanType
from flightlog.cli.numbers import WholeType
from flightlog.cli.options import db_option, json_option, log_to_read, log_to_write
from flightlog.cli.output import Output
from flightlog.cli.quota_options import budget_of
from flightlog.cli.task_fork import fork
from flightlog.cli.task_letters import amend, answer, answers_of, cancel, grant, parameters_of, pause, resume, steer
from flightlog.cli.task_report import report
from flightlog.cli.task_styles import STYLES
from flightlog.cli.terminal_text import moment, one_line, visible
from flightlog.runtime.reader import open_log
from flightlog_hookspecs.events import TaskClass, TaskStateName

_LISTED: Final = 50


@click.group(short_help="Submit tasks, look at them, steer them.")
def task() -> None:
    """Tasks: goals that workers carry out, through any number of crashes. `flightlog work` is a worker."""


@task.command(short_help="Enter a task for the next worker.")
@click.argument("goal")
@click.option("--model", metavar="ADAPTER:MODEL", help="Default: scripted:echo.")
@click.option("--base-url", metavar="URL", help="Where the model is; the same as ?base_url=URL in its name.")
@click.option("--system", metavar="TEXT", default="", help="The system text.")
@click.option("--parameter", "named", metavar="NAME=VALUE", multiple=True, help="VALUE is JSON or a text. Repeatable.")
@click.option(
    "--class",
    "task_class",
    type=click.Choice(get_args(TaskClass)),
    default="normal",
    show_default=True,
    help="Core tasks go before normal ones, batch tasks after.",
)
@click.option(
    "--max-steps",
    metavar="N",
    type=WholeType(1),
    default=30,
    show_default=True,
    help="It fails when it needs more steps.",
)
@click.option(
    "--max-recoveries",
    metavar="N",
    type=WholeType(0),
    default=5,
    show_default=True,
    help="It fails when so many workers in a row die on it, and rests when more are ended in the middle of a step.",
)
@click.option(
    "--max-input-tokens", metavar="N", type=WholeType(1), help="It rests when a request would have more tokens."
)
@click.option("--due", metavar="TIME", type=MomentType(), help="When it may begin: 2030-01-31T18:00, +2h.")
@click.option("--every", metavar="SPAN", type=SpanType(), help="Have the goal come again: 45m, 2h30m, 1d.")
@click.option("--times", metavar="N", type=WholeType(1), help="With --every: N times in all.")
@click.option("--until", metavar="TIME", type=MomentType(), help="With --every: not after TIME.")
@click.option("--deadline", metavar="TIME", type=MomentType(), help="When it fails unless it has ended.")
@click.option("--goal-check", metavar="NAME", default="", help="The check that decides whether the goal is met.")
@click.option(
    "--budget", "cards", metavar="CARD=N", multiple=True, help="tokens=500000, calls:send_mail=3, … Repeatable."
)
@click.option(
    "--main-goal", "main_goals", metavar="TEXT", multiple=True, help="A part that is always done. Repeatable."
)
@click.option(
    "--sub-goal",
    "sub_goals",
    metavar="TEXT",
    multiple=True,
    help="A part that is put off as tokens run out. Repeatable.",
)
@click.option("--smaller-model", metavar="ADAPTER:MODEL", default="", help="The one that serves as tokens run out.")
@click.option("--agent", metavar="NAME", default="", help="Name and version of your program, for the log.")
@click.option("--id", "name", metavar="ID", help="Its id. Default: one is made.")
@key_option
@db_option
@json_option
def submit(
    goal: str,
    model: str | None,
    base_url: str | None,
    system: str,
    named: tuple[str, ...],
    task_class: TaskClass,
    max_steps: int,
    max_recoveries: int,
    max_input_tokens: int | None,
    due: datetime | None,
    every: int | None,
    times: int | None,
    until: datetime | None,
    deadline: datetime | None,
    goal_check: str,
    cards: tuple[str, ...],
    main_goals: tuple[str, ...],
    sub_goals: tuple[str, ...],
    smaller_model: str,
    agent: str,
    name: str | None,
    key: str | None,
    db: str | None,
    as_json: bool,
) -> int:
    """Enter a task to reach GOAL, durably, and print its id. Nothing runs until a worker takes it up."""
    path, budget = log_to_write(db), budget_of(cards)
    parts = [SubGoal(text=text, core=True) for text in main_goals] + [SubGoal(text=text) for text in sub_goals]

    async def main() -> str:
        async with open_kernel(path, agent=agent) as kernel:
            return await kernel.tasks.submit(
                goal,
                model=addressed(model, base_url),
                system=system,
                parameters=parameters_of(named),
                task_class=task_class,
                max_steps=max_steps,
                max_recoveries=max_recoveries,
                max_input_tokens=max_input_tokens,
                due=due,
                every_s=every,
                times=times,
                until=until,
                deadline=deadline,
                goal_check=goal_check,
                budget=budget,
                sub_goals=parts,
                smaller_model=smaller_model,
                key=key,
                id=name,
            )

    entered = trio.run(main)
    output = Output(as_json=as_json)
    if as_json:
        output.json({"id": entered})
    else:
        output.line(one_line(entered))
    return FINE


@task.command("list", short_help="List the tasks.")
@click.option("--state", type=click.Choice(get_args(TaskStateName)), help="Only those in this state.")
@click.option("--limit", metavar="N", type=WholeType(1), help="At most N of them. [50, with --json all]")
@db_option
@json_option
def list_command(state: TaskStateName | None, limit: int | None, db: str | None, as_json: bool) -> int:
    """List the tasks, the last submitted first."""
    output = Output(as_json=as_json)
    with open_log(log_to_read(db), discover=False) as log:
        found = log.tasks(state, limit=limit if as_json else limit or _LISTED)
    if as_json:
        output.json([plain(summary) for summary in found])
    elif found:
        output.table(_listing(found))
    else:
        output.line(("no tasks", "dim"))
    return FINE


@task.command(short_help="Show a task.")
@click.argument("name", metavar="ID")
@db_option
@json_option
def show(name: str, db: str | None, as_json: bool) -> int:
    """Show how task ID stands, and what it asks. `flightlog show ID` shows all that happened in it."""
    output = Output(as_json=as_json)
    with open_log(log_to_read(db), discover=False) as log:
        summary = log.task(name)
        questions = open_questions(log.session(name)) if summary.state == "paused" else []
        budget = log.session(name).budget()
    if as_json:
        cards = [plain(card) for card in budget]
        output.json(plain(summary) | {"questions": [question.form for question in questions], "budget": cards})
        return FINE
    _describe(output, summary)
    for card in budget:
        used = "" if card.used is None else f"{card.used} of "
        output.line((f"{one_line(card.card):10} ", "dim"), (f"{used}{card.most}", "yellow" if card.warned else ""))
    for question in questions:
        output.line(("? ", "yellow"), one_line(question.asked.question, 2000))
        output.line((f"  flightlog task answer {name} {question.seq} {answers_of(question.asked.about)}", "dim"))
    return FINE


@task.command(short_help="Wait until a task has ended or is paused.")
@click.argument("name", metavar="ID")
@db_option
@json_option
def wait(name: str, db: str | None, as_json: bool) -> int:
    """Wait until task ID has ended or is paused; the exit code is 0 only when it is completed."""
    path = log_to_read(db)

    async def main() -> TaskSummary:
        async with open_kernel(path, discover=False) as kernel:
            return await kernel.tasks.wait(name)

    summary = trio.run(main)
    output = Output(as_json=as_json)
    if as_json:
        output.json(plain(summary))
    else:
        output.line(*standing(summary))
    return FINE if summary.state == "completed" else FAILED


for command in (report, pause, resume, cancel, steer, amend, grant, answer, fork):
    task.add_command(command)


def standing(summary: TaskSummary) -> list[str | tuple[str, str]]:
    """One line about where a task stands, in styled parts."""
    why = ": ".join(filter(None, (summary.cause, summary.message)))
    parts: list[str | tuple[str, str]] = [(one_line(summary.id), "bold"), " "]
    parts.append((summary.state, STYLES.get(summary.state, "")))
    return [*parts, (f" ({one_line(why)})", "dim")] if why else parts


def _describe(output: Output, summary: TaskSummary) -> None:
    output.line(*standing(summary))
    output.line(visible(summary.goal))
    if summary.parameters:
        output.line((visible(json.dumps(summary.parameters, ensure_ascii=False)), "dim"))
    facts = {
        "class": summary.task_class,
        "model": summary.model,
        "agent": summary.agent,
        "goal check": summary.goal_check,
        "goal met": "" if summary.goal_met is None else "yes" if summary.goal_met else "no",
        "steps": f"{summary.steps} of {summary.max_steps}",
        "recoveries": str(summary.recoveries or ""),
        "submitted": moment(summary.submitted_at_us),
        "changed": moment(summary.changed_at_us),
        "due": moment(summary.due_at_us) if summary.due_at_us else "",
        "deadline": moment(summary.deadline_us) if summary.deadline_us else "",
    }
    for name, fact in facts.items():
        if fact:
            output.line((f"{name:11}", "dim"), one_line(fact))


def _listing(found: Sequence[TaskSummary]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("task", "class", "state", "steps", "goal"):
        table.add_column(header, justify="right" if header == "steps" else "left", no_wrap=header != "goal")
    for summary in found:
        state = " ".join(filter(None, (summary.state, summary.cause)))
        table.add_row(
            Text(one_line(summary.id)),
            summary.task_class,
            Text(one_line(state), style=STYLES.get(summary.state, "")),
            f"{summary.steps}/{summary.max_steps}",
            Text(one_line(summary.goal, 60)),
        )
    return table
