"""`flightlog task fork`: let a task go on from an earlier checkpoint, as another one."""

from __future__ import annotations

import click
import trio

from flightlog.api import open_kernel
from flightlog.cli.exits import FINE
from flightlog.cli.numbers import WholeType
from flightlog.cli.options import db_option, json_option, log_to_read
from flightlog.cli.output import Output
from flightlog.cli.terminal_text import one_line


@click.command(short_help="Go on from an earlier checkpoint in a new task.")
@click.argument("name", metavar="ID")
@click.option("--checkpoint", metavar="SEQ", type=WholeType(1), required=True, help="The row it stands in.")
@click.option("--id", "new", metavar="ID", help="The new task's id. Default: one is made.")
@db_option
@json_option
def fork(name: str, checkpoint: int, new: str | None, db: str | None, as_json: bool) -> int:
    """Make a new task of the steps that task ID had finished by a checkpoint, and print its id.

    It waits for a worker, with the goal and the limits that held there. ID is not changed, and may be running. The view
    `checkpoints` lists them: flightlog query "SELECT seq, steps, summary FROM checkpoints WHERE session = 'ID'".
    """
    path = log_to_read(db)

    async def main() -> str:
        async with open_kernel(path) as kernel:
            return await kernel.fork_task(name, checkpoint, id=new)

    made = trio.run(main)
    output = Output(as_json=as_json)
    if as_json:
        output.json({"id": made, "origin": name, "checkpoint": checkpoint})
    else:
        output.line(one_line(made))
    return FINE
