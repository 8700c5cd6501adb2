"""`flightlog task report`: what became of a task, for people and programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from flightlog.cli.exits import FINE
from flightlog.cli.json_form import plain
from flightlog.cli.options import db_option, json_option, log_to_read
from flightlog.cli.output import Output
from flightlog.cli.task_styles import STYLES
from flightlog.cli.terminal_text import arguments, cost, counted, duration, moment, one_line, visible
from flightlog.core.report import CheckReport, DoubtReport, StepReport, TaskReport, report_of
from flightlog.runtime.reader import open_log

_WORDS_MAX_CHARS: Final = 300


@click.command(short_help="Report on a task, also a failed one.")
@click.argument("name", metavar="ID")
@db_option
@json_option
def report(name: str, db: str | None, as_json: bool) -> int:
    """Say what became of task ID: its steps, what they cost, why it stopped, and what nobody knows."""
    output = Output(as_json=as_json)
    with open_log(log_to_read(db), discover=False) as log:
        log.task(name)  # raises when there is none
        found = report_of(log.session(name).records())
    if as_json:
        output.json(plain(found))
    else:
        show_report(output, found)
    return FINE


def show_report(output: Output, report: TaskReport) -> None:
    """Print `report`."""
    at = report.at
    output.line((one_line(report.task), "bold"), "  ", (at.state, STYLES.get(at.state, "bold")))
    output.line(visible(report.goal))
    if report.parameters != "{}":
        output.line(("with ", "dim"), arguments(report.parameters))
    for line in _facts(report):
        output.line(line)
    for part, lines in (
        ("Steps", list(_steps(report))),
        ("Recoveries", [f"{moment(move.at_us)}  row {move.seq}" for move in report.recoveries]),
        ("Cut off", [line for doubt in report.doubts for line in _doubt(doubt)]),
        ("Noted", [f"{one_line(fact.name)}: {one_line(fact.text, _WORDS_MAX_CHARS)}" for fact in report.facts]),
        ("Put off", [one_line(goal, _WORDS_MAX_CHARS) for goal in report.put_off]),
        ("Open questions", [f"row {one.seq}: {one_line(one.question, _WORDS_MAX_CHARS)}" for one in report.questions]),
        ("Faults of plugins", [one_line(fault, _WORDS_MAX_CHARS) for fault in report.faults]),
    ):
        if lines:
            output.line("")
            output.line((part, "bold"))
            for line in lines:
                output.line(f"  {line}")


def _facts(report: TaskReport) -> Iterator[str]:
    at = report.at
    why = ": ".join(filter(None, (one_line(at.cause), one_line(at.message, _WORDS_MAX_CHARS))))
    yield f"{at.state} since {moment(at.at_us)}" + (f"  {why}" if why else "")
    goal = {True: "met", False: "not met", None: "not checked"}[report.goal_met]
    if report.goal_check:
        yield f"goal check {one_line(report.goal_check)}: {goal}"
    tokens = sum(step.input_tokens for step in report.steps), sum(step.output_tokens for step in report.steps)
    calls = sum(len(step.calls) for step in report.steps)
    took = sum(step.duration_us or 0 for step in report.steps)
    yield (
        f"{len(report.steps)} of {counted(report.max_steps, 'step')}, {counted(calls, 'call')}, "
        f"{tokens[0]:,} tokens in, {tokens[1]:,} out, {duration(took)} of work"
    )
    if report.costs_pico:
        yield f"cost {cost(dict(report.costs_pico), report.unpriced)}"


def _steps(report: TaskReport) -> Iterator[str]:
    ends = {end.turn: end for end in report.turns}
    for number, step in enumerate(report.steps):
        yield _step(step)
        if step.model_said.strip():
            yield f"     {one_line(step.model_said, _WORDS_MAX_CHARS)}"
        for call in step.calls:
            outcome = (call.outcome or "open") + (f", says {call.told_by}" if call.told_by else "")
            took = f" in {duration(call.duration_us)}" if call.outcome in ("ok", "error", "timeout") else ""
            yield f"     {one_line(call.name)}({arguments(call.arguments)}): {outcome}{took}"
        for check in report.checks:
            if (check.turn, check.step) == (step.turn, step.step):
                yield f"     {_check(check)}"
        last = number + 1 == len(report.steps) or report.steps[number + 1].turn != step.turn
        if last and (end := ends.get(step.turn)):
            why = ": ".join(filter(None, (end.reason, end.cause, end.code, one_line(end.message, _WORDS_MAX_CHARS))))
            yield f"     turn {step.turn} ended, {why}"


def _step(step: StepReport) -> str:
    took = "open" if step.duration_us is None else duration(step.duration_us)
    tokens = f"{step.input_tokens:,} tokens in, {step.output_tokens:,} out"
    attempts = f", {counted(step.attempts, 'attempt')}" if step.attempts != 1 else ""
    return f"{step.turn}.{step.step}  {took}, {tokens}{attempts}"


def _check(check: CheckReport) -> str:
    found = "met" if check.met else f"missing: {one_line(check.missing, _WORDS_MAX_CHARS)}"
    return f"goal check {one_line(check.check)}: {found}"


def _doubt(doubt: DoubtReport) -> Iterator[str]:
    knows = f"{doubt.outcome}, says {doubt.told_by}" if doubt.told_by else "outcome unknown: it may have taken effect"
    yield f"{doubt.turn}.{doubt.step}  {one_line(doubt.name)}({arguments(doubt.arguments)}): {knows} (row {doubt.seq})"
    for answer in doubt.answers:
        why = f": {one_line(answer.reason, _WORDS_MAX_CHARS)}" if answer.reason else ""
        yield f"     {one_line(answer.by)} said {answer.decision} (row {answer.seq}){why}"
    for outcome in doubt.called_again:
        yield f"     called again: {outcome}"
