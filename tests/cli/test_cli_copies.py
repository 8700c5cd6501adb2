"""`backup` and `fork`: copies of a file, and of a conversation."""

from __future__ import annotations

from pathlib import Path

from flightlog_process import Shell


def test_a_backup_is_listed_and_verified_like_its_source(counted: Shell, tmp_path: Path) -> None:
    shell, before = Shell(tmp_path), counted.files()
    said = shell.call("backup", str(shell.db), "--db", str(counted.db), "--json").json
    assert said == {"file": str(shell.db), "sessions": 1, "bytes": shell.db.stat().st_size}
    assert counted.files() == before
    assert shell.call("verify", "--json").json["ok"]
    assert shell.kinds("c") == counted.kinds("c")
    assert "exists already" in shell.call("backup", str(shell.db), "--db", str(counted.db), code=2).complaint
    assert "1 session copied" in shell.call("backup", str(tmp_path / "b.db"), "--db", str(counted.db)).out


def test_a_fork_can_be_resumed_and_its_origin_is_as_it_was(counted: Shell, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.call("backup", str(shell.db), "--db", str(counted.db))
    said = shell.call("fork", "c", "1", "d", "--title", "again", "--json").json
    assert said == {"session": "d", "origin": "c", "turn": 1, "events": len(shell.kinds("d"))}
    shell.call("resume", "d", "go on", "--model", "scripted:echo")
    assert shell.kinds("d").count("turn/end") == 2
    assert shell.kinds("c") == counted.kinds("c")
    assert shell.call("verify", "--json").json["ok"]


def test_what_cannot_be_forked_is_wrong_usage(counted: Shell, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.call("backup", str(shell.db), "--db", str(counted.db))
    assert "has 1 completed turns" in shell.call("fork", "c", "2", "d", code=2).complaint
    assert "there is no session" in shell.call("fork", "x", "1", "d", code=2).complaint
    assert "already" in shell.call("fork", "c", "1", "c", code=2).complaint
    assert "TURN" in shell.call("fork", "c", "0", "d", code=2).complaint
    assert "forked from c" in shell.call("fork", "c", "1", "d").out
