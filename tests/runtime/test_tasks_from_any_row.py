"""A worker that dies anywhere costs its task nothing: the next one brings it to the same end."""

from __future__ import annotations

from pathlib import Path

import pytest

from flightlog import Kernel
from flightlog.events import ApprovalAsked, SessionOpened, TaskState, ToolResult, UserMessage
from flightlog.testing import Bundle, FakeModel, calls, words
from flightlog_hookspecs import Ask, Hook, ToolContext, tool
from support.cutting import cut_log
from support.kernels import events_of, opened, records_of, verified

REPLIES = [
    calls(("sweep", {"room": "hall"})),
    calls(("sweep", {"room": "attic"}), ("sweep", {"room": "cellar"})),
    words("All is swept."),
]
GUARD = Hook(point="before_tool", body=lambda call: Ask("may I?") if "attic" in call.arguments else None, name="guard")


class House:
    """What has been swept, by whichever worker: the invocation ids of each room."""

    def __init__(self) -> None:
        self.swept: dict[str, set[str]] = {}

    async def work(self, path: Path, boundaries: list[int] | None = None) -> str:
        """Work until the task rests, answering what it asks; returns its state."""

        @tool(mode="parallel", effect="idempotent")
        async def sweep(context: ToolContext, room: str) -> str:
            """Sweep a room."""
            self.swept.setdefault(room, set()).add(context.invocation_id)
            return f"{room} swept"

        def committed(name: str, session: str, seq: int) -> None:
            if name == "committed" and session == "t" and boundaries is not None:
                boundaries.append(seq)

        model = FakeModel(REPLIES)
        hooks = [Bundle(hooks=[GUARD])]
        async with opened(path, model, sweep, plugins=hooks, on_boundary=committed) as kernel:
            for _ in range(3):
                await kernel.work(until_idle=True)
                if (await kernel.tasks.show("t")).state != "paused":
                    break
                await allow_all(kernel, path)
            return (await kernel.tasks.show("t")).state


async def allow_all(kernel: Kernel, path: Path) -> None:
    for record in records_of(path, "t"):
        if isinstance(record.event, ApprovalAsked):
            await kernel.tasks.answer("t", record.seq, "allow")


@pytest.fixture
async def flight(tmp_path: Path) -> tuple[Path, list[int]]:
    """A whole flight of a task, and the rows that appends end with."""
    path, boundaries = tmp_path / "a.db", [2]
    async with opened(path, FakeModel([])) as kernel:
        await kernel.tasks.submit("sweep the house", model="fake:m", id="t", max_recoveries=3)
    assert await House().work(path, boundaries) == "completed"
    return path, boundaries


async def test_a_task_comes_to_the_same_end_from_wherever_its_worker_died(
    flight: tuple[Path, list[int]], tmp_path: Path
) -> None:
    path, boundaries = flight
    for rows in boundaries:
        cut, house = tmp_path / f"{rows}.db", House()
        cut_log(path, cut, rows, "t")
        assert await house.work(cut) == "completed", rows
        states = [event.state for event in events_of(cut, TaskState, "t")]
        assert states.count("completed") == 1
        assert states.count("recovering") <= 1
        sources = [event.source for event in events_of(cut, UserMessage, "t")]
        assert [source for source in sources if source != "resync"] == ["user"], rows
        assert sources.count("resync") < len(events_of(cut, SessionOpened, "t")), rows
        assert sorted(event.outcome for event in events_of(cut, ToolResult, "t")) == ["ok"] * 3, rows
        assert all(len(invocations) == 1 for invocations in house.swept.values()), rows
        verified(cut, FakeModel([]), name="t")


async def test_a_task_survives_workers_that_die_one_after_the_other(
    flight: tuple[Path, list[int]], tmp_path: Path
) -> None:
    path, boundaries = flight
    for rows in boundaries[::3]:
        cut, again, ends = tmp_path / f"{rows}.db", tmp_path / f"{rows}-again.db", list[int]()
        cut_log(path, cut, rows, "t")
        assert await House().work(cut, ends) == "completed"
        for later in ends[::4]:
            again.unlink(missing_ok=True)
            for companion in tmp_path.glob(f"{again.name}-*"):
                companion.unlink()
            cut_log(cut, again, later, "t")
            assert await House().work(again) == "completed", (rows, later)
            sources = [event.source for event in events_of(again, UserMessage, "t")]
            assert [source for source in sources if source != "resync"] == ["user"]
            assert sources.count("resync") < len(events_of(again, SessionOpened, "t"))
