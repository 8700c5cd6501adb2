"""`flightlog query`: SQL over the views, to read only."""

from __future__ import annotations

import math
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from flightlog.cli.exits import FAILED, FINE
from flightlog.cli.numbers import SecondsType, WholeType
from flightlog.cli.options import db_option, json_option, log_to_read
from flightlog.cli.output import Output, complain
from flightlog.cli.terminal_text import counted, one_line
from flightlog.core.limits import QUERY_MAX_ROWS, QUERY_MAX_S
from flightlog.runtime.reader import open_log
from flightlog_hookspecs.errors import LimitExceeded


@click.command(short_help="Run one SELECT over the log.")
@click.argument("sql")
@click.option("--limit-rows", metavar="N", default=QUERY_MAX_ROWS, type=WholeType(0), help="Cut off behind N rows.")
@click.option("--limit-s", metavar="S", default=QUERY_MAX_S, type=SecondsType(0), help="Give up after S seconds.")
@db_option
@json_option
def query(sql: str, limit_rows: int, limit_s: float, db: str | None, as_json: bool) -> int:
    """Run SQL, one SELECT over the views and tables of the log. Nothing can be changed with it."""
    path = log_to_read(db)
    output = Output(as_json=as_json)
    with open_log(path, discover=False) as log:
        try:
            found = log.query(sql, limit_rows=limit_rows, limit_s=limit_s)
        except LimitExceeded as error:
            complain(str(error))
            return FAILED
    if as_json:
        rows = [[_json_value(value) for value in row] for row in found.rows]
        output.json({"columns": found.columns, "rows": rows, "complete": found.complete})
        return FINE
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in found.columns:
        table.add_column(one_line(column), overflow="fold")
    for row in found.rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    output.table(table)
    if not found.complete:
        complain(f"there are more; these are the first {counted(limit_rows, 'row')} (--limit-rows)")
    return FINE


def _json_value(value: Any) -> Any:
    """As JSON has it: bytes in hex, a number that JSON has no word for by its name."""
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return one_line(value.hex() if isinstance(value, bytes) else str(value))
