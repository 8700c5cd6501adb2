"""`export` and `import`: from one file into another, through a file or a pipe."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from flightlog_process import Shell


def test_a_session_travels_through_a_file(counted: Shell, tmp_path: Path) -> None:
    shell, target = Shell(tmp_path), tmp_path / "c.jsonl"
    said = shell.call("export", "c", str(target), "--db", str(counted.db), "--json").json
    assert said == {
        "session": "c",
        "file": str(target),
        "events": len(counted.kinds("c")),
        "head": json.loads(target.read_text().splitlines()[-1])["head"],
    }
    assert shell.call("import", str(target), "--json").json == {"session": "c", "events": said["events"]}
    assert shell.kinds("c") == counted.kinds("c")
    assert shell.call("verify", "--json").json["ok"]


def test_a_session_travels_through_a_pipe(counted: Shell, tmp_path: Path) -> None:
    before = counted.files()
    command = f"{shlex.quote(sys.executable)} -m flightlog.cli"
    line = f"{command} export c --db {shlex.quote(str(counted.db))} | {command} import - --json"
    done = Shell(tmp_path).python("-c", f"import subprocess, sys; sys.exit(subprocess.call({line!r}, shell=True))")
    assert done.json == {"session": "c", "events": len(counted.kinds("c"))}
    assert counted.files() == before


def test_what_was_written_is_said_to_people(counted: Shell, tmp_path: Path) -> None:
    shell, target = Shell(tmp_path), tmp_path / "c.jsonl"
    assert f"written to {target}" in shell.call("export", "c", str(target), "--db", str(counted.db)).out
    assert "taken in" in shell.call("import", str(target)).out


def test_refusals_have_the_exit_codes_of_the_other_commands(counted: Shell, tmp_path: Path) -> None:
    shell, target = Shell(tmp_path), tmp_path / "c.jsonl"
    shell.call("export", "c", str(target), "--db", str(counted.db))
    assert "exists already" in shell.call("export", "c", str(target), "--db", str(counted.db), code=2).complaint
    assert "there is no session" in shell.call("export", "x", "--db", str(counted.db), code=2).complaint
    assert "--json" in shell.call("export", "c", "--json", "--db", str(counted.db), code=2).complaint
    assert "No such file" in shell.call("import", "missing.jsonl", code=2).complaint
    shell.call("import", str(target))
    assert "already" in shell.call("import", str(target), code=2).complaint
    lines = target.read_bytes().splitlines(keepends=True)
    target.write_bytes(b"".join(lines[:-1]))
    complaint = shell.call("import", str(target), code=3).complaint
    assert f"line {len(lines)}: " in complaint
    assert "Nothing was imported" in complaint
