"""`run --approver`, `run --no-wait` and `approve`: calls that wait for a person, from the terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from asking_plugin import MODEL, pay

from flightlog import open_kernel, open_log
from flightlog.events import ToolCall
from flightlog.testing import Bundle
from support.cutting import cut_log

if TYPE_CHECKING:
    from flightlog_process import Shell


def paid(shell: Shell) -> list[str]:
    file = shell.folder / "paid"
    return file.read_text().split() if file.exists() else []


def paused(shell: Shell, *more: str) -> str:
    """Run up to the question; returns its row."""
    done = shell.run("run", "pay", "--session", "s", "--model", "asking:m", "--no-wait", *more, code=1)
    return re.search(r"flightlog approve s (\d+)", done.err)[1]  # type: ignore[index]


def test_without_an_approver_the_call_is_denied(asking: Shell) -> None:
    asking.run("run", "pay", "--session", "s", "--model", "asking:m")
    assert paid(asking) == ["bob"]


def test_no_wait_leaves_the_turn_suspended_and_says_how_to_go_on(asking: Shell) -> None:
    done = asking.run("run", "pay", "--session", "s", "--model", "asking:m", "--no-wait", code=1)
    assert "? May pay run?" in done.out
    assert "turn 1 ended" not in done.err
    assert re.search(r"turn 1 waits for an answer about pay: flightlog approve s \d+ \[--deny\]", done.err)
    assert "To go on: flightlog resume s --approver" in done.err
    assert asking.kinds("s").count("turn/end") == 0
    assert asking.call("verify", "s").code == 0


def test_an_answer_and_a_resume_finish_the_turn_and_run_nothing_twice(asking: Shell) -> None:
    seq = paused(asking)
    assert asking.call("approve", "s").out == f"{seq} pay: May pay run?\n"
    assert asking.call("approve", "s", seq, "--by", "grace").out == "s: approval sent\n"
    done = asking.run("resume", "s")
    assert (sorted(paid(asking)), "Paid both." in done.out) == (["ada", "bob"], True)
    assert "turn 1 completed" in done.out
    assert asking.call("approve", "s").out == "s: no open questions\n"


def test_a_resume_before_the_answer_pauses_again(asking: Shell) -> None:
    seq = paused(asking)
    again = asking.run("resume", "s", "--no-wait", code=1)
    assert f"flightlog approve s {seq}" in again.err
    assert "nothing to do" not in again.out


def test_the_questions_and_the_paused_turn_as_json(asking: Shell) -> None:
    done = asking.run("run", "pay", "--session", "s", "--model", "asking:m", "--no-wait", "--json", code=1)
    result = done.json_lines[-1]
    (question,) = result["questions"]
    assert (question["name"], question["arguments"]) == ("pay", '{"to": "ada"}')
    assert [(turn["turn"], turn.get("reason")) for turn in result["turns"]] == [(1, "paused")]
    (listed,) = asking.call("approve", "s", "--json").json_lines
    assert (listed["seq"], listed["name"], listed["guard"]) == (question["seq"], "pay", "cashier")
    assert listed["arguments"] == '{"to": "ada"}'


def test_a_denial_with_its_reason_is_told_to_the_model(asking: Shell) -> None:
    seq = paused(asking)
    asking.call("approve", "s", seq, "--deny", "--by", "grace", "--reason", "Too much.")
    asking.run("resume", "s")
    assert paid(asking) == ["bob"]
    assert "Denied by grace. Too much." in asking.call("show", "s", "--json").out


def test_an_answer_to_remember_is_not_asked_for_again(asking: Shell) -> None:
    asking.call("approve", "s", paused(asking), "--remember")
    asking.run("resume", "s")
    asking.run("resume", "s", "and eve", "--no-wait")
    assert sorted(paid(asking)) == ["ada", "bob", "eve"]


@pytest.mark.kill
def test_a_run_with_an_approver_waits_for_the_answer_of_another_process(asking: Shell) -> None:
    with asking.held("run", "pay", "--session", "s", "--model", "asking:m", "--approver") as held:
        hint = held.lines_until("flightlog approve s")[-1]
        asking.call("approve", "s", re.search(r"approve s (\d+)", hint)[1])  # type: ignore[index]
        done = held.finished()
    assert (done.code, sorted(paid(asking))) == (0, ["ada", "bob"])


@pytest.mark.parametrize("verdict", [(), ("--deny",), ("--remember",), ("--done",), ("--not-done",)])
@pytest.mark.parametrize("place", [1, -1, 1000])
def test_an_answer_to_a_question_that_is_not_open_is_refused_with_those_that_are(
    asked: Shell, verdict: tuple[str, ...], place: int
) -> None:
    seq = asked.call("approve", "s", "--json").json_lines[0]["seq"]
    said = asked.call("approve", "s", str(seq + place), *verdict, code=2).complaint
    assert said.endswith(f"no question is open at seq {seq + place}; one is at seq {seq}")
    assert "no session 'nosuch'" in asked.call("approve", "nosuch", str(seq), *verdict, code=2).complaint
    assert asked.call("query", "SELECT count(*) FROM letters", "--json").json["rows"] == [[0]]


@pytest.mark.parametrize("verdict", ["--done", "--not-done", "--unknown"])
def test_an_answer_of_another_kind_than_the_question_is_refused(asked: Shell, verdict: str) -> None:
    seq = asked.call("approve", "s", "--json").json_lines[0]["seq"]
    assert "asks whether a call may start" in asked.call("approve", "s", str(seq), verdict, code=2).complaint


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell whose session "s" asks one question. Only to be read."""
    from flightlog_process import Shell

    shell = Shell(tmp_path_factory.mktemp("asked")).with_plugin("asking", "asking_plugin")
    paused(shell)
    return shell


def test_an_answer_that_came_too_late_is_shown_as_one_without_effect(asking: Shell) -> None:
    seq = paused(asking)
    asking.call("approve", "s", seq, "--by", "ada")
    asking.call("approve", "s", seq, "--deny", "--by", "bob")
    seen = asking.run("resume", "s").out
    assert "? allowed by ada\n" in seen
    assert "? denied by bob, too late and without effect\n" in seen
    assert "✗ approve was refused: the question was settled before\n" in seen
    for shown in (asking.call("show", "s").out, asking.call("tail", "s", "-n", "100").out):
        (first, second) = [line for line in shown.splitlines() if f"row {seq}" in line]
        assert (first.endswith("by ada"), second.endswith("by bob · too late and without effect")) == (True, True)
    late = next(row["seq"] for row in asking.call("show", "s", "--json").json_lines if row["data"].get("by") == "bob")
    only = asking.call("tail", "s", "--after", str(late - 1)).out.splitlines()[1]
    assert only.endswith("by bob · too late and without effect")


@pytest.mark.parametrize("more", [("--deny",), ("--remember",), ("--reason", "x"), ("--key", "k")])
def test_an_answer_without_its_question_is_a_usage_error(shell: Shell, more: tuple[str, ...]) -> None:
    shell.run("run", "first", "--session", "s")
    assert "SEQ is missing" in shell.call("approve", "s", *more, code=2).complaint


def test_the_questions_of_a_session_that_does_not_exist_are_a_usage_error(shell: Shell) -> None:
    shell.run("run", "first", "--session", "s")
    assert "no session" in shell.call("approve", "t", code=2).complaint


async def cut_off(path: Path) -> None:
    """A log that ends while ada is being paid."""
    whole = path.with_suffix(".whole")
    plugins = [Bundle(adapters=[MODEL], tools=[pay])]
    async with (
        open_kernel(whole, discover=False, plugins=plugins) as kernel,
        kernel.session("s", model="asking:m") as session,
    ):
        await session.followup("pay")
        await session.run()
    with open_log(whole, discover=False) as log:
        started = next(r.seq for r in log.session("s").records() if isinstance(r.event, ToolCall))
    cut_log(whole, path, started)


@pytest.mark.parametrize(
    ("answer", "gets_paid", "told"),
    [
        ("--done", ["bob"], "It has taken effect, says grace"),
        ("--not-done", ["ada", "bob"], "paid ada"),
        ("--unknown", ["bob"], "Outcome unknown"),
    ],
)
def test_a_turn_goes_on_once_a_person_has_said_how_its_call_ended(
    asking: Shell, monkeypatch: pytest.MonkeyPatch, answer: str, gets_paid: list[str], told: str
) -> None:
    (asking.folder / "elsewhere").mkdir()
    monkeypatch.chdir(asking.folder / "elsewhere")
    trio.run(cut_off, asking.db)
    paused = asking.run("resume", "s", "--on-crash", "continue", "--no-wait", code=1)
    assert "nobody knows whether it has taken effect" in paused.out
    assert "To go on: flightlog resume s --approver --on-crash continue" in paused.err
    seq = re.search(r"flightlog approve s (\d+) --done\|--not-done\|--unknown", paused.err)[1]  # type: ignore[index]
    asking.call("approve", "s", seq, answer, "--deny", code=2)
    assert asking.call("approve", "s", seq, answer, "--by", "grace").out == "s: answer sent\n"
    done = asking.run("resume", "s")
    assert (sorted(paid(asking)), "turn 1 completed" in done.out) == (gets_paid, True)
    assert told in asking.call("show", "s", "--json").out
