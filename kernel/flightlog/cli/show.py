"""`flightlog sessions` and `flightlog show`: reading a log. No byte of it is changed."""

from __future__ import annotations

import re
from typing import Any, Final

import click
from attrs import frozen
from rich.table import Table
from rich.text import Text

from flightlog import SentRequest, SessionReader, SessionSummary, Spending
from flightlog.cli.exits import FINE
from flightlog.cli.files import shown
from flightlog.cli.json_form import message_form, plain, record_form
from flightlog.cli.numbers import WholeType
from flightlog.cli.options import db_option, json_option, log_to_read
from flightlog.cli.output import Output
from flightlog.cli.terminal_text import cost, counted, moment, one_line, visible
from flightlog.cli.timeline import condensed, separate, show_entries
from flightlog.runtime.reader import open_log
from flightlog_hookspecs.content import FileBlock, TextBlock, ThinkingBlock, ToolCallBlock
from flightlog_hookspecs.errors import LogCorrupt
from flightlog_hookspecs.events import AssistantMessage, Message, ToolResult, UserMessage

_LISTED_SESSIONS: Final = 50
_STATES: Final = {"completed": "green", "open": "bold yellow", "aborted": "yellow", "interrupted": "yellow"}


@frozen
class Place:
    """A request: turn, step, and attempt or None for the last one."""

    turn: int
    step: int
    attempt: int | None


class PlaceType(click.ParamType[Place]):
    """TURN.STEP or TURN.STEP.ATTEMPT, each counted from 1."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        """Parse it."""
        found = re.fullmatch(r"([1-9]\d{0,8})\.([1-9]\d{0,8})(?:\.([1-9]\d{0,8}))?", str(value), re.ASCII)
        if found is None:
            self.fail(f"{value!r} is not TURN.STEP or TURN.STEP.ATTEMPT, for example 1.2", param, ctx)
        turn, step, attempt = found.groups()
        return Place(int(turn), int(step), int(attempt) if attempt else None)


@click.command(short_help="List the sessions.")
@click.option("--limit", metavar="N", type=WholeType(1), help="At most N of them. [50, with --json all]")
@db_option
@json_option
def sessions(limit: int | None, db: str | None, as_json: bool) -> int:
    """List the sessions, the last used first."""
    path = log_to_read(db)
    output = Output(as_json=as_json)
    with open_log(path, discover=False) as log:
        found = log.sessions(limit if as_json else limit or _LISTED_SESSIONS)
        known = len(log.names())
    if as_json:
        output.json([plain(summary) for summary in found])
    elif found:
        output.table(_listing(found))
        if len(found) < known:
            output.line((f"{len(found):,} of {known:,} sessions; --limit N lists more", "dim"))
    else:
        output.line(("no sessions", "dim"))
    return FINE


@click.command(short_help="Show a session's flight log.")
@click.argument("session", metavar="ID")
@click.option(
    "--request",
    "place",
    metavar="TURN.STEP[.ATTEMPT]",
    type=PlaceType(),
    help="Show exactly what the model saw in that request, the last attempt by default.",
)
@click.option("--deltas", is_flag=True, help="Show each streamed row on a line of its own.")
@db_option
@json_option
def show(session: str, place: Place | None, deltas: bool, db: str | None, as_json: bool) -> int:
    """Show the timeline of session ID, or one request of it."""
    path = log_to_read(db)
    output = Output(as_json=as_json)
    with open_log(path) as log:
        reader = log.session(session)
        if place:
            _show_request(reader.request(place.turn, place.step, place.attempt), session, output)
        else:
            _show_timeline(reader, output, deltas=deltas)
    return FINE


def _listing(found: list[SessionSummary]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("session", "last used (UTC)"):
        table.add_column(name, no_wrap=True)
    for name in ("turns", "events"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("last turn", no_wrap=True)
    table.add_column("title", no_wrap=True)
    for summary in found:
        state = summary.last_reason or "-"
        table.add_row(
            one_line(summary.session),
            moment(summary.last_at_us),
            f"{summary.last_turn or 0:,}",
            f"{summary.last_seq:,}",
            Text(state, style=_STATES.get(state, "red") if summary.last_reason else "dim"),
            one_line(summary.title or (f"child of {summary.parent}" if summary.parent else "")),
        )
    return table


def _show_timeline(reader: SessionReader, output: Output, *, deltas: bool) -> None:
    records = reader.records(deltas=True)
    if output.as_json:
        for record in records:
            output.json(record_form(record))
    else:
        show_entries(separate(records) if deltas else condensed(records), output)
        if spent := reader.usage():
            output.line((_total(spent), "dim"))


def _total(spent: list[Spending]) -> str:
    """What the session spent, on one line."""
    sent = sum(one.input_tokens + one.cached_tokens + one.cache_write_tokens for one in spent)
    total = f"{sent:,} in, {sum(one.output_tokens for one in spent):,} out"
    costs = {one.currency: one.cost_pico for one in spent if one.currency is not None and one.cost_pico is not None}
    unpriced = sum(one.attempts for one in spent if one.cost_pico is None)
    return f"{total} \u00b7 {cost(costs, unpriced)}" if costs else total


def _show_request(request: SentRequest, session: str, output: Output) -> None:
    if output.as_json:
        form = {name: plain(getattr(request, name)) for name in ("turn", "step", "attempt", "seq", "head")}
        messages = [message_form(message) for message in request.messages]
        output.json(
            {"session": session, **form, "messages": messages, "sha256": request.sha256, "proven": request.proven}
        )
    else:
        _print_request(request, output)
    if request.proven is False:
        raise LogCorrupt(
            session,
            request.seq,
            "request-derivable",
            f"adapter {request.head.adapter!r} encodes this request to another hash than the one in the log",
        )


_PROOFS: Final = {
    True: ("proven: encoded again, it has the same hash", "green"),
    False: ("NOT PROVEN: encoded again, it has another hash", "bold red"),
    None: ("not proven: its adapter is not installed", "yellow"),
}


def _print_request(request: SentRequest, output: Output) -> None:
    head = request.head
    output.line(
        (f"turn {request.turn}, step {request.step}, attempt {request.attempt}", "bold"),
        f" \u00b7 row {request.seq} \u00b7 {one_line(head.adapter)}:{one_line(head.model)}",
    )
    output.line(("sha256 ", "dim"), request.sha256)
    output.line(_PROOFS[request.proven])
    if head.parameters != "{}":
        output.line(("parameters ", "dim"), one_line(head.parameters, len(head.parameters)))
    _heading(output, "system")
    output.line(visible(head.system) or ("(none)", "dim"))
    _heading(output, counted(len(head.tools), "tool"))
    for tool in head.tools:
        output.line((one_line(tool.name), "bold"), f": {visible(tool.description)}")
        output.line((visible(tool.parameters), "dim"))
    _heading(output, counted(len(request.messages), "message"))
    for number, message in enumerate(request.messages, 1):
        output.line((f"[{number}] {_speaker(message)}", "bold"))
        for block in message.content:
            match block:
                case TextBlock():
                    output.line(visible(block.text))
                case FileBlock():
                    output.line((shown(block), "cyan"))
                case ThinkingBlock():
                    output.line((visible(block.text), "italic"))
                case ToolCallBlock():
                    call = f"{one_line(block.name)} {visible(block.arguments)}"
                    output.line(("\u25b8 ", "cyan"), call, (f"  {one_line(block.call_id)}", "dim"))


def _heading(output: Output, name: str) -> None:
    output.line((f"\u2500\u2500 {name} ", "cyan"), ("\u2500" * max(0, 60 - len(name)), "dim"))


def _speaker(message: Message) -> str:
    match message:
        case UserMessage():
            return "user" if message.source == "user" else f"user ({message.source})"
        case AssistantMessage():
            return "assistant (interrupted)" if message.interrupted else "assistant"
        case ToolResult():
            return f"tool {one_line(message.name)}, {message.outcome}, {one_line(message.call_id)}"
