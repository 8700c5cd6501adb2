"""DBOS on SQLite: the three messages are steps of one workflow that goes round, or of a workflow each time.

Its connections have SQLite's defaults: a rollback journal, synchronous FULL.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from dbos import DBOS, SetWorkflowID

from contestants.step import NAME, Contestant, Pace, arguments, question, result

WORK: list[Pace] = []
"""What the workflow asks between its steps; nothing in a process that resumes it."""
FIRST_NEW: list[int] = []
"""The first step that a resumed workflow really did."""
REACHED = threading.Event()


@DBOS.step()
def user(number: int) -> dict[str, str]:
    """Ask."""
    if not WORK:
        FIRST_NEW.append(number)
        REACHED.set()
        threading.Event().wait()
    return {"role": "user", "content": question(number)}


@DBOS.step()
def model(number: int) -> dict[str, str]:
    """Answer with a call."""
    return {"role": "assistant", "call_id": f"call-{number}", "name": NAME, "arguments": arguments(number)}


@DBOS.step()
def tools(number: int) -> dict[str, str]:
    """Carry out the call."""
    return {"role": "tool", "call_id": f"call-{number}", "content": result(number)}


def messages(number: int) -> list[dict[str, str]]:
    """The messages of a step, each of them durable once it is there."""
    return [user(number), model(number), tools(number)]


@DBOS.workflow()
def going_round() -> None:
    """All steps."""
    number = 0
    while not WORK or WORK[0].more():
        said = messages(number)
        assert [said[0]["content"], said[1]["arguments"], said[2]["content"]] == [
            question(number),
            arguments(number),
            result(number),
        ]
        number += 1


@DBOS.workflow()
def one_step(number: int) -> list[dict[str, str]]:
    """One step."""
    return messages(number)


def launch(folder: Path) -> None:
    """Start DBOS, which goes on with what was not done."""
    config: Any = {
        "name": "bench",
        "system_database_url": f"sqlite:///{folder / 'dbos.db'}",
        "application_version": "1",
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()


def run_loop(folder: Path, pace: Pace) -> None:
    """One workflow."""
    WORK.append(pace)
    launch(folder)
    going_round()


def resume_loop(folder: Path) -> int:
    """Let DBOS do the workflow again, up to the first step whose outcome it does not know."""
    launch(folder)
    assert REACHED.wait(600)
    return FIRST_NEW[0]


def run_each(folder: Path, pace: Pace) -> None:
    """A workflow each."""
    WORK.append(pace)
    launch(folder)
    number = 0
    while pace.more():
        with SetWorkflowID(f"step-{number}"):
            one_step(number)
        number += 1


def resume_each(folder: Path) -> int:
    """Read what the workflows returned."""
    launch(folder)
    done = {workflow.workflow_id: workflow for workflow in DBOS.list_workflows(status="SUCCESS")}
    for number in range(len(done)):
        said = done[f"step-{number}"].output
        assert [said[0]["content"], said[1]["arguments"], said[2]["content"]] == [
            question(number),
            arguments(number),
            result(number),
        ]
    return len(done)


CONTESTANTS = {
    "DBOS, one workflow": Contestant(run_loop, resume_loop),
    "DBOS, a workflow per step": Contestant(run_each, resume_each),
}
