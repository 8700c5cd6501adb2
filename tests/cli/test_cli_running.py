"""`flightlog run` and `flightlog resume`: what they do, what they show."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import trio

import flightlog

if TYPE_CHECKING:
    from flightlog_process import Shell

COUNT = "scripted:count?to=20&note_every=10&note=notes.txt"


def test_run_answers_and_ends_with_one_status_line(shell: Shell) -> None:
    done = shell.run("run", "hello there", "--session", "s")
    words, status = done.out.splitlines()
    assert words == "hello there"
    assert re.fullmatch(r"turn 1 completed · 1 step · \d+ in, 3 out · [\d.]+ m?s · session s", status)
    assert done.err == ""


def test_run_shows_calls_and_their_results_between_the_words(shell: Shell) -> None:
    out = shell.call("run", "go", "--model", COUNT, "--workspace", ".").out
    shown = re.sub(r"\([\d.]+ ms\)", "(n ms)", out).splitlines()
    assert shown[9:13] == [
        "10",
        '▸ append_line(path="notes.txt", line="counted to 10")',
        "  ✓ append_line (n ms): appended to notes.txt",
        "11",
    ]
    assert "2 calls" in shown[-1]
    assert (shell.folder / "notes.txt").read_text() == "counted to 10\ncounted to 20\n"


def test_run_without_a_session_makes_a_new_one_each_time(shell: Shell) -> None:
    shell.call("run", "one")
    shell.call("run", "two")
    listed = shell.call("sessions", "--json").json
    assert len({session["session"] for session in listed}) == 2


def test_run_goes_on_with_the_sessions_own_model_and_system_text(shell: Shell) -> None:
    shell.call("run", "go", "--session", "s", "--model", "scripted:say?text=aye", "--system", "Be brief.")
    assert shell.call("run", "more", "--session", "s").out.startswith("aye\n")
    assert shell.call("resume", "s", "more").out.startswith("aye\n")
    assert shell.kinds("s").count("request/header") == 1
    assert shell.call("run", "echo this", "--session", "s", "--model", "scripted:echo").out.startswith("echo this\n")
    head = shell.call("show", "s", "--request", "4.1", "--json").json["head"]
    assert (head["model"], head["system"]) == ("echo", "Be brief.")


def test_prompt_sections_do_not_pile_up_in_the_inherited_system_text(stubborn: Shell) -> None:
    stubborn.run("run", "go", "--session", "s", "--system", "Be brief.")
    stubborn.run("run", "go", "--session", "s")
    assert stubborn.kinds("s").count("request/header") == 1
    system = stubborn.run("show", "s", "--request", "2.1", "--json").json["head"]["system"]
    assert system == "Be brief.\n\nHouse rules."
    stubborn.run("run", "go", "--session", "bare")
    stubborn.run("resume", "bare", "go")
    assert stubborn.kinds("bare").count("request/header") == 1


def _queue(shell: Shell, *texts: str) -> None:
    async def queue() -> None:
        async with flightlog.open_kernel(shell.db) as kernel, kernel.session("s") as session:
            for text in texts:
                await session.followup(text)

    trio.run(queue)


def test_resume_delivers_what_is_pending_then_the_text(shell: Shell) -> None:
    _queue(shell, "first", "second")
    assert shell.run("resume", "s").out.splitlines()[:2] == ["first", "second"]
    _queue(shell, "third")
    out = shell.call("resume", "s", "fourth").out.splitlines()
    assert out[:2] == ["third", "fourth"]
    assert [line.split(" · ")[0] for line in out[2:]] == ["turn 3 completed", "turn 4 completed"]


def test_resume_of_an_idle_session_says_that_there_is_nothing_to_do(shell: Shell) -> None:
    shell.call("run", "hello", "--session", "s")
    done = shell.call("resume", "s")
    assert done.out == "nothing to do: session s is idle\n"
    assert shell.call("resume", "s", "--json").json_lines[-1] == {
        "kind": "result",
        "session": "s",
        "turns": [],
        "pending": 0,
        "questions": [],
    }


def test_an_answer_that_was_not_streamed_is_shown_all_the_same(stubborn: Shell) -> None:
    assert stubborn.run("run", "go", "--model", "stall:whole").out.startswith("said in one piece\nturn 1 completed")


def test_a_retry_is_shown_and_the_run_is_fine(stubborn: Shell) -> None:
    out = stubborn.run("run", "go", "--session", "s", "--model", "stall:flaky").out.splitlines()
    assert out[0] == "✗ attempt 1 failed: the line went dead"
    assert out[1].startswith("↻ attempt 2 in ")
    assert out[2] == "said"
    shown = stubborn.call("show", "s").out
    assert "attempt 1, transport: the line went dead" in shown
    assert "attempt 2 follows in " in shown


def test_thinking_is_kept_from_what_a_program_reads(stubborn: Shell) -> None:
    assert "pondering" not in stubborn.run("run", "go", "--session", "s", "--model", "stall:think").out
    assert "pondering" in stubborn.run("show", "s", "--json").out


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("scripted:nope", "error (bad_request: no script 'nope'; there are count, echo, say)"),
        ("stall:capped", "max_tokens"),
    ],
)
def test_a_turn_that_does_not_complete_fails_the_run(stubborn: Shell, model: str, reason: str) -> None:
    done = stubborn.run("run", "go", "--session", "s", "--model", model, code=1)
    why, hint = done.err.splitlines()
    assert why == f"flightlog: turn 1 ended as {reason}"
    assert hint == "flightlog: To go on: flightlog resume s continue"
    assert f"turn 1 {reason.split(maxsplit=1)[0]} · " in done.out


def test_an_earlier_failed_turn_fails_the_run_though_the_last_one_completed(stubborn: Shell) -> None:
    _queue(stubborn, "bad")
    done = stubborn.run("resume", "s", "good", "--model", "stall:fickle", "--json", code=1)
    assert [turn["reason"] for turn in done.json_lines[-1]["turns"]] == ["error", "completed"]
    assert done.err.splitlines()[0] == "flightlog: turn 1 ended as error (bad_request: not that)"


def test_the_way_to_go_on_names_the_options_that_were_given(shell: Shell) -> None:
    other = shell.folder / "other log.db"
    done = shell.call(
        "run", "go", "--session", "my s", "--model", "scripted:nope", "--db", str(other), "--workspace", ".", code=1
    )
    assert done.err.splitlines()[1].endswith(f"flightlog resume 'my s' continue --db '{other}' --workspace .")


def test_a_broken_plugin_is_named_and_costs_nothing_else(shell: Shell) -> None:
    done = shell.with_plugin("broken", "no_such_module").run("run", "hello")
    assert done.out.startswith("hello\n")
    assert done.complaint.startswith("flightlog: plugin 'broken' was left out: ModuleNotFoundError")


def test_what_a_killed_process_left_is_recovered_and_told(stubborn: Shell) -> None:
    with stubborn.held("run", "go", "--session", "s", "--model", "stall:stream", "--json") as held:
        held.lines_until("assistant/delta", "two")
        held.process.kill()
    out = stubborn.run("resume", "s", "go on", "--model", "scripted:echo").out.splitlines()
    assert out[:3] == [
        "↻ kept 8 characters of the answer that was cut off",
        "↻ turn 1 was cut off; it is closed as interrupted",
        "go on",
    ]
    messages = stubborn.run("show", "s", "--request", "2.1", "--json").json["messages"]
    assert messages[1]["content"] == [{"type": "text", "text": "one two "}]


def test_what_a_turn_and_a_session_cost_is_said_where_prices_are_known(shell: Shell) -> None:
    (shell.folder / "prices.toml").write_text('["scripted:say"]\ncurrency = "USD"\ninput = "0"\noutput = "0.25"\n')
    costly = shell.with_plugin("our-prices", "our_prices")
    (shell.folder / "site" / "our_prices.py").write_text(
        "from flightlog_plugins.prices import Prices\n\n"
        "register_prices = Prices.from_file('prices.toml').register_prices\n"
    )
    ran = costly.run("run", "x", "--session", "s", "--model", "scripted:say?text=hello")
    assert "1 out \u00b7 0.00000025 USD \u00b7" in ran.out + ran.err
    assert shell.call("show", "s").out.splitlines()[-1].endswith("1 out \u00b7 0.00000025 USD")
    last = costly.run("run", "x", "--session", "s", "--json").json_lines[-1]["turns"][0]
    assert (last["costs_pico"], last["unpriced"]) == ({"USD": 250_000}, 0)
    costly.run("run", "x", "--session", "s", "--model", "scripted:echo")
    assert shell.call("show", "s").out.splitlines()[-1].endswith("0.0000005 USD and 1 attempt of unknown cost")
