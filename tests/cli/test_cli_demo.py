"""`flightlog demo`, end to end; and that each of its checks can fail."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from flightlog_process import Shell

import flightlog
from flightlog.cli.demo_flight import FlightFailed, fly
from flightlog.cli.demo_proof import Check, Sight, look, prove
from flightlog_hookspecs.events import SessionOpened, TurnEnd

NAMES = [
    "it was killed in mid-stream, without a turn/end",
    "every streamed word was kept",
    "the words are exactly 1 to 300, no gap, no repeat",
    "each tool call took effect exactly once",
    "the last turn is closed",
    "verify accepts the log",
]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a demo that passed, and what it printed."""
    folder = tmp_path_factory.mktemp("played")
    done = Shell(folder).run("demo", "--dir", "stage")
    assert done.err == ""
    return folder / "stage", done.out


@pytest.fixture
def stage(played: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of that folder, to be tampered with."""
    return Path(shutil.copytree(played[0], tmp_path / "stage"))


def test_the_demo_passes_and_shows_it_in_plain_lines(played: tuple[Path, str]) -> None:
    folder, out = played
    lines = out.splitlines()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", out)
    assert sum(bool(re.fullmatch(r"   counting: \d+ of 300", line)) for line in lines) > 4
    killed = int(re.search(r"SIGKILL at (\d+), in mid-stream", out)[1])  # type: ignore[index]
    assert 100 < killed < 300
    ticked = [line for line in lines if line.startswith("   ✓ ")]
    assert [line[5:].partition("  ")[0] for line in ticked] == NAMES
    assert f"PASS  killed at {killed}, resumed, counted to 300" in lines
    assert lines[-1] == f"look around: flightlog show demo --db {folder / 'agent.db'}"
    assert (folder / "notes.txt").read_text().splitlines() == [f"counted to {n}" for n in range(50, 301, 50)]


def test_the_number_that_is_printed_is_where_the_killed_process_stopped(played: tuple[Path, str]) -> None:
    folder, out = played
    killed = int(re.search(r"SIGKILL at (\d+)", out)[1])  # type: ignore[index]
    with flightlog.open_log(folder / "agent.db") as log:
        records = list(log.session("demo").records(deltas=True))
    second = [record.seq for record in records if isinstance(record.event, SessionOpened)][1]
    left = records[: second - 1]
    assert not any(isinstance(record.event, TurnEnd) for record in left)
    assert left[-1].event.kind == "assistant/delta"
    pieces = [p.text for r in left for p in getattr(r.event, "pieces", ()) if getattr(r.event, "type", "") == "text"]
    assert "".join(pieces).count("\n") == killed


def test_the_demo_as_json_is_one_document_and_cleans_up(shell: Shell) -> None:
    temporary = shell.folder / "tmp"
    temporary.mkdir()
    report = Shell(shell.folder, {"TMPDIR": str(temporary)}).run("demo", "--json").json
    assert report["ok"] is True
    assert [check["name"] for check in report["checks"]] == NAMES
    assert 100 < report["killed_at"] < 300
    assert list(temporary.iterdir()) == []


def test_the_demo_refuses_a_folder_that_holds_something(shell: Shell) -> None:
    (shell.folder / "mine.txt").write_text("mine")
    assert "is not empty" in shell.call("demo", "--dir", ".", code=2).complaint
    assert [path.name for path in shell.folder.iterdir()] == ["mine.txt"]


def test_the_demo_fails_when_the_agent_cannot_run(shell: Shell) -> None:
    (shell.folder / "tmp").mkdir()
    planted = (
        "import sys, flightlog.cli.demo as demo; demo.MODEL = 'scripted:nope';"
        "from flightlog.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = Shell(shell.folder, {"TMPDIR": str(shell.folder / "tmp")}).python("-c", planted, "demo", code=1)
    assert "the demo failed: the agent's process ended with 1" in done.complaint
    assert "no script 'nope'" in done.complaint
    assert done.out.splitlines()[-1].startswith("look around: ")


def _proven(folder: Path, to: int = 300) -> list[Check]:
    return list(prove(str(folder / "agent.db"), "demo", str(folder / "notes.txt"), to))


def _failing(folder: Path, to: int = 300) -> list[str]:
    return [check.name for check in _proven(folder, to) if not check.ok]


def test_an_untouched_stage_passes_again(stage: Path) -> None:
    assert [check.name for check in _proven(stage)] == NAMES
    assert _failing(stage) == []


@pytest.mark.parametrize("change", ["repeat", "drop", "reorder", "remove"])
def test_an_effect_that_differs_from_the_log_is_found(stage: Path, change: str) -> None:
    notes = stage / "notes.txt"
    lines = notes.read_text().splitlines()
    match change:
        case "repeat":
            lines.append(lines[-1])
        case "drop":
            del lines[2]
        case "reorder":
            lines.reverse()
    notes.write_text("".join(f"{line}\n" for line in lines))
    if change == "remove":
        notes.unlink()
    assert _failing(stage) == ["each tool call took effect exactly once"]


@pytest.mark.parametrize("to", [299, 301])
def test_a_word_too_many_or_too_few_is_found(stage: Path, to: int) -> None:
    assert _failing(stage, to) == [f"the words are exactly 1 to {to}, no gap, no repeat"]


def test_a_repeated_word_is_found(stage: Path) -> None:
    async def say_one_more() -> None:
        async with (
            flightlog.open_kernel(stage / "agent.db") as kernel,
            kernel.session("demo", model="scripted:say?text=300") as session,
        ):
            await session.followup("and?")
            await session.run()

    trio.run(say_one_more)
    assert _failing(stage) == ["the words are exactly 1 to 300, no gap, no repeat"]


def test_an_agent_that_nobody_killed_is_found(shell: Shell) -> None:
    model = "scripted:count?to=300&chunk=50&note_every=50"
    shell.call("run", "count", "--session", "demo", "--model", model, "--workspace", ".")
    assert _failing(shell.folder) == NAMES[:2]


def test_a_killed_agent_that_nobody_resumed_is_found(stubborn: Shell) -> None:
    with stubborn.held("run", "go", "--session", "demo", "--model", "stall:stream", "--json") as held:
        held.lines_until("assistant/delta", "two")
        held.process.kill()
    assert _failing(stubborn.folder) == NAMES[:5]
    sight = look(str(stubborn.db), "demo")
    assert (sight.words, sight.mid_stream, sight.turn_open) == ("one two ", True, True)


MOST_ROWS_OF_A_COMMIT = 5


def _stopped_children() -> int:
    """How many child processes of this one are stopped."""
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            stats.append(path.read_text().rpartition(")")[2].split())
    return sum(stat[0] == "T" and int(stat[1]) == os.getpid() for stat in stats)


def test_a_flight_is_shot_down_only_where_it_is_still_seen_once_it_is_stopped(tmp_path: Path) -> None:
    sights, stopped = [], []

    def shoot(sight: Sight) -> bool:
        sights.append(sight)
        stopped.append(_stopped_children())
        return len(sights) in (1, 3, 4)  # the second look spares it, the fourth does not

    landing = fly(
        ["run", "count", "--session", "demo", "--model", "scripted:count?to=300&pace_ms=1"],
        str(tmp_path / "agent.db"),
        "demo",
        watch=lambda _: None,
        shoot=shoot,
    )
    assert stopped == [0, 1, 0, 1]
    assert landing.code == -9
    assert landing.sight.last
    assert sights[3].last
    # It may have been stopped within a commit: after the write to the -wal, before readers are told of it.
    assert 0 <= landing.sight.last.seq - sights[3].last.seq <= MOST_ROWS_OF_A_COMMIT


def test_a_flight_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(FlightFailed, match="ended with 2: no adapter named 'none'"):
        fly(["run", "x", "--model", "none:m"], str(tmp_path / "a.db"), "demo", watch=lambda _: None)
