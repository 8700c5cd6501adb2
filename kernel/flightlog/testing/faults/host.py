"""What the hosts of several workloads have in common: how they wait, go on, and work on a task until it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from flightlog.api import Kernel
from flightlog.core.budget import QUOTA
from flightlog.core.quotas import NO_BUDGET, Budget
from flightlog.testing.faults.world import Stuck, World
from flightlog_hookspecs.events import ApprovalAsked, ApprovalDecided, BudgetGranted, Record

GO_ON: Final = "go on"
"""A message with this text is the host's way to resume a turn that was interrupted; oracles leave it out."""

MAX_STEPS: Final = 100
MAX_RECOVERIES: Final = 20
"""More than a hunt crashes one task."""

NUDGES_MAX: Final = 20
"""So often a host has things go on before it takes them for stuck."""

PAUSE_S: Final = 0.03


async def pause() -> None:
    """Give a crash time to come between."""
    await trio.sleep(PAUSE_S)


async def work_to_its_end(
    kernel: Kernel, world: World, task: str, *, by: str = "user", more: Budget = NO_BUDGET
) -> None:
    """Work, and answer questions, until the task has ended; whenever its budget is used up, it is granted `more`.

    The host never knows how a call ended.
    """
    for _ in range(NUDGES_MAX):
        await kernel.work(until_idle=True, on_problem=_passed_on)
        shown = await kernel.tasks.show(task)
        if shown.ended:
            return
        if shown.cause == QUOTA and more != NO_BUDGET:
            granted = sum(isinstance(record.event, BudgetGranted) for record in kernel.read(task).records())
            world.posted((await kernel.tasks.grant(task, more, key=f"grant {granted}")).letter_id)
        for seq in _open_questions(list(kernel.read(task).records())):
            answered = await kernel.tasks.answer(task, seq, "unknown", by=by, key=f"answer {seq}")
            world.posted(answered.letter_id)
    raise Stuck(f"task {task!r} does not get anywhere")


def _passed_on(task: str, error: Exception) -> None:
    """A worker's problem is the host's: it stops."""
    raise error


def _open_questions(records: Sequence[Record]) -> list[int]:
    """The rows of the questions that nobody has answered."""
    answered = {record.event.asked_seq for record in records if isinstance(record.event, ApprovalDecided)}
    return [record.seq for record in records if isinstance(record.event, ApprovalAsked) and record.seq not in answered]
