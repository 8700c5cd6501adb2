"""`sessions`, `show`, `verify`: what they print, and that they change no byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio
from flightlog_process import Shell

import flightlog
from flightlog.testing import FakeModel, calls, words
from flightlog_hookspecs.events import RequestSent
from flightlog_plugins import files
from support.family import Family, child_of
from support.kernels import opened

READING = (
    ("sessions",),
    ("sessions", "--json"),
    ("show", "c"),
    ("show", "c", "--deltas"),
    ("show", "c", "--json"),
    ("show", "c", "--request", "1.1"),
    ("show", "c", "--request", "1.1", "--json"),
    ("verify",),
    ("verify", "--json"),
    ("verify", "c"),
)


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_reading_a_closed_log_changes_no_byte(counted: Shell, command: tuple[str, ...]) -> None:
    before = counted.files()
    counted.run(*command)
    assert counted.files() == before


def test_reading_a_crashed_log_changes_no_byte(stubborn: Shell) -> None:
    with stubborn.held("run", "go", "--session", "c", "--model", "stall:stream", "--json") as held:
        held.lines_until("assistant/delta", "two")
        held.process.kill()
    before = stubborn.files()
    assert before["agent.db-wal"]
    for command in READING:
        stubborn.call(*command)
        assert stubborn.files() == before, command
    assert stubborn.call("sessions", "--json").json[0]["last_reason"] == "open"


def test_sessions_names_the_parent_of_a_child(tmp_path: Path, shell: Shell) -> None:
    family = Family(tmp_path, [calls(("scout", {"task": "look"})), words("I see.")], [words("Blue.")])
    trio.run(family.run, "go")
    _, *lines = shell.call("sessions", "--db", str(family.path)).out.splitlines()
    assert [line.split()[-3:] for line in lines if not line.startswith("s ")] == [["child", "of", "s"]]
    listed = shell.call("sessions", "--db", str(family.path), "--json").json
    assert {(one["session"], one["parent"], one["depth"]) for one in listed} == {
        ("s", None, 0),
        (child_of(family.path), "s", 1),
    }


def test_sessions_lists_the_last_used_first(shell: Shell) -> None:
    for name in ("a", "b", "a"):
        shell.call("run", "x", "--session", name)
    listed = shell.call("sessions", "--json").json
    assert [(entry["session"], entry["last_turn"], entry["last_reason"]) for entry in listed] == [
        ("a", 2, "completed"),
        ("b", 1, "completed"),
    ]
    assert set(listed[0]) == {
        "session", "uid", "title", "created_at_us", "last_at_us", "last_seq", "epoch", "last_turn", "last_reason",
        "parent", "depth",
    }  # fmt: skip
    rows = [line.split() for line in shell.call("sessions").out.splitlines()]
    assert [row[0] for row in rows] == ["session", "a", "b"]
    assert rows[1][-1] == "completed"


def test_sessions_lists_as_many_as_wanted_and_says_how_many_there_are(shell: Shell) -> None:
    async def create() -> None:
        async with opened(shell.db, FakeModel([])) as kernel:
            for number in range(60):
                async with kernel.session(f"s{number}", model="fake:m"):
                    pass

    trio.run(create)
    names = [f"s{number}" for number in reversed(range(60))]
    assert [entry["session"] for entry in shell.call("sessions", "--json").json] == names
    assert [entry["session"] for entry in shell.call("sessions", "--json", "--limit", "2").json] == names[:2]
    _, *listed, note = shell.call("sessions").out.splitlines()
    assert [line.split()[0] for line in listed] == names[:50]
    assert note == "50 of 60 sessions; --limit N lists more"
    _, *listed = shell.call("sessions", "--limit", "60").out.splitlines()
    assert [line.split()[0] for line in listed] == names


def test_sessions_of_a_log_without_any_says_so(shell: Shell) -> None:
    async def create() -> None:
        async with flightlog.open_kernel(shell.db):
            pass

    trio.run(create)
    assert shell.call("sessions").out == "no sessions\n"
    assert shell.call("sessions", "--json").json == []


def test_show_collapses_the_streamed_rows_unless_asked_not_to(counted: Shell) -> None:
    kinds = counted.kinds("c")
    heading, *lines, total = counted.call("show", "c").out.splitlines()
    assert heading.split() == ["row", "time", "(UTC)", "step", "event", "what"]
    assert len(lines) < len(kinds)
    assert any("assistant/delta    21\u00d7 1↵2↵3↵4↵5↵6↵7↵8↵9↵10↵" in line for line in lines)
    assert any('tool/call          append_line(path="notes.txt", line="counted to 10")' in line for line in lines)
    assert lines[-2].endswith("turn/end           completed")
    assert re.fullmatch(r"[\d,]+ in, [\d,]+ out", total)
    assert len(counted.call("show", "c", "--deltas").out.splitlines()) == 2 + len(kinds)


def test_show_json_is_the_whole_log_one_event_a_line(counted: Shell) -> None:
    rows = counted.call("show", "c", "--json").json_lines
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert all(list(row) == ["session", "seq", "at_us", "turn", "step", "epoch", "kind", "data"] for row in rows)
    deltas = [row["data"] for row in rows if row["kind"] == "assistant/delta" and row["data"]["type"] == "text"]
    words = "".join(piece["text"] for delta in deltas for piece in delta["pieces"])
    assert words == "".join(f"{number}\n" for number in range(1, 21)) + "Counted to 20."
    message = next(row["data"] for row in rows if row["kind"] == "assistant/message")
    assert [block["type"] for block in message["content"]] == ["text", "tool_call"]


def test_run_json_prints_the_same_events_as_show_json(shell: Shell) -> None:
    ran = shell.call("run", "hello", "--session", "s", "--json").json_lines
    assert ran[-1]["kind"] == "result"
    assert ran[:-1] == shell.call("show", "s", "--json").json_lines
    again = shell.call("run", "more", "--session", "s", "--json").json_lines
    assert ran[:-1] + again[:-1] == shell.call("show", "s", "--json").json_lines
    assert again[-1] == {
        "kind": "result",
        "session": "s",
        "turns": [
            {
                "turn": 2,
                "text": "more",
                "steps": 1,
                "calls": 0,
                "input_tokens": again[-1]["turns"][0]["input_tokens"],
                "output_tokens": 1,
                "costs_pico": {},
                "unpriced": 1,
                "reason": "completed",
                "cause": "",
                "code": "",
                "message": "",
            }
        ],
        "questions": [],
        "pending": 0,
    }


def test_show_request_is_what_the_library_says_the_model_saw(counted: Shell) -> None:
    shown = counted.call("show", "c", "--request", "1.2", "--json").json
    with flightlog.open_log(counted.db) as log:
        request = log.session("c").request(1, 2)
        sent = [r.event for r in log.session("c").records() if isinstance(r.event, RequestSent)][1]
    assert shown["sha256"] == request.sha256 == sent.sha256
    assert shown["proven"] is True
    assert shown["head"]["system"] == "Be exact."
    assert [tool["name"] for tool in shown["head"]["tools"]] == [tool.name for tool in request.head.tools]
    assert {tool["name"] for tool in shown["head"]["tools"]} >= {tool.name for tool in files.TOOLS}
    assert shown["head"]["tools"][0]["parameters"] == request.head.tools[0].parameters
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant", "tool"]
    assert shown["messages"][2]["content"] == [{"type": "text", "text": "appended to notes.txt"}]
    assert shown == counted.call("show", "c", "--request", "1.2.1", "--json").json


def test_show_request_for_people_holds_every_part_word_for_word(counted: Shell) -> None:
    out = counted.call("show", "c", "--request", "1.2").out
    with flightlog.open_log(counted.db) as log:
        request = log.session("c").request(1, 2)
    parts = (
        "turn 1, step 2, attempt 1",
        f"sha256 {request.sha256}\nproven: ",
        "scripted:count?to=20&note_every=10&note=notes.txt&chunk=1&pace_ms=5",
        "\nBe exact.\n",
        f"\nappend_line: {request.head.tools[0].description}\n{request.head.tools[0].parameters}\n",
        "[1] user\ncount to 20\n[2] assistant\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n",
        '▸ append_line {"path": "notes.txt", "line": "counted to 10"}  call_1_1\n',
        "[3] tool append_line, ok, call_1_1\nappended to notes.txt\n",
    )
    at = 0
    for part in parts:
        assert part in out
        at = out.index(part)
    assert at > 0


def test_a_request_is_not_called_proven_when_its_adapter_is_gone(stubborn: Shell) -> None:
    stubborn.run("run", "go", "--session", "s", "--model", "stall:whole")
    bare = Shell(stubborn.folder)
    assert "not proven: its adapter is not installed" in bare.call("show", "s", "--request", "1.1").out
    assert bare.call("show", "s", "--request", "1.1", "--json").json["proven"] is None
    assert "✓ s · " in bare.call("verify").out


def test_a_request_that_now_encodes_differently_is_refused(stubborn: Shell) -> None:
    stubborn.run("run", "go", "--session", "s", "--model", "stall:whole")
    planted = (
        "import stubborn_plugin, sys; stubborn_plugin.StallingAdapter.encode = lambda self, part: b'other';"
        "from flightlog.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = stubborn.python("-c", planted, "show", "s", "--request", "1.1", code=3)
    assert "NOT PROVEN" in done.out
    assert "another hash than the one in the log" in done.complaint
    assert "rule request-derivable" in stubborn.python("-c", planted, "verify", code=3).out


def test_verify_says_how_much_it_checked(counted: Shell) -> None:
    events = len(counted.kinds("c"))
    assert counted.call("verify").out.splitlines()[1] == f"✓ c · {events} events"
    report = counted.call("verify", "--json").json
    assert report["ok"] is True
    assert report["file"]["name"] == str(counted.db)
    assert report["sessions"] == [{"name": "c", "ok": True, "events": events, "error": "", "rule": "", "seq": None}]
