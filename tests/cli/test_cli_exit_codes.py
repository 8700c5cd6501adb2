"""Exit codes: 2 for the caller's mistakes, 3 for a log that is refused; each said in one line, nothing else."""

from __future__ import annotations

import shutil
import sqlite3

import pytest
import trio
from flightlog_process import Shell

import flightlog

READING = (("sessions",), ("show", "s"), ("verify",))
WRITING = (("run", "more", "--session", "s"), ("resume", "s"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run"], "Missing argument 'TEXT' (see flightlog run --help)"),
        (["run", "   "], "needs words or a file"),
        (["resume", "s", ""], "needs words or a file"),
        (["run", "x", "--nope"], "No such option '--nope'"),
        (["fly"], "No such command 'fly'"),
        (["run", "x", "--model", "nope"], "is not of the form 'adapter:model'"),
        (["run", "x", "--model", "nope:m"], "no adapter named 'nope' (known: "),
        (["run", "x", "--session", "a\nb"], "printable characters"),
        (["run", "x", "--workspace", "missing"], "'missing' does not exist"),
        (["run", "x", "--db", "missing/agent.db"], "its folder does not exist"),
        (["resume", "other"], "there is no session 'other'"),
        (["resume", "other", "x"], "there is no session 'other'"),
        (["show", "other"], "there is no session 'other'"),
        (["verify", "other"], "there is no session 'other'"),
        (["show", "s", "--request", "1"], "'1' is not TURN.STEP or TURN.STEP.ATTEMPT"),
        (["show", "s", "--request", "0.1"], "'0.1' is not TURN.STEP"),
        (["show", "s", "--request", "2.1"], "made no request in turn 2, step 1"),
        (["show", "s", "--request", "1.1.2"], "made no request in turn 1, step 1, attempt 2"),
        (["sessions", "--db", "missing.db"], "missing.db: no such file"),
        (["verify", "--db", "missing.db"], "missing.db: no such file"),
        (["resume", "s", "--db", "missing.db"], "missing.db: no such file"),
    ],
)
def test_a_mistake_of_the_caller_is_one_line_and_code_2(said: Shell, arguments: list[str], says: str) -> None:
    before = said.kinds("s")
    done = said.call(*arguments, code=2)
    assert says in done.complaint
    assert done.out == ""
    assert not (said.folder / "missing.db").exists()
    assert said.kinds("s") == before


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell whose log holds session "s" with one turn."""
    shell = Shell(tmp_path_factory.mktemp("said"))
    shell.call("run", "hello", "--session", "s")
    return shell


@pytest.fixture
def copied(said: Shell, shell: Shell) -> Shell:
    """A shell with a log of its own to damage: sessions "s" and, whole, "other"."""
    for path in said.folder.glob("agent.db*"):
        shutil.copy(path, shell.folder / path.name)
    shell.call("run", "hello", "--session", "other")
    return shell


def _tampered(shell: Shell, *statements: str) -> None:
    connection = sqlite3.connect(shell.db)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def _refused_everywhere(shell: Shell, says: str, *commands: tuple[str, ...]) -> None:
    before = shell.files()
    for command in commands:
        assert says in shell.call(*command, code=3).err.splitlines()[-1]
    assert shell.files() == before


def test_a_changed_row_is_refused_and_verify_lists_the_session(copied: Shell) -> None:
    _tampered(
        copied,
        "DROP TRIGGER events_update",
        "UPDATE events SET text = 'hullo' WHERE text = 'hello' AND kind = 'user/message' AND session = 1",
    )
    before = copied.files()
    assert "rule hash-chain" in copied.call("show", "s", code=3).complaint
    assert "rule hash-chain" in copied.call("resume", "s", "more", code=3).complaint
    listed = copied.call("verify", code=3)
    assert "✗ s: session 's', seq 7: " in listed.out
    assert "✓ other · " in listed.out
    assert "not changed: session 's', seq 7: " in listed.complaint
    verdicts = copied.call("verify", "--json", code=3).json
    assert verdicts["ok"] is False
    assert [(v["name"], v["ok"], v["rule"], v["seq"]) for v in verdicts["sessions"]] == [
        ("s", False, "hash-chain", 7),
        ("other", True, "", None),
    ]
    copied.run("verify", "s", code=3)
    copied.call("verify", "other")
    assert copied.call("resume", "other", "more").out.startswith("more\n")
    assert copied.files()["agent.db"][:16] == before["agent.db"][:16]


def test_every_refused_session_is_listed(copied: Shell) -> None:
    _tampered(copied, "DROP TRIGGER events_update", "UPDATE events SET at = at + 1 WHERE seq = 3")
    done = copied.call("verify", code=3)
    assert done.out.count("✗ ") == 2
    assert "(2 faults in all)" in done.complaint


def test_what_is_shown_before_a_damaged_row_is_shown(copied: Shell) -> None:
    _tampered(copied, "DROP TRIGGER events_update", "UPDATE events SET at = at + 1 WHERE seq = 9")
    done = copied.call("show", "s", "--json", code=3)
    assert [row["seq"] for row in done.json_lines] == list(range(1, 9))
    assert "seq 9" in done.complaint


def test_a_newer_schema_is_refused(copied: Shell) -> None:
    _tampered(copied, "PRAGMA user_version = 99")
    _refused_everywhere(copied, "has schema 99", *READING, *WRITING)


def test_a_foreign_file_is_refused_and_left_as_it_is(shell: Shell) -> None:
    shell.db.write_bytes(b"dear diary, " * 100)
    _refused_everywhere(shell, "is not a SQLite database", *READING, *WRITING)


def test_a_log_that_is_gone_but_witnessed_is_refused(copied: Shell) -> None:
    copied.db.unlink()
    assert "the file is gone" in copied.call("run", "x", code=3).complaint


def test_a_damaged_file_is_refused_by_verify_without_a_traceback(copied: Shell) -> None:
    whole = copied.db.read_bytes()
    copied.db.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    assert copied.call("verify", code=3).out.startswith("✗ ")


def test_a_file_that_is_refused_is_named_once(copied: Shell) -> None:
    whole = copied.db.read_bytes()
    for wrong in (whole[:4096] + b"\xff" * (len(whole) - 4096), b"dear diary, " * 100):
        copied.db.write_bytes(wrong)
        done = copied.call("verify", code=3)
        first = done.out.splitlines()[0]
        assert (first.count(str(copied.db)), done.complaint.count(str(copied.db))) == (1, 1)
        assert "session '*'" not in done.out + done.err
        copied.db.with_name("agent.db-head").unlink(missing_ok=True)
        copied.db.with_name("agent.db-wal").unlink(missing_ok=True)


async def test_a_session_that_another_process_drives_is_busy(shell: Shell) -> None:
    async with flightlog.open_kernel(shell.db) as kernel, kernel.session("s"):
        done = await trio.to_thread.run_sync(lambda: shell.run("run", "x", "--session", "s", code=1))
        assert "session 's' is driven by process" in done.complaint
        assert (await trio.to_thread.run_sync(lambda: shell.run("sessions", "--json"))).json[0]["session"] == "s"
        await trio.to_thread.run_sync(lambda: shell.run("verify"))


def test_a_bug_is_one_line_too_unless_the_traceback_is_asked_for(shell: Shell) -> None:
    planted = "import flightlog.cli.app as app, sys; app.flightlog.main = lambda *a, **k: 1 / 0; sys.exit(app.run([]))"
    assert shell.python("-c", planted, code=1).complaint == "flightlog: ZeroDivisionError: division by zero"
    asking = Shell(shell.folder, {"FLIGHTLOG_TRACEBACK": "1"})
    with pytest.raises(AssertionError, match="Traceback"):
        asking.python("-c", planted, code=1)
