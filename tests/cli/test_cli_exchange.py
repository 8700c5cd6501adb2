"""`export` and `import`: from one file into another, through a file or a pipe."""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOENT, errno.EPERM, errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("command", [("backup",), ("export", "c")], ids=" ".join)
def test_a_destination_that_cannot_be_written_is_no_fault_of_the_log(
    counted: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...], number: int
) -> None:
    def refuse(**_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    said = counted.call(*command, str(tmp_path / "copy"), code=1).complaint
    assert said.startswith(f"flightlog: {tmp_path / 'copy'}: ")
    assert os.strerror(number) in said
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "command", [("backup", "/proc/x"), ("export", "c", "/proc/x"), ("run", "hi", "--db", "/proc/x")]
)
def test_what_cannot_be_created_is_named(counted: Shell, command: tuple[str, ...]) -> None:
    assert counted.call(*command, code=1).complaint.startswith("flightlog: /proc/x: cannot be created")


def test_an_import_into_a_log_that_cannot_be_created_names_that(counted: Shell, tmp_path: Path) -> None:
    counted.call("export", "c", str(tmp_path / "c.jsonl"))
    said = counted.call("import", str(tmp_path / "c.jsonl"), "--db", "/proc/x", code=1).complaint
    assert said.startswith("flightlog: /proc/x: cannot be created")


def test_a_dash_stands_for_stdout_as_it_does_for_stdin(counted: Shell, tmp_path: Path) -> None:
    before = sorted(counted.folder.iterdir())
    assert counted.run("export", "c", "-").out == counted.run("export", "c").out
    assert sorted(counted.folder.iterdir()) == before
    assert "stdout is the export" in counted.call("export", "c", "-", "--json", code=2).complaint


@pytest.mark.parametrize("way", ["file", "stdin"])
@pytest.mark.parametrize("keep", [0, 1, -1], ids=["empty", "one line", "cut off"])
def test_a_refused_import_makes_no_log(counted: Shell, tmp_path: Path, way: str, keep: int) -> None:
    shell, export = Shell(tmp_path), tmp_path / "c.jsonl"
    lines = counted.run("export", "c").out.splitlines(keepends=True)
    export.write_text("".join(lines[:keep]))
    words = [sys.executable, "-m", "flightlog", "import", "-" if way == "stdin" else str(export)]
    program = f"import subprocess, sys; sys.exit(subprocess.run({words!r}, stdin=open({str(export)!r})).returncode)"
    assert "Nothing was imported" in shell.python("-W", "ignore", "-c", program, code=3).complaint
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]


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
