"""`flightlog task` and `flightlog work`: submitted, carried out, paused, answered, killed, hung, left."""

from __future__ import annotations

import json
import signal
from collections import Counter
from contextlib import ExitStack, chdir
from signal import SIGINT, SIGKILL, SIGTERM
from typing import TYPE_CHECKING

import pytest
import trio
import working_plugin

import flightlog
from flightlog.cli.task import task as group
from flightlog.events import SessionOpened, TaskState, ToolCall, TurnEnd
from support.children import until

if TYPE_CHECKING:
    from flightlog_process import Shell


@pytest.fixture
def working(shell: Shell) -> Shell:
    """A shell with the model that works through a list, and its tools."""
    return shell.with_plugin("working", "working_plugin")


def states(shell: Shell, task: str) -> list[str]:
    with flightlog.open_log(shell.db, discover=False) as log:
        events = [record.event for record in log.session(task).records()]
    return [f"{event.state} {event.cause}".strip() for event in events if isinstance(event, TaskState)]


def kinds(shell: Shell, task: str, kind: type) -> int:
    with flightlog.open_log(shell.db, discover=False) as log:
        return sum(isinstance(record.event, kind) for record in log.session(task).records())


def effects(shell: Shell) -> list[list[str]]:
    """(pid, task, invocation id) of each body that began."""
    path = shell.folder / "effects"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def until_begun(shell: Shell, bodies: int) -> None:
    """Wait until so many bodies have begun: a call stands in the log before its own does."""
    trio.run(until, lambda: len(effects(shell)) >= bodies)


def submit(shell: Shell, goal: str, *, task: str = "t", **wish: int) -> None:
    with flightlog.sync.open_kernel(shell.db, discover=False, plugins=[working_plugin]) as kernel:
        kernel.tasks.submit(goal, model="work:list", id=task, **wish)  # type: ignore[arg-type]


def work_here(shell: Shell) -> None:
    """What one more worker does, in this process, which is ten times as fast; not for tools that harm it."""
    with chdir(shell.folder), flightlog.sync.open_kernel(shell.db, plugins=[working_plugin]) as kernel:
        kernel.work(until_idle=True)


def test_a_task_is_submitted_shown_listed_carried_out_and_waited_for(shell: Shell) -> None:
    task = shell.call("task", "submit", "count", "--parameter", "to=3", "--parameter", "of=sheep").out.strip()
    shown = shell.call("task", "show", task, "--json").json
    assert (shown["state"], shown["goal"], shown["parameters"]) == ("pending", "count", {"to": 3, "of": "sheep"})
    assert [one["id"] for one in shell.call("task", "list", "--json").json] == [task]
    out = shell.call("work", "--until-idle").out
    assert f"{task} running" in out
    assert f"{task} completed" in out
    assert shell.call("task", "wait", task, "--json").json["state"] == "completed"
    assert shell.call("task", "list", "--state", "pending").out.strip() == "no tasks"
    assert "completed" in shell.call("task", "show", task).out
    assert "is completed" in shell.call("task", "pause", task, code=2).complaint


def test_submitting_twice_under_a_key_is_submitting_once(shell: Shell) -> None:
    first = shell.call("task", "submit", "count", "--key", "k", "--json").json["id"]
    assert shell.call("task", "submit", "count", "--key", "k", "--json").json["id"] == first
    assert "submitted before" in shell.call("task", "submit", "count to 4", "--key", "k", code=2).complaint


@pytest.mark.parametrize(
    "arguments",
    [
        ["submit", " "],
        ["submit", "x", "--model", "nobody:m"],
        ["submit", "x", "--deadline", "tomorrow"],
        ["submit", "x", "--deadline", "2001-01-31T18:00"],
        ["submit", "x", "--deadline", "+1h", "--due", "+2h"],
        ["submit", "x", "--parameter", "lonely"],
        ["submit", "x", "--parameter", "a=1", "--parameter", "a=2"],
        ["submit", "x", "--budget", "tokens"],
        ["submit", "x", "--budget", "money=5"],
        ["submit", "x", "--budget", "tokens=0"],
        ["submit", "x", "--budget", "tokens=5", "--budget", "tokens=6"],
        ["submit", "x", "--smaller-model", "nobody:m"],
        ["grant", "t"],
        ["grant", "t", "step_s=5"],
        ["grant", "nobody", "tokens=5"],
        ["show", "nobody"],
        ["amend", "t"],
        ["answer", "t", "3"],
        ["answer", "t", "3", "perhaps"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_is_a_usage_error_in_one_line(shell: Shell, arguments: list[str]) -> None:
    shell.call("task", "submit", "count", "--id", "t")
    assert shell.call("task", *arguments, code=2).complaint
    assert len(shell.call("task", "list", "--json").json) == 1


@pytest.mark.parametrize("name", ["nobody", "talk"])
@pytest.mark.parametrize("command", sorted({*group.commands} - {"submit", "list"}))
def test_what_is_no_task_is_called_so_by_every_command(shell: Shell, command: str, name: str) -> None:
    words = {"steer": ("left",), "grant": ("tokens=5",), "amend": ("--goal", "x"), "fork": ("--checkpoint", "1")}
    shell.call("run", "hello", "--session", "talk")
    said = shell.call("task", command, name, *words.get(command, ()), code=2).complaint
    assert f"there is no task {name!r}" in said


def test_a_task_whose_request_would_have_more_tokens_than_it_may_rests(shell: Shell) -> None:
    shell.call("task", "submit", "count", "--id", "t", "--max-input-tokens", "1")
    shell.call("work", "--until-idle")
    assert states(shell, "t") == ["running", "paused context"]


def test_wishes_are_letters_that_the_next_worker_obeys(shell: Shell) -> None:
    for task in ("paused", "cancelled", "amended"):
        shell.call("task", "submit", "count", "--id", task)
    shell.call("task", "pause", "paused", "--by", "ada")
    shell.call("task", "cancel", "cancelled", "--cause", "no longer wanted")
    shell.call("task", "amend", "amended", "--goal", "count down", "--parameter", "from=3")
    shell.call("task", "steer", "amended", "slowly")
    done = shell.call("work", "--until-idle", "--json")
    assert {line["kind"] for line in done.json_lines} >= {"task/state", "letter/taken", "task/amended"}
    assert states(shell, "paused") == ["paused person"]
    assert states(shell, "cancelled") == ["cancelled no longer wanted"]
    assert shell.call("task", "show", "amended", "--json").json["goal"] == "count down"
    assert shell.call("task", "wait", "paused", code=1).out.startswith("paused paused (person: by ada)")
    shell.call("task", "resume", "paused")
    shell.call("work", "--until-idle")
    assert states(shell, "paused")[-1] == "completed"


def test_a_budget_is_given_shown_and_granted_more_of(working: Shell) -> None:
    budget = ("--budget", "calls=2", "--budget", "calls:note=9", "--budget", "tokens=90000", "--sub-goal", "sing")
    working.run("task", "submit", "note note note", "--model", "work:list", "--id", "t", *budget)
    work_here(working)
    assert states(working, "t") == ["running", "paused quota"]
    shown = working.call("task", "show", "t", "--json").json
    assert {card["card"]: (card["used"], card["most"]) for card in shown["budget"]}["calls"] == (2, 2)
    out = working.call("task", "show", "t").out
    assert "2 of 2" in out
    assert "calls: all 2 are used" in out
    working.call("task", "grant", "t", "calls=5", "--by", "ada")
    work_here(working)
    assert states(working, "t")[-1] == "completed"
    listed = working.call("show", "t").out
    assert "budget/granted" in listed
    assert "exceeded" in listed


def test_who_grants_what_a_task_was_never_given_is_told_its_cards(shell: Shell) -> None:
    shell.call("task", "submit", "count", "--id", "t", "--budget", "tokens=900", "--budget", "calls:note=9")
    said = shell.call("task", "grant", "t", "requests=5", code=2).complaint
    assert "no card 'requests'" in said
    assert "it has calls:note, retries, subagents, tokens" in said
    shell.call("task", "grant", "t", "retries=5", "calls:note=1")
    shell.call("work", "--until-idle")
    assert len([line for line in shell.call("show", "t").out.splitlines() if "budget/granted" in line]) == 4


def test_a_worker_is_given_quotas(working: Shell) -> None:
    quotas = (
        "--rate",
        "tool:note=1/1d",
        "--pool",
        "normal:calls=100/1m",
        "--pool",
        "batch:tasks=1",
        "--tasks-in-file",
        "3",
    )
    working.run("task", "submit", "note note", "--model", "work:list", "--id", "t")
    working.run("work", "--until-idle", *quotas)
    assert states(working, "t") == ["running", "paused quota"]
    assert working.call("task", "show", "t", "--json").json["due_at_us"] is not None


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rate", "note=1/1m"],
        ["--rate", "tool:note=1"],
        ["--rate", "tool:note=0/1m"],
        ["--rate", "tool:note=1/soon"],
        ["--pool", "urgent:tasks=1"],
        ["--pool", "core:money=1/1m"],
        ["--pool", "core:tasks=0"],
        ["--pool", "core:tasks=1", "--pool", "core:tasks=2"],
        ["--rate", "tool:note=1/1m", "--rate", "tool:note=2/1m"],
    ],
    ids=" ".join,
)
def test_quotas_that_cannot_be_are_refused_before_any_work(shell: Shell, arguments: list[str]) -> None:
    shell.call("task", "submit", "count", "--id", "t")
    assert shell.call("work", "--until-idle", *arguments, code=2).complaint
    assert shell.call("task", "show", "t", "--json").json["state"] == "pending"


def test_a_question_is_listed_and_answered_and_the_task_goes_on(working: Shell) -> None:
    submit(working, "note ask note")
    out = working.run("work", "--until-idle").out
    assert "flightlog task answer t" in out
    (question,) = working.call("task", "show", "t", "--json").json["questions"]
    assert "may it?" in working.call("task", "answer", "t").out
    working.call("task", "answer", "t", str(question["seq"]), "allow")
    work_here(working)
    assert states(working, "t") == ["running", "paused question", "pending answered", "running", "completed"]
    assert len(effects(working)) == 3


def test_an_answer_that_nothing_asks_for_is_refused_with_what_is_open(working: Shell) -> None:
    submit(working, "note ask note")
    work_here(working)
    (question,) = working.call("task", "show", "t", "--json").json["questions"]
    seq = question["seq"]
    for wrong in (seq - 1, 99999):
        said = working.call("task", "answer", "t", str(wrong), "deny", code=2).complaint
        assert said.endswith(f"no question is open at seq {wrong}; one is at seq {seq}")
    assert "asks whether a call may start" in working.call("task", "answer", "t", str(seq), "done", code=2).complaint
    working.call("task", "answer", "t", str(seq), "allow")
    work_here(working)
    assert "is completed" in working.call("task", "answer", "t", str(seq), "allow", code=2).complaint


def test_a_worker_shows_which_letters_were_refused(shell: Shell) -> None:
    shell.call("task", "submit", "count", "--id", "t")
    shell.call("task", "pause", "t")
    shell.call("task", "pause", "t")
    assert "t ✗ pause was refused: the task is paused already\n" in shell.call("work", "--until-idle").out


def test_a_task_is_forked_at_a_checkpoint(working: Shell) -> None:
    submit(working, "note note")
    work_here(working)
    rows = working.call("query", "--json", "SELECT seq, level, steps FROM checkpoints").json["rows"]
    first = next(seq for seq, level, steps in rows if (level, steps) == ("light", 1))
    forked = working.call("task", "fork", "t", "--checkpoint", str(first)).out.strip()
    standing = working.call("task", "show", forked, "--json").json
    assert (standing["state"], standing["steps"]) == ("pending", 1)
    assert working.call("task", "fork", "t", "--checkpoint", str(first), "--id", "f", "--json").json["id"] == "f"
    assert "row 1 of 't' is no checkpoint" in working.call("task", "fork", "t", "--checkpoint", "1", code=2).err
    work_here(working)
    assert states(working, "f") == ["running", "completed"]
    assert len(effects(working)) == 4


def test_a_worker_that_is_killed_leaves_its_task_to_another_one(working: Shell) -> None:
    submit(working, "note crawl note")
    with working.held("work", "--json") as held:
        held.lines_until("tool/call", "crawl")
        until_begun(working, 2)
        held.interrupt(SIGKILL)
        held.finished()
    work_here(working)
    assert states(working, "t") == ["running", "recovering", "running", "completed"]
    invocations = Counter(invocation for _, _, invocation in effects(working))
    assert sorted(invocations.values()) == [1, 1, 2]
    assert working.call("task", "show", "t", "--json").json["recoveries"] == 1
    working.call("verify")


def test_a_task_that_kills_each_of_its_workers_fails(working: Shell) -> None:
    submit(working, "note die", max_recoveries=2)
    for _ in range(3):
        with working.held("work", "--until-idle") as held:
            assert held.finished().code == -SIGKILL
    working.run("work", "--until-idle", code=1)
    assert states(working, "t") == [
        *["running", "recovering", "recovering"],
        "failed too_many_recoveries",
    ]
    with flightlog.open_log(working.db, discover=False) as log:
        (end,) = [r.event for r in log.session("t").records() if isinstance(r.event, TurnEnd)]
    assert end.reason == "interrupted"
    working.call("verify")


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
def test_a_signal_lets_a_task_finish_its_step_and_the_next_worker_goes_on(
    working: Shell, number: signal.Signals
) -> None:
    submit(working, " ".join(["note"] * 400), max_steps=500)
    with working.held("work", "--json") as held:
        held.lines_until("tool/result")
        held.interrupt(number)
        done = held.finished()
    assert done.code == (143 if number == SIGTERM else 0)
    assert states(working, "t") == ["running", "pending handed_over"]
    assert working.kinds("t")[-1] == "task/state"
    before = len(effects(working))
    assert before < 400
    submit(working, "note", task="other")
    working.call("task", "cancel", "t")
    work_here(working)
    assert states(working, "t")[-1] == "cancelled user"
    assert len(effects(working)) == before + 1


def test_a_second_signal_cuts_off_what_runs_and_leaves_it_in_doubt(working: Shell) -> None:
    submit(working, "crawl note")
    with working.held("work", "--json") as held:
        held.lines_until("tool/call", "crawl")
        until_begun(working, 1)
        held.interrupt()
        held.complaints_until("once more cuts them off")
        held.interrupt()
        held.complaints_until("once more kills")
        assert held.finished().code == 0
    assert states(working, "t") == ["running", "pending handed_over"]
    assert kinds(working, "t", TurnEnd) == 0
    work_here(working)
    assert states(working, "t")[-1] == "completed"
    first, second, _ = effects(working)
    assert first[2] == second[2]


@pytest.mark.parametrize("way", ["sleep", "spin"])
def test_a_worker_whose_loop_stands_still_ends_itself_and_another_one_takes_up_its_task(
    working: Shell, way: str
) -> None:
    submit(working, f"note {way} note")
    with working.held("work", "--stall-limit", "1") as held:
        done = held.finished()
    assert done.code == 1
    assert "Timeout" in done.err
    work_here(working)
    assert states(working, "t") == ["running", "recovering", "running", "completed"]
    working.call("verify")


def test_a_task_is_taken_over_from_a_worker_that_is_stuck(working: Shell) -> None:
    submit(working, "crawl note")
    with working.held("work", "--json", "--grace", "0") as held:
        # Not in the middle of a commit, whose lock it would keep: its body is all that runs then.
        trio.run(until, (working.folder / "crawled").exists)
        held.interrupt(signal.SIGSTOP)
        work_here(working)
        assert states(working, "t") == ["running"]
        working.run("work", "--until-idle", "--take-over", "t")
        assert states(working, "t") == ["running", "recovering", "running", "completed"]
        held.interrupt(signal.SIGCONT)
        held.interrupt(SIGTERM)
        assert held.finished().code == 143
    working.call("verify")


@pytest.mark.parametrize("name", ["nobody", "talk"])
def test_what_is_no_task_cannot_be_taken_over_and_nothing_is_begun(shell: Shell, name: str) -> None:
    assert "no such file" in shell.call("work", "--until-idle", "--take-over", name, code=2).complaint
    assert not shell.db.exists()
    shell.call("run", "hello", "--session", "talk")
    shell.call("task", "submit", "count", "--id", "t")
    said = shell.call("work", "--until-idle", "--take-over", "t", "--take-over", name, code=2).complaint
    assert f"there is no task {name!r}" in said
    assert states(shell, "t") == []


def test_workers_in_two_processes_share_the_tasks_and_no_task_has_two_at_once(working: Shell) -> None:
    for number in range(12):
        submit(working, "note " * 20, task=f"t{number}")
    with ExitStack() as stack:
        workers = [stack.enter_context(working.held("work", "--until-idle", "--tasks", "3")) for _ in range(2)]
        assert [worker.finished().code for worker in workers] == [0, 0]
    for number in range(12):
        assert states(working, f"t{number}")[-1] == "completed"
        with flightlog.open_log(working.db, discover=False) as log:
            records = list(log.session(f"t{number}").records())
        drivers = {r.epoch for r in records if isinstance(r.event, ToolCall)}
        assert len(drivers) == 1
    assert len({pid for pid, _, _ in effects(working)}) == 2
    assert max(Counter(invocation for _, _, invocation in effects(working)).values()) == 1
    pids = {r.event.pid for r in records if isinstance(r.event, SessionOpened)}
    assert len(pids) <= 2
    working.call("verify")


def test_a_task_for_whose_model_nothing_is_installed_waits_for_another_worker(working: Shell) -> None:
    submit(working, "note")
    plain = type(working)(working.folder)
    assert "no adapter named 'work'" in plain.run("work", "--until-idle", code=1).complaint
    assert states(working, "t") == []
    work_here(working)
    assert states(working, "t")[-1] == "completed"


def test_progress_can_be_read_by_programs(working: Shell) -> None:
    submit(working, "note")
    lines = working.run("work", "--until-idle", "--json").out.splitlines()
    assert [json.loads(line)["data"]["state"] for line in lines if '"task/state"' in line] == ["running", "completed"]
