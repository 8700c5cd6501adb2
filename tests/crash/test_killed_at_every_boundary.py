"""Real SIGKILLs at every boundary of a run, some again during the recovery: nothing is lost, nothing is doubled."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flightlog.core.files import files_in
from flightlog.testing.memory import memory_folder
from flightlog_hookspecs.events import Record, ToolCall, ToolResult, TurnEnd, UserMessage
from support.children import fork_server
from support.conversation import assert_at_rest, assert_effects
from support.kernels import records_of

from child import GIVEN, MADE, MESSAGES, TASKS, Working  # isort: skip

Run = Callable[[Path, int], int]
KILLED = -signal.SIGKILL

pytestmark = pytest.mark.kill


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder in memory if there is one: a SIGKILL does not lose what the file system has."""
    with memory_folder() as made:
        yield made


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Let a child work in a folder until it is done or dies at a boundary; returns its exit code."""
    with fork_server(Path(__file__).with_name("child.py")) as lived:

        def once(folder: Path, die_at: int) -> int:
            folder.mkdir(exist_ok=True)
            return lived(folder=str(folder), die_at=die_at)

        yield once


def lines(folder: Path, file: str) -> list[str]:
    """What the world has seen."""
    path = folder / file
    return path.read_text().splitlines() if path.exists() else []


def check(folder: Path) -> list[Record]:
    """All the promises, once the work is done."""
    records = assert_at_rest(folder / "a.db", Working([]))
    delivered = Counter(record.event.message_id for record in records if isinstance(record.event, UserMessage))
    assert set(lines(folder, "acknowledged")) <= delivered.keys(), "an acknowledged message was lost"
    assert set(delivered.values()) == {1}
    texts = [record.event.text for record in records if isinstance(record.event, UserMessage)]
    assert [text for text in texts if text != "go on"] == list(MESSAGES)
    for record in records:
        if isinstance(record.event, UserMessage) and record.event.text in MESSAGES:
            assert files_in(record.event) == (GIVEN,)
        if isinstance(record.event, ToolResult) and record.event.outcome == "ok":
            assert files_in(record.event) == (MADE,)
    effects = [line.split() for line in lines(folder, "effects")]
    assert_effects(records, [invocation_id for invocation_id, _, _ in effects])
    unknown = {
        (record.event.name, record.event.call_seq)
        for record in records
        if isinstance(record.event, ToolResult) and record.event.outcome == "unknown"
    }
    times = Counter((effect, task) for _, effect, task in effects)
    for effect in TASKS:
        for number in ("1", "2"):
            happened = times[effect, number]
            if effect in ("read", "idempotent"):
                assert happened >= 1
            else:
                assert happened <= 1, f"{effect} {number} happened {happened} times"
                assert happened == 1 or any(name == effect for name, _ in unknown)
    return records


@pytest.fixture(scope="module")
def total(run: Run, folder: Path) -> int:
    """How many boundaries an undisturbed run has."""
    assert run(folder / "whole", -1) == 0
    return int((folder / "whole" / "boundaries").read_text())


def test_a_run_that_is_not_killed_does_everything_once(total: int, folder: Path) -> None:
    records = check(folder / "whole")
    assert Counter(line.split()[1] for line in lines(folder / "whole", "effects")) == dict.fromkeys(TASKS, 2)
    assert [record.event.reason for record in records if isinstance(record.event, TurnEnd)] == ["completed"] * 2
    assert total > 60


def test_killed_at_every_boundary_and_resumed_nothing_is_lost_or_doubled(run: Run, total: int, folder: Path) -> None:
    outcomes: set[str] = set()
    reasons: set[str] = set()
    for number in range(total):
        here = folder / f"once{number}"
        assert run(here, number) == KILLED
        opened_before = intents(here)
        assert run(here, -1) == 0
        records = check(here)
        assert opened_before <= {r.event.invocation_id for r in records if isinstance(r.event, ToolCall)}
        outcomes |= {record.event.outcome for record in records if isinstance(record.event, ToolResult)}
        reasons |= {record.event.reason for record in records if isinstance(record.event, TurnEnd)}
        shutil.rmtree(here)
    assert outcomes == {"ok", "not_started", "aborted", "unknown"}
    assert reasons == {"completed", "interrupted"}


def intents(folder: Path) -> set[str]:
    """The calls that were committed, and every effect must be among them."""
    path = folder / "a.db"
    if not path.exists() or not lines(folder, "acknowledged"):
        return set()
    found = {r.event.invocation_id for r in records_of(path) if isinstance(r.event, ToolCall)}
    assert {line.split()[0] for line in lines(folder, "effects")} <= found, "an effect without its intent"
    return found


def test_killed_again_during_the_recovery_it_still_arrives_at_the_same_promises(
    run: Run, total: int, folder: Path
) -> None:
    kills = 0
    for number in range(1, total, 3):
        here = folder / f"twice{number}"
        assert run(here, number) == KILLED
        for again in (number // 3 % 8, 1):  # in and around what opening appends
            kills += run(here, again) == KILLED
        assert run(here, -1) == 0
        check(here)
        shutil.rmtree(here)
    assert kills > total // 3
