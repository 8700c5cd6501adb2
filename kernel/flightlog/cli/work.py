"""`flightlog work`: a worker, with what its tasks do as it happens."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from signal import SIGINT, SIGTERM

import click
import trio
from attrs import frozen

from flightlog import Kernel, Quotas
from flightlog.api import open_kernel
from flightlog.cli.exits import FAILED, FINE, TERMINATED, sentence
from flightlog.cli.json_form import record_form
from flightlog.cli.numbers import SecondsType, WholeType
from flightlog.cli.options import db_option, json_option, log_to_read, log_to_write
from flightlog.cli.output import Output, complain
from flightlog.cli.quota_options import quota_options, quotas_of
from flightlog.cli.verify_option import verify_option
from flightlog.cli.work_view import WorkView
from flightlog.runtime.recovery import Verify
from flightlog.runtime.watchdog import watch


@frozen(kw_only=True)
class Order:
    """What the user asked for."""

    db: str
    tasks_at_once: int
    until_idle: bool
    take_over: tuple[str, ...]
    grace_s: float
    stall_limit_s: float
    workspace: str | None
    verify: Verify
    quotas: Quotas
    as_json: bool


@click.command(short_help="Carry out tasks.")
@click.option("--tasks", "tasks_at_once", metavar="N", type=WholeType(1), default=4, show_default=True, help="At once.")
@click.option("--until-idle", is_flag=True, help="Leave once there is nothing to do right now.")
@click.option("--take-over", metavar="ID", multiple=True, help="Take this task from an owner that is stuck.")
@click.option(
    "--grace",
    "grace_s",
    metavar="S",
    type=SecondsType(0),
    default=30.0,
    show_default=True,
    help="How long tasks may take to finish their step when it is to leave.",
)
@click.option(
    "--stall-limit",
    "stall_limit_s",
    metavar="S",
    type=SecondsType(1),
    default=60.0,
    show_default=True,
    help="It ends itself once it has stood still for so long, and others take its tasks up.",
)
@click.option(
    "--workspace",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="The folder tools may work in. Default: none.",
)
@quota_options
@verify_option
@db_option
@json_option
def work(
    tasks_at_once: int,
    until_idle: bool,
    take_over: tuple[str, ...],
    grace_s: float,
    stall_limit_s: float,
    workspace: str | None,
    rates: tuple[str, ...],
    pools: tuple[str, ...],
    tasks_in_file: int | None,
    verify: Verify,
    db: str | None,
    as_json: bool,
) -> int:
    """Take up tasks and carry them out: those that a dead worker left first, then by class and order of submission.

    Any number of workers may share a log. SIGTERM and Ctrl+C let each task finish its step and leave it to the next
    worker; a second one cuts them off, a third leaves at once.
    """
    order = Order(
        db=log_to_read(db) if take_over else log_to_write(db),
        tasks_at_once=tasks_at_once,
        until_idle=until_idle,
        take_over=take_over,
        grace_s=grace_s,
        stall_limit_s=stall_limit_s,
        workspace=workspace,
        verify=verify,
        quotas=quotas_of(rates, pools, tasks_in_file),
        as_json=as_json,
    )
    return trio.run(_work, order)


async def _work(order: Order) -> int:
    output = Output(as_json=order.as_json, outlives_reader=True)
    view = WorkView((lambda record: output.json(record_form(record))) if order.as_json else None, output)
    failed = False

    def problem(task: str, error: Exception) -> None:
        nonlocal failed
        failed = True
        complain(f"task {task} is left alone: {sentence(error)}")

    with trio.open_signal_receiver(SIGINT, SIGTERM) as signals:
        async with (
            open_kernel(
                order.db,
                workspace=order.workspace,
                on_boundary=view.on_boundary,
                quotas=order.quotas,
                verify=order.verify,
            ) as kernel,
            trio.open_nursery() as nursery,
        ):
            for trouble in kernel.registry.problems:
                complain(trouble.said)
            leaving = Leaving(kernel, order.grace_s)
            nursery.start_soon(watch, order.stall_limit_s)
            nursery.start_soon(leaving.heed, signals)
            nursery.start_soon(view.follow, kernel)
            with leaving.scope:
                await kernel.work(
                    tasks_at_once=order.tasks_at_once,
                    until_idle=order.until_idle,
                    take_over=order.take_over,
                    on_problem=problem,
                )
            await view.finish()
            nursery.cancel_scope.cancel()
    return leaving.code or (FAILED if failed or view.failed else FINE)


class Leaving:
    """What signals do to a worker. `code` is 0 until SIGTERM came; `scope` surrounds the work."""

    def __init__(self, kernel: Kernel, grace_s: float) -> None:
        self.code = FINE
        self.scope = trio.CancelScope()
        self._kernel = kernel
        self._grace_s = grace_s

    async def heed(self, signals: AsyncIterator[int]) -> None:
        """Obey `signals`, until cancelled."""
        count = 0
        async for number in signals:
            count += 1
            self.code = TERMINATED if number == SIGTERM else self.code
            if count == 1:
                complain("leaving; each task finishes its step, once more cuts them off")
                self._kernel.leave_work(grace_s=self._grace_s)
            elif count == 2:
                complain("leaving; tools that run are cut off, once more kills")
                self.scope.cancel()
            else:
                # To the log this is a death like any other: the next worker takes the tasks up.
                complain("left at once; the log is whole")
                os._exit(self.code or FAILED)
