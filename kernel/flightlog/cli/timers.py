"""`flightlog timer`: have a session woken at a time, look at its timers, cancel them."""

from __future__ import annotations

from datetime import datetime

import click
from attrs import asdict

from flightlog import Mailbox, Posted, TimerSummary
from flightlog.cli.exits import FINE
from flightlog.cli.letters import key_option, posted
from flightlog.cli.moments import MomentType, SpanType
from flightlog.cli.numbers import WholeType
from flightlog.cli.options import db_option, json_option, log_to_read
from flightlog.cli.output import Output
from flightlog.cli.terminal_text import one_line
from flightlog.runtime.reader import open_log
from flightlog.runtime.waking import datetime_of
from flightlog_hookspecs.errors import UsageError

by_option = click.option("--by", metavar="NAME", default="user", show_default=True, help="Who wants it.")


@click.group(short_help="Have a session woken at a time; list and cancel timers.")
def timer() -> None:
    """Timers: messages that a session is sent at their time, once or again and again."""


@timer.command("set", short_help="Have a session woken.")
@click.argument("session", metavar="ID")
@click.argument("text")
@click.option("--at", type=MomentType(), metavar="TIME", help="When: 2030-01-31T18:00, +2h. Past: at once.")
@click.option("--after", type=SpanType(), metavar="SPAN", help="When, from now: 90s, 45m, 2h30m, 1d.")
@click.option("--every", type=SpanType(), metavar="SPAN", help="Again and again, first after one SPAN or --at TIME.")
@click.option("--times", type=WholeType(1), metavar="N", help="With --every: N times in all.")
@click.option("--until", type=MomentType(), metavar="TIME", help="With --every: not after TIME.")
@by_option
@key_option
@db_option
@json_option
def set_command(
    session: str,
    text: str,
    at: datetime | None,
    after: int | None,
    every: int | None,
    times: int | None,
    until: datetime | None,
    by: str,
    key: str | None,
    db: str | None,
    as_json: bool,
) -> int:
    """Send TEXT to session ID at its time. Who drives the session then lets the timer fire, or the next who does."""
    if (at is not None) + (after is not None) != 1 and every is None:
        raise UsageError("when? Give --at TIME, --after SPAN or --every SPAN")
    if after is not None and every is not None:
        raise UsageError("--every begins after one SPAN; --at says when instead, --after has no part in it")
    if every is None and (times is not None or until is not None):
        raise UsageError("--times and --until end what repeats: give --every SPAN, too")

    async def post(mailbox: Mailbox) -> Posted:
        if every is not None:
            return await mailbox.wake_every(every, text, first=at, until=until, times=times, by=by, key=key)
        if at is not None:
            return await mailbox.wake_at(at, text, by=by, key=key)
        assert after is not None, "one of the three was given"
        return await mailbox.wake_after(after, text, by=by, key=key)

    return posted(db, session, post, "timer sent", as_json=as_json)


@timer.command("list", short_help="List timers.")
@click.argument("session", metavar="ID", required=False)
@click.option("--all", "ended", is_flag=True, help="Also those that have fired for the last time or were cancelled.")
@db_option
@json_option
def list_command(session: str | None, ended: bool, db: str | None, as_json: bool) -> int:
    """List the open timers of session ID, or of all sessions: what is due first stands first.

    Letters that no owner has taken yet are not among them.
    """
    output = Output(as_json=as_json)
    with open_log(log_to_read(db), discover=False) as log:
        rows = log.timers(session, ended=ended)
    for row in rows:
        if as_json:
            output.json(asdict(row))
        else:
            output.line(*_line(row))
    if not rows and not as_json:
        output.line(("no open timers" if not ended else "no timers", "dim"))
    return FINE


@timer.command("cancel", short_help="Cancel a timer.")
@click.argument("session", metavar="ID")
@click.argument("name", metavar="TIMER")
@by_option
@key_option
@db_option
@json_option
def cancel_command(session: str, name: str, by: str, key: str | None, db: str | None, as_json: bool) -> int:
    """Let TIMER of session ID not fire any more."""

    async def post(mailbox: Mailbox) -> Posted:
        return await mailbox.cancel_timer(name, by, key=key)

    return posted(db, session, post, "cancel of the timer sent", as_json=as_json)


def _line(row: TimerSummary) -> tuple[tuple[str, str] | str, ...]:
    due = row.state if row.due_at_us is None else datetime_of(row.due_at_us).isoformat(timespec="seconds")
    again = "" if row.every_us is None else f", every {row.every_us / 1_000_000:g} s"
    return (one_line(row.session), "bold"), f" {one_line(row.timer)} {due}{again}: {one_line(row.text, 200)}"
